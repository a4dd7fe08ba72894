"""The data of the passes: a table of the backends, and an assignment of tensors to them.

Tested by tests/sched/test_passes.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..alloc.buffer import BufferType
from ..graph.graph import Graph
from ..graph.tensor import Tensor
from .backend import Backend

# Every cause with its explanation. The cause of a weight ends with the index of its source.
CAUSES: dict[str, str] = {
    "usr": "it was pinned before scheduling, as attention is to the memory of its keys and values, "
    "and the first norm of a device to its weights",
    "1.dst": "its data is already in memory that this backend can use",
    "1.vsrc": "it is a view of a tensor that 1.dst would match (1.dst always applies first)",
    "1.inp": "it is an input of the graph, written by the host",
    "1.off": "its weights are in host memory, and this backend takes over the op",
    "1.wgt": "its weights (the source with this index) are on this backend",
    "2.sup": "it is next to nodes on this backend, which supports it",
    "3.best": "this backend can read the most of its sources without a copy",
    "3.upg": "this backend uses the same memory as the assigned one, and has a higher priority",
    "4.vsrc": "it is a view of a tensor on this backend",
    "4.cur": "the node that reads it is on this backend",
    "4.cpy": "it is a copy for a split on this backend",
    "6.cpy": "it is one of the copies of a graph input that a pipeline rotates through",
}


class BackendTable:
    """The backends of a scheduler by priority, highest first; the last one is the CPU.

    `bufts[b]` is the buffer type for the tensors of backend b.
    """

    def __init__(
        self, backends: Sequence[Backend], bufts: Sequence[BufferType], op_offload: bool
    ) -> None:
        self.backends = list(backends)
        self.bufts = list(bufts)
        self.op_offload = op_offload
        self.last = len(self.backends) - 1
        self.supports_op = [b.supports_op for b in self.backends]
        # for each backend, those of higher priority over the same memory
        self.upgrades = [[b for b in range(i) if bufts[b] is bufts[i]] for i in range(len(bufts))]
        self._readers: dict[BufferType, list[int]] = {}

    def readers(self, buft: BufferType) -> list[int]:
        """The backends that can use this kind of memory without a copy, by priority."""
        found = self._readers.get(buft)
        if found is None:
            found = [i for i, b in enumerate(self.backends) if b.supports_buft(buft)]
            self._readers[buft] = found
        return found


class Assignment:
    """The backend and the cause of each tensor of `graph`; unassigned tensors are absent."""

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
        """True if a backend can use the tensor where it is, or will be, without a copy."""
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
