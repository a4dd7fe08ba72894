"""Results of a plan in pinned memory of the host, so that reading them takes no call of the driver.

The plan's last kernel copies its outputs there (src/to_host.cu): without it, each output would be a
copy and a wait. All plans of a backend share this memory. The device's memory has the results, too:
those of an earlier plan are read there. A large output that other nodes read, such as logits with
their largest, stays on the device only. If a run of the plan may follow another one before the host
has read, they have two places, in turn. Tested by tests/kernels/test_cuda_results.py.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from ...alloc.buffer import Bytes, buffer_of
from ...base.settings import CUDA_READS_RESULTS
from ...graph.graph import Graph
from ...graph.op import VIEW_OPS
from ...graph.tensor import FEEDING, OUTPUT, Tensor
from ...graph.types import GGMLType
from .driver import Address
from .memory import CudaBuffer
from .table import CudaCall, CudaKernel, CudaSource

TO_HOST: Final = CudaKernel(CudaSource.of("to_host.cu"), "to_host", merges=True)
BLOCK: Final = 256
MAX_BLOCKS: Final = 64
WORD: Final = 4
TYPES: Final = (GGMLType.F32, GGMLType.I32)
ALIGNMENT: Final = 128
RESULT_BYTES: Final = 1 << 20  # of all results of a plan
FEW: Final = 64 << 10  # bytes of a result that other nodes read


class Results:
    """The results of one plan, and their places in `memory`, which is pinned.

    Attributes:
        tensors: the results.
        feeding: the one that can feed the plan's next run; None: there is none.
    """

    def __init__(self, graph: Graph, memory: Bytes) -> None:
        self.tensors = [] if CUDA_READS_RESULTS() else results_of(graph)
        self.feeding = next((t for t in self.tensors if t.flags & FEEDING), None)
        begins = list(accumulate(map(_room, self.tensors), initial=0))
        self.step = 0  # bytes from a place to the next one; 0: there is one
        if self.feeding is not None and 2 * begins[-1] <= len(memory):
            self.step = begins[-1]
        places = [memory, memory[self.step :]] if self.step else [memory]
        self._copies = [
            {
                t: place[begin : begin + t.nbytes]
                for t, begin in zip(self.tensors, begins, strict=False)
            }
            for place in places
        ]
        self._shown: list[tuple[Tensor, CudaBuffer]] = []  # where: the graph may move later

    def address_of(self, tensor: Tensor) -> Address:
        """The address of a result's copy in the first place."""
        return int(self._copies[0][tensor].ctypes.data)

    def show(self, place: int = 0) -> None:
        """Let reads of the results take the copies. The plan's next launch writes them."""
        self._shown.clear()
        for tensor, copy in self._copies[place].items():
            buffer = _buffer(tensor)
            buffer.copies[tensor] = copy
            self._shown.append((tensor, buffer))

    def hide(self) -> None:
        """Let reads take the device's memory: another plan will write the copies."""
        for tensor, buffer in self._shown:
            buffer.copies.pop(tensor, None)
        self._shown.clear()


def results_of(graph: Graph) -> list[Tensor]:
    """The nodes whose copies the host will read."""
    read = {src.root for node in graph.nodes if node.op not in VIEW_OPS for src in node.src}
    found, left = list[Tensor](), RESULT_BYTES
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
