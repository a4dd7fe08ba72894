"""The CPU as a device: its properties and memory, and graphs computed by its backends."""

from __future__ import annotations

import mmap
import os
import platform
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from lamella.alloc import alloc_tensors, tensor_get, tensor_set
from lamella.alloc.buffer import Buffer, BufferType
from lamella.alloc.host import untouched_bytes
from lamella.base.errors import BackendError, ClosedError, OutOfMemoryError, TensorAccessError
from lamella.base.settings import NO_JIT
from lamella.graph import GGMLType, Graph, Tensor, ops
from lamella.kernels import host
from lamella.kernels.cpu import CpuBackend, CpuDevice, device, plan
from lamella.kernels.cpu.compiler.jit import Kernel, load_all
from lamella.kernels.host import default_threads
from lamella.kernels.reference.compute import ReferenceCompute
from lamella.kernels.sim.device import SimDevice
from lamella.sched.backend import CompileProgress, DeviceType

each_kind = pytest.mark.parametrize("no_jit", [0, 1], ids=["compiled", "NumPy"])


@pytest.fixture
def backend() -> Iterator[CpuBackend]:
    backend = CpuDevice(n_threads=2).init_backend()
    yield backend
    backend.free()


class Sum:
    """A graph: two rows of `table`, selected by `ids`, plus 1."""

    def __init__(self, buft: BufferType) -> None:
        self.table = Tensor(GGMLType.F32, (4, 3), name="table").set_input()
        self.ids = Tensor(GGMLType.I32, (2,), name="ids").set_input()
        self.rows = ops.get_rows(self.table, self.ids)
        self.out = ops.scale(self.rows, 1.0, bias=1.0)
        self.graph = Graph(self.out)
        self.buffers = alloc_tensors([self.table, self.ids, *self.graph.nodes], buft)
        tensor_set(self.table, np.arange(12, dtype=np.float32))
        self.choose(2, 0)

    def choose(self, *ids: int) -> None:
        tensor_set(self.ids, np.array(ids, np.int32))

    def result(self) -> list[float]:
        return [float(v) for v in tensor_get(self.out).view(np.float32)]


CHOSEN = [9, 10, 11, 12, 1, 2, 3, 4]


# --- properties ---


def test_the_device() -> None:
    cpu = CpuDevice(n_threads=3)
    assert (cpu.name, cpu.type, cpu.n_threads) == ("CPU", DeviceType.CPU, 3)
    assert cpu.description == f"{device.processor_name()}, 3 threads"
    assert not cpu.caps.async_
    assert cpu.event_new() is None


def test_the_processor_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    name = device.processor_name()
    assert name == name.strip() != ""
    if Path("/proc/cpuinfo").exists() and platform.machine() == "x86_64":
        assert f": {name}\n" in Path("/proc/cpuinfo").read_text()
    monkeypatch.setattr(Path, "read_text", lambda self: "processor\t: 0\nBogoMIPS\t: 48.00\n")
    assert device.processor_name() == (platform.processor() or platform.machine())


