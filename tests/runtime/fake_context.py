"""A fake context, vocabulary and sink for tests of the engine.

The context stores token ids in its cells. Its logits are a hash of all tokens in a sequence's
cells: a wrong cell, position or order changes the generated tokens. `expected` generates the same
tokens without an engine.
"""

from __future__ import annotations

import codecs
import threading
import zlib
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from lamella.alloc.buffer import Bytes
from lamella.base.errors import BackendError, LamellaError
from lamella.model.batch import Batch, LateMask
from lamella.model.context import Context
from lamella.model.kv_groups import window_cells
from lamella.model.kv_memory import MemoryGroup
from lamella.model.kv_pages import PagePool
from lamella.model.kv_sequence import KVPool, KVSequence
from lamella.model.layer_memory import Window
from lamella.model.outputs import F32Array, Row, TopLogits
from lamella.model.page_store import PageStore
from lamella.model.params import ContextParams
from lamella.model.sampling import Logprobs, Sampler, SamplingParams
from lamella.model.state_slots import NO_SLOT, SlotPool
from lamella.model.vocab import Vocab
from lamella.runtime.engine.engine import Engine
from lamella.runtime.engine.job import Job, Result
from lamella.runtime.params import EngineParams, GenerationParams, RequestParams

EOS = 2
PIECES = [b"", b"", b"", b"\n", "é".encode()[:1], "é".encode()[1:], b" the", b"ab", b"bc", b"c"]
PIECES += [bytes([c]) for c in b"abcdefghijklmnopqrstuvwxyz ,.!?"]
N_VOCAB = len(PIECES)
WAIT_S = 100.0  # for events within milliseconds, on a busy machine


class FakeDecoder:
    def __init__(self) -> None:
        self.utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        return self.utf8.decode(PIECES[id])

    def flush(self) -> str:
        return self.utf8.decode(b"", final=True)


class FakeVocab:
    n_tokens = N_VOCAB
    n_piece_bytes_max = max(map(len, PIECES))
    eog = frozenset({EOS})
    bos: int | None = 1
    suppressed: frozenset[int] = frozenset()
    control_ids = frozenset({0, 1, EOS})
    special_ids: ClassVar[dict[str, int]] = {}

    def tokenize(self, text: str, **_: bool) -> list[int]:
        return [PIECES.index(bytes([c])) for c in text.encode() if bytes([c]) in PIECES]

    def detokenize(self, ids: Sequence[int], **_: bool) -> str:
        return b"".join(PIECES[i] for i in ids).decode("utf-8", "replace")

    def piece(self, id: int, **_: bool) -> bytes:
        return PIECES[id]

    def pieces(self) -> list[bytes]:
        return list(PIECES)

    def stream(self, shown: Container[int] = ()) -> FakeDecoder:
        return FakeDecoder()


VOCAB = cast(Vocab, FakeVocab())


def fake_logits(history: npt.NDArray[np.int64]) -> F32Array:
    """[n_vocab] logits that depend on all earlier tokens and their order."""
    rng = np.random.default_rng(zlib.crc32(history.tobytes()))
    return rng.standard_normal(N_VOCAB).astype(np.float32) * 2


class Write(NamedTuple):
    """The cells of a run in each pool, and the tokens for them; the slots that these read and
    write, if there are states."""

    cells: list[npt.NDArray[np.int32]]
    tokens: list[int]
    slots: list[list[int]] | None = None


class PreparedBatch(NamedTuple):
    """A batch whose inputs are written, the cells that they name, and the steps decoded before."""

    batch: Batch
    cells: list[int]
    n_steps: int


class Followed(NamedTuple):
    """A started batch, and the one that follows it."""

    batch: Batch
    by: Batch


def _cells_of(batch: Batch) -> list[int]:
    return [run.seq.pages[0].cell(run.pos) for run in batch.runs]


