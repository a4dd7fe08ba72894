"""Memory of the emulated GPU: real addresses, poisoned, allocations between inaccessible guards.

Tested by tests/kernels/test_cuda_grid.py.
"""

from __future__ import annotations

import ctypes
import mmap
from bisect import bisect_right, insort
from collections import deque
from typing import Final

from lamella.base.errors import BackendError

POISON: Final = 0xFF  # floats of it are NaN, integers -1
PIECE: Final = 16  # bytes; kernels may read a whole aligned piece if it has a byte of a tensor
PAGE: Final = mmap.PAGESIZE
GUARD: Final = 1 << 20  # bytes on either side: a wild index faults and harms nothing else
N_FREED: Final = 256  # ranges kept out of reach after they were freed

_C: Final = ctypes.CDLL(None, use_errno=True)
_C.mmap.restype = ctypes.c_void_p
_C.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_C.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_C.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_NO_ACCESS: Final = 0  # PROT_NONE
_NO_RESERVE: Final = 0x4000  # MAP_NORESERVE
_FAILED: Final = ctypes.c_void_p(-1).value


class Memory:
    """Allocations, each at the end of its own pages: an access past its last piece faults. At their
    begin if `at_begin`: then an access before the first piece faults.

    `free` checks that the other bytes of the pages are still poisoned.
    """

    def __init__(self, at_begin: bool = False) -> None:
        self.at_begin = at_begin
        self.sizes: dict[int, int] = {}  # by address
        self.used = 0
        self._addresses: list[int] = []  # in ascending order
        self._pages: dict[int, tuple[int, int]] = {}  # by address: begin and bytes of all pages
        self._freed: deque[tuple[int, int]] = deque()

    def alloc(self, size: int) -> int:
        rounded = _round_up(max(size, 1), PIECE)
        inner = _round_up(rounded, PAGE)
        pages = _map(inner + 2 * GUARD)
        begin = pages + GUARD
        _C.mprotect(begin, inner, mmap.PROT_READ | mmap.PROT_WRITE)
        ctypes.memset(begin, POISON, inner)
        address = begin if self.at_begin else begin + inner - rounded
        self.sizes[address] = size
        self._pages[address] = pages, inner + 2 * GUARD
        insort(self._addresses, address)
        self.used += size
        return address

    def free(self, address: int) -> None:
        """Free an allocation and make its bytes inaccessible."""
        size = self.sizes.get(address)
        if size is None:
            raise BackendError(f"CUDA_ERROR_INVALID_VALUE: nothing is allocated at {address:#x}")
        pages, n = self._pages.pop(address)
        begin = pages + GUARD
        slack = ctypes.string_at(begin, address - begin)
        slack += ctypes.string_at(address + size, pages + n - GUARD - address - size)
        del self.sizes[address]
        self._addresses.remove(address)
        self.used -= size
        _C.mprotect(pages, n, _NO_ACCESS)
        self._freed.append((pages, n))
        if len(self._freed) > N_FREED:
            _C.munmap(*self._freed.popleft())
        if slack != bytes([POISON]) * len(slack):
            raise BackendError(f"bytes beside the {size} bytes at {address:#x} were written")

    def close(self) -> None:
        """Unmap all memory."""
        for pages in (*self._pages.values(), *self._freed):
            _C.munmap(*pages)
        self.sizes.clear()
        self._addresses.clear()
        self._pages.clear()
        self._freed.clear()

    def holds(self, address: int, size: int = 1) -> bool:
        """True if all these bytes are within one allocation."""
        i = bisect_right(self._addresses, address)
        if i == 0:
            return False
        begin = self._addresses[i - 1]
        return address + size <= begin + self.sizes[begin]

    def has_address(self, address: int) -> bool:
        """True if the address is within an allocation, or at its end."""
        return address in self.sizes or self.holds(address - 1)


def _map(size: int) -> int:
    at = _C.mmap(None, size, _NO_ACCESS, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE, -1, 0)
    if at is None or at == _FAILED:
        raise BackendError(f"the host has no {size} bytes")
    return int(at)


def _round_up(n: int, to: int) -> int:
    return -(-n // to) * to
