"""Layouts: the place of each tensor of a graph (ggml-alloc.c, ggml_gallocr_alloc_graph_impl).

`plan_layout` walks a graph in order. It gives each tensor a buffer id and an address at its first
use and frees the address after the last use. An op that can work in place takes over the memory of
a source. Nothing is allocated here: a `Layout` is numbers only. Tested by
tests/alloc/test_layout_*.py and test_gallocr_random.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from ..graph.graph import Graph
from ..graph.op import Op
from ..graph.tensor import INPUT, OUTPUT, Tensor, inplace_sources, same_layout
from .buffer import BufferType
from .dyn_tallocr import DynTensorAllocator
from .tallocr import align


class TensorAddress(NamedTuple):
    """The place of a tensor in a chunk of a buffer, its bytes, and the steps that use it.

    The address is in use from node number `first` to node number `last`, both included. `first` is
    -1 if the tensor is placed before the first node; `last` is the number of nodes if the address
    is never freed. An in-place node takes over the address in the last step of its source.
    """

    buffer_id: int
    chunk: int
    offset: int
    size: int
    first: int
    last: int


@dataclass(slots=True, frozen=True, eq=False)
class Layout:
    """The addresses of a graph's tensors; None for views and for tensors that are already placed.

    `chunk_sizes[buffer_id]` are the bytes of each chunk. The other fields decide whether the layout
    fits another graph: `wiring` is the graph's structure as numbers, `inplace` lists the (node,
    source) pairs that share an address.
    """

    nodes: list[TensorAddress | None]
    leafs: list[TensorAddress | None]
    chunk_sizes: list[list[int]]
    node_ids: list[int]
    leaf_ids: list[int]
    wiring: list[int]
    inplace: list[tuple[int, int]]

    @property
    def buffer_ids(self) -> set[int]:
        """The buffers in which tensors are placed."""
        return {a.buffer_id for a in (*self.leafs, *self.nodes) if a is not None}

    def fits(self, graph: Graph, bufts: Sequence[BufferType]) -> bool:
        """True if `graph` is wired like the planned one and no tensor needs more bytes."""
        return (
            len(self.nodes) == len(graph.nodes)
            and len(self.leafs) == len(graph.leafs)
            and self.wiring == wiring_of(graph)
            and _sizes_fit(self.leafs, graph.leafs, bufts)
            and _sizes_fit(self.nodes, graph.nodes, bufts)
            and all(same_layout(graph.nodes[i], graph.nodes[i].src[j]) for i, j in self.inplace)
        )


def wiring_of(graph: Graph) -> list[int]:
    """Ops, flags and sources of a graph as numbers: if equal, tensors have equal lifetimes."""
    index = {t: i for i, t in enumerate([*graph.leafs, *graph.nodes])}
    wiring = [leaf.flags for leaf in graph.leafs]
    for node in graph.nodes:
        wiring += (-1, node.op, node.flags)
        wiring += [index[src] for src in node.src]
    return wiring


def _sizes_fit(
    planned: Sequence[TensorAddress | None], tensors: Sequence[Tensor], bufts: Sequence[BufferType]
) -> bool:
    for address, t in zip(planned, tensors, strict=True):
        if t.buffer is not None or t.view_src is not None:
            continue
        if address is None or address.size < bufts[address.buffer_id].get_alloc_size(t):
            return False
    return True


class _TensorState:
    """A tensor during planning (ggml-alloc.c, hash_node)."""

    __slots__ = (
        "allocated",
        "buffer_id",
        "chunk",
        "first",
        "last",
        "n_children",
        "n_views",
        "offset",
        "size",
    )

    # its address, set when it is allocated; `last` is final when it is freed
    buffer_id: int
    chunk: int
    offset: int
    size: int
    first: int
    last: int

    def __init__(self) -> None:
        self.n_children = 0  # readers that are not planned yet
        self.n_views = 0  # its views that are still in use
        self.allocated = False  # it owns its address now


class _TensorStates(dict[Tensor, _TensorState]):
    def __missing__(self, tensor: Tensor) -> _TensorState:
        state = self[tensor] = _TensorState()
        return state


def plan_layout(
    graph: Graph,
    bufts: Sequence[BufferType],
    node_ids: Sequence[int],
    leaf_ids: Sequence[int],
) -> Layout:
    """Plan a graph: node i is in buffer type `bufts[node_ids[i]]`, leafs likewise."""
    return _Planner(bufts).plan(graph, list(node_ids), list(leaf_ids))


class _Planner:
    def __init__(self, bufts: Sequence[BufferType]) -> None:
        self.bufts = bufts
        self.allocators = [DynTensorAllocator(b.alignment, b.max_size) for b in bufts]
        self.states = _TensorStates()
        self.inplace_src: dict[Tensor, int] = {}
        self.outputs: set[Tensor] = set()  # never freed, never overwritten
        self.step = -1  # the number of the current node
        self.n_steps = 0

    def plan(self, graph: Graph, node_ids: list[int], leaf_ids: list[int]) -> Layout:
        # an output that is a view keeps its source
        self.outputs = {t.root for t in chain(graph.leafs, graph.nodes) if t.flags & OUTPUT}
        self.n_steps = len(graph.nodes)
        for leaf, buffer_id in zip(graph.leafs, leaf_ids, strict=True):
            self._allocate(leaf, buffer_id)
        self._count_uses(graph, node_ids)
        for node, buffer_id in zip(graph.nodes, node_ids, strict=True):
            self.step += 1
            for src in node.src:
                self._allocate(src, buffer_id)
            self._allocate(node, buffer_id)
            for src in node.src:
                self._release(src)
        sources = self.inplace_src
        return Layout(
            nodes=[self._address(t) for t in graph.nodes],
            leafs=[self._address(t) for t in graph.leafs],
            chunk_sizes=[allocator.chunk_sizes for allocator in self.allocators],
            node_ids=node_ids,
            leaf_ids=leaf_ids,
            wiring=wiring_of(graph),
            inplace=[(i, sources[t]) for i, t in enumerate(graph.nodes) if t in sources],
        )

    def _count_uses(self, graph: Graph, node_ids: list[int]) -> None:
        """Count children and views. Place inputs first, so that no node overwrites them."""
        states = self.states
        for node, buffer_id in zip(graph.nodes, node_ids, strict=True):
            # a node without an op only keeps its sources alive: no node reads it
            if node.view_src is not None and node.op is not Op.NONE:
                states[node.view_src].n_views += 1
            if node.flags & INPUT:
                self._allocate(node, buffer_id)
            for src in node.src:
                states[src].n_children += 1
                if src.flags & INPUT:
                    self._allocate(src, buffer_id)

    def _allocate(self, tensor: Tensor, buffer_id: int) -> None:
        if tensor.view_src is not None or tensor.buffer is not None:
            return
        state = self.states[tensor]
        if state.allocated:
            return
        state.allocated = True
        state.first, state.last = self.step, self.n_steps
        if self._reuse_parent(tensor, state):
            return
        size = self.bufts[buffer_id].get_alloc_size(tensor)
        state.buffer_id = buffer_id
        state.size = size
        state.chunk, state.offset = self.allocators[buffer_id].alloc(size)

    def _reuse_parent(self, node: Tensor, state: _TensorState) -> bool:
        """Take over the memory of the first source that has the same layout and no other use.

        A view never owns memory, so the memory of a view is not taken over.
        """
        for j, parent in enumerate(inplace_sources(node)):
            owner = self.states[parent]
            if (
                owner.allocated
                and owner.n_children == 1
                and owner.n_views == 0
                and parent not in self.outputs
                and same_layout(node, parent)
                and (size := self.bufts[owner.buffer_id].get_alloc_size(node)) <= owner.size
            ):
                owner.allocated = False
                owner.last = self.step
                state.buffer_id, state.size = owner.buffer_id, size
                state.chunk, state.offset = owner.chunk, owner.offset
                self._free_extra_space(state, owner)
                self.inplace_src[node] = j
                return True
        return False

    def _free_extra_space(self, state: _TensorState, owner: _TensorState) -> None:
        """Free the bytes of the source that the node does not need."""
        allocator = self.allocators[owner.buffer_id]
        keep = align(state.size, allocator.alignment)
        extra = align(owner.size, allocator.alignment) - keep
        if extra > 0:
            allocator.free(owner.chunk, owner.offset + keep, extra)

    def _release(self, src: Tensor) -> None:
        """End one use of `src`; after the last one, free it or the tensor that it views."""
        state = self.states[src]
        state.n_children -= 1
        if state.n_children > 0 or state.n_views != 0:
            return
        if src.view_src is not None:
            source = self.states[src.view_src]
            source.n_views -= 1
            if source.n_views == 0 and source.n_children == 0:
                self._free(src.view_src, source)
        else:
            self._free(src, state)

    def _free(self, tensor: Tensor, state: _TensorState) -> None:
        if state.allocated and tensor not in self.outputs:
            self.allocators[state.buffer_id].free(state.chunk, state.offset, state.size)
            state.allocated = False
            state.last = self.step

    def _address(self, tensor: Tensor) -> TensorAddress | None:
        if tensor.view_src is not None or tensor.buffer is not None:
            return None
        s = self.states[tensor]
        return TensorAddress(s.buffer_id, s.chunk, s.offset, s.size, s.first, s.last)
