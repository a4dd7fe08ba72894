"""The dynamic tensor allocator: offsets for tensors of limited lifetime (ggml_dyn_tallocr).

It only counts and touches no memory. It works in chunks of at most `max_chunk_size` bytes; each
chunk becomes a buffer. A larger tensor gets a chunk of its own size. Tested by
tests/alloc/test_dyn_tallocr.py.
"""

from __future__ import annotations

from typing import Final

from .buffer import UNLIMITED
from .tallocr import align

MAX_CHUNKS: Final = 16  # the last one is unlimited: the buffer type allocates it or raises an error
_HALF: Final = UNLIMITED // 2


class Chunk:
    """The free blocks by offset, as parallel lists; `max_size` is the highest end ever in use."""

    __slots__ = ("max_size", "offsets", "sizes")

    def __init__(self, room: int) -> None:
        self.offsets = [0]
        self.sizes = [room]
        self.max_size = 0


class DynTensorAllocator:
    """Allocates and frees (chunk, offset) addresses; reuses the block that fits best."""

    def __init__(self, alignment: int, max_chunk_size: int) -> None:
        self.alignment = alignment
        self.max_chunk_size = min(max_chunk_size, _HALF)
        self.chunks: list[Chunk] = []

    @property
    def chunk_sizes(self) -> list[int]:
        """The bytes that each chunk's buffer needs."""
        return [chunk.max_size for chunk in self.chunks]

    def alloc(self, size: int) -> tuple[int, int]:
        """An address for `size` bytes: (chunk, offset)."""
        size = align(size, self.alignment)
        c, i = self._best_fit(size)
        if i < 0:
            c, i = self._least_growth(size)
        if i < 0:
            c, i = self._new_chunk(size), 0
        chunk = self.chunks[c]
        offset = chunk.offsets[i]
        if chunk.sizes[i] == size:
            del chunk.offsets[i], chunk.sizes[i]
        else:
            chunk.offsets[i] += size
            chunk.sizes[i] -= size
        chunk.max_size = max(chunk.max_size, offset + size)
        return c, offset

    def free(self, c: int, offset: int, size: int) -> None:
        """Free `size` bytes at (chunk `c`, `offset`), and merge them with free neighbors."""
        if size == 0:
            return  # an empty block would break the order of the list
        size = align(size, self.alignment)
        offsets, sizes = self.chunks[c].offsets, self.chunks[c].sizes
        end = offset + size
        for i, begin in enumerate(offsets):
            if begin + sizes[i] == offset:
                sizes[i] += size
                if i + 1 < len(offsets) and offsets[i + 1] == end:
                    sizes[i] += sizes[i + 1]
                    del offsets[i + 1], sizes[i + 1]
                return
            if begin == end:
                offsets[i] = offset
                sizes[i] += size
                if i > 0 and offsets[i - 1] + sizes[i - 1] == offset:
                    sizes[i - 1] += sizes[i]
                    del offsets[i], sizes[i]
                return
        at = next((i for i, begin in enumerate(offsets) if begin >= offset), len(offsets))
        offsets.insert(at, offset)
        sizes.insert(at, size)

    def _best_fit(self, size: int) -> tuple[int, int]:
        """The best-fitting block as (chunk, index); (-1, -1) if none fits. The last block of each
        chunk is not searched. Later chunks win; within a chunk the least waste, then the later."""
        found = -1, -1
        for c, chunk in enumerate(self.chunks):
            best = UNLIMITED
            sizes = chunk.sizes
            for i in range(len(sizes) - 1):
                if size <= sizes[i] <= best:
                    best = sizes[i]
                    found = c, i
        return found

    def _least_growth(self, size: int) -> tuple[int, int]:
        """The last block of a chunk, as (chunk, index): without growth and with the least waste, or
        else with the least growth."""
        found, best = (-1, -1), -UNLIMITED
        for c, chunk in enumerate(self.chunks):
            if not chunk.sizes or chunk.sizes[-1] < size:
                continue
            # >= 0: bytes left in the reserved part; < 0: bytes that the chunk must grow
            left = chunk.max_size - chunk.offsets[-1] - size
            if (best < 0 and left > best) or 0 <= left < best:
                found, best = (c, len(chunk.sizes) - 1), left
        return found

    def _new_chunk(self, size: int) -> int:
        last = len(self.chunks) == MAX_CHUNKS - 1
        self.chunks.append(Chunk(_HALF if last else max(size, self.max_chunk_size)))
        return len(self.chunks) - 1
