"""Simulated device memory: the host cannot look into it, only copy to and from it.

A read of it from outside is a TensorAccessError, as on a real device it would be a fault.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from ...alloc.buffer import UNLIMITED, Buffer, BufferType, Bytes, buffer_of
from ...alloc.host import HostBuffer, aligned_empty
from ...base.errors import TensorAccessError
from ...graph.tensor import Tensor

POISON = 0xFF  # what new memory holds: NaN as floats, -1 as integers


class SimBufferType(BufferType):
    """Memory of a simulated device; devices that share one can read each other's tensors."""

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
        memory = aligned_empty(size, self.alignment, self.name)
        memory[:] = POISON
        return SimBuffer(self, memory)


class SimBuffer(Buffer):
    """A buffer whose bytes only the device's own kernels and the copying verbs can reach."""

    def __init__(self, buft: BufferType, memory: Bytes) -> None:
        super().__init__(buft, memory.size)
        self._memory = memory

    @property
    def address(self) -> int:
        return int(self._memory.ctypes.data)

    @property
    def memory(self) -> NoReturn:
        raise TensorAccessError(f"the host cannot read {self.buft.name} in place: copy it")

    def array(self, tensor: Tensor) -> NoReturn:
        raise TensorAccessError(
            f"{tensor!r} lies in {self.buft.name}, which the host cannot read in place: copy it"
        )

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
    """What a kernel sees of a buffer; None where a simulated device cannot reach it."""
    if isinstance(buffer, SimBuffer):
        return buffer._memory
    if isinstance(buffer, HostBuffer):
        return buffer.memory
    return np.empty(0, np.uint8) if buffer.size == 0 else None
