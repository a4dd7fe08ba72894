"""The dynamic tensor allocator: plans offsets for tensors that come and go (ggml_dyn_tallocr).

It only counts: no memory is touched. It works in chunks of at most `max_chunk_size` bytes, each of
which becomes a buffer; a larger tensor gets a chunk of its own size.
"""

from __future__ import annotations

from typing import Final

from .buffer import UNLIMITED
from .tallocr import align

MAX_CHUNKS: Final = 16  # the last one is unlimited: the buffer type manages it or reports an error
_HALF: Final = UNLIMITED // 2


class Chunk:
    """Free blocks in order of offset, as parallel lists; `max_size` is the most ever in use."""

    __slots__ = ("max_size", "offsets", "sizes")

    def __init__(self, room: int) -> None:
        self.offsets = [0]
        self.sizes = [room]
        self.max_size = 0


class DynTensorAllocator:
    """Gives out (chunk, offset) addresses, takes them back, reuses the best fitting block."""

    def __init__(self, alignment: int, max_chunk_size: int) -> None:
        self.alignment = alignment
        self.max_chunk_size = min(max_chunk_size, _HALF)
        self.chunks: list[Chunk] = []

    @property
    def chunk_sizes(self) -> list[int]:
        """Bytes that each chunk's buffer needs."""
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
        """Take `size` bytes at (chunk `c`, `offset`) back, merging them with free neighbours."""
        if size == 0:
            return  # no block: one of no bytes would only put the list out of order
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
        """Among all blocks but each chunk's last: least waste in a chunk, the later on a tie; the
        last chunk that has one wins."""
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
        """Among the chunks' last blocks: no growth with the least waste, else the least growth."""
        found, best = (-1, -1), -UNLIMITED
        for c, chunk in enumerate(self.chunks):
            if not chunk.sizes or chunk.sizes[-1] < size:
                continue
            # > 0: bytes left over in what is reserved already; < 0: bytes the chunk must grow by
            left = chunk.max_size - chunk.offsets[-1] - size
            if (best < 0 and left > best) or 0 <= left < best:
                found, best = (c, len(chunk.sizes) - 1), left
        return found

    def _new_chunk(self, size: int) -> int:
        last = len(self.chunks) == MAX_CHUNKS - 1
        self.chunks.append(Chunk(_HALF if last else max(size, self.max_chunk_size)))
        return len(self.chunks) - 1
