"""Bundles of inputs that a plan's first kernel copies from pinned memory, on an emulated GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cuda_grid import GridCompiler, GridDriver, GridGpu, needs_compiler
from cuda_run import Memory, machine

from lamella.alloc import HostBuffer, tensor_get, tensor_set
from lamella.alloc.buffer import buffer_of
from lamella.base.errors import BackendError
from lamella.base.settings import CUDA_COPIES_INPUTS
from lamella.graph import GGMLType, Graph, Op, Tensor, ops
from lamella.graph.tensor import HEADER, PIECE
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.cuda import inputs as inputs_module
from lamella.kernels.cuda.backend import CudaBackend
from lamella.kernels.cuda.inputs import FED_WORDS, FROM_HOST, LINE, THREADS
from lamella.kernels.cuda.params import N_WORDS
from lamella.kernels.cuda.registry import open_cuda
from lamella.kernels.plan.params import PARAMS, TENSOR_WORDS
from lamella.sched import Scheduler
from lamella.sched.profile import Profiler

USED = 512  # words that say what is in use
N = 2048  # floats after it
POISON = 0xAB

pytestmark = needs_compiler


class World:
    """A scheduler over one emulated GPU, and a graph with a bundle: y = x + x."""

    def __init__(self, driver: GridDriver, n_copies: int = 1) -> None:
        self.gpu: GridGpu = driver.grid_gpus[0]
        (self.device,) = open_cuda(lambda: driver, GridCompiler).devices()
        self.backend = self.device.init_backend()
        assert isinstance(self.backend, CudaBackend)
        self.scheduler = Scheduler(
            [self.backend, CpuDevice(1).init_backend()], parallel=n_copies > 1
        )
        self.whole = Tensor(GGMLType.I32, (USED + N,), name="inputs").set_bundle()
        x = Tensor(
            GGMLType.F32,
            (N,),
            op=Op.VIEW,
            src=(self.whole,),
            view_src=self.whole,
            view_offs=4 * USED,
        )
        self.y = ops.add(x, x).set_output()
        self.scheduler.set_tensor_backend(self.y, self.backend)
        self.graph = self.scheduler.alloc_graph(Graph(self.y))
        (self.transfer,) = self.graph.runs[0].transfers

    @property
    def words(self) -> npt.NDArray[np.int32]:
        """The inputs, to write."""
        buffer = buffer_of(self.whole)
        assert isinstance(buffer, HostBuffer)
        return buffer.array(self.whole).reshape(-1).view(np.int32)

    def write(self, value: float, ranges: Sequence[tuple[int, int]] = ()) -> None:
        """Write all inputs. `ranges` of pieces are in use, or all."""
        words = self.words
        words[USED:].view(np.float32)[:] = value + np.arange(N)
        words[:HEADER] = len(ranges), 0, 0
        words[HEADER : HEADER + 2 * len(ranges)] = np.array(ranges, np.int32).reshape(-1)

    def start(self) -> None:
        self.scheduler.graph_compute_async(self.graph)

    def result(self) -> list[float]:
        self.scheduler.synchronize()
        return list(tensor_get(self.y).view(np.float32).tolist())

    def run(self, value: float, ranges: Sequence[tuple[int, int]] = ()) -> list[float]:
        self.write(value, ranges)
        self.start()
        return self.result()

    def close(self) -> None:
        self.scheduler.free()
        self.backend.free()
        self.device.library.close()


def expected(value: float) -> list[float]:
    return list((2 * (value + np.arange(N, dtype=np.float32))).tolist())


@pytest.fixture
def driver() -> GridDriver:
    return GridDriver(memory=2**23)


@pytest.fixture
def world(driver: GridDriver) -> Iterator[World]:
    world = World(driver)
    yield world
    world.close()


def spied(gpu: GridGpu, monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """The names of calls of the driver, as they are made."""
    found = list[str]()

    def spy(name: str) -> Any:
        call = getattr(gpu, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            found.append(name)
            return call(*args, **kwargs)

        return counted

    for name in names:
        monkeypatch.setattr(gpu, name, spy(name))
    return found


CALLS = ("write", "write_async", "graph_launch", "launch", "stream_synchronize", "event_record")


def test_a_step_is_one_launch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = spied(world.gpu, monkeypatch, *CALLS)
    for value in (1.0, 7.0):
        calls.clear()
        world.write(value)
        world.scheduler.graph_compute(world.graph)
        assert calls == ["graph_launch", "stream_synchronize"]
        assert world.result() == expected(value)


def test_with_the_switch_a_step_copies(driver: GridDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    with CUDA_COPIES_INPUTS.set(1):
        world = World(driver)
    calls = spied(world.gpu, monkeypatch, *CALLS)
    assert world.run(3) == expected(3)
    assert calls[:2] == ["write_async", "graph_launch"]
    world.close()


@pytest.mark.parametrize("few", [0, 1 << 20])
@pytest.mark.parametrize("n_ranges", [0, 1, 2, 5, 31, 33, 70, 255])
def test_only_what_is_in_use_is_copied(
    world: World, monkeypatch: pytest.MonkeyPatch, n_ranges: int, few: int
) -> None:
    monkeypatch.setattr(inputs_module, "FEW", few)
    n_pieces, rng = world.whole.nbytes // PIECE, Random(n_ranges)
    places = sorted(rng.sample(range(USED * 4 // PIECE, n_pieces), 2 * n_ranges))
    ranges = [(0, USED * 4 // PIECE), *zip(places[::2], places[1::2], strict=True)]
    used = ranges[: n_ranges + 1] if n_ranges else []
    before = np.full(world.whole.nbytes, POISON, np.uint8)
    tensor_set(world.transfer.dst, before)
    world.run(5, used)
    there = tensor_get(world.transfer.dst)
    want = before.copy()
    given = world.words.view(np.uint8)
    for begin, end in used or [(0, n_pieces)]:
        want[PIECE * begin : PIECE * end] = given[PIECE * begin : PIECE * end]
    assert np.array_equal(there, want)


def test_ranges_beyond_the_end_are_cut(world: World) -> None:
    """No byte after the copy is written: the emulated GPU would fail."""
    n_pieces = world.whole.nbytes // PIECE
    assert world.run(2, [(0, n_pieces + 50)]) == expected(2)


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_inputs_may_be_written_while_a_step_runs(seed: int | None) -> None:
    world = World(GridDriver(memory=2**23, seed=seed))
    copies = list[Tensor]()
    for value in range(6):
        world.write(value)
        world.start()
        world.write(99)  # the step in flight does not see it
        copies.append(kept := Tensor(GGMLType.F32, (N,)))
        kept.buffer = world.device.buffer_type.alloc_buffer(kept.nbytes)
        world.backend.cpy_tensor_async(world.backend, world.y, kept)
    world.scheduler.synchronize()
    for value, kept in enumerate(copies):
        assert tensor_get(kept).view(np.float32).tolist() == expected(value)
    world.close()


def test_nothing_waits_once_the_kernel_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(GridDriver(memory=2**23, eager=True))
    calls = spied(world.gpu, monkeypatch, "stream_synchronize", "event_synchronize")
    for value in range(3):
        world.write(value)
        world.start()
    assert not calls
    assert world.result() == expected(2)
    world.close()


@pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
def test_nothing_is_read_after_the_host_knows_it(reverse: bool) -> None:
    """The number that tells the host is written over the header, as the host's next inputs may be.
    So threads that read the header later put fed words elsewhere."""
    n, header_at, at, wrong = THREADS, 64, 64, 64 + THREADS
    memory = np.full(header_at + wrong + n, 7, np.int32)
    memory[header_at : header_at + HEADER] = 0, n, at
    number_at = 4 * (header_at + 2) - LINE
    memory[number_at // 4] = wrong
    to, fed = np.zeros(memory.size - header_at, np.int32), np.arange(n, dtype=np.int32)
    on = machine(reverse)
    places = Memory(on)
    raw = [a.view(np.uint8) for a in (to, memory, fed)]
    for array in raw:
        places.put(array)
    address = places.address(raw[1])
    words = np.zeros(N_WORDS, np.int64)
    addresses = places.address(raw[0]), address + 4 * header_at, address + number_at
    words[: 3 * TENSOR_WORDS : TENSOR_WORDS] = addresses
    words[FED_WORDS : FED_WORDS + 3] = places.address(raw[2]), 1, n
    words[FED_WORDS + 6] = fed.itemsize  # from one column to the next
    words[PARAMS] = to.nbytes // PIECE
    function = on.library.function(FROM_HOST)
    on.gpu.launch(function, (1, 1, 1), THREADS, 0, words, on.stream)
    on.gpu.stream_synchronize(on.stream)
    copied = places.get(raw[0]).view(np.int32)
    places.free()
    assert copied[at : at + n].tolist() == fed.tolist()
    assert (copied[wrong:] == 7).all()


def test_node_by_node_and_profiled_runs_have_the_inputs(world: World) -> None:
    before = world.scheduler.set_eval_callback(lambda node, ask: node is world.y)
    assert world.run(4) == expected(4)
    world.scheduler.set_eval_callback(before)
    for each_call in (False, True):
        world.scheduler.set_profiler(Profiler(each_call=each_call))
        assert world.run(5 + each_call) == expected(5 + each_call)
    world.scheduler.set_profiler(None)
    assert world.run(8) == expected(8)


def test_inputs_of_a_failed_run_do_no_harm(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise BackendError("no launch")

    with monkeypatch.context() as patch:
        patch.setattr(world.backend, "graph_plan_compute", fail)
        world.write(1)
        with pytest.raises(BackendError, match="no launch"):
            world.start()
    calls = spied(world.gpu, monkeypatch, "write_async")
    world.backend.graph_compute(Graph(world.y))
    assert not calls
    assert world.run(6) == expected(6)


def test_a_bundle_that_is_too_large_is_copied(
    driver: GridDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs_module, "INPUT_BYTES", 4 * (USED + N) - 1)
    world = World(driver)
    calls = spied(world.gpu, monkeypatch, "write_async")
    assert world.run(3) == expected(3)
    assert len(calls) == 1
    world.close()


def test_in_a_pipeline_inputs_are_copied(
    driver: GridDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(driver, n_copies=4)
    calls = spied(world.gpu, monkeypatch, "write_async")
    assert world.run(3) == expected(3)
    assert len(calls) == 1
    world.close()
