"""Memory: where buffers come from. The real one allocates; a measured one only counts.

Code that allocates takes a `Memory`. With a `MeasuredMemory` it makes the same decisions, and every
buffer has a size and an address, but nothing is allocated: this is how a plan counts bytes.
Tested by tests/sched/test_measured.py.
"""

from __future__ import annotations

from itertools import count
from typing import Final
from weakref import WeakSet

import numpy as np

from ..graph.tensor import Tensor
from .buffer import Buffer, BufferType, Bytes

NULL_RANGE: Final = 1 << 62  # bytes from the start of one null buffer to the start of the next
_NEXT_RANGE: Final = count(1)


class Memory:
    """The memory of the machine."""

    def alloc_buffer(self, buft: BufferType, size: int) -> Buffer:
        """A new buffer of `size` bytes.

        Raises:
            OutOfMemoryError: like `BufferType.alloc_buffer`.
        """
        return buft.alloc_buffer(size)


class MeasuredMemory(Memory):
    """Buffers with addresses but without memory; no buffer is too large.

    `buffers` are those that are still referenced. The ones that are not `freed` would take memory.
    """

    def __init__(self) -> None:
        self.buffers: WeakSet[Buffer] = WeakSet()

    def alloc_buffer(self, buft: BufferType, size: int) -> Buffer:
        """A new buffer of `size` bytes without memory."""
        buffer = NullBuffer(buft, size)
        self.buffers.add(buffer)
        return buffer


REAL_MEMORY: Final = Memory()


class NullBuffer(Buffer):
    """A range of addresses without memory. No other buffer has these addresses. Writes are dropped,
    reads return zeros."""

    def __init__(self, buft: BufferType, size: int) -> None:
        super().__init__(buft, size)
        self._address = NULL_RANGE * next(_NEXT_RANGE)

    @property
    def address(self) -> int:
        return self._address

    def _write(self, offset: int, data: Bytes) -> None:
        pass

    def _read(self, offset: int, size: int) -> Bytes:
        return np.zeros(size, np.uint8)

    def _fill(self, offset: int, size: int, value: int) -> None:
        pass

    def _copy(self, src: Tensor, dst: Tensor) -> bool:
        return True
