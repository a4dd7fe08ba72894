"""Scheduled graphs: `Scheduler.alloc_graph` returns them, `graph_compute` runs them.

Tested by tests/sched/test_scheduler.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..alloc.buffer import Buffer, Usage
from ..alloc.layout import Layout
from ..graph.graph import Graph
from ..graph.op import VIEW_OPS, Op
from ..graph.tensor import INPUT, LATE, Tensor
from .backend import Backend
from .hazards import State
from .split import Order, Split, SplitGraph


@dataclass(slots=True, eq=False)
class Transfer:
    """A copy made before a split: `src`, on `src_backend`, to `dst`.

    `is_graph_input`: the user writes the source, or the source is a view of such a tensor.
    `expert_node` is the only reader of the copy, a MUL_MAT_ID whose experts are known before the
    split runs: then only these experts are copied. None for other copies.
    """

    src: Tensor
    src_backend: Backend
    dst: Tensor
    is_graph_input: bool
    expert_node: Tensor | None

    @property
    def nbytes(self) -> int:
        """The bytes copied; for experts the maximum, reached if all chosen experts differ."""
        if self.expert_node is None:
            return self.src.nbytes
        ids = self.expert_node.src[2]
        return min(ids.n_elements, self.src.ne[2]) * self.src.nb[2]


@dataclass(slots=True, eq=False)
class ScheduledSplit:
    """A split, prepared to run.

    `transfers` are its copies. `buffers` are those that it reads or writes, without weights, which
    are never written. `reads_inputs`: it reads a graph input where the user writes it.
    `reads_late`: it needs a late input. `ahead` are copies for a later split, made while this one
    computes. `waits_ahead`: some of its own copies were made ahead.
    """

    split: Split
    transfers: list[Transfer]
    buffers: set[Buffer]
    reads_inputs: bool
    reads_late: bool
    ahead: list[Transfer]
    waits_ahead: bool

    @property
    def inputs(self) -> list[tuple[Tensor, Tensor]]:
        """The graph inputs that are copied for this split, each with its copy."""
        return [(t.src, t.dst) for t in self.transfers if t.is_graph_input]


class Recorded(NamedTuple):
    """The calls to backends of a run that started with nothing in flight, and the state after."""

    calls: Sequence[Callable[[], Any]]
    state: State


class ScheduledGraph:
    """A graph with its splits, copies, memory and plans. Several can be valid at once.

    It becomes invalid when one of its compute buffers moves (the buffer's generation is no longer
    the one in `generations`, by buffer id), or when its graph is restored or scheduled again.
    `graph` is the user's graph, with sources redirected to copies. `order` is the scheduler's own
    graph, including the copies. `owner` is the scheduler. `causes` explains every placement (see
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
        self.n_moves = -1  # of all buffers, when the generations were compared
        self.causes = a.causes
        self._rewrites = parts.rewrites
        self.backends = a.table.backends
        self.buffer_types = a.table.bufts
        self._ids = a.ids
        self.owner = owner
        self.inputs = {leaf for leaf in a.graph.leafs if leaf.flags & INPUT}
        experts = _expert_nodes(parts)
        # by (late inputs are written, inputs are released)
        self.recorded: dict[tuple[bool, bool], Recorded] = {}
        self.runs = [_prepare(parts, split, self.inputs, experts) for split in parts.splits]

    @property
    def released(self) -> bool:
        """True once the graph was restored or scheduled again."""
        return self.graph.rewrites is not self._rewrites

    @property
    def n_splits(self) -> int:
        return len(self.splits)

    def backend_of(self, tensor: Tensor) -> Backend:
        """The backend of a tensor of the graph, or of a copy."""
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
    reads_late = any(t.src.flags & LATE for t in transfers)
    for node in split.graph.nodes:
        if node.op in VIEW_OPS:
            continue  # reads no data
        buffers.add(node.buffer)
        for src in node.src:
            buffers.add(src.buffer)
            reads_inputs |= src.root in inputs
            reads_late |= bool(src.flags & LATE)
    buffers = {b for b in buffers if b.usage is not Usage.WEIGHTS}
    waits_ahead = bool(split.copied)
    return ScheduledSplit(split, transfers, buffers, reads_inputs, reads_late, ahead, waits_ahead)


def _is_graph_input(t: Tensor, inputs: set[Tensor]) -> bool:
    """True for a graph input and views of it; False for a node that writes into it."""
    while t.op in VIEW_OPS:
        t = t.src[0]
    return t.op is Op.NONE and t.root in inputs


def _expert_nodes(parts: SplitGraph) -> dict[Tensor, Tensor]:
    """The MUL_MAT_ID of each copy of experts for which copying the chosen experts is enough.

    It must be the only reader in the whole graph, as later splits use the same copy. Its choice
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
    return on_host and src.is_contiguous  # otherwise an expert's bytes are not contiguous


def _chooses_before(node: Tensor, copy: Tensor, split: Split) -> bool:
    if node.op is not Op.MUL_MAT_ID or node.src[0] is not copy or len(node.src) < 3:
        return False
    return all(n.op in VIEW_OPS or n.root is not node.src[2].root for n in split.graph.nodes)
