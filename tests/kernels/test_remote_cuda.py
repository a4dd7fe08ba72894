"""GPUs of other processes: emulated ones, which run work as late as CUDA allows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cuda_grid import GridCompiler, GridDriver, needs_compiler
from remote_workers import Workers, workers

from lamella.alloc import GraphAllocator, alloc_tensors, tensor_get, tensor_set
from lamella.base.errors import BackendError, OutOfMemoryError
from lamella.graph import GGMLType, Graph, Op, Tensor, ops
from lamella.graph.op import ScaleParams
from lamella.kernels.cuda.registry import open_cuda
from lamella.kernels.cuda.table import OPS, CudaCall, CudaKernel, CudaSource
from lamella.kernels.plan.op_table import Implementation
from lamella.kernels.remote.backend import RemoteBackend
from lamella.sched import DeviceType

TOY = CudaKernel(CudaSource(str(Path(__file__).with_name("toy_scale.cu"))), "toy_scale")
MEMORY = 1 << 20
N = 100

pytestmark = needs_compiler


def toy_calls(node: Tensor) -> list[CudaCall]:
    assert isinstance(node.params, ScaleParams)
    return [CudaCall(TOY, (1, 1, 1), 32, (node.params.scale,))]


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setitem(OPS.entries, Op.SCALE, Implementation(lambda node: True, toy_calls))
    with workers() as found:
        yield found


@pytest.fixture
def backends(lent: Workers) -> Iterator[list[RemoteBackend]]:
    """A backend for each of two GPUs, on workers of their own."""
    driver = GridDriver(n_gpus=2, memory=MEMORY)
    devices = open_cuda(lambda: driver, GridCompiler).devices()
    found = [lent.lend(device).init_backend() for device in devices]
    yield found
    for backend in found:
        backend.free()


def scaled(backend: RemoteBackend, scale: float) -> tuple[Tensor, Tensor, GraphAllocator, object]:
    """An input, its product with a number, their memory, and the plan."""
    x = Tensor(GGMLType.F32, (N,), name="x").set_input()
    y = ops.scale(x, scale).set_output()
    graph, memory = Graph(y), GraphAllocator([backend.device.buffer_type])
    memory.alloc_graph(graph)
    return x, y, memory, backend.graph_plan_create(graph)


def values(tensor: Tensor) -> list[float]:
    return [float(v) for v in tensor_get(tensor).view(np.float32)]


def test_it_is_a_gpu_with_its_memory(backends: list[RemoteBackend]) -> None:
    device = backends[0].device
    assert device.name == "ray:node1/CUDA0"
    assert device.type is DeviceType.GPU
    assert device.kernels_by_size
    assert device.memory()[1] == MEMORY
    with pytest.raises(OutOfMemoryError, match="ray:node1/CUDA0"):
        device.buffer_type.alloc_buffer(2 * MEMORY)


def test_steps_run_in_order_over_two_machines(backends: list[RemoteBackend]) -> None:
    first, second = backends
    a, b, _first_memory, twice = scaled(first, 2.0)
    c, d, _second_memory, threefold = scaled(second, 3.0)
    for n in range(4):
        source = np.full(N, n, np.float32)
        first.set_tensor_async(a, source)
        first.graph_plan_compute(twice)  # type: ignore[arg-type]
        assert second.cpy_tensor_async(first, b, c)
        second.graph_plan_compute(threefold)  # type: ignore[arg-type]
        for backend in backends:
            backend.begin_synchronize()
        for backend in backends:
            backend.synchronize()
        assert values(d) == [6.0 * n] * N


def test_results_come_with_the_end_of_the_work(
    backends: list[RemoteBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = backends[0]
    x, y, _memory, plan = scaled(backend, 2.0)
    tensor_set(x, np.full(N, 5, np.float32))
    backend.graph_plan_compute(plan)  # type: ignore[arg-type]
    backend.synchronize()
    monkeypatch.setattr(backend.control, "_ask", None)  # no further request
    assert values(y) == [10.0] * N


def test_memory_of_another_machine_is_refused(backends: list[RemoteBackend]) -> None:
    x = Tensor(GGMLType.F32, (N,), name="x")
    alloc_tensors([x], backends[1].device.buffer_type)
    y = ops.scale(x, 2.0)
    alloc_tensors([y], backends[0].device.buffer_type)
    with pytest.raises(BackendError, match="cannot use x"):
        backends[0].graph_plan_create(Graph(y))
