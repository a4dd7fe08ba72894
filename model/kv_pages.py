"""Bookkeeping of the paged KV pool: the cell of each position of each sequence.

A pool is a row of cells, one per token, divided into pages. A sequence is a list of pages in order
of position: position p is in cell `pages[p // page_size] * page_size + p % page_size`. Pages are
reference-counted. Sequences can share a prefix of any length. An append to a shared page that is
partly used copies it first, so a page with several references is never written. Page 0 is scratch:
padding tokens write there, and no sequence has it.

The caller performs the copies that `append` returns. Knows no tensors, no tokens and no policy of
admission or preemption. Not thread-safe. Tests: tests/model/test_kv_pages.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..base.errors import ClosedError, OutOfMemoryError, RequestError

I32Array = npt.NDArray[np.int32]

PAGE_SIZE: Final = 32  # cells


class CellCopy(NamedTuple):
    """A copy of `n` consecutive cells, to perform in every layer."""

    src_cell: int
    dst_cell: int
    n: int


class PagePool:
    """The pages of one pool: `n_pages` for sequences, and the scratch page 0.

    `n_cells` is rounded up to whole pages. Tensors need `n_cells_total` cells.
    """

    def __init__(self, n_cells: int, *, page_size: int = PAGE_SIZE) -> None:
        """Raise RequestError if a size is below 1 or the cells exceed an int32."""
        if n_cells < 1 or page_size < 1:
            raise RequestError(
                f"a KV pool of {n_cells} cells in pages of {page_size}: both must be at least 1"
            )
        self.page_size = page_size
        self.n_pages = -(-n_cells // page_size)
        self.n_cells_total = (self.n_pages + 1) * page_size
        if self.n_cells_total > np.iinfo(np.int32).max:
            raise RequestError(f"a KV pool of {n_cells} cells: at most 2^31 - 1, scratch included")
        self._n_refs = np.zeros(self.n_pages + 1, np.int32)
        self._released: list[int] = []  # a stack of pages that were released
        self._n_used = 0  # pages 1.._n_used were taken at least once
        self._is_cached = np.zeros(self.n_pages + 1, np.bool_)  # `cache` holds a reference
        self._n_evictable = 0  # pages whose only reference is that of `cache`
        self.evict: Callable[[int], None] | None = None  # uncaches this number of evictable pages
        self._offsets = np.arange(page_size, dtype=np.int32)

    @property
    def n_free(self) -> int:
        """The number of pages that no sequence refers to, evictable pages included."""
        return self._n_idle + self._n_evictable

    @property
    def _n_idle(self) -> int:
        return len(self._released) + self.n_pages - self._n_used

    def new_sequence(self) -> KVSequence:
        """Return an empty sequence. It has no page until `append`."""
        return KVSequence(self)

    def sequence_of(self, pages: I32Array, n: int) -> KVSequence:
        """Return a new sequence of `n` positions that shares `pages`, which hold exactly these."""
        assert len(pages) == -(-n // self.page_size), f"{n} positions in {len(pages)} pages"
        self._share(pages)
        seq = KVSequence(self)
        seq._extend(pages)
        seq.length = seq._n_ready = n
        return seq

    def cache(self, page: int) -> None:
        """Add a reference to a page that a sequence has now.

        The page counts as free once no sequence has it. `evict` is called when it is needed.
        """
        assert self._n_refs[page] > 0, f"page {page} is free"
        assert not self._is_cached[page], f"page {page} is cached already"
        self._n_refs[page] += 1
        self._is_cached[page] = True

    def uncache(self, page: int) -> None:
        """Remove the reference of `cache`."""
        assert self._is_cached[page], f"page {page} is not cached"
        self._n_evictable -= self.is_evictable(page)
        self._is_cached[page] = False
        self._n_refs[page] -= 1
        if self._n_refs[page] == 0:
            self._released.append(page)

    def is_evictable(self, page: int) -> bool:
        """True if a page is cached and no sequence has it."""
        return bool(self._is_cached[page] and self._n_refs[page] == 1)

    def _take(self, n: int) -> list[int]:
        if n > self.n_free:
            raise OutOfMemoryError("the KV pool", n, self.n_free, "pages")
        if n > self._n_idle:
            assert self.evict is not None, "pages are cached, but evict is not set"
            self.evict(n - self._n_idle)
            assert n <= self._n_idle, f"{n} pages are needed, {self._n_idle} are idle after evict"
        n_again = min(n, len(self._released))
        pages = self._released[len(self._released) - n_again :]
        del self._released[len(self._released) - n_again :]
        pages += range(self._n_used + 1, self._n_used + 1 + n - n_again)
        self._n_used += n - n_again
        self._n_refs[pages] = 1
        return pages

    def _share(self, pages: I32Array) -> None:
        self._n_evictable -= self._count_evictable(pages)
        self._n_refs[pages] += 1  # the pages of a sequence are distinct

    def _count_evictable(self, pages: I32Array) -> int:
        return int(np.count_nonzero(self._is_cached[pages] & (self._n_refs[pages] == 1)))

    def _release(self, pages: I32Array) -> None:
        self._n_refs[pages] -= 1
        self._n_evictable += self._count_evictable(pages)
        assert not (self._n_refs[pages] < 0).any(), f"a page of {pages} was released twice"
        self._released.extend(pages[self._n_refs[pages] == 0].tolist())


class KVSequence:
    """The pages of one sequence. Positions 0..length-1 are reserved.

    After `free`, every method but `free` raises ClosedError.
    """

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.length = 0
        self._n_pages = 0
        self._table = np.empty(8, np.int32)  # grows by doubling; the first _n_pages are valid
        # Positions below this need no page and no copy, as the last page is not shared. `fork`
        # shares it and resets this. `cache` does not reset it: after `cache` of a partly filled
        # page, the sequence must not append.
        self._n_ready = 0

    def can_append(self, n: int) -> bool:
        """True if the pool has the pages that `append(n)` needs."""
        if 0 <= n <= self._n_ready - self.length:
            return True
        return self._n_wanted(n) <= self.pool.n_free

    def append(self, n: int) -> list[CellCopy]:
        """Reserve the next `n` positions.

        Returns:
            The copies to perform before any cell of the pool is written. There is at most one: of
            the used cells of a shared last page.

        Raises:
            OutOfMemoryError: `can_append(n)` is False; `wanted` and `free` count pages. Nothing has
                changed.
        """
        if 0 <= n <= self._n_ready - self.length:
            self.length += n
            return []
        pages = self.pool._take(self._n_wanted(n))
        copies = []
        if self.last_is_shared:
            copies.append(self._replace_last(pages.pop(0)))
        self._extend(pages)
        self.length += n
        self._n_ready = self._n_pages * self.pool.page_size
        return copies

    def cell(self, pos: int) -> int:
        """Return the cell of a reserved position."""
        assert 0 <= pos < self.length, f"position {pos} of {self.length}"
        size = self.pool.page_size
        return int(self._table[pos // size]) * size + pos % size

    def cells(self, begin: int, end: int) -> I32Array:
        """Return the cell of each position in begin..end-1: int32 [end - begin], a new array.

        Raises:
            RequestError: not 0 <= begin <= end <= length.
        """
        self._check_range(begin, end)
        if begin == end:
            return np.empty(0, np.int32)
        size = self.pool.page_size
        first, last = begin // size, (end - 1) // size
        if first == last:  # decoding: one token
            shift = (int(self._table[first]) - first) * size
            return np.arange(begin + shift, end + shift, dtype=np.int32)
        rows = self._table[first : last + 1, None] * np.int32(size) + self.pool._offsets
        return rows.reshape(-1)[begin - first * size : end - first * size]

    def page_numbers(self) -> I32Array:
        """Return the pages in order of position: int32 [n_pages], a view.

        Copy from it before the next change of the sequence, and do not write to it.
        """
        self._check_open()
        return self._table[: self._n_pages]

    def fork(self, n: int | None = None) -> KVSequence:
        """Return a new sequence that shares the first `n` positions (all by default).

        Needs no free page: the first `append` to a shared partial page copies it.

        Raises:
            RequestError: not 0 <= n <= length.
        """
        n = self.length if n is None else n
        self._check_range(0, n)
        self._n_ready = self.length
        return self.pool.sequence_of(self._table[: -(-n // self.pool.page_size)], n)

    def truncate(self, n: int) -> None:
        """Keep the first `n` positions.

        Raises:
            RequestError: not 0 <= n <= length.
        """
        self._check_range(0, n)
        n_kept = -(-n // self.pool.page_size)
        self.pool._release(self._table[n_kept : self._n_pages])
        self._n_pages = n_kept
        self.length = self._n_ready = n

    def free(self) -> None:
        """Release all pages. May be called again."""
        if self._n_ready < 0:
            return
        self.truncate(0)
        self._n_ready = -1

    def _n_wanted(self, n: int) -> int:
        self._check_open()
        assert n > 0, f"append of {n} positions"
        n_pages = -(-(self.length + n) // self.pool.page_size)
        return n_pages - self._n_pages + self.last_is_shared

    @property
    def last_is_shared(self) -> bool:
        """True if the next position is in a page with another reference."""
        if self.length % self.pool.page_size == 0:
            return False
        return bool(self.pool._n_refs[self._table[self._n_pages - 1]] > 1)

    def _replace_last(self, page: int) -> CellCopy:
        size = self.pool.page_size
        last = self._n_pages - 1
        shared = self._table[last : last + 1]
        copy = CellCopy(int(shared[0]) * size, page * size, self.length % size)
        self.pool._release(shared)
        self._table[last] = page
        return copy

    def _extend(self, pages: list[int] | I32Array) -> None:
        n_pages = self._n_pages + len(pages)
        if n_pages > len(self._table):
            # a new array, so that views returned earlier do not change
            table = np.empty(max(n_pages, 2 * len(self._table)), np.int32)
            table[: self._n_pages] = self._table[: self._n_pages]
            self._table = table
        self._table[self._n_pages : n_pages] = pages
        self._n_pages = n_pages

    def _check_range(self, begin: int, end: int) -> None:
        self._check_open()
        if not 0 <= begin <= end <= self.length:
            raise RequestError(f"positions {begin}..{end} of a sequence of {self.length}")

    def _check_open(self) -> None:
        if self._n_ready < 0:
            raise ClosedError("a KV sequence was used after it was freed")
