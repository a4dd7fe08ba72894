"""Scheduled graphs: what `Scheduler.alloc_graph` returns and `graph_compute` runs, often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..alloc.buffer import Buffer, Usage
from ..alloc.layout import Layout
from ..graph.graph import Graph
from ..graph.op import VIEW_OPS, Op
from ..graph.tensor import INPUT, Tensor
from .backend import Backend
from .split import Order, Split, SplitGraph


@dataclass(slots=True, eq=False)
class Transfer:
    """A copy made before a split: `src`, on `src_backend`, to `dst`.

    `is_graph_input`: the source is written by the user, or a view of what is. `expert_node` is the
    MUL_MAT_ID that reads the copy, if nothing else does and its choice of experts is known before
    the split runs: then only those experts are copied.
    """

    src: Tensor
    src_backend: Backend
    dst: Tensor
    is_graph_input: bool
    expert_node: Tensor | None


@dataclass(slots=True, eq=False)
class ScheduledSplit:
    """A split with what running it needs: its copies, the buffers it reads or writes (weights are
    never written, so they do not count), and whether it reads a graph input where the user writes
    it."""

    split: Split
    transfers: list[Transfer]
    buffers: set[Buffer]
    reads_inputs: bool


class ScheduledGraph:
    """A graph with its splits, copies, memory and plans. Several stay valid side by side.

    It ends being valid when a compute buffer it uses moves (its generation is no longer the one in
    `generations`, by buffer id), or when its graph is scheduled again.
    `graph` is the user's, its sources redirected to copies; `order` the scheduler's own, with the
    copies in it. `causes` explains every placement (see `assignment.CAUSES`).
    """

    def __init__(
        self, parts: SplitGraph, order: Order, layout: Layout, generations: dict[int, int]
    ) -> None:
        a = parts.assignment
        self.graph: Graph = a.graph
        self.order = order
        self.layout = layout
        self.splits: list[Split] = parts.splits
        self.copies = parts.copies
        self.copy_index = parts.copy_index
        self.generations = generations
        self.causes = a.causes
        self.released = False
        self.backends = a.machine.backends
        self._ids = a.ids
        self.inputs = {leaf for leaf in a.graph.leafs if leaf.flags & INPUT}
        self.runs = [_prepare(parts, split, self.inputs) for split in parts.splits]

    @property
    def n_splits(self) -> int:
        return len(self.splits)

    def backend_of(self, tensor: Tensor) -> Backend:
        """The backend a tensor of the graph, or a copy, is on."""
        return self.backends[self._ids[tensor]]


def _prepare(parts: SplitGraph, split: Split, inputs: set[Tensor]) -> ScheduledSplit:
    a = parts.assignment
    transfers = [
        Transfer(
            src,
            a.machine.backends[a.ids[src]],
            parts.copy_of(src, split.backend_id),
            src.root in inputs,
            _expert_node(split.graph.nodes, parts.copy_of(src, split.backend_id), src),
        )
        for src in split.inputs
    ]
    buffers: set[Buffer] = set()
    reads_inputs = False
    for node in split.graph.nodes:
        if node.op in VIEW_OPS:
            continue  # looks, but does not read
        buffers.add(node.buffer)
        for src in node.src:
            buffers.add(src.buffer)
            reads_inputs |= src.root in inputs
    buffers = {b for b in buffers if b.usage is not Usage.WEIGHTS}
    return ScheduledSplit(split, transfers, buffers, reads_inputs)


def _expert_node(nodes: Sequence[Tensor], copy: Tensor, src: Tensor) -> Tensor | None:
    if src.buffer is None or src.buffer.usage is not Usage.WEIGHTS or not src.buffer.buft.is_host:
        return None
    readers = [n for n in nodes if copy in n.src]
    if len(readers) != 1 or readers[0].op is not Op.MUL_MAT_ID or readers[0].src[:1] != [copy]:
        return None
    choice = readers[0].src[2:]
    return readers[0] if choice and choice[0].root not in nodes else None
