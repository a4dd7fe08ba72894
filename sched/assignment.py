"""What the passes work on: the backends seen as a table, and an assignment of tensors to them."""

from __future__ import annotations

from collections.abc import Sequence

from ..alloc.buffer import BufferType
from ..graph.graph import Graph
from ..graph.tensor import Tensor
from .backend import Backend

# Every cause, with the sentence that explains it. A weight's cause ends in the index of its source.
CAUSES: dict[str, str] = {
    "usr": "set by hand",
    "1.dst": "its data already lies in memory that this backend can use",
    "1.vsrc": "it is a view of what 1.dst would find (which always comes first)",
    "1.inp": "it is an input of the graph, written by the host",
    "1.off": "its weights lie in host memory, and this backend takes the op over",
    "1.wgt": "its weights (the source of that index) lie there",
    "2.sup": "it is next to nodes on this backend, which supports it",
    "3.best": "this backend can read the most of its sources where they lie",
    "3.upg": "this backend uses the same memory as the one assigned, and has a higher priority",
    "4.vsrc": "it is a view of a tensor on this backend",
    "4.cur": "the node that reads it is on this backend",
    "4.cpy": "it is a copy for a split on this backend",
    "6.cpy": "it is one of the copies of a graph input that a pipeline rotates through",
}


class BackendTable:
    """The backends of a scheduler, highest priority first, the last one the CPU.

    `bufts[b]` is the memory in which backend b's tensors are placed.
    """

    def __init__(
        self, backends: Sequence[Backend], bufts: Sequence[BufferType], op_offload: bool
    ) -> None:
        self.backends = list(backends)
        self.bufts = list(bufts)
        self.op_offload = op_offload
        self.last = len(self.backends) - 1
        self.supports_op = [b.supports_op for b in self.backends]
        # backends of higher priority over the same memory
        self.upgrades = [[b for b in range(i) if bufts[b] is bufts[i]] for i in range(len(bufts))]
        self._readers: dict[BufferType, list[int]] = {}

    def readers(self, buft: BufferType) -> list[int]:
        """The backends that can use this kind of memory in place, by priority."""
        found = self._readers.get(buft)
        if found is None:
            found = [i for i, b in enumerate(self.backends) if b.supports_buft(buft)]
            self._readers[buft] = found
        return found


class Assignment:
    """Which backend each tensor of `graph` is on, and the cause; unassigned tensors are absent."""

    def __init__(
        self, table: BackendTable, graph: Graph, user: dict[Tensor, int] | None = None
    ) -> None:
        self.table = table
        self.graph = graph
        self.ids: dict[Tensor, int] = dict(user or {})
        self.causes: dict[Tensor, str] = dict.fromkeys(self.ids, "usr")

    def set(self, tensor: Tensor, backend_id: int, cause: str) -> None:
        self.ids[tensor] = backend_id
        self.causes[tensor] = cause

    def buffer_supported(self, tensor: Tensor, backend_id: int) -> bool:
        """Whether a backend can use the tensor where it lies, or will lie."""
        root = tensor.view_src or tensor
        if root.buffer is not None:
            buft = root.buffer.buft
        else:
            owner = self.ids.get(tensor)
            if owner is None:
                owner = self.ids.get(root)
            if owner is None:
                return False
            buft = self.table.bufts[owner]
        return backend_id in self.table.readers(buft)
