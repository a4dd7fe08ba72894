"""Host memory: aligned buffers that NumPy views without a copy.

Tested by tests/alloc/test_host.py.
"""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from functools import cache
from threading import Lock
from typing import Final
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from ..base.errors import OutOfMemoryError, TensorAccessError
from ..graph.tensor import Tensor
from ..graph.types import GGMLType
from .buffer import UNLIMITED, Buffer, BufferType, Bytes, buffer_of, tensor_get

HUGE_BYTES: Final = 4 << 20  # allocations from this size on use huge pages: fewer TLB misses
_MAPS: Final[WeakSet[mmap.mmap]] = WeakSet()  # the memory of these allocations
_MAPS_LOCK: Final = Lock()

DTYPES: dict[GGMLType, npt.DTypeLike] = {
    GGMLType.F32: np.float32,
    GGMLType.F16: np.float16,
    GGMLType.BF16: np.uint16,  # NumPy has no bfloat16: raw bits
    GGMLType.F64: np.float64,
    GGMLType.I8: np.int8,
    GGMLType.I16: np.int16,
    GGMLType.I32: np.int32,
    GGMLType.I64: np.int64,
}


class HostBufferType(BufferType):
    """Ordinary memory of the host. The system takes a page of it at the first write only."""

    is_zeroed = True

    def __init__(
        self,
        name: str = "CPU",
        *,
        alignment: int = 64,
        max_size: int = UNLIMITED,
        capacity: int = UNLIMITED,
    ) -> None:
        super().__init__(
            name, alignment=alignment, max_size=max_size, capacity=capacity, is_host=True
        )

    def _alloc(self, size: int) -> HostBuffer:
        return HostBuffer(self, aligned_zeros(size, self.alignment, self.name))


class HostBuffer(Buffer):
    """A buffer over `memory`, a flat uint8 array."""

    def __init__(self, buft: BufferType, memory: Bytes) -> None:
        super().__init__(buft, memory.size)
        self.memory = memory
        self._address = int(memory.ctypes.data)

    @property
    def address(self) -> int:
        return self._address

    def array(self, tensor: Tensor) -> npt.NDArray[np.generic]:
        """The tensor's data in place: see `array_of`."""
        self._locate(tensor, 0, tensor.nbytes)
        return array_of(tensor, self.memory)

    def _release(self) -> None:
        self.memory, self._address = np.empty(0, np.uint8), 0

    def _write(self, offset: int, data: Bytes) -> None:
        self.memory[offset : offset + data.size] = data

    def _read(self, offset: int, size: int) -> Bytes:
        return self.memory[offset : offset + size].copy()

    def _read_into(self, offset: int, out: Bytes) -> None:
        out[:] = self.memory[offset : offset + out.size]

    def _fill(self, offset: int, size: int, value: int) -> None:
        self.memory[offset : offset + size] = value

    def _copy(self, src: Tensor, dst: Tensor) -> bool:
        source = buffer_of(src)
        if not isinstance(source, HostBuffer):
            return False
        begin = source._locate(src, 0, src.nbytes)
        self._write(dst.offset, source.memory[begin : begin + src.nbytes])
        return True


def aligned_zeros(size: int, alignment: int, where: str) -> Bytes:
    """A flat uint8 array of `size` zeros at an aligned address; large ones use huge pages, if the
    system has them. Large ones take no memory until they are written.

    Raises:
        OutOfMemoryError: the host has too little memory; names `where`.
    """
    try:
        raw = _mapped(size + alignment) if size >= HUGE_BYTES else None
        if raw is None:
            raw = np.zeros(size + alignment, np.uint8)
    except (MemoryError, OSError, OverflowError, ValueError):
        raise OutOfMemoryError(where, size) from None
    begin = -raw.ctypes.data % alignment
    return raw[begin : begin + size]


def _mapped(size: int) -> Bytes | None:
    """A memory map that requests huge pages; None if the system cannot."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    # private: the default, shared memory, has other rules for huge pages
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    with _MAPS_LOCK:
        _MAPS.add(pages)
    return np.frombuffer(pages, np.uint8)  # the map ends with the last array over it


def untouched_bytes() -> int:
    """Bytes of large allocations of this process that take no memory yet: nothing has been written
    there. 0 if the system does not say."""
    with _MAPS_LOCK:
        maps = list(_MAPS)
    return sum(map(_untouched, maps))


def _untouched(pages: mmap.mmap) -> int:
    resident = np.ones(-(-len(pages) // mmap.PAGESIZE), np.uint8)  # a byte for each page
    address = np.frombuffer(pages, np.uint8).ctypes.data
    _libc().mincore(*map(ctypes.c_size_t, (address, len(pages), resident.ctypes.data)))
    return int(np.count_nonzero(resident & 1 == 0)) * mmap.PAGESIZE


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def array_of(tensor: Tensor, memory: Bytes) -> npt.NDArray[np.generic]:
    """A tensor as an array of shape (ne[3], ne[2], ne[1], ne[0]) over `memory`, without a copy.

    `memory` has the tensor's data from byte `tensor.offset` on. For a quantized tensor, the array
    has rows of packed blocks: uint8 (ne[3], ne[2], ne[1], bytes of a row).

    Raises:
        TensorAccessError: the tensor is not inside the memory, for instance after `free`.
    """
    return _array_at(tensor, memory, tensor.offset)


def read_array(tensor: Tensor) -> npt.NDArray[np.generic]:
    """A copy of an allocated tensor's data, from any buffer, as an array like `array_of`'s."""
    return _array_at(tensor, tensor_get(tensor), 0)


def _array_at(tensor: Tensor, memory: Bytes, offset: int) -> npt.NDArray[np.generic]:
    if offset + tensor.nbytes > memory.size:  # NumPy does not check this for empty memory
        raise TensorAccessError(
            f"{tensor!r}: bytes {offset}..{offset + tensor.nbytes} are outside its memory "
            f"of {memory.size} bytes"
        )
    n0, n1, n2, n3 = tensor.ne
    b0, b1, b2, b3 = tensor.nb
    dtype = np.dtype(DTYPES.get(tensor.type, np.uint8))
    if tensor.type.is_quantized:
        assert tensor.has_contiguous_rows, f"{tensor!r}: a row of blocks has gaps, nb {tensor.nb}"
        n0, b0 = tensor.type.row_size(n0), 1
    if tensor.nbytes == 0:
        return np.empty((n3, n2, n1, n0), dtype)
    return np.ndarray((n3, n2, n1, n0), dtype, memory.data, offset, (b3, b2, b1, b0))
