"""Buffer types for the allocators' tests, and leafs to place in them."""

from __future__ import annotations

import numpy as np

from lamella.alloc import Buffer, BufferType, GraphAllocator, HostBufferType, alloc_tensors
from lamella.alloc.buffer import UNLIMITED, Bytes
from lamella.graph import GGMLType, Graph, Op, Tensor


def leaf(name: str, *ne: int, type: GGMLType = GGMLType.F32) -> Tensor:
    return Tensor(type, ne, name=name)


def hold(tensor: Tensor, buft: BufferType | None = None) -> Buffer:
    """Allocate a tensor outside of any graph. Its memory lives as long as the returned buffer."""
    (buffer,) = alloc_tensors([tensor], buft or HostBufferType())
    return buffer


def allocated(*outputs: Tensor, buft: BufferType | None = None) -> GraphAllocator:
    """Place a graph with an alignment of 16 bytes, the size of a leaf of 4 floats."""
    galloc = GraphAllocator([buft or HostBufferType(alignment=16)])
    galloc.alloc_graph(Graph(*outputs))
    return galloc


class PaddingBufferType(HostBufferType):
    """Host memory in which tensors of some ops take more bytes than their data."""

    def __init__(
        self, padding: dict[Op, int], *, alignment: int = 16, max_size: int = UNLIMITED
    ) -> None:
        super().__init__("PAD", alignment=alignment, max_size=max_size)
        self.padding = padding

    def get_alloc_size(self, tensor: Tensor) -> int:
        return tensor.nbytes + self.padding.get(tensor.op, 0)


class BareBufferType(BufferType):
    """Memory with the required methods only, which the host cannot read in place."""

    def __init__(self, name: str = "BARE", capacity: int = UNLIMITED) -> None:
        super().__init__(name, alignment=8, max_size=64, capacity=capacity)
        self.buffers: list[BareBuffer] = []

    def _alloc(self, size: int) -> Buffer:
        self.buffers.append(BareBuffer(self, size))
        return self.buffers[-1]


class BareBuffer(Buffer):
    """Records which tensors it initialized, and how often it was written and released."""

    def __init__(self, buft: BufferType, size: int) -> None:
        super().__init__(buft, size)
        self.bytes = bytearray(b"\xaa" * size)
        self.initialized: list[Tensor] = []
        self.n_written = self.n_released = 0

    def init_tensor(self, tensor: Tensor) -> None:
        self.initialized.append(tensor)

    def _write(self, offset: int, data: Bytes) -> None:
        self.bytes[offset : offset + data.size] = data.tobytes()
        self.n_written += 1

    def _read(self, offset: int, size: int) -> Bytes:
        return np.frombuffer(bytes(self.bytes[offset : offset + size]), np.uint8)

    def _fill(self, offset: int, size: int, value: int) -> None:
        self.bytes[offset : offset + size] = bytes([value]) * size

    def _release(self) -> None:
        self.n_released += 1
