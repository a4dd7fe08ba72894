"""Decode graphs: built for one ubatch size, scheduled once, computed often.

Sizes are rounded up to a few buckets. Padding tokens fill a ubatch up to its bucket; they read and
write the pool's scratch page only. Tested by tests/model/test_context*.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..alloc.buffer import buffer_of, tensor_read, view_init
from ..alloc.host import HostBuffer
from ..graph.graph import Graph
from ..graph.tensor import HEADER, PIECE, Tensor
from ..sched.scheduled import ScheduledGraph
from ..sched.scheduler import Scheduler
from .arch import Architecture, GraphInputs
from .batch import Run, UBatch
from .kv_memory import KVMemory
from .kv_sequence import KVPool, KVSequence
from .layer_memory import Index, Window, groups_of, index_of
from .loader import LoadedModel
from .outputs import Outputs
from .state_slots import NO_SLOT, SCRATCH_SLOT

PIECE_WORDS: Final = PIECE // 4

I32Array = npt.NDArray[np.int32]
F32Array = npt.NDArray[np.float32]


class GraphParams(NamedTuple):
    """The sizes that determine a graph's shape, rounded up to buckets.

    `n_top` is the number of largest logits that the graph finds for each output; 0 for whole rows
    only. If `masked`, it finds them among the tokens that masks allow. If `adapted`, tokens may
    have LoRA adapters.
    """

    n_tokens: int
    n_outputs: int
    n_seqs: int
    n_top: int = 0
    masked: bool = False
    adapted: bool = False


def bucket(n: int, limit: int) -> int:
    """Return the smallest power of two that is at least `n`, or `limit` if that is smaller."""
    return min(1 << max(n - 1, 0).bit_length(), limit)


@lru_cache(maxsize=1024)  # for every step
def params_of(
    n_tokens: int,
    n_outputs: int,
    n_seqs: int,
    n_top: int,
    masked: bool,
    adapted: bool,
    n_ubatch: int,
    n_seq_max: int,
) -> GraphParams:
    """The sizes of the graph for a ubatch of `n_tokens` tokens of `n_seqs` sequences."""
    n = bucket(n_tokens, n_ubatch)
    n_outputs = bucket(max(n_outputs, 1), n)
    return GraphParams(n, n_outputs, bucket(n_seqs, n_seq_max), n_top, masked, adapted)


class StepGraph:
    """A graph that is scheduled once and computed often."""

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        self.graph = Graph(*outputs)
        self._scheduled: ScheduledGraph | None = None

    @property
    def scheduled(self) -> ScheduledGraph:
        assert self._scheduled is not None, "the graph is not scheduled"
        return self._scheduled

    def can_reuse(self, scheduler: Scheduler) -> bool:
        """True if the graph can compute again without being scheduled again."""
        return scheduler.is_current(self.scheduled)

    def schedule(self, scheduler: Scheduler, copy_index: int = 0) -> None:
        """Place and compile the graph. Its inputs keep their addresses afterwards."""
        self._scheduled = scheduler.alloc_graph(self.graph, copy_index)


class DecodeGraph(StepGraph):
    """A graph for ubatches of up to `params`, with its inputs and outputs."""

    def __init__(
        self,
        arch: Architecture,
        params: GraphParams,
        inputs: GraphInputs,
        logits: Tensor,
        hidden: Tensor | None = None,
    ) -> None:
        self.temperature = arch.temperature
        self.windows = [group.window for group in groups_of(arch.hp.memory)]
        self.index = index_of(arch.hp.memory)
        self.params = params
        self.inputs = inputs
        self.outputs = Outputs(logits, params.n_top, masked=params.masked)
        self._hidden = hidden
        super().__init__((*self.outputs.tensors, *(() if hidden is None else (hidden,))))

    @cached_property
    def _arrays(self) -> _Arrays:
        """The inputs' data in place. The graph must be scheduled."""
        inputs = self.inputs
        return _Arrays(
            in_place(inputs.tokens)[0],
            in_place(inputs.pos)[0],
            in_place(inputs.seq)[0],
            in_place(inputs.out_ids)[0],
            None if self.temperature is None else in_place(inputs.attn_scale).ravel(),
            None if (scales := inputs.lora_scales) is None else in_place(scales).view(np.float32),
            None if inputs.slots is None else in_place(inputs.slots),
            None if (hidden := inputs.hidden) is None else in_place(hidden).view(np.float32),
            None if (n_chosen := inputs.n_chosen) is None else in_place(n_chosen)[0],
            None if (rows := inputs.rows) is None else in_place(rows)[0],
            [
                _GroupArrays(
                    in_place(g.cells)[0],
                    in_place(g.begin)[0],
                    in_place(g.end)[0],
                    window,
                )
                for g, window in zip(inputs.groups, self.windows, strict=True)
            ],
        )

    @cached_property
    def _words(self) -> memoryview:
        """The bundle's data in place, int32. The graph must be scheduled."""
        words: memoryview = in_place(self.inputs.whole)[0].data
        return words

    @cached_property
    def _places(self) -> _Places:
        """The first word of each input in the bundle."""

        def word(tensor: Tensor) -> int:
            return tensor.view_offs // 4

        inputs = self.inputs
        groups = [
            (word(g.pages), word(g.cells), word(g.begin), word(g.end), window)
            for g, window in zip(inputs.groups, self.windows, strict=True)
        ]
        return _Places(
            word(inputs.tokens), word(inputs.pos), word(inputs.seq), word(inputs.out_ids), groups
        )

    @cached_property
    def _has_others(self) -> bool:
        """True if the graph has inputs that few models have."""
        given = (self.inputs.slots, self.inputs.lora_scales, self.inputs.hidden)
        special = (self.index, self.temperature)
        return any(each is not None for each in (*given, *special))

    @cached_property
    def _n_small(self) -> int:
        """The pieces of the bundle before the page tables."""
        whole = self.inputs.whole.nbytes
        return min((g.pages.view_offs for g in self.inputs.groups), default=whole) // PIECE

    @cached_property
    def _masks(self) -> I32Array:
        """The masks' data in place, [n_outputs, n_words]. The graph must be scheduled."""
        assert self.outputs.mask is not None, "the graph has no masks"
        return in_place(self.outputs.mask)

    def set_masks(self, ubatch: UBatch) -> None:
        """Wait for the masks of a ubatch, and write them. The graph may compute already."""
        rows = self._masks
        for row, mask in zip(rows, ubatch.masks, strict=False):
            row[:] = -1 if mask is None else mask()[: len(row)].view(np.int32)

    def set_tokens(self, ubatch: UBatch) -> None:
        """Write only the tokens of a ubatch, one of each run. Its other inputs are set."""
        if ubatch.n_tokens == 1:
            self._words[self._places.tokens] = ubatch.runs[0].tokens[0]
        else:
            self._arrays.tokens[: ubatch.n_tokens] = [run.tokens[0] for run in ubatch.runs]

    def set_slots(self, ubatch: UBatch) -> None:
        """Write only the slots of states that the tokens of a ubatch read and write, if they are
        known."""
        slots, begin = self._arrays.slots, 0
        assert slots is not None, "no layer has states"
        for run in ubatch.runs:
            end = begin + len(run.tokens)
            if run.slots is not None:
                slots[begin:end] = run.slots
            begin = end

    def feed_tokens(self, n: int) -> None:
        """Let the next run take its first `n` tokens from the results of the last one. All other
        inputs are set."""
        self._words[1] = n

    def set_inputs(self, ubatch: UBatch) -> None:
        """Write a ubatch's tokens, positions, cells and pages.

        All of them are written each time: the last computation may have reused their memory.
        """
        if ubatch.n_tokens == 1 == self.params.n_tokens:
            self._set_token(ubatch.runs[0])
        else:
            self._set_tokens(ubatch)
        if self._has_others:
            self._set_others(ubatch)

    def _set_token(self, run: Run) -> None:
        """`_set_tokens` for one token, without NumPy, which is slow for single numbers."""
        words, places, pos, seqs = self._words, self._places, run.pos, (run.seq,)
        words[places.tokens], words[places.pos] = run.tokens[0], pos
        words[places.seq] = words[places.out_ids] = 0
        used = [1 + len(places.groups), 0, places.tokens, 0, self._n_small]
        for g, (_, cells, begin, end, window) in enumerate(places.groups):
            words[cells], words[end] = run.seq.pages[g].cell(pos), pos + 1
            words[begin] = 0 if window is None else window.begin(pos)
            self._set_pages(g, seqs, used)
        words[: len(used)] = array("i", used)

    def _set_tokens(self, ubatch: UBatch) -> None:
        """Write tokens, positions, cells, spans and pages."""
        tokens, pos, seq, out_ids, *_, groups = self._arrays
        n = ubatch.n_tokens
        # lists first: NumPy takes as long for one number as for a short list
        all_tokens, all_pos, all_rows, all_out = list[int](), list[int](), list[int](), list[int]()
        for run in ubatch.runs:
            m = len(run.tokens)
            all_tokens += run.tokens
            all_rows += [ubatch.seqs[run.seq]] * m
            all_pos += (run.pos,) if m == 1 else range(run.pos, run.pos + m)
            if run.n_outputs:
                all_out += range(len(all_tokens) - run.n_outputs, len(all_tokens))
        tokens[:n], pos[:n], seq[:n] = all_tokens, all_pos, all_rows
        out_ids[: len(all_out)] = all_out
        out_ids[len(all_out) :] = 0
        if n < self.params.n_tokens:
            # padding: token 0 at position 0 of a sequence whose only page is the scratch page
            tokens[n:] = pos[n:] = 0
            seq[n:] = self.params.n_seqs
        used = [0, 0, self._places.tokens, 0, self._n_small]  # see `Tensor.set_bundle`
        for g, group in enumerate(groups):
            group.set(ubatch, g, pos)
            self._set_pages(g, ubatch.seqs, used)
            row = self._places.groups[g][0] + self.params.n_seqs * self.inputs.groups[g].pages.ne[0]
            self._words[row] = 0  # the scratch page, of padding tokens
            used += (row // PIECE_WORDS, row // PIECE_WORDS + 1)
        used[0] = (len(used) - HEADER) // 2
        self._words[: len(used)] = array("i", used)

    def _set_pages(self, g: int, seqs: Iterable[KVSequence], used: list[int]) -> None:
        """Write the pages of group `g`, and add the ranges of the bundle that have them."""
        words, width = self._words, self.inputs.groups[g].pages.ne[0]
        row = self._places.groups[g][0]
        for sequence in seqs:
            pages = sequence.pages[g]
            first, last = row + pages.first, row + pages.end
            words[first:last] = pages.page_words()
            used += (first // PIECE_WORDS, -(-last // PIECE_WORDS))
            row += width

    def _set_others(self, ubatch: UBatch) -> None:
        """Write the inputs that few models have."""
        arrays, n = self._arrays, ubatch.n_tokens
        lora_scales, slots, hidden = arrays.lora_scales, arrays.slots, arrays.hidden
        if self.index is not None:
            self._set_chosen(*self.index)
        if self.temperature is not None and arrays.attn_scale is not None:
            arrays.attn_scale[:] = self.temperature.of(arrays.pos).view(np.int32)
        if slots is not None:
            slots[:] = NO_SLOT, SCRATCH_SLOT
            self.set_slots(ubatch)
        if lora_scales is not None:
            lora_scales[:] = 0
            begin = 0
            for run in ubatch.runs:
                end = begin + len(run.tokens)
                if run.lora_scales is not None:
                    lora_scales[begin:end] = run.lora_scales
                begin = end
        if hidden is not None:
            hidden[n:] = 0
            given = [run.hidden for run in ubatch.runs if run.hidden is not None]
            if given:
                np.concatenate(given, out=hidden[:n])

    def _set_chosen(self, il: int, index: Index) -> None:
        """Write how many positions tokens attend to in layers like `il`, which has an indexer."""
        arrays, g = self._arrays, self.inputs.group_of[il]
        assert g is not None, "the layer has latent rows"
        assert arrays.n_chosen is not None, "the graph has a layer with an indexer"
        assert arrays.rows is not None, "the graph has a layer with an indexer"
        arrays.rows[:] = np.arange(len(arrays.rows), dtype=np.int32)
        np.minimum(arrays.groups[g].end, index.top_k, out=arrays.n_chosen)

    def read_hidden(self, n_tokens: int) -> F32Array:
        """Return the hidden states of the first tokens, [n_tokens, n_embd]."""
        assert self._hidden is not None, "the graph keeps no hidden states"
        rows = np.empty((n_tokens, self._hidden.ne[0]), np.float32)
        tensor_read(self._hidden, rows.reshape(-1).view(np.uint8))
        return rows


class _GroupArrays(NamedTuple):
    """The data of a group's cells and spans, int32 [n], and the window of its layers."""

    cells: I32Array
    begin: I32Array
    end: I32Array
    window: Window | None

    def set(self, ubatch: UBatch, g: int, pos: I32Array) -> None:
        """Write the cells and spans of group `g` for tokens at `pos`."""
        cells, begin, end, window = self
        n = ubatch.n_tokens
        all_cells = list[int]()
        for run in ubatch.runs:
            pages, m = run.seq.pages[g], len(run.tokens)
            if m == 1:
                all_cells.append(pages.cell(run.pos))
            else:
                all_cells += pages.cells(run.pos, run.pos + m).tolist()
        cells[:n] = all_cells
        cells[n:] = 0
        np.add(pos[:n], 1, out=end[:n])
        end[n:] = 1
        if window is not None:
            begin[:n] = window.begin(pos[:n])
            begin[n:] = 0
        else:
            begin[:] = 0


class _Places(NamedTuple):
    """Words of a bundle. Those of a group: its page table, cells, begin and end; and its window."""

    tokens: int
    pos: int
    seq: int
    out_ids: int
    groups: list[tuple[int, int, int, int, Window | None]]


class _Arrays(NamedTuple):
    """The data of a graph's inputs, int32 [n]."""

    tokens: I32Array
    pos: I32Array
    seq: I32Array
    out_ids: I32Array
    attn_scale: I32Array | None  # the bytes of floats
    lora_scales: F32Array | None  # [n, n_parts]
    slots: I32Array | None  # [n, 2]
    hidden: F32Array | None  # [n, n_embd]
    n_chosen: I32Array | None
    rows: I32Array | None
    groups: list[_GroupArrays]


def in_place(tensor: Tensor) -> I32Array:
    """Return the data of an input in host memory, int32 [rows, n]."""
    if tensor.buffer is None:  # no node reads this input
        view_init(tensor)
    buffer = buffer_of(tensor)
    assert isinstance(buffer, HostBuffer), f"input {tensor!r} is not in host memory"
    data: I32Array = buffer.array(tensor)[0].reshape(-1, tensor.ne[0]).view(np.int32)
    return data


def build_graph(
    model: LoadedModel,
    kv: KVMemory,
    params: GraphParams,
    pool: KVPool,
    n_ctx: int,
    *,
    keeps_hidden: bool = False,
) -> DecodeGraph:
    """Build the model's graph for ubatches of up to `params`, in a context of `n_ctx` tokens. With
    `keeps_hidden`, the tokens' hidden states are outputs."""
    # the page table has one more row, for the sequence of the padding tokens
    inputs = GraphInputs.new(
        params.n_tokens,
        params.n_outputs,
        pool.width,
        params.n_seqs + 1,
        model.hp.memory,
        n_parts=len(model.adapters.parts) if params.adapted else 0,
        n_hidden=model.arch.n_hidden,
    )
    hidden: list[Tensor] | None = [] if keeps_hidden else None
    logits = model.arch.build(
        model.weights,
        inputs,
        kv.layers,
        page_size=pool.page_size,
        n_ctx=n_ctx,
        adapters=model.adapters.weights,
        control=model.control.directions,
        states=kv.states,
        hidden=hidden,
    )
    return DecodeGraph(model.arch, params, inputs, logits, hidden[0] if hidden else None)