class FakeContext:
    """A fake context. It calls `on_start` with the step's number, from 1 on, when a step starts,
    and `on_decode` before it is decoded.

    With `aside`, the host may work meanwhile: a batch is computed as late as possible. With `tops`
    it returns only the largest logits if they are enough, like a context on a device. It has a pool
    without a window, and one for each of `windows` that is just large enough for `n_seqs` sequences
    and `swa_prefix` tokens. With `n_kept`, it has slots for states, so many of them for the prefix
    cache. A slot holds all tokens of its sequence.
    """

    def __init__(
        self,
        n_ctx: int = 512,
        *,
        n_ubatch: int = 16,
        page_size: int = 4,
        tops: bool = False,
        windows: Sequence[Window] = (),
        n_seqs: int = 6,
        swa_prefix: int = 0,
        n_kept: int | None = None,
        aside: bool = True,
    ) -> None:
        self.n_graphs_built = self.n_reused = 0
        self.in_flight = False
        self.all_logits = np.empty((0, N_VOCAB), np.float32)  # of the last step
        self.n_ctx = self.n_ctx_seq = n_ctx
        self.n_ubatch = self.n_checked_max = n_ubatch
        self.n_seq_max = 64
        self.n_vocab = N_VOCAB
        params = ContextParams(n_parallel=n_seqs, swa_prefix=swa_prefix)
        pools = [PagePool(n_ctx, page_size=page_size)]
        for window in windows:
            n_cells = window_cells(window.n_swa, params, n_ubatch, page_size)
            pools.append(PagePool(n_cells, window=window, page_size=page_size))
        slots = None if n_kept is None else SlotPool(n_seqs, n_kept)
        is_bounded = bool(windows) or slots is not None
        self.pool = KVPool(
            n_ctx, pools, n_seqs=n_seqs if is_bounded else None, page_size=page_size, slots=slots
        )
        self.states: dict[int, list[int]] = {NO_SLOT: []}
        self.contents = [np.full(pool.n_cells_total, -1, np.int64) for pool in pools]
        self.tops = tops
        self.is_on_host = not tops
        self.computes_aside = self.can_prepare = aside
        self.host_threads = None
        self.n_tops: list[list[int]] = []  # n_top of each output, by step
        self.steps: list[list[tuple[int, int, int, int]]] = []  # (first cell, pos, n, outputs)
        self.n_prepared = 0  # steps that were prepared while another one computed
        self.n_fed = 0  # of these, steps that followed the other one
        self.fed: list[int] | None = None  # the tokens of such a step
        self.lost: Batch | None = None  # one whose step before failed
        self.on_start: Callable[[int], None] = lambda step: None
        self.on_decode: Callable[[int], None] = lambda step: None

    @property
    def kv(self) -> FakeContext:
        """The bytes of pages."""
        return self

    def page_bytes(self, group: int) -> int:
        return 8 * self.pool.page_size

    def read_page(self, group: int, page: int) -> Bytes:
        return self._page(group, page).copy()

    def write_page(self, group: int, page: int, data: Bytes) -> None:
        self._page(group, page)[:] = data

    def _page(self, group: int, page: int) -> Bytes:
        size = self.pool.page_size
        return self.contents[group][page * size : (page + 1) * size].view(np.uint8)

    @property
    def all_groups(self) -> Sequence[MemoryGroup]:
        return self.groups

    @property
    def groups(self) -> Sequence[MemoryGroup]:
        return tuple(MemoryGroup(str(own.window or "full"), own, {}) for own in self.pool.pools)

    def buffer_bytes(self) -> dict[tuple[str, str], int]:
        return {}

    def append(self, seq: KVSequence, n: int) -> None:
        for g, src, dst, n_cells in seq.append(n):
            content = self.contents[g]
            content[dst : dst + n_cells] = content[src : src + n_cells]

    def start_rows(self, batch: Batch) -> Batch:
        self.on_start(len(self.steps) + 1)
        self._move_states(batch)
        return batch

    def prepare_rows(self, batch: Batch) -> PreparedBatch:
        return PreparedBatch(batch, _cells_of(batch), len(self.steps))

    def start_prepared(self, prepared: PreparedBatch) -> Batch:
        assert prepared.cells == _cells_of(prepared.batch), "cells have changed since"
        assert len(self.steps) == prepared.n_steps + 1, "another step has written its inputs"
        self.n_prepared += 1
        self._move_states(prepared.batch, can_go_back=True)
        return self.start_rows(prepared.batch)

    def _move_states(self, batch: Batch, *, can_go_back: bool = False) -> None:
        for run in batch.runs:
            if run.seq.states is not None and run.slots is None:
                end = run.pos + len(run.tokens)
                run.slots = run.seq.states.run(run.pos, end, can_go_back=can_go_back)

    def can_follow(self, started: Batch, prepared: PreparedBatch) -> bool:
        assert len(started.runs) == len(prepared.batch.runs)
        return True

    def follow(self, started: Batch, prepared: PreparedBatch) -> tuple[Followed, Batch]:
        assert prepared.n_steps == len(self.steps), "the other step is over"
        assert prepared.cells == _cells_of(prepared.batch), "cells have changed since"
        self.n_prepared += 1
        self.n_fed += 1
        self._move_states(prepared.batch, can_go_back=True)
        self.on_start(len(self.steps) + 2)
        return Followed(started, prepared.batch), prepared.batch

    def read_rows(self, started: Batch | Followed) -> list[Row]:
        batch = started if isinstance(started, Batch) else started.batch
        if self.fed is not None:
            assert self.fed == [run.tokens[0] for run in batch.runs], "other tokens were fed"
            self.fed = None
        assert batch is not self.lost, "the step before has failed"
        self.lost = started.by if isinstance(started, Followed) else None
        rows = self.decode_rows(batch)
        self.lost = None
        if isinstance(started, Followed):
            self.fed = [int(_largest(row, 1, None).ids[0]) for row in self.all_logits]
            for run, token in zip(started.by.runs, self.fed, strict=True):
                run.tokens[0] = token
        return rows

    def synchronize(self) -> None:
        """Nothing is in flight: what has started is computed when it is read, or not at all."""
        self.fed = None

    def decode_rows(self, batch: Batch) -> list[Row]:
        outputs = [(run.n_top, mask) for run in batch.runs for mask in run.all_masks]
        self.n_tops.append([n_top for n_top, _ in outputs])
        rows = zip(self.decode(batch), outputs, strict=True)
        return [
            _largest(row, n_top, mask) if self.tops and n_top else row
            for row, (n_top, mask) in rows
        ]

    def decode(self, batch: Batch) -> F32Array:
        self.steps.append(
            [
                (int(r.seq.pages[0].cells(0, 1)[0]), r.pos, len(r.tokens), r.n_outputs)
                for r in batch.runs
            ]
        )
        self.on_decode(len(self.steps))
        self.compute(batch)
        rows = []
        for run in batch.runs:
            end = run.pos + len(run.tokens)
            for n in range(end - run.n_outputs + 1, end + 1):
                rows.append(fake_logits(self.history(run.seq, n)))
        self.all_logits = np.array(rows, np.float32).reshape(len(rows), N_VOCAB)
        return self.all_logits

    def compute(self, batch: Batch) -> None:
        self.write(self.prepared(batch))

    def prepared(self, batch: Batch) -> list[Write]:
        """Prepare the sequences of a batch. Return what it writes."""
        writes = []
        self._move_states(batch)
        for run in batch.runs:
            end = run.pos + len(run.tokens)
            run.seq.prepare(run.pos, end)
            cells = [pages.cells(run.pos, end) for pages in run.seq.pages]
            slots = None if run.slots is None else run.slots.tolist()
            writes.append(Write(cells, list(run.tokens), slots))
        return writes

    def write(self, writes: Sequence[Write]) -> None:
        for cells, tokens, slots in writes:
            for content, own in zip(self.contents, cells, strict=True):
                content[own] = tokens
            for (src, dst), token in zip(slots or (), tokens, strict=False):
                self.states[dst] = [*self.states[src], token]

    def history(self, seq: KVSequence, n: int) -> npt.NDArray[np.int64]:
        """Return the first `n` tokens; wrong ones if a window or the states see other tokens."""
        found: npt.NDArray[np.int64] = self.contents[0][seq.pages[0].cells(0, n)]
        for content, pages in zip(self.contents[1:], seq.pages[1:], strict=True):
            assert pages.pool.window is not None
            begin = pages.pool.window.begin(n - 1)
            if (content[pages.cells(begin, n)] != found[begin:]).any():
                return found + 1
        if (states := seq.states) is not None and states.length == n:
            return found if self.states[states.slot] == found.tolist() else found + 1
        return found


