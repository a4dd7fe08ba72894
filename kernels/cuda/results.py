"""Results of a plan in pinned memory of the host, so that reading them takes no call of the driver.

The plan's last kernel copies its outputs there (src/to_host.cu): without it, each output would be a
copy and a wait. The device's memory keeps them, too. A large output that other nodes read, such as
logits with their largest, stays on the device only. Tested by tests/kernels/test_cuda_results.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from ...alloc.buffer import BufferType, Bytes, Usage, buffer_of
from ...base.errors import OutOfMemoryError
from ...base.settings import CUDA_READS_RESULTS
from ...graph.graph import Graph
from ...graph.op import VIEW_OPS
from ...graph.tensor import OUTPUT, Tensor
from ...graph.types import GGMLType
from .driver import Address
from .memory import CudaBuffer, PinnedBuffer
from .table import CudaCall, CudaKernel, CudaSource

TO_HOST: Final = CudaKernel(CudaSource.of("to_host.cu"), "to_host", merges=True)
BLOCK: Final = 256
MAX_BLOCKS: Final = 64
WORD: Final = 4
TYPES: Final = (GGMLType.F32, GGMLType.I32)
ALIGNMENT: Final = 128
MOST: Final = 1 << 20  # bytes of all results of a plan
FEW: Final = 64 << 10  # bytes of a result that other nodes read


class Results:
    """The results of one plan: `tensors`, and their copies."""

    def __init__(self, tensors: Sequence[Tensor] = (), pinned: PinnedBuffer | None = None) -> None:
        self.tensors = tensors
        self._pinned = pinned
        begins = list(accumulate(map(_room, tensors), initial=0))
        self._begins = dict(zip(tensors, begins, strict=False))

    @classmethod
    def of(cls, graph: Graph, buft: BufferType) -> Results:
        """The results of a graph, with memory of type `buft`; none if there is too little."""
        tensors = [] if CUDA_READS_RESULTS() else results_of(graph)
        if not tensors:
            return cls()
        try:
            pinned = buft.alloc_buffer(sum(map(_room, tensors)))
        except OutOfMemoryError:
            return cls()
        assert isinstance(pinned, PinnedBuffer)
        pinned.usage = Usage.WORK
        return cls(tensors, pinned)

    def calls(self) -> list[tuple[Tensor, CudaCall]]:
        """The calls that copy the results, each with its node."""
        return [(t, to_host(t)) for t in self.tensors]

    def address_of(self, tensor: Tensor) -> Address:
        """The address of a result's copy."""
        assert self._pinned is not None
        return self._pinned.address + self._begins[tensor]

    def show(self) -> None:
        """Let reads of the results take the copies. The plan must have been captured."""
        for tensor in self.tensors:
            _buffer(tensor).copies[tensor] = self._copy(tensor)

    def hide(self) -> None:
        """Let reads take the device's memory again, unless another plan has copies by now."""
        for tensor in self.tensors:
            copies = _buffer(tensor).copies
            if tensor in copies and copies[tensor].ctypes.data == self.address_of(tensor):
                del copies[tensor]

    def _copy(self, tensor: Tensor) -> Bytes:
        assert self._pinned is not None
        begin = self._begins[tensor]
        return self._pinned.memory[begin : begin + tensor.nbytes]


def results_of(graph: Graph) -> list[Tensor]:
    """The nodes whose copies the host will read."""
    read = {src.root for node in graph.nodes if node.op not in VIEW_OPS for src in node.src}
    found, left = list[Tensor](), MOST
    for node in graph.nodes:
        if not node.flags & OUTPUT or node.root is not node or node.type not in TYPES:
            continue
        if not node.is_contiguous or node.is_empty or (node.nbytes > FEW and node in read):
            continue
        if node.nbytes <= left:
            left -= _room(node)
            found.append(node)
    return found


def to_host(node: Tensor) -> CudaCall:
    """The call that copies a node's result."""
    n = node.nbytes // WORD
    grid = (min(-(-n // BLOCK), MAX_BLOCKS), 1, 1)
    return CudaCall(TO_HOST, grid, BLOCK, (n,), tensors=(node, node))


def _room(tensor: Tensor) -> int:
    return -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT


def _buffer(tensor: Tensor) -> CudaBuffer:
    buffer = buffer_of(tensor)
    assert isinstance(buffer, CudaBuffer)
    return buffer
