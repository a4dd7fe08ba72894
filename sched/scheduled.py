"""Scheduled graphs: what `Scheduler.alloc_graph` returns and `graph_compute` runs, often."""

from __future__ import annotations

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

    @property
    def nbytes(self) -> int:
        """Bytes that are copied; of experts at most, as each row of the choice may want others."""
        if self.expert_node is None:
            return self.src.nbytes
        ids = self.expert_node.src[2]
        return min(ids.n_elements, self.src.ne[2]) * self.src.nb[2]


@dataclass(slots=True, eq=False)
class ScheduledSplit:
    """A split with what running it needs: its copies, the buffers it reads or writes (weights are
    never written, so they do not count), whether it reads a graph input where the user writes it;
    the copies for a later split to be made while it computes, and whether it has such itself."""

    split: Split
    transfers: list[Transfer]
    buffers: set[Buffer]
    reads_inputs: bool
    ahead: list[Transfer]
    waits_ahead: bool


class ScheduledGraph:
    """A graph with its splits, copies, memory and plans. Several stay valid side by side.

    It ends being valid when a compute buffer it uses moves (its generation is no longer the one in
    `generations`, by buffer id), or when its graph is scheduled again.
    `graph` is the user's, its sources redirected to copies; `order` the scheduler's own, with the
    copies in it; `owner` is the scheduler that made it. `causes` explains every placement (see
    `assignment.CAUSES`).
    """

    def __init__(
        self,
        parts: SplitGraph,
        order: Order,
        layout: Layout,
        generations: dict[int, int],
        owner: object,
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
        self._rewrites = parts.rewrites
        self.backends = a.table.backends
        self.buffer_types = a.table.bufts
        self._ids = a.ids
        self.owner = owner
        self.inputs = {leaf for leaf in a.graph.leafs if leaf.flags & INPUT}
        experts = _expert_nodes(parts)
        self.runs = [_prepare(parts, split, self.inputs, experts) for split in parts.splits]

    @property
    def released(self) -> bool:
        """True once the graph was restored, or scheduled anew."""
        return self.graph.rewrites is not self._rewrites

    @property
    def n_splits(self) -> int:
        return len(self.splits)

    def backend_of(self, tensor: Tensor) -> Backend:
        """The backend a tensor of the graph, or a copy, is on."""
        return self.backends[self._ids[tensor]]


def _prepare(
    parts: SplitGraph, split: Split, inputs: set[Tensor], experts: dict[Tensor, Tensor]
) -> ScheduledSplit:
    a = parts.assignment

    def transfer(src: Tensor) -> Transfer:
        copy = parts.copy_of(src, split.backend_id)
        backend = a.table.backends[a.ids[src]]
        return Transfer(src, backend, copy, _is_graph_input(src, inputs), experts.get(copy))

    transfers = [transfer(src) for src in split.inputs if src not in split.copied]
    ahead = [transfer(src) for src in split.ahead]
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
    return ScheduledSplit(split, transfers, buffers, reads_inputs, ahead, bool(split.copied))


def _is_graph_input(t: Tensor, inputs: set[Tensor]) -> bool:
    """True for what the user writes, seen through views; not for what a node writes into it."""
    while t.op in VIEW_OPS:
        t = t.src[0]
    return t.op is Op.NONE and t.root in inputs


def _expert_nodes(parts: SplitGraph) -> dict[Tensor, Tensor]:
    """For copies of weights in host memory, the MUL_MAT_ID whose experts are enough to copy.

    It must be the only reader in the whole graph, as later splits use the same copy, and its choice
    must be known before its split runs.
    """
    splits = {
        parts.copy_of(src, split.backend_id): split
        for split in parts.splits
        for src in split.inputs
        if _has_host_experts(src)
    }
    if not splits:
        return {}
    readers: dict[Tensor, list[Tensor]] = {copy: [] for copy in splits}
    for node in parts.assignment.graph.nodes:
        for src in node.src:
            if src in readers:
                readers[src].append(node)
    return {
        copy: nodes[0]
        for copy, nodes in readers.items()
        if len(nodes) == 1 and _chooses_before(nodes[0], copy, splits[copy])
    }


def _has_host_experts(src: Tensor) -> bool:
    buffer = src.buffer
    on_host = buffer is not None and buffer.usage is Usage.WEIGHTS and buffer.buft.is_host
    return on_host and src.is_contiguous  # else an expert is more than one run of bytes


def _chooses_before(node: Tensor, copy: Tensor, split: Split) -> bool:
    if node.op is not Op.MUL_MAT_ID or node.src[0] is not copy or len(node.src) < 3:
        return False
    return all(n.op in VIEW_OPS or n.root is not node.src[2].root for n in split.graph.nodes)
