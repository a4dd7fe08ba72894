"""The graph allocator: reserves compute buffers, then places graphs in them (ggml_gallocr).

A graph fits a layout if it is wired like the reserved one and needs no more memory; then it is
placed at once. Other graphs are planned again, and buffers only grow. A placed graph stays valid
beside later ones until one of its buffers grows, which changes the buffer's generation. Tested by
tests/alloc/test_gallocr*.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from ..base.errors import OutOfMemoryError, ReserveError
from ..base.log import debug_log, get_logger
from ..graph.graph import Graph
from ..graph.tensor import Tensor
from .buffer import Buffer, BufferType, Usage, view_init
from .layout import Layout, TensorAddress, plan_layout
from .memory import REAL_MEMORY, Memory

log = get_logger("alloc")


class GraphAllocator:
    """Allocates graphs over one or several buffer types; a repeated type shares one buffer.

    A buffer id is an index into `bufts`. Methods take one id for each node and leaf; without ids,
    everything is in the first type.
    """

    def __init__(self, bufts: Sequence[BufferType], memory: Memory = REAL_MEMORY) -> None:
        assert bufts, "a graph allocator needs a buffer type"
        self.bufts = list(bufts)
        self.memory = memory
        # the first buffer id of each type; repeated types use it too
        self._first = [self.bufts.index(b) for b in self.bufts]
        self.buffers: list[list[Buffer]] = [[] for _ in bufts]
        self.generations = [0] * len(bufts)
        self.n_moves = 0  # the sum of the generations
        self.layout: Layout | None = None

    def reserve(
        self,
        graph: Graph,
        node_ids: Sequence[int] | None = None,
        leaf_ids: Sequence[int] | None = None,
    ) -> None:
        """Plan `graph` and grow the buffers to hold it. No work may be in flight in them.

        Raises:
            OutOfMemoryError: a buffer could not grow and is freed, the others stay. Graphs in the
                freed buffer must be placed again; a smaller graph can still be reserved.
        """
        layout = self._plan(graph, node_ids, leaf_ids)
        self.grow(layout.chunk_sizes)
        self.layout = layout

    def grow(self, chunk_sizes: Sequence[Sequence[int]]) -> None:
        """Grow the chunks of each buffer id to these bytes. Raises like `reserve`."""
        self.layout = None
        for buffer_id, sizes in enumerate(chunk_sizes):
            self._grow(buffer_id, sizes)

    def needs_realloc(
        self,
        graph: Graph,
        node_ids: Sequence[int] | None = None,
        leaf_ids: Sequence[int] | None = None,
    ) -> bool:
        """True if `graph` does not fit the reserved layout, or a tensor's buffer type changed."""
        layout = self.layout
        if layout is None:
            return True
        if node_ids is not None and self._canonical(graph.nodes, node_ids) != layout.node_ids:
            return True
        if leaf_ids is not None and self._canonical(graph.leafs, leaf_ids) != layout.leaf_ids:
            return True
        return not layout.fits(graph, self.bufts)

    def alloc_graph(self, graph: Graph) -> list[Tensor]:
        """Place every tensor of `graph` that has no place; return the tensors placed here.

        For use without a scheduler: with a single buffer type, a graph that does not fit is
        reserved first.

        Raises:
            ReserveError: the graph does not fit. With several buffer types only `reserve` gets the
                buffer id of each tensor.
            OutOfMemoryError: like `reserve`.
        """
        if self.needs_realloc(graph):
            n_types = len(set(self._first))
            if n_types > 1:
                raise ReserveError(
                    f"graph {graph.uid} of {len(graph.nodes)} nodes and {len(graph.leafs)} leafs "
                    f"does not fit the layout reserved over {n_types} buffer types: call reserve"
                )
            self.reserve(graph)
        return self.place_graph(graph)

    def place_graph(self, graph: Graph) -> list[Tensor]:
        """Like `alloc_graph`, for a graph that is known to fit (`needs_realloc` is False)."""
        layout = self.layout
        assert layout is not None, "nothing is reserved"
        placed: list[Tensor] = []
        try:
            for tensors, addresses in ((graph.leafs, layout.leafs), (graph.nodes, layout.nodes)):
                for tensor, address in zip(tensors, addresses, strict=True):
                    if tensor.buffer is None:
                        placed.append(tensor)
                        self._place(tensor, address)
        except BaseException:  # of a buffer's init_tensor: undo all places
            for tensor in placed:
                tensor.buffer, tensor.offset = None, 0
            raise
        return placed

    def buffer_sizes(self) -> list[int]:
        """The bytes reserved for each buffer id; a repeated type counts at its first id."""
        return [sum(b.size for b in chunks) for chunks in self.buffers]

    def free(self) -> None:
        """Free all buffers."""
        for buffer_id in range(len(self.buffers)):
            self._drop(buffer_id)
        self.layout = None

    def _plan(
        self, graph: Graph, node_ids: Sequence[int] | None, leaf_ids: Sequence[int] | None
    ) -> Layout:
        return plan_layout(
            graph,
            self.bufts,
            self._canonical(graph.nodes, node_ids),
            self._canonical(graph.leafs, leaf_ids),
        )

    def _canonical(self, tensors: Sequence[Tensor], ids: Sequence[int] | None) -> list[int]:
        if ids is None:
            return [0] * len(tensors)
        first = self._first
        return [first[i] for i in ids]

    def _grow(self, buffer_id: int, sizes: Sequence[int]) -> None:
        """Replace a buffer if it has too few or too small chunks; chunks never shrink."""
        chunks = self.buffers[buffer_id]
        current = [chunk.size for chunk in chunks]
        wanted = [max(pair) for pair in zip_longest(sizes, current, fillvalue=0)]
        if wanted == current:
            return
        buft = self.bufts[buffer_id]
        debug_log(log, 1, f"compute buffer of {buft.name}: {wanted} bytes")
        self._drop(buffer_id)  # first, as both may not fit at once
        try:
            for size in wanted:
                buffer = self.memory.alloc_buffer(buft, size)
                buffer.usage = Usage.COMPUTE
                chunks.append(buffer)
        except OutOfMemoryError:
            self._drop(buffer_id)
            raise

    def _drop(self, buffer_id: int) -> None:
        chunks = self.buffers[buffer_id]
        if chunks:
            self.generations[buffer_id] += 1
            self.n_moves += 1
        for buffer in chunks:
            buffer.free()
        chunks.clear()

    def _place(self, tensor: Tensor, address: TensorAddress | None) -> None:
        if tensor.view_src is not None:
            view_init(tensor)
            return
        assert address is not None, f"{tensor!r} has no address in the layout"
        buffer = self.buffers[address.buffer_id][address.chunk]
        tensor.buffer = buffer
        tensor.offset = address.offset
        buffer.init_tensor(tensor)
