"""Context: decodes batches of tokens with a loaded model, over a paged KV pool.

    context = Context(model, ContextParams(n_ctx=4096))
    seq = context.pool.new_sequence()
    context.append(seq, len(tokens))
    batch = Batch()
    batch.add(tokens, seq, 0, n_outputs=1)
    logits = context.decode(batch)        # float32 [n_outputs, n_vocab]

Not thread-safe. Knows no text, no sampling and no requests. Tested by tests/model/test_context*.py.
"""

from __future__ import annotations

from copy import deepcopy
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from ..alloc.buffer import buffer_of
from ..base.errors import StrictError
from ..base.settings import NO_FEED
from ..graph.tensor import Tensor
from ..graph.types import GGMLType
from .batch import Batch, UBatch, cut_batch
from .graphs import DecodeGraph
from .kv_context import F32Array, KVContext
from .outputs import Row, Rows, TopResults, TopRows, top_size
from .strict import NanFinder, have_nan, raise_nan

NOT_KNOWN: Final = (
    "logits are NaN: the next step has changed the states or the pages that they depend on, so the "
    f"first node with a NaN is not known; {NO_FEED.name}=1 finds it"
)


class Prepared(NamedTuple):
    """A ubatch, and the graph that computes it, with its inputs."""

    ubatch: UBatch
    graph: DecodeGraph


class Followed(NamedTuple):
    """What follows a started batch already, and where the results of that batch are."""

    by: UBatch
    results: TopResults


class Started(NamedTuple):
    """A batch that `Context.start_rows` started: the rows of its first ubatches, and its last one
    with its graph; None if that is computed, too. `followed`: by `Context.follow`."""

    rows: Rows
    last: Prepared | None = None
    followed: Followed | None = None


