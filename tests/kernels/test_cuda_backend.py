"""CUDA backends on emulated GPUs, which run work as late as CUDA allows."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from cuda_grid import GridCompiler, GridDriver, needs_compiler

from lamella.alloc import HostBufferType, Usage, alloc_tensors, tensor_get, tensor_set
from lamella.base.errors import BackendError, OutOfMemoryError
from lamella.graph import GGMLType, Graph, Op, Tensor, ops
from lamella.graph.op import ScaleParams
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.cuda import backend as backend_module
from lamella.kernels.cuda.backend import CudaBackend
from lamella.kernels.cuda.device import CudaDevice
from lamella.kernels.cuda.registry import open_cuda
from lamella.kernels.cuda.table import OPS, CudaCall, CudaKernel, CudaSource
from lamella.kernels.plan.op_table import Implementation
from lamella.sched import Scheduler

F32 = npt.NDArray[np.float32]
TOY = CudaKernel(CudaSource(str(Path(__file__).with_name("toy_scale.cu"))), "toy_scale")
N = 100

pytestmark = needs_compiler


def toy_calls(node: Tensor) -> list[CudaCall]:
    assert isinstance(node.params, ScaleParams)
    return [CudaCall(TOY, (1, 1, 1), 32, (node.params.scale,), scratch=int(node.params.bias))]


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """SCALE runs the toy kernel; its bias is the size of its scratch memory."""
    monkeypatch.setitem(OPS.entries, Op.SCALE, Implementation(lambda node: True, toy_calls))


@pytest.fixture
def driver() -> GridDriver:
    return GridDriver(n_gpus=2, memory=2**20)


@pytest.fixture
def backends(driver: GridDriver) -> Iterator[list[CudaBackend]]:
    """Two backends of the first device, one of the second."""
    first, second = open_cuda(lambda: driver, GridCompiler).devices()
    opened = [first.init_backend(), first.init_backend(), second.init_backend()]
    yield opened
    for backend in opened:
        backend.free()
        backend.free()
    devices = {b.device for b in opened}
    opened.clear()
    for device in devices:
        device.library.close()
    gc.collect()
    for gpu in driver.grid_gpus:
        assert not any(gpu.live[kind] for kind in ("streams", "graphs", "modules")), gpu.live


def place(device: CudaDevice, *tensors: Tensor) -> None:
    alloc_tensors([t for t in tensors if t.buffer is None], device.buffer_type)


def leaf(device: CudaDevice, value: float = 1.0) -> Tensor:
    t = Tensor(GGMLType.F32, (N,), name="x")
    place(device, t)
    tensor_set(t, np.full(N, value, np.float32))
    return t


def scaled(backend: CudaBackend, x: Tensor, scale: float, scratch: int = 0) -> tuple[Tensor, Graph]:
    y = ops.scale(x, scale, scratch).named("y")
    place(backend.device, y)
    return y, Graph(y)


def values(t: Tensor) -> F32:
    return tensor_get(t).view(np.float32)


# --- plans ---


def test_a_plan_is_captured_once_and_replayed(
    backends: list[CudaBackend], driver: GridDriver
) -> None:
    a, gpu = backends[0], driver.grid_gpus[0]
    x = leaf(a.device, 3)
    y, graph = scaled(a, x, 2)
    plan = a.graph_plan_create(graph)
    assert gpu.n_launches == 0 and gpu.live["graphs"] == 1
    a.graph_plan_compute(plan)
    assert gpu.n_launches == 0  # not synchronized yet
    a.synchronize()
    assert gpu.n_launches == 1 and (values(y) == 6).all()
    tensor_set(x, np.full(N, 5, np.float32))
    a.graph_plan_compute(plan)
    a.synchronize()
    assert (values(y) == 10).all() and gpu.live["graphs"] == 1
    del plan
    gc.collect()
    assert gpu.live["graphs"] == 0


def test_without_a_plan_all_is_done_on_return(backends: list[CudaBackend]) -> None:
    a = backends[0]
    y, graph = scaled(a, leaf(a.device, 3), 2)
    a.graph_compute(graph)
    assert (values(y) == 6).all()


def test_plans_share_memory_that_grows(backends: list[CudaBackend]) -> None:
    a = backends[0]
    x = leaf(a.device)
    before = a.device.buffer_type.used
    plans, results = [], []
    for i, scratch in enumerate((1000, 300, 5000, 0)):
        y, graph = scaled(a, x, i + 2.0, scratch)
        results.append(y)
        plans.append(a.graph_plan_create(graph))
    tensors = 512 * len(results)
    assert a.device.buffer_type.used - before - tensors == 1024 + 5120
    for plan in plans:
        a.graph_plan_compute(plan)
    a.synchronize()
    assert [values(y)[0] for y in results] == [2, 3, 4, 5]
    del plans, plan
    gc.collect()
    assert a.device.buffer_type.used - before - tensors == 5120


def test_a_tensor_of_another_device_is_refused(backends: list[CudaBackend]) -> None:
    a, other = backends[0], backends[2]
    y = ops.scale(leaf(other.device), 2).named("y")
    place(a.device, y)
    with pytest.raises(BackendError, match=r"CUDA0 cannot run SCALE .* in CUDA1"):
        a.graph_plan_create(Graph(y))
    z, graph = scaled(a, leaf(a.device), 2)
    a.graph_compute(graph)  # the stream does not still capture
    assert (values(z) == 2).all()


def test_a_bad_index_is_an_error_once_and_the_device_goes_on(backends: list[CudaBackend]) -> None:
    a = backends[0]
    bad, good = leaf(a.device, 666), leaf(a.device, 3)
    _, graph = scaled(a, bad, 2)
    z, other = scaled(a, good, 2)
    plans = [a.graph_plan_create(graph), a.graph_plan_create(other)]
    for plan in plans:
        a.graph_plan_compute(plan)
    with pytest.raises(BackendError, match=r"scale y\[100\] F32: index 666 .* below 42"):
        a.synchronize()
    a.synchronize()
    a.graph_plan_compute(plans[1])
    a.synchronize()
    assert (values(z) == 6).all()
    a.graph_plan_compute(plans[0])
    with pytest.raises(BackendError, match="666"):
        a.synchronize()
    with pytest.raises(BackendError, match="666"):
        a.graph_compute(graph)


# --- copies ---


def test_plans_and_writes_are_in_the_order_of_the_stream(backends: list[CudaBackend]) -> None:
    a = backends[0]
    x = leaf(a.device, 0)
    y, graph = scaled(a, x, 2)
    plan = a.graph_plan_create(graph)
    data, more = np.full(N, 4, np.float32), np.full(2, 36, np.float32)
    a.set_tensor_async(x, data)
    a.graph_plan_compute(plan)
    a.set_tensor_async(x, more, offset=8)
    a.synchronize()
    assert (values(y) == 8).all()
    assert list(values(x)[:5]) == [4, 4, 36, 36, 4]


@pytest.mark.parametrize("target", [1, 2], ids=["same device", "other device"])
def test_a_copy_waits_for_both_backends(backends: list[CudaBackend], target: int) -> None:
    a, b = backends[0], backends[target]
    x, dst = leaf(a.device, 3), leaf(b.device, 7)
    y, first = scaled(a, x, 2)
    z, reads_old = scaled(b, dst, 10)
    w, reads_new = scaled(b, dst, 100)
    _, overwrites = scaled(a, leaf(a.device, 9), 1)
    overwrites.nodes[0].buffer, overwrites.nodes[0].offset = y.buffer, y.offset
    b.graph_plan_compute(b.graph_plan_create(reads_old))
    a.graph_plan_compute(a.graph_plan_create(first))
    assert b.cpy_tensor_async(a, y, dst)
    b.graph_plan_compute(b.graph_plan_create(reads_new))
    a.graph_plan_compute(a.graph_plan_create(overwrites))
    a.synchronize()
    b.synchronize()
    assert (values(z) == 70).all() and (values(w) == 600).all()


def test_a_copy_from_host_memory_is_in_order(backends: list[CudaBackend]) -> None:
    a = backends[0]
    cpu = CpuDevice(1).init_backend()
    src, dst = Tensor(GGMLType.F32, (N,)), leaf(a.device, 1)
    alloc_tensors([src], HostBufferType())
    tensor_set(src, np.full(N, 5, np.float32))
    y, graph = scaled(a, dst, 2)
    z, later = scaled(a, dst, 3)
    a.graph_plan_compute(a.graph_plan_create(graph))
    assert a.cpy_tensor_async(cpu, src, dst)
    a.graph_plan_compute(a.graph_plan_create(later))
    a.synchronize()
    assert (values(y) == 2).all() and (values(z) == 15).all()


@pytest.mark.parametrize("pinned", [False, True])
def test_an_input_may_be_written_again_at_once(
    backends: list[CudaBackend], monkeypatch: pytest.MonkeyPatch, pinned: bool
) -> None:
    monkeypatch.setattr(backend_module, "STAGED_BYTES", 1500)  # three of them at once
    a = backends[0]
    src = Tensor(GGMLType.F32, (N,))
    alloc_tensors([src], a.device.host_buffer_type if pinned else HostBufferType())
    targets = [leaf(a.device, 1) for _ in range(7)]
    for i, dst in enumerate(targets):
        tensor_set(src, np.full(N, i, np.float32))
        assert a.set_input_async(src, dst)
    tensor_set(src, np.full(N, 99, np.float32))
    a.synchronize()
    assert [values(t)[0] for t in targets] == list(range(7))
    monkeypatch.setattr(backend_module, "STAGED_BYTES", 300)
    assert not a.set_input_async(src, targets[0])


def test_copies_of_nothing_do_nothing(backends: list[CudaBackend]) -> None:
    a, cpu = backends[0], CpuDevice(1).init_backend()
    src, dst = Tensor(GGMLType.F32, (0,)), Tensor(GGMLType.F32, (0,))
    alloc_tensors([src], HostBufferType())
    alloc_tensors([dst], a.device.buffer_type)
    none = np.empty(0, np.uint8)
    a.set_tensor_async(dst, none)
    a.copy_ahead_async(src, dst)
    assert a.set_input_async(src, dst) and a.cpy_tensor_async(cpu, src, dst)


def test_a_plan_s_memory_lives_until_it_has_run(backends: list[CudaBackend]) -> None:
    a = backends[0]
    x = leaf(a.device, 3)
    y, graph = scaled(a, x, 2, 1000)
    z, larger = scaled(a, x, 3, 5000)
    plan = a.graph_plan_create(graph)
    a.graph_plan_compute(plan)
    del plan
    a.graph_plan_compute(a.graph_plan_create(larger))
    gc.collect()
    a.synchronize()
    assert (values(y) == 6).all() and (values(z) == 9).all()


def test_out_of_memory_frees_a_half_opened_backend(
    driver: GridDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(size: int) -> int:
        raise OutOfMemoryError("pinned memory", size, 0)

    device, gpu = open_cuda(lambda: driver, GridCompiler).devices()[0], driver.grid_gpus[0]
    monkeypatch.setattr(gpu, "alloc_host", full)
    with pytest.raises(OutOfMemoryError):
        device.init_backend()
    assert gpu.live["streams"] == 0


@pytest.mark.parametrize(
    ("what", "call", "n_before"),
    [
        *(("backend", "stream_new", n) for n in (0, 1)),
        *(("backend", "event_new", n) for n in (0, 1)),
        ("bandwidth", "stream_new", 0),
        *(("bandwidth", "event_new", n) for n in (0, 1)),
    ],
)
def test_a_gpu_without_room_keeps_no_streams_and_events(
    driver: GridDriver, monkeypatch: pytest.MonkeyPatch, what: str, call: str, n_before: int
) -> None:
    device, gpu = open_cuda(lambda: driver, GridCompiler).devices()[0], driver.grid_gpus[0]
    before, made, make = gpu.live, list[int](), getattr(gpu, call)

    def full(**options: bool) -> int:
        if len(made) == n_before:
            raise BackendError("CUDA: out of memory")
        made.append(make(**options))
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(gpu, call, full)
        with pytest.raises(BackendError):
            device.init_backend() if what == "backend" else device.bandwidth(1)
    gc.collect()
    assert gpu.live == before


def test_weights_copied_ahead_run_beside_the_work_and_are_waited_for(
    backends: list[CudaBackend], driver: GridDriver
) -> None:
    a = backends[0]
    weight, dst, x = Tensor(GGMLType.F32, (N,)), leaf(a.device, 1), leaf(a.device, 3)
    alloc_tensors([weight], a.device.host_buffer_type, Usage.WEIGHTS)
    tensor_set(weight, np.full(N, 5, np.float32))
    before, reads_old = scaled(a, dst, 2)
    during, other = scaled(a, x, 2)
    after, reads_new = scaled(a, dst, 2)
    plans = [a.graph_plan_create(g) for g in (reads_old, other, reads_new)]
    a.graph_plan_compute(plans[0])
    a.copy_ahead_async(weight, dst)
    a.graph_plan_compute(plans[1])
    a.wait_copies_ahead()
    a.graph_plan_compute(plans[2])
    a.synchronize()
    assert [values(t)[0] for t in (before, during, after)] == [2, 6, 10]


# --- events ---


def test_events_order_streams_and_the_host(backends: list[CudaBackend]) -> None:
    a, b = backends[0], backends[2]
    x = leaf(a.device, 3)
    y, graph = scaled(a, x, 2)
    event = a.device.event_new()
    event.synchronize()  # never recorded
    a.graph_plan_compute(plan := a.graph_plan_create(graph))
    a.event_record(event)
    event.synchronize()
    assert (values(y) == 6).all()
    tensor_set(x, np.full(N, 4, np.float32))
    a.graph_plan_compute(plan)
    a.event_record(event)
    b.event_wait(event)
    b.synchronize()  # so the work of `a` is done too
    assert (values(y) == 8).all()


# --- with a scheduler ---


def test_a_graph_split_between_gpus_and_cpu(backends: list[CudaBackend]) -> None:
    a, b = backends[0], backends[2]
    cpu = CpuDevice(1).init_backend()
    scheduler = Scheduler([a, b, cpu])
    x = Tensor(GGMLType.F32, (N,), name="x").set_input()
    first = ops.scale(x, 2)
    second = ops.scale(first, 3)
    third = ops.sqr(second)  # on the CPU
    last = ops.scale(third, 0.5).set_output()
    for node, backend in ((first, a), (second, b), (third, cpu), (last, a)):
        scheduler.set_tensor_backend(node, backend)
    graph = scheduler.alloc_graph(Graph(last))
    assert [s.backend for s in graph.splits] == [a, b, cpu, a]
    for value in (1.0, 2.0, 5.0):
        tensor_set(x, np.full(N, value, np.float32))
        scheduler.graph_compute(graph)
        assert (values(last) == (value * 6) ** 2 / 2).all()
    scheduler.free()
    cpu.free()
