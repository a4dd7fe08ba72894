"""Results in pinned memory: which ones, and that reads are never older than the device's memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from cuda_grid import GridCompiler, GridDriver, needs_compiler

from lamella.alloc import HostBufferType, alloc_tensors, tensor_get, tensor_set
from lamella.alloc.buffer import buffer_of, tensor_copy, tensor_read
from lamella.base.errors import BackendError, TensorAccessError
from lamella.base.settings import CUDA_READS_RESULTS, NO_MERGE
from lamella.graph import GGMLType, Graph, Tensor, ops
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.cuda.backend import CapturedPlan, CudaBackend
from lamella.kernels.cuda.memory import CudaBuffer
from lamella.kernels.cuda.registry import open_cuda
from lamella.kernels.cuda.results import FEW, RESULT_BYTES, results_of
from lamella.sched import Scheduler

F32 = GGMLType.F32
N = 40

pytestmark = needs_compiler


@pytest.fixture
def driver() -> GridDriver:
    return GridDriver(memory=2**23)


@pytest.fixture
def backend(driver: GridDriver) -> Iterator[CudaBackend]:
    backend = open_cuda(lambda: driver, GridCompiler).devices()[0].init_backend()
    yield backend
    backend.free()
    backend.device.library.close()


class Doubled:
    """y = x + x and its row sums, as a captured plan."""

    def __init__(self, backend: CudaBackend) -> None:
        self.backend = backend
        self.x = Tensor(F32, (N, 3))
        self.y = ops.add(self.x, self.x).set_output()
        self.sums = ops.sum_rows(self.y).set_output()
        self.graph = Graph(self.y, self.sums)
        alloc_tensors([self.x, self.y, self.sums], backend.device.buffer_type)
        self.plan: CapturedPlan = backend.graph_plan_create(self.graph)

    def run(self, value: float) -> None:
        tensor_set(self.x, np.full((3, N), value, np.float32))
        self.backend.graph_plan_compute(self.plan)
        self.backend.synchronize()

    @property
    def values(self) -> list[float]:
        """The values of y, which are equal, and those of the sums."""
        y, sums = (set(tensor_get(t).view(np.float32).tolist()) for t in (self.y, self.sums))
        return [*y, *sums]


def count_reads(driver: GridDriver, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the device's copies to the host."""
    gpu, found = driver.grid_gpus[0], list[int]()
    read = gpu.read

    def counted(out: npt.NDArray[np.uint8], source: int) -> None:
        found.append(out.nbytes)
        read(out, source)

    monkeypatch.setattr(gpu, "read", counted)
    return found


