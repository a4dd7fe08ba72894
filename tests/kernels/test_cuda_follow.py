"""Runs that follow each other on an emulated GPU, with tokens that it finds by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cuda_grid import GridCompiler, GridDriver, needs_compiler

from lamella.alloc import HostBuffer, alloc_tensors, tensor_set
from lamella.alloc.buffer import buffer_of
from lamella.base.errors import BackendError
from lamella.base.settings import CUDA_COPIES_INPUTS, CUDA_READS_RESULTS
from lamella.graph import GGMLType, Graph, Tensor, ops
from lamella.graph.tensor import HEADER
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.cuda.backend import CudaBackend
from lamella.kernels.cuda.registry import open_cuda
from lamella.model.outputs import Outputs, TopRows
from lamella.sched import Scheduler
from lamella.sched.profile import Profiler

N_VOCAB = 97
N_TOP = 3
AT = 16  # words before the tokens

pytestmark = needs_compiler


class Chain:
    """A model whose next logits are a row of a table, for `n` texts."""

    def __init__(self, driver: GridDriver, n: int = 4) -> None:
        self.n = n
        (self.device,) = open_cuda(lambda: driver, GridCompiler).devices()
        self.gpu = driver.grid_gpus[0]
        self.backend = self.device.init_backend()
        assert isinstance(self.backend, CudaBackend)
        self.scheduler = Scheduler([self.backend, CpuDevice(1).init_backend()])
        self.table = np.random.default_rng(1).permuted(
            np.tile(np.arange(N_VOCAB, dtype=np.float32), (N_VOCAB, 1)), axis=1
        )
        weights = Tensor(GGMLType.F32, (N_VOCAB, N_VOCAB), name="table")
        alloc_tensors([weights], self.device.buffer_type)
        tensor_set(weights, self.table)
        self.whole = Tensor(GGMLType.I32, (AT + n,), name="inputs").set_bundle()
        tokens = ops.view(self.whole, (n,), offset=4 * AT)
        logits = ops.get_rows(weights, tokens)
        self.outputs = Outputs(logits, N_TOP)
        for node in (logits, *(self.outputs.top or ())):
            self.scheduler.set_tensor_backend(node, self.backend)
        self.graph = self.scheduler.alloc_graph(Graph(*self.outputs.tensors))
        self.start([0] * n)  # records its calls
        self.scheduler.synchronize()

    @property
    def words(self) -> npt.NDArray[np.int32]:
        buffer = buffer_of(self.whole)
        assert isinstance(buffer, HostBuffer)
        return buffer.array(self.whole).reshape(-1).view(np.int32)

    def start(self, tokens: Sequence[int]) -> None:
        self.words[:HEADER] = 0, 0, AT
        self.words[AT:] = tokens
        self.scheduler.graph_compute_async(self.graph, release_inputs=False)

    def follow(self, n_fed: int) -> None:
        """Start the next run, with `n_fed` tokens of the last one, and tokens 5."""
        self.words[:HEADER] = 0, n_fed, AT
        self.words[AT:] = 5
        self.scheduler.follow_async(self.graph)

    def next(self, tokens: Sequence[int], n_fed: int | None = None) -> list[int]:
        """The tokens after `tokens`, of which the first `n_fed` are fed, the others 5."""
        best: list[int] = self.table[list(tokens)].argmax(axis=1).tolist()
        return best if n_fed is None else best[:n_fed] + [5] * (self.n - n_fed)

    def close(self) -> None:
        self.scheduler.free()
        self.backend.free()
        self.device.library.close()


def tokens_of(rows: Any) -> list[int]:
    assert isinstance(rows, TopRows)
    return list(rows.ids[:, 0].tolist())


@pytest.fixture
def chain() -> Iterator[Chain]:
    chain = Chain(GridDriver(memory=2**23))
    yield chain
    chain.close()


@pytest.mark.parametrize("n_fed", [0, 1, 3, 4])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_run_takes_the_tokens_of_the_last_one(seed: int | None, n_fed: int) -> None:
    """Results are read while the next run computes, or is over: the GPU works as late, and in any
    order, as CUDA allows."""
    chain = Chain(GridDriver(memory=2**23, seed=seed))
    tokens = [3, 14, 15, 92]
    chain.start(tokens)
    for _ in range(6):
        assert chain.scheduler.can_follow(chain.graph)
        held = chain.outputs.hold()
        chain.follow(n_fed)
        chain.scheduler.wait_followed(chain.graph)
        rows = chain.outputs.read_rows([1] * chain.n, (), held)
        assert tokens_of(rows) == chain.next(tokens)
        tokens = chain.next(tokens, n_fed)
    chain.scheduler.synchronize()
    assert tokens_of(chain.outputs.read_rows([1] * chain.n, ())) == chain.next(tokens)
    chain.close()


def test_results_stay_while_the_next_run_ends(chain: Chain) -> None:
    tokens = [3, 14, 15, 92]
    chain.start(tokens)
    held = chain.outputs.hold()
    chain.follow(4)
    later = chain.outputs.hold()
    chain.scheduler.synchronize()
    assert tokens_of(chain.outputs.read_rows([1] * 4, (), held)) == chain.next(tokens)
    after = chain.next(chain.next(tokens))
    assert tokens_of(chain.outputs.read_rows([1] * 4, (), later)) == after
    assert not chain.scheduler.can_follow(chain.graph)  # nothing is in flight


CALLS = ("launch", "graph_launch", "write_async", "event_record")
WAITS = ("event_synchronize", "stream_synchronize")


def test_a_fed_run_is_one_launch(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host waits for the end of the run before, not for that of the new one."""
    calls = list[tuple[str, Any]]()

    def spy(name: str) -> None:
        call = getattr(chain.gpu, name)

        def spied(*args: Any, **options: Any) -> Any:
            calls.append((name, args[0]))
            return call(*args, **options)

        monkeypatch.setattr(chain.gpu, name, spied)

    for name in (*CALLS, *WAITS):
        spy(name)
    chain.start([1, 2, 3, 4])
    chain.backend._inputs._copied[0] = chain.backend._inputs._given[0]  # it has read them
    calls.clear()
    chain.follow(4)
    assert [name for name, _ in calls] == ["event_record", "graph_launch"]
    (_, event), _ = calls
    calls.clear()
    chain.scheduler.wait_followed(chain.graph)
    assert calls == [("event_synchronize", event)]