def test_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    free, total = CpuDevice(1).memory()
    assert 0 < free <= total
    assert total % 1024 == 0

    def read_text(path: Path) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", read_text)  # as on a system without /proc
    free_there, total_there = CpuDevice(1).memory()
    assert 0 < free_there <= total_there
    assert abs(total_there - total) < 0.05 * total


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="other systems do not report it")
@pytest.mark.parametrize("kind", ["plain", "packed"])
def test_allocated_memory_is_not_free_before_it_is_written(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu, size = CpuDevice(1), 40 << 20
    buft = cpu.buffer_type if kind == "plain" else cpu.extra_buffer_types[0]
    available = untouched_bytes() + size * 3 // 2
    monkeypatch.setattr(host, "host_memory", lambda: (available, 1 << 40))
    first = buft.alloc_buffer(size)
    assert cpu.memory()[0] == pytest.approx(size // 2, abs=1 << 20)
    with pytest.raises(OutOfMemoryError, match=f"cannot allocate {size} bytes"):
        buft.alloc_buffer(size)
    first.free()
    buft.alloc_buffer(size).free()


def test_the_default_is_a_thread_for_each_usable_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CpuDevice().n_threads == default_threads() == len(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 5, 7})
    assert CpuDevice().n_threads == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert CpuDevice().n_threads == 1


def test_memory_it_can_use() -> None:
    cpu, gpu = CpuDevice(1), SimDevice("SIM0")
    assert cpu.buffer_type.is_host
    assert cpu.supports_buft(cpu.buffer_type)
    assert gpu.host_buffer_type is not None
    assert cpu.supports_buft(gpu.host_buffer_type)
    assert not cpu.supports_buft(gpu.buffer_type)


@each_kind
def test_ops_it_supports(no_jit: int) -> None:
    x = Tensor(GGMLType.F32, (4, 4))
    with NO_JIT.set(no_jit):
        cpu = CpuDevice(1)
        supports = cpu.init_backend().supports_op
        assert all(map(supports, (x, ops.transpose(x), ops.sqr(x), ops.mul_mat(x, x))))


# --- computing ---


@each_kind
def test_a_graph(no_jit: int) -> None:
    with NO_JIT.set(no_jit):
        backend = CpuDevice(n_threads=2).init_backend()
        case = Sum(backend.device.buffer_type)
        backend.graph_compute(case.graph)
        assert case.result() == CHOSEN
        # a plan reads and writes the same memory each time
        run = backend.graph_plan_create(case.graph)
        for ids, expected in (((0, 2), CHOSEN[4:] + CHOSEN[:4]), ((2, 0), CHOSEN)):
            case.choose(*ids)
            backend.graph_plan_compute(run)
            assert case.result() == expected
        backend.free()
        backend.free()


@each_kind
def test_a_graph_that_fails_can_run_again(no_jit: int) -> None:
    with NO_JIT.set(no_jit):
        backend = CpuDevice(n_threads=2).init_backend()
        case = Sum(backend.device.buffer_type)
        run = backend.graph_plan_create(case.graph)
        for bad in ((3, 0), (0, -1), (2**31 - 1, -(2**31))):
            case.choose(*bad)
            with pytest.raises(BackendError, match=r"get_rows .* must be at least 0 and below 3"):
                backend.graph_plan_compute(run)
            case.choose(2, 0)
            backend.graph_plan_compute(run)
            assert case.result() == CHOSEN
        backend.free()


def test_without_jit_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(plan, "load_all")
    with NO_JIT.set(1):
        cpu = CpuDevice(2)
        assert isinstance(cpu.new_compute(), ReferenceCompute)
        case = Sum(cpu.buffer_type)
        cpu.init_backend().graph_compute(case.graph)
    assert case.result() == CHOSEN


def test_progress_reports_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def loading(kernels: Iterable[Kernel], progress: CompileProgress | None) -> None:
        calls.append(progress)
        load_all(kernels)

    def progress(done: int, total: int, name: str, seconds: float) -> None:
        pass

    monkeypatch.setattr(plan, "load_all", loading)
    backend = CpuDevice(1, progress).init_backend()
    backend.graph_compute(Sum(backend.device.buffer_type).graph)
    backend.free()
    assert calls == [progress]


def test_backends_of_one_device_work_at_the_same_time() -> None:
    cpu = CpuDevice(n_threads=2)
    results: list[list[float]] = []

    def work() -> None:
        backend, case = cpu.init_backend(), Sum(cpu.buffer_type)
        run = backend.graph_plan_create(case.graph)
        for _ in range(200):
            backend.graph_plan_compute(run)
        results.append(case.result())
        backend.free()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == [CHOSEN] * 3


# --- errors ---


def test_a_plan_after_its_backend_was_freed(backend: CpuBackend) -> None:
    case = Sum(backend.device.buffer_type)
    run = backend.graph_plan_create(case.graph)
    backend.free()
    with pytest.raises(ClosedError, match="backend was freed"):
        backend.graph_plan_compute(run)


def test_memory_of_another_device(backend: CpuBackend) -> None:
    case = Sum(SimDevice("SIM0").buffer_type)
    with pytest.raises(BackendError, match=r"CPU cannot run GET_ROWS .* cannot use .* in SIM0"):
        backend.graph_compute(case.graph)


@each_kind
def test_memory_that_was_freed(no_jit: int) -> None:
    with NO_JIT.set(no_jit):
        backend = CpuDevice(n_threads=1).init_backend()
        case = Sum(backend.device.buffer_type)
        buffer: Buffer = case.table.buffer
        buffer.free()
        with pytest.raises(TensorAccessError, match="of 0 bytes"):
            backend.graph_compute(case.graph)
        backend.free()


def test_tensors_without_memory(backend: CpuBackend) -> None:
    out = ops.sqr(Tensor(GGMLType.F32, (4,)))
    with pytest.raises(TensorAccessError, match="not allocated"):
        backend.graph_compute(Graph(out))
