"""The input tensors of a model's graph, and the keys and values that it reads and writes.

Knows no memory and no weights. Tested by tests/model/test_arch_forward.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from ...graph import GGMLType, Op, Tensor, ops
from ...graph.tensor import HEADER
from ..layer_memory import Kind, LayerMemory, group_indices, groups_of, index_of, state_group

ALIGNED: Final = 16  # elements, so that every input begins at a cache line


@dataclass(frozen=True, slots=True)
class GroupInputs:
    """The inputs of one group of layers, see `model/layer_memory.py`.

    Attributes:
        pages: I32 [n_pages, n_seqs] page table.
        cells: I32 [n_tokens] cell of the pool that each token's keys and values are written to.
        begin, end: I32 [n_tokens] the positions that each token sees: from `begin` to before `end`.
    """

    pages: Tensor
    cells: Tensor
    begin: Tensor
    end: Tensor


@dataclass(frozen=True, slots=True)
class GraphInputs:
    """The input tensors of a graph, written before each computation.

    All are views of `whole`, so that a device receives them in one copy. Page tables come last, as
    often only a few of their pages are in use.

    Attributes:
        used: I32 [n] the parts of `whole` that are in use, and what is fed: `Tensor.set_bundle`.
        tokens: I32 [n_tokens] token ids.
        pos: I32 [n_tokens] position of each token.
        seq: I32 [n_tokens] column of each token's sequence in page tables.
        out_ids: I32 [n_outputs] indices of the tokens with logits as outputs.
        attn_scale: F32 [n_tokens] factor of each token's queries, see `Temperature`.
        lora_scales: F32 [n_parts, n_tokens] scales of adapters, see `Adapted`; None: without.
        slots: I32 [2, n_tokens] the slot that has the states before each token (-1: all zeros), and
            the slot that gets those after it; None: no layer has states.
        rows: I32 [n_tokens] the numbers of tokens, 0 to n_tokens - 1; None: no layer has a sparse
            indexer.
        n_chosen: I32 [n_tokens] how many positions each token attends to in such layers; or None.
        hidden: F32 [n_embd, n_tokens] hidden states of another model, see `NextN`; None: without.
        groups: inputs of each group of layers.
        group_of: for each layer, the index of its group; None: it has no memory.
    """

    whole: Tensor
    used: Tensor
    tokens: Tensor
    pos: Tensor
    seq: Tensor
    out_ids: Tensor
    attn_scale: Tensor
    lora_scales: Tensor | None
    slots: Tensor | None
    rows: Tensor | None
    n_chosen: Tensor | None
    hidden: Tensor | None
    groups: tuple[GroupInputs, ...]
    group_of: tuple[int | None, ...]

    @classmethod
    def new(
        cls,
        n_tokens: int,
        n_outputs: int,
        n_pages: int,
        n_seqs: int,
        memory: Sequence[LayerMemory],
        n_parts: int = 0,
        n_hidden: int = 0,
    ) -> GraphInputs:
        """Return unallocated inputs of these sizes. `n_parts`: of adapters. `n_hidden`: elements of
        a hidden state."""
        one = (n_tokens,)
        groups = [group.name.replace(" ", "_") for group in groups_of(memory)]
        shapes: dict[str, tuple[int, ...]] = {"used": (HEADER + 2 + 2 * len(groups) * n_seqs,)}
        shapes |= {"tokens": one, "pos": one, "seq": one, "out_ids": (n_outputs,)}
        shapes |= {"attn_scale": one, "lora_scales": (n_parts, n_tokens)}
        shapes["slots"] = (2, n_tokens if state_group(memory) else 0)
        shapes["rows"] = shapes["n_chosen"] = (n_tokens if index_of(memory) else 0,)
        shapes["hidden"] = (n_hidden, n_tokens)
        every = list(shapes.items())
        for name in groups:
            every += ((f"cells_{name}", one), (f"begin_{name}", one), (f"end_{name}", one))
        every += ((f"pages_{name}", (n_pages, n_seqs)) for name in groups)
        sizes = [-(-math.prod(ne) // ALIGNED) * ALIGNED for _, ne in every]
        whole = Tensor(GGMLType.I32, (sum(sizes),), name="inputs").set_bundle()
        begins = accumulate(sizes, initial=0)
        views = [
            _view(whole, name, ne, 4 * begin)
            for (name, ne), begin in zip(every, begins, strict=False)
        ]
        shared: dict[str, Any] = dict(zip(shapes, views, strict=False))
        for name in ("lora_scales", "slots", "rows", "n_chosen", "hidden"):
            if not shared[name].n_elements:
                shared[name] = None
        small, tables = views[len(shapes) :], views[len(views) - len(groups) :]
        found = tuple(
            GroupInputs(pages, *small[3 * g : 3 * g + 3]) for g, pages in enumerate(tables)
        )
        return cls(whole, **shared, groups=found, group_of=group_indices(memory))

    def group(self, il: int) -> GroupInputs:
        """Return the inputs of the group whose memory layer `il` uses."""
        i = self.group_of[il]
        assert i is not None, f"layer {il} has no memory"
        return self.groups[i]


def _view(whole: Tensor, name: str, ne: tuple[int, ...], offset: int) -> Tensor:
    view = ops.view(whole, ne, offset=offset)
    if name in ("attn_scale", "lora_scales", "hidden"):  # the same bytes as floats
        view = Tensor(GGMLType.F32, ne, op=Op.VIEW, src=(whole,), view_src=whole, view_offs=offset)
    return view.named(f"inp_{name}")


@dataclass(frozen=True, slots=True)
class KVLayer:
    """One layer's keys and values, in the pool of its group."""

    k: Tensor  # [n_embd_k, n_cells]
    v: Tensor | None  # [n_embd_v, n_cells]; None: values are the first elements of keys

    @classmethod
    def new(cls, memory: LayerMemory, n_cells: int, type_k: GGMLType, type_v: GGMLType) -> KVLayer:
        """Return unallocated keys and values of a layer."""
        k = Tensor(type_k, (memory.n_embd_k, n_cells))
        if memory.kind is Kind.LATENT:
            return cls(k, None)
        return cls(k, Tensor(type_v, (memory.n_embd_v, n_cells)))

    def named(self, name: str) -> KVLayer:
        """Name the tensors; `name` has "{}" where "k" or "v" is."""
        self.k.named(name.format("k"))
        if self.v is not None:
            self.v.named(name.format("v"))
        return self

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that have memory: keys, then values."""
        return (self.k,) if self.v is None else (self.k, self.v)

    @property
    def cell_bytes(self) -> int:
        """Bytes of one token."""
        return sum(t.nb[1] for t in self.tensors)
