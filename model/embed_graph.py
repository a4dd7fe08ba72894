"""Embedding graphs: the rows of whole texts, without a KV pool.

All tokens of a text are in one graph, so its keys and values are tensors of the graph, in compute
memory, as F32. They lie in pages as in a pool, and each text begins a page: attention goes through
it as if it were alone. Tested by tests/model/test_embed_context.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..graph import GGMLType
from ..graph.tensor import Tensor
from .arch import GraphInputs, KVLayer
from .graphs import StepGraph, in_place
from .kv_pages import PAGE_SIZE
from .layer_memory import groups_of, index_of
from .loader import LoadedModel
from .pooling import Pooling

I32Array = npt.NDArray[np.int32]

N_TEXTS: Final = 128  # the most texts of a graph


class EmbedParams(NamedTuple):
    """The sizes that determine an embedding graph's shape, rounded up to buckets."""

    n_tokens: int
    n_outputs: int
    n_seqs: int

    @property
    def n_pages(self) -> int:
        """Pages of all texts: each but the first may begin one, besides full ones."""
        return -(-self.n_tokens // PAGE_SIZE) + min(self.n_seqs, self.n_tokens) - 1


class EmbedGraph(StepGraph):
    """A graph for texts of up to `params`, with its inputs and the rows of their tokens."""

    def __init__(self, model: LoadedModel, params: EmbedParams, n_ctx: int) -> None:
        memory = model.hp.memory
        n_pages = -(-params.n_tokens // PAGE_SIZE)  # of one text
        # one more text for padding tokens, and one more page
        self.inputs = GraphInputs.new(
            params.n_tokens, params.n_outputs, n_pages, params.n_seqs + 1, memory
        )
        self.params = params
        self.causal = model.hp.causal
        self.temperature = model.arch.temperature
        self.windows = [group.window for group in groups_of(memory)]
        self.index = index_of(memory)
        kv = step_kv(model, (params.n_pages + 1) * PAGE_SIZE)
        self.rows = model.arch.build_embeddings(
            model.weights, self.inputs, kv, page_size=PAGE_SIZE, n_ctx=n_ctx
        )
        super().__init__([self.rows])

    @cached_property
    def _arrays(self) -> dict[str, I32Array]:
        names = ("used", "tokens", "pos", "seq", "out_ids")
        return {name: in_place(getattr(self.inputs, name))[0] for name in names}

    @cached_property
    def _group_arrays(self) -> list[tuple[I32Array, I32Array, I32Array, I32Array]]:
        return [
            (in_place(g.pages), in_place(g.cells)[0], in_place(g.begin)[0], in_place(g.end)[0])
            for g in self.inputs.groups
        ]

    def set_inputs(self, texts: Sequence[I32Array], row: int | None) -> None:
        """Write the tokens of texts, their cells and spans.

        `row` is the output of each text: 0 or -1 for its first or last token, None for all tokens.
        """
        lengths = np.array([len(text) for text in texts], np.int32)
        n, ends = int(lengths.sum()), lengths.cumsum(dtype=np.int32)
        first = np.repeat(ends - lengths, lengths)  # of each token's text
        n_pages = -(-lengths // PAGE_SIZE)
        first_page = n_pages.cumsum(dtype=np.int32) - n_pages
        pos = np.arange(n, dtype=np.int32) - first
        a = self._arrays
        a["used"][0] = 0  # all of it
        a["tokens"][:n] = np.concatenate(texts)
        a["pos"][:n] = pos
        a["seq"][:n] = np.repeat(np.arange(len(texts), dtype=np.int32), lengths)
        if row is None:
            a["out_ids"][:n], a["out_ids"][n:] = np.arange(n, dtype=np.int32), 0
        else:
            a["out_ids"][: len(texts)] = ends - lengths if row == 0 else ends - 1
            a["out_ids"][len(texts) :] = 0
        a["tokens"][n:] = a["pos"][n:] = 0
        a["seq"][n:] = self.params.n_seqs
        if self.temperature is not None:
            factors = in_place(self.inputs.attn_scale).ravel()
            factors[:] = self.temperature.of(a["pos"]).view(np.int32)
        last = pos + 1 if self.causal else np.repeat(lengths, lengths)
        cells = np.repeat(first_page, lengths) * PAGE_SIZE + pos
        for (table, own_cells, begin, end), window in zip(
            self._group_arrays, self.windows, strict=True
        ):
            table[: len(texts)] = first_page[:, None] + np.arange(table.shape[1], dtype=np.int32)
            table[-1] = scratch = self.params.n_pages
            own_cells[:n], own_cells[n:] = cells, scratch * PAGE_SIZE
            begin[:n], begin[n:] = 0 if window is None else window.begin(pos), 0
            end[:n], end[n:] = last if window is None else window.ends(pos, last), 1
        rows, n_chosen = self.inputs.rows, self.inputs.n_chosen
        if self.index is not None and rows is not None and n_chosen is not None:
            in_place(rows)[0][:] = np.arange(rows.ne[0], dtype=np.int32)
            chosen = in_place(n_chosen)[0]
            chosen[:n], chosen[n:] = np.minimum(last, self.index[1].top_k), 1


def step_kv(model: LoadedModel, n_cells: int) -> list[KVLayer | None]:
    """Return unallocated keys and values of a step for each layer, [n_embd_k or v, n_cells].

    A layer has read its own before the next one writes: layers of one device and equal sizes have
    the same tensors, except layers whose keys and values others use too.
    """
    memory = model.hp.memory
    owners = {layer.layer for layer in memory}
    tensors = dict[Hashable, KVLayer]()
    found = list[KVLayer | None]()
    for il, layer in enumerate(memory):
        if not layer.kind.is_paged:
            found.append(None)
            continue
        sizes = (layer.n_embd_k, layer.n_embd_v)
        key = il if il in owners else (model.layers[il], sizes)
        if key not in tensors:
            made = KVLayer.new(layer, n_cells, GGMLType.F32, GGMLType.F32)
            tensors[key] = made.named(f"step_{{}}_l{il}")
        found.append(tensors[key])
    return found


class HeadGraph(StepGraph):
    """The graph that follows pooling: vectors or scores [n, n_texts] of pooled rows."""

    def __init__(self, model: LoadedModel, n_texts: int, pooling: Pooling) -> None:
        shape = (model.hp.n_embd, n_texts)
        self.rows = Tensor(GGMLType.F32, shape, name="inp_pooled").set_input()
        result = model.arch.build_head(model.weights, self.rows, pooling)
        assert result is not None, "pooled rows are the result"
        self.result = result
        super().__init__([result])