def test_a_row_without_a_sound_logit_is_not_read_again(chain: Chain) -> None:
    """The device's memory has the logits of the next run by then."""
    chain.table[14, 7] = np.nan
    chain.table[15, 8] = np.inf
    chain.table[92] = -np.inf
    weights = next(n for n in chain.graph.graph.leafs if n.name == "table")
    tensor_set(weights, chain.table)
    chain.start([3, 14, 15, 92])
    held = chain.outputs.hold()
    chain.follow(4)
    chain.scheduler.synchronize()
    good, nan, inf, least = chain.outputs.read_rows([1] * 4, (), held)
    assert not isinstance(good, np.ndarray)
    assert isinstance(nan, np.ndarray) and np.isnan(nan).all()
    assert isinstance(inf, np.ndarray) and (inf == np.inf).all()
    assert isinstance(least, np.ndarray) and (least == -np.inf).all()


def test_an_error_of_the_run_before_is_raised(chain: Chain) -> None:
    chain.start([1, 2, 3, N_VOCAB])
    chain.follow(4)
    with pytest.raises(BackendError, match="97"):
        chain.scheduler.wait_followed(chain.graph)
    assert not chain.scheduler.can_follow(chain.graph)
    chain.start([1, 2, 3, 4])  # the device is usable
    chain.scheduler.synchronize()
    assert tokens_of(chain.outputs.read_rows([1] * 4, ())) == chain.next([1, 2, 3, 4])


def test_a_report_is_read_when_it_is_complete(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that follows may be writing it: first that there is one, then the index."""
    wait = chain.gpu.stream_synchronize

    def finish(stream: Any) -> None:
        wait(stream)
        chain.backend._reported[1] = 123

    chain.start([1, 2, 3, 4])
    chain.follow(4)
    chain.backend._reported[0] = -1
    monkeypatch.setattr(chain.gpu, "stream_synchronize", finish)
    with pytest.raises(BackendError, match="index 123"):
        chain.scheduler.wait_followed(chain.graph)


def test_what_cannot_follow(chain: Chain) -> None:
    assert not chain.scheduler.can_follow(chain.graph)
    chain.start([1, 2, 3, 4])
    assert chain.scheduler.can_follow(chain.graph)
    chain.scheduler.set_profiler(Profiler())
    assert not chain.scheduler.can_follow(chain.graph)
    chain.scheduler.set_profiler(None)
    chain.scheduler.set_eval_callback(lambda node, ask: True)
    assert not chain.scheduler.can_follow(chain.graph)
    chain.scheduler.set_eval_callback(None)
    chain.scheduler.synchronize()


@pytest.mark.parametrize("switch", [CUDA_COPIES_INPUTS, CUDA_READS_RESULTS])
def test_switches_turn_it_off(switch: Any) -> None:
    with switch.set(1):
        chain = Chain(GridDriver(memory=2**23))
        chain.start([1, 2, 3, 4])
        assert not chain.scheduler.can_follow(chain.graph)
        chain.scheduler.synchronize()
        assert tokens_of(chain.outputs.read_rows([1] * 4, ())) == chain.next([1, 2, 3, 4])
        chain.close()