def test_reading_results_takes_no_copies(
    backend: CudaBackend, driver: GridDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = count_reads(driver, monkeypatch)
    double = Doubled(backend)
    for value in (1.0, 5.0):
        double.run(value)
        assert double.values == [2 * value, 2 * value * N]
    part = np.empty(8, np.uint8)
    tensor_read(double.sums, part, 4)
    assert part.view(np.float32).tolist() == [10 * N, 10 * N]
    assert not reads
    with pytest.raises(TensorAccessError):
        tensor_read(double.sums, part, 8)
    host = Tensor(F32, double.y.ne)
    alloc_tensors([host], HostBufferType())
    tensor_copy(double.y, host)
    assert tensor_get(host).tobytes() == tensor_get(double.y).tobytes()


def test_results_are_copied_by_one_launch(backend: CudaBackend, driver: GridDriver) -> None:
    gpu = driver.grid_gpus[0]
    counts = []
    for copies, alone in ((0, 0), (1, 0), (0, 1)):
        with CUDA_READS_RESULTS.set(copies), NO_MERGE.set(alone):
            double = Doubled(backend)
        before = gpu.n_launches
        double.run(2)
        assert double.values == [4, 4 * N]
        counts.append(gpu.n_launches - before)
    assert [n - counts[1] for n in counts] == [1, 0, 2]


def test_the_device_has_results_too(backend: CudaBackend) -> None:
    double = Doubled(backend)
    double.run(3)
    buffer = buffer_of(double.y)
    there = buffer._read(double.y.offset, double.y.nbytes)
    assert there.tobytes() == tensor_get(double.y).tobytes()


@pytest.mark.parametrize("what", ["set", "memset", "copy", "compute"])
def test_what_is_written_later_is_read(backend: CudaBackend, what: str) -> None:
    double = Doubled(backend)
    double.run(1)
    nine = np.full((3, N), 9, np.float32)
    if what == "set":
        tensor_set(double.y, nine)
    elif what == "memset":
        buffer_of(double.y).memset_tensor(double.y, 0)
        nine[:] = 0
    elif what == "copy":
        host = Tensor(F32, double.y.ne)
        alloc_tensors([host], HostBufferType())
        tensor_set(host, nine)
        tensor_copy(host, double.y)
    else:
        tensor_set(double.x, np.full((3, N), 4.5, np.float32))
        backend.graph_compute(double.graph)
    assert tensor_get(double.y).tobytes() == nine.tobytes()
    double.run(2)
    assert double.values == [4, 4 * N]


def test_two_plans_share_the_memory(
    backend: CudaBackend, driver: GridDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = count_reads(driver, monkeypatch)
    first, second = Doubled(backend), Doubled(backend)
    for value in (1.0, 2.0):
        first.run(value)
        assert first.values == [2 * value, 2 * value * N] and not reads
        second.run(value + 1)
        assert second.values == [2 * value + 2, (2 * value + 2) * N] and not reads
        assert first.values == [2 * value, 2 * value * N]  # from the device
        assert len(reads) == 2
        reads.clear()


def test_the_memory_of_a_plan_that_is_gone(backend: CudaBackend) -> None:
    double = Doubled(backend)
    double.run(7)
    del double.plan
    gc.collect()
    assert double.values == [14, 14 * N]
    backend.free()
    assert isinstance(buffer := buffer_of(double.y), CudaBuffer)
    assert not buffer.copies and double.values == [14, 14 * N]


@pytest.mark.parametrize("what", ["compute", "free"])
def test_a_graph_that_has_no_place_any_more(backend: CudaBackend, what: str) -> None:
    processor = CpuDevice(1).init_backend()
    scheduler = Scheduler([backend, processor])
    x = Tensor(F32, (N,)).set_input()
    y = ops.scale(x, 2.0).set_output()
    scheduler.set_tensor_backend(y, backend)
    scheduled = scheduler.alloc_graph(graph := Graph(y))
    tensor_set(x, np.full(N, 3, np.float32))
    scheduler.graph_compute(scheduled)
    assert set(tensor_get(y).view(np.float32)) == {6}
    buffer = buffer_of(y)
    assert isinstance(buffer, CudaBuffer) and y in buffer.copies
    graph.restore()
    if what == "compute":
        double = Doubled(backend)
        double.run(1)
        assert double.values == [2, 2 * N]
    else:
        backend.free()
    assert not buffer.copies
    scheduler.free()
    processor.free()


def test_a_plan_that_cannot_be_uploaded_frees_its_graph(
    backend: CudaBackend, driver: GridDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise BackendError("no")

    monkeypatch.setattr(driver.grid_gpus[0], "graph_upload", fail)
    with pytest.raises(BackendError, match="no"):
        Doubled(backend)
    gc.collect()
    assert driver.grid_gpus[0].live["graphs"] == 0


def test_a_profile_shows_the_copies(backend: CudaBackend) -> None:
    double = Doubled(backend)
    tensor_set(double.x, np.full((3, N), 6, np.float32))
    calls = backend.graph_plan_profile(double.plan)
    assert double.values == [12, 12 * N]
    assert (calls[-1].kind, calls[-1].kernel) == ("results", "to_host")
    assert calls[-1].nodes == (double.y, double.sums)
    assert calls[-1].cost.n_read == double.y.nbytes + double.sums.nbytes


def test_which_results_are_copied() -> None:
    n = FEW // 4 + 1
    x = Tensor(F32, (n, 1))
    read_again = ops.add(x, x).set_output()
    sums = ops.sum_rows(read_again).set_output()
    assert results_of(Graph(read_again, sums)) == [sums]
    last = ops.add(x, x).set_output()
    view = ops.reshape(last, (1, n)).set_output()
    inner = ops.add(x, x)
    assert results_of(Graph(last, view, ops.add(inner, inner))) == [last]
    large = Tensor(F32, (RESULT_BYTES // 8, 1))
    many = [ops.add(large, large).set_output() for _ in range(3)]
    assert results_of(Graph(*many)) == many[:2]
    half = Tensor(GGMLType.F16, (8, 1))
    assert results_of(Graph(ops.cont(half).set_output())) == []
