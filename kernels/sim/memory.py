"""Simulated device memory. The host cannot access it in place; it can only copy to and from it.

Tested by tests/kernels/test_sim_memory.py.
"""

from __future__ import annotations

import numpy as np

from ...alloc.buffer import UNLIMITED, Buffer, BufferType, Bytes, buffer_of
from ...alloc.host import HostBuffer, aligned_zeros
from ...graph.tensor import Tensor
from ..device_buffer import DeviceBuffer

POISON = 0xFF  # the bytes of new memory: NaN as floats, -1 as integers


class SimBufferType(BufferType):
    """Memory of a simulated device. Devices with the same buffer type can share tensors."""

    def __init__(
        self,
        name: str,
        *,
        alignment: int = 128,
        max_size: int = UNLIMITED,
        capacity: int = UNLIMITED,
    ) -> None:
        super().__init__(name, alignment=alignment, max_size=max_size, capacity=capacity)

    def _alloc(self, size: int) -> SimBuffer:
        memory = aligned_zeros(size, self.alignment, self.name)
        memory[:] = POISON
        return SimBuffer(self, memory)


class SimBuffer(DeviceBuffer):
    """A buffer that only the device's own kernels and copies can access."""

    def __init__(self, buft: BufferType, memory: Bytes) -> None:
        super().__init__(buft, memory.size)
        self._memory = memory

    @property
    def address(self) -> int:
        return int(self._memory.ctypes.data)

    def _write(self, offset: int, data: Bytes) -> None:
        self._memory[offset : offset + data.size] = data

    def _read(self, offset: int, size: int) -> Bytes:
        return self._memory[offset : offset + size].copy()

    def _fill(self, offset: int, size: int, value: int) -> None:
        self._memory[offset : offset + size] = value

    def _copy(self, src: Tensor, dst: Tensor) -> bool:
        memory = device_memory(buffer_of(src))
        if memory is None:
            return False
        self._write(dst.offset, memory[src.offset : src.offset + src.nbytes])
        return True

    def _release(self) -> None:
        self._memory = np.empty(0, np.uint8)


def device_memory(buffer: Buffer) -> Bytes | None:
    """The bytes of a buffer for a kernel; None if a simulated device cannot access them."""
    if isinstance(buffer, SimBuffer):
        return buffer._memory
    if isinstance(buffer, HostBuffer):
        return buffer.memory
    return np.empty(0, np.uint8) if buffer.size == 0 else None