class Context(KVContext):
    """A model ready to decode: its backends, scheduler, KV pool and graphs."""

    def decode(self, batch: Batch) -> F32Array:
        """Compute a batch: write its keys and values, and return the logits of its outputs.

        In a pipeline, ubatches after the last one with an output may still run on return.

        Returns:
            float32 [n_outputs, n_vocab], in the order of the batch; a new array.

        Raises:
            BackendError: a device failed at this batch or at an earlier one in flight. All work in
                flight is lost.
            ClosedError: the context was closed.
        """
        self._open_scheduler()
        self._hidden.clear()
        logits = np.empty((batch.n_outputs, self.n_vocab), np.float32)
        done = 0
        for ubatch in cut_batch(batch, self.n_ubatch, self.n_seq_max):
            self._read_logits(ubatch, logits[done : done + ubatch.n_outputs])
            done += ubatch.n_outputs
        return logits

    def decode_in_place(self, batch: Batch) -> Tensor:
        """Compute a batch as `decode` does, and return its logits in the memory of the device that
        computes them: F32 [n_vocab, n_outputs], in a buffer of their own."""
        self._open_scheduler()
        self._hidden.clear()
        out = Tensor(GGMLType.F32, (self.n_vocab, batch.n_outputs), name="logits")
        done = 0
        for ubatch in cut_batch(batch, self.n_ubatch, self.n_seq_max):
            graph = self._compute(ubatch)
            if ubatch.n_outputs:
                logits = graph.outputs.logits
                if out.buffer is None:
                    out.buffer = buffer_of(logits).buft.alloc_buffer(out.nbytes)
                backend = graph.scheduled.backend_of(logits)
                graph.outputs.copy_logits(out, done, ubatch.n_outputs, backend)
                done += ubatch.n_outputs
        return out

    def decode_rows(self, batch: Batch) -> Rows:
        """Compute a batch as `decode` does, and return a row for each output. Rows are valid until
        the next call.

        A row may have only the largest logits, at least `n_top` of them, if the output has an
        `n_top` and its logits are in a device's memory. If it has a mask too, the row has those of
        the allowed tokens only. Masks are requested while the device computes the logits.
        """
        return self.read_rows(self.start_rows(batch))

    @cached_property
    def computes_aside(self) -> bool:
        """True if a started batch leaves the host free: all layers are on devices that compute
        while the host does other work."""
        on_device = all(self._backends[device].is_async for device in self.model.layers)
        return on_device and not self.is_on_host

    @cached_property
    def can_prepare(self) -> bool:
        """True if `prepare_rows` may prepare a batch while another one computes. In a pipeline,
        devices may read inputs late."""
        return self.computes_aside and bool(self.no_pipeline)

    def start_rows(self, batch: Batch) -> Started:
        """Start to compute a batch, for `read_rows`. Until then, nothing else may use the context,
        but `synchronize`. Raises as `decode`."""
        self._open_scheduler()
        self._hidden.clear()
        if not self._top_sizes:
            return Started(self._rows_in_place(batch))
        if not len(batch):
            return Started([])
        *first, last = cut_batch(batch, self.n_ubatch, self.n_seq_max)
        rows = list[Row]()
        for ubatch in first:  # their graphs may read into the same memory
            rows += map(deepcopy, self._read_rows(*self._start_rows(ubatch)))
        return Started(rows, self._start_rows(last))

    def prepare_rows(self, batch: Batch) -> Prepared | None:
        """Write the inputs of a batch while a started one computes; its tokens may be given later.
        Return None if it must be started when the other is over. States move on when it starts: so
        it may be dropped."""
        assert self.can_prepare, "the context cannot prepare batches"
        if len(batch) > self.n_ubatch or len(batch.runs) > self.n_seq_max:
            return None
        (ubatch,) = cut_batch(batch, self.n_ubatch, self.n_seq_max)
        n_top = top_size(ubatch.n_tops, self._top_sizes)
        graph = self._known(self._params_of(ubatch, n_top, masked=False))
        if graph is None or not self._open_scheduler().may_write_inputs(graph.scheduled):
            return None
        if self.pool.gives_back:
            _prepare(ubatch)
        graph.set_inputs(ubatch)
        return Prepared(ubatch, graph)

    def start_prepared(self, prepared: Prepared) -> Started:
        """Start a prepared batch, whose tokens are known now. The other batch must be over, and
        nothing may have used the context since. Its sequences' states can go back to those before
        it. Raises as `start_rows`."""
        ubatch, graph = prepared
        self._hidden.clear()
        graph.set_tokens(ubatch)
        try:
            self._move_states(prepared)
            self._launch(graph)
            self.n_reused += 1
        except BaseException:
            self._synchronize_after_error()
            raise
        return Started([], prepared)

    def can_follow(self, started: Started, prepared: Prepared) -> bool:
        """True if `follow` can start a prepared batch."""
        if started.last is None or len(started.rows) or self.keeps_hidden:
            return False
        ubatch, graph = started.last
        if prepared.graph is not graph or not self._open_scheduler().can_follow(graph.scheduled):
            return False
        least, most = min(ubatch.n_tops, default=0), max(ubatch.n_tops, default=0)
        has_largest = 0 < least <= most <= graph.params.n_top and not graph.params.masked
        return has_largest and graph.outputs.hold() is not None

    def follow(self, started: Started, prepared: Prepared) -> tuple[Started, Started]:
        """Start a prepared batch behind a started one, whose rows are read first. Its tokens are
        those of the largest logits of that one, which the device finds; they are set when these
        rows are read. Return both batches. Raises as `start_rows`."""
        assert started.last is not None, "the batch is computed"
        ubatch, graph = started.last
        results = graph.outputs.hold()
        assert results is not None, "`can_follow` is false"
        graph.feed_tokens(ubatch.n_tokens)
        self._move_states(prepared)
        self._open_scheduler().follow_async(graph.scheduled)
        self.n_reused += 1
        return started._replace(followed=Followed(prepared.ubatch, results)), Started([], prepared)

    def _move_states(self, prepared: Prepared) -> None:
        ubatch, graph = prepared
        if self.pool.slots is not None:
            _prepare_states(ubatch, can_go_back=True)
            graph.set_slots(ubatch)

    def read_rows(self, started: Started) -> Rows:
        """Wait for a started batch, and return its rows; see `decode_rows`."""
        if started.last is None:
            return started.rows
        if started.followed is not None:
            return self._read_followed(*started.last, started.followed)
        rows = self._read_rows(*started.last)
        return [*started.rows, *rows] if len(started.rows) else rows

    def _read_followed(self, ubatch: UBatch, graph: DecodeGraph, followed: Followed) -> Rows:
        """The rows of a ubatch that another one follows, which gets its tokens."""
        try:
            self._open_scheduler().wait_followed(graph.scheduled)
        except BaseException:
            self._synchronize_after_error()
            raise
        rows = graph.outputs.read_rows(ubatch.n_tops, (), followed.results)
        for run, ids in zip(followed.by.runs, followed.results.ids, strict=False):
            run.tokens[0] = int(ids[0])
        if self.strict and have_nan(rows):
            self.synchronize()
            if self.pool.slots is not None or self.pool.gives_back:
                raise StrictError(NOT_KNOWN)
            self._check(rows, ubatch, graph)
        return rows

    def _start_rows(self, ubatch: UBatch) -> Prepared:
        n_top = top_size(ubatch.n_tops, self._top_sizes)
        return Prepared(ubatch, self._start(ubatch, n_top, masked=ubatch.has_masks(n_top)))

    def _read_rows(self, ubatch: UBatch, graph: DecodeGraph) -> list[Row] | TopRows:
        self._finish(ubatch, graph)
        rows: list[Row] | TopRows
        if graph.params.n_top:
            masks = ubatch.masks if graph.params.masked else ()
            rows = graph.outputs.read_rows(ubatch.n_tops, masks)
        else:
            logits = np.empty((ubatch.n_outputs, self.n_vocab), np.float32)
            if ubatch.n_outputs:
                graph.outputs.read_logits(logits)
            rows = list(logits)
        self._check(rows, ubatch, graph)
        return rows

    def hidden(self) -> F32Array:
        """The hidden states [n_tokens, n_embd] of all tokens of the last batch of `decode_rows`:
        the last layer's output after the model's last norm, or that of a `NextN`."""
        return self._hidden[0] if len(self._hidden) == 1 else np.concatenate(self._hidden)

    def _rows_in_place(self, batch: Batch) -> F32Array:
        """Compute a batch and return its logits, where the graph wrote them if that is possible."""
        ubatches = list(cut_batch(batch, self.n_ubatch, self.n_seq_max))
        if len(ubatches) != 1 or not batch.n_outputs:
            return self.decode(batch)
        graph = self._compute(ubatches[0])
        rows = graph.outputs.in_place
        if rows is None:
            rows = np.empty((batch.n_outputs, self.n_vocab), np.float32)
            graph.outputs.read_logits(rows)
        rows = rows[: batch.n_outputs]
        self._check(rows, ubatches[0], graph)
        return rows

    def _read_logits(self, ubatch: UBatch, logits: F32Array) -> None:
        """Compute a ubatch and write its logits into `logits` [n_outputs, n_vocab]."""
        graph = self._compute(ubatch)
        if len(logits):
            graph.outputs.read_logits(logits)
            self._check(logits, ubatch, graph)

    def _compute(self, ubatch: UBatch) -> DecodeGraph:
        """Compute a ubatch and return its graph, which holds the outputs.

        In a pipeline, a ubatch without outputs may still run on return.
        """
        graph = self._start(ubatch)
        self._finish(ubatch, graph)
        return graph

    def _start(self, ubatch: UBatch, n_top: int = 0, masked: bool = False) -> DecodeGraph:
        """Start to compute a ubatch and return its graph.

        Its sequences get pages in the pools of layers with windows, and give others back. They get
        slots for their states.
        """
        try:
            if self.pool.gives_back:
                _prepare(ubatch)
            if self.pool.slots is not None:
                _prepare_states(ubatch)
            graph = self._graph_for(self._params_of(ubatch, n_top, masked))
            self._run(
                graph,
                lambda: graph.set_inputs(ubatch),
                (lambda: graph.set_masks(ubatch)) if masked else None,
                goes_on=not self._is_awaited(ubatch),
            )
        except BaseException:
            self._synchronize_after_error()
            raise
        return graph

    def _finish(self, ubatch: UBatch, graph: DecodeGraph) -> None:
        """Wait for a started ubatch, unless others may follow it in a pipeline."""
        if self._is_awaited(ubatch):
            self.synchronize()
        if self.keeps_hidden:
            self._hidden.append(graph.read_hidden(ubatch.n_tokens))

    def _is_awaited(self, ubatch: UBatch) -> bool:
        return ubatch.n_outputs > 0 or bool(self.no_pipeline)

    def _check(self, rows: Rows, ubatch: UBatch, graph: DecodeGraph) -> None:
        """In strict mode, raise StrictError if the logits of a ubatch have a NaN."""
        if self.strict and have_nan(rows):
            raise_nan(graph.scheduled, lambda finder: self._compute_again(graph, ubatch, finder))

    def _compute_again(self, graph: DecodeGraph, ubatch: UBatch, finder: NanFinder) -> None:
        """Compute a ubatch again, node by node. It writes the same values to the same cells."""
        scheduler = self._open_scheduler()
        scheduler.poison()
        graph.set_inputs(ubatch)
        before = scheduler.set_eval_callback(finder)
        try:
            scheduler.graph_compute(graph.scheduled)  # logits do not depend on masks
        finally:
            scheduler.set_eval_callback(before)


def _prepare(ubatch: UBatch) -> None:
    """Get the pages of the sequences of a ubatch in pools with windows."""
    begins = dict[int, int]()
    for run in ubatch.runs:
        begin = begins.setdefault(id(run.seq), run.pos)
        run.seq.prepare(begin, run.pos + len(run.tokens))


def _prepare_states(ubatch: UBatch, *, can_go_back: bool = False) -> None:
    """Get the slots that the tokens of a ubatch read and write; see `SequenceStates.run`."""
    for run in ubatch.runs:
        assert run.seq.states is not None, "the sequence is of another pool"
        end = run.pos + len(run.tokens)
        run.slots = run.seq.states.run(run.pos, end, can_go_back=can_go_back)