class PipelineContext(FakeContext):
    """A context that computes batches without outputs later. `fails` decides if that fails."""

    def __init__(self, n_ctx: int = 512, **options: Any) -> None:
        super().__init__(n_ctx, **options)
        self.pending: list[Write] = []
        self.fails: Callable[[], bool] = lambda: False

    def append(self, seq: KVSequence, n: int) -> None:
        if self.in_flight and seq.last_is_shared:
            self.synchronize()
        super().append(seq, n)

    def synchronize(self) -> None:
        pending, self.pending, self.in_flight, self.fed = self.pending, [], False, None
        self.write(pending)
        if pending and self.fails():
            self._fail(pending)
            raise BackendError("work in flight failed")

    def decode(self, batch: Batch) -> F32Array:
        now = self.prepared(batch)
        self.pending += now
        try:
            if batch.n_outputs:
                self.synchronize()
            rows = super().decode(batch)
        except BackendError:
            self._fail([*self.pending, *now])
            self.pending, self.in_flight = [], False
            raise
        self.in_flight = bool(self.pending)
        if self.in_flight:
            self._spoil(now)  # not computed yet
        return rows

    def compute(self, batch: Batch) -> None:
        """The batch is pending, or written already."""

    def _spoil(self, work: Sequence[Write]) -> None:
        self.write([Write(cells, [-2] * len(tokens)) for cells, tokens, _ in work])

    def _fail(self, work: Sequence[Write]) -> None:
        self._spoil(work)
        for _, _, slots in work:
            self.states |= {dst: [-2] for _, dst in slots or ()}


def _largest(logits: F32Array, n_top: int, mask: LateMask | None) -> TopLogits:
    ids = np.argsort(-logits, kind="stable").astype(np.int32)
    if mask is not None:
        allowed = np.unpackbits(mask().view(np.uint8), bitorder="little")
        ids = ids[allowed[ids] == 1]
    ids = ids[:n_top]
    return TopLogits(ids, logits[ids])


class Clock:
    """Replaces the engine's module `time`. Only `wait` advances it."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


class Recorder:
    """A sink that records its calls. `on_token` may return False or raise."""

    def __init__(self, on_token: Callable[[int], bool] = lambda n: True) -> None:
        self.on_token = on_token
        self.tokens: list[int] = []
        self.progressed: list[tuple[int, int]] = []
        self.ends: list[Result | LamellaError] = []
        self.ended = threading.Event()

    def progress(self, n_processed: int, n_total: int, n_cached: int) -> None:
        assert not self.ends
        self.progressed.append((n_processed, n_total))

    def token(self, token: int, logprobs: Logprobs | None) -> bool:
        assert not self.ends
        if logprobs is not None:
            assert logprobs.chosen.id == token
        self.tokens.append(token)
        return self.on_token(len(self.tokens))

    def finished(self, result: Result) -> None:
        self.ends.append(result)
        self.ended.set()

    def failed(self, error: LamellaError) -> None:
        self.ends.append(error)
        self.ended.set()

    def wait(self) -> Result | LamellaError:
        assert self.ended.wait(WAIT_S), "the job did not end"
        (end,) = self.ends
        return end

    def result(self) -> Result:
        end = self.wait()
        assert isinstance(end, Result), end
        return end

    def error(self) -> LamellaError:
        end = self.wait()
        assert isinstance(end, LamellaError), end
        return end


def sampling(seed: int = 1) -> SamplingParams:
    """Sampling that differs for each seed and depends on earlier tokens."""
    return SamplingParams(seed=seed, repeat_penalty=1.3)


def request(sampling: SamplingParams, **generation: Any) -> RequestParams:
    return RequestParams(sampling=sampling, generation=GenerationParams(**generation))


def job(sink: Recorder, *prompt: int, seed: int = 1, n_probs: int = 1, **generation: Any) -> Job:
    params = request(sampling(seed), **generation)
    return Job(prompt=prompt or (7, 8, 9), params=params, sink=sink, n_probs=n_probs)


def expected(prompt: Sequence[int], params: SamplingParams, n_max: int) -> list[int]:
    """The tokens that a job's sink gets, generated without an engine: at most `n_max`, no EOS."""
    sampler = Sampler(params, VOCAB)
    tokens = list(prompt)
    for token in tokens:
        sampler.accept(token)
    while len(tokens) < len(prompt) + n_max:
        token = sampler.sample(fake_logits(np.array(tokens, np.int64)))
        if token == EOS:
            break
        sampler.accept(token)
        tokens.append(token)
    return tokens[len(prompt) :]


def make_engine(
    context: FakeContext,
    n_parallel: int = 4,
    max_waiting: int = 512,
    max_itl: int = -1,
    max_client_waiting: int = 512,
    store: PageStore | None = None,
) -> Engine:
    """Without a limit of the time between tokens, steps are the same in each run."""
    params = EngineParams(
        max_waiting=max_waiting, max_client_waiting=max_client_waiting, max_itl=max_itl
    )
    return Engine(cast(Context, context), VOCAB, n_parallel=n_parallel, params=params, store=store)


@contextmanager
def running(
    context: FakeContext, *jobs: Job, n_parallel: int = 4, max_waiting: int = 512
) -> Iterator[Engine]:
    """An engine whose first step sees all `jobs`. Closes it, and asserts that all pages are
    free."""
    engine = make_engine(context, n_parallel, max_waiting)
    for j in jobs:
        engine.submit(j)
    engine.start()
    try:
        yield engine
    finally:
        engine.close()
        assert context.pool.n_free == context.pool.n_pages
        assert (engine.n_running, engine.n_waiting) == (0, 0)
