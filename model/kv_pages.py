"""Bookkeeping of the paged KV pool: which cell holds which position of which sequence.

A pool is a row of cells, one per token, cut into pages. A sequence is a list of pages in order of
position: position p lies in cell `pages[p // page_size] * page_size + p % page_size`. Pages are
counted references. Sequences share a prefix exactly to the token: whole pages stay shared, and a
shared page that is only partly used is copied before its first write, so that a page with more than
one reference is never written. Page 0 is scratch: padding tokens write there, no sequence owns it.

Knows no tensors (whoever owns them performs the copies that `append` returns), no tokens and no
policy: who waits and who is preempted is the engine's business. For one thread at a time.
Tests: tests/model/test_kv_pages.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..base.errors import ClosedError, OutOfMemoryError, RequestError

I32Array = npt.NDArray[np.int32]


class CellCopy(NamedTuple):
    """`n` cells from `src_cell` on are to be copied to those from `dst_cell` on, in every layer."""

    src_cell: int
    dst_cell: int
    n: int


class PagePool:
    """The pages of one pool: `n_pages` to give out, and the scratch page 0 besides.

    `n_cells` is rounded up to whole pages; tensors need `n_cells_total` cells.
    """

    def __init__(self, n_cells: int, *, page_size: int = 32) -> None:
        """Raises RequestError: a size below 1, or more cells than an int32 can number."""
        if n_cells < 1 or page_size < 1:
            raise RequestError(f"a KV pool of {n_cells} cells in pages of {page_size}: at least 1")
        self.page_size = page_size
        self.n_pages = -(-n_cells // page_size)
        self.n_cells_total = (self.n_pages + 1) * page_size
        if self.n_cells_total > np.iinfo(np.int32).max:
            raise RequestError(f"a KV pool of {n_cells} cells: at most 2^31 - 1, scratch included")
        self._n_refs = np.zeros(self.n_pages + 1, np.int32)
        self._released: list[int] = []  # a stack of pages that were given back
        self._n_used = 0  # pages 1.._n_used were given out at some time
        self._is_kept = np.zeros(self.n_pages + 1, np.bool_)  # `keep` has a reference
        self._n_evictable = 0  # pages with no other one
        self.evict: Callable[[int], None] | None = None  # `drop` so many of these
        self._offsets = np.arange(page_size, dtype=np.int32)

    @property
    def n_free(self) -> int:
        """Pages that no sequence refers to, those that are only kept included."""
        return self._n_idle + self._n_evictable

    @property
    def _n_idle(self) -> int:
        return len(self._released) + self.n_pages - self._n_used

    def new_sequence(self) -> KVSequence:
        """An empty sequence. It owns no page until `append`."""
        return KVSequence(self)

    def sequence_of(self, pages: I32Array, n: int) -> KVSequence:
        """A sequence that shares `pages`, which hold its first `n` positions: exactly so many."""
        assert len(pages) == -(-n // self.page_size), f"{n} positions in {len(pages)} pages"
        self._share(pages)
        seq = KVSequence(self)
        seq._extend(pages)
        seq.length = seq._n_ready = n
        return seq

    def keep(self, page: int) -> None:
        """Have a reference to a page, besides those of sequences, one of which has it now. Once no
        sequence has, it counts as free: `evict` is called when it is needed."""
        assert self._n_refs[page] > 0, f"page {page} is nobody's"
        assert not self._is_kept[page], f"page {page} is kept already"
        self._n_refs[page] += 1
        self._is_kept[page] = True

    def drop(self, page: int) -> None:
        """Give the reference of `keep` back."""
        assert self._is_kept[page], f"page {page} is not kept"
        self._n_evictable -= self.is_evictable(page)
        self._is_kept[page] = False
        self._n_refs[page] -= 1
        if self._n_refs[page] == 0:
            self._released.append(page)

    def is_evictable(self, page: int) -> bool:
        """Whether a page is kept, and no sequence has it."""
        return bool(self._is_kept[page] and self._n_refs[page] == 1)

    def _take(self, n: int) -> list[int]:
        if n > self.n_free:
            raise OutOfMemoryError("the KV pool", n, self.n_free, "pages")
        if n > self._n_idle:
            assert self.evict is not None, "pages are kept, but nobody drops them"
            self.evict(n - self._n_idle)
            assert n <= self._n_idle, f"{n} pages are wanted, {self._n_idle} were evicted"
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
        return int(np.count_nonzero(self._is_kept[pages] & (self._n_refs[pages] == 1)))

    def _release(self, pages: I32Array) -> None:
        self._n_refs[pages] -= 1
        self._n_evictable += self._count_evictable(pages)
        assert not (self._n_refs[pages] < 0).any(), f"a page of {pages} was given back twice"
        self._released.extend(pages[self._n_refs[pages] == 0].tolist())


class KVSequence:
    """The pages of one sequence; positions 0..length-1 are reserved, without holes.

    Everything but `free` raises ClosedError after `free`.
    """

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.length = 0
        self._n_pages = 0
        self._table = np.empty(8, np.int32)  # grows by doubling; the first _n_pages count
        # up to here positions can be reserved with nothing to do: the rest of an own last page.
        # Only `fork` can make an own page a shared one, and it takes this back; so can `keep`, but
        # when a page is kept that is not full, the sequence must not go on.
        self._n_ready = 0

    def can_append(self, n: int) -> bool:
        """Whether `append(n)` finds the pages it needs."""
        if 0 <= n <= self._n_ready - self.length:
            return True
        return self._n_wanted(n) <= self.pool.n_free

    def append(self, n: int) -> list[CellCopy]:
        """Reserve the next `n` positions.

        Returns the copies to perform before any cell of the pool is written: at most one, of the
        used cells of a last page that was shared.

        Raises:
            OutOfMemoryError: `can_append(n)` is False; `wanted` and `free` are pages. Nothing has
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
        """The cell of one position, which must be reserved."""
        assert 0 <= pos < self.length, f"position {pos} of {self.length}"
        size = self.pool.page_size
        return int(self._table[pos // size]) * size + pos % size

    def cells(self, begin: int, end: int) -> I32Array:
        """[end - begin] int32: the cell of each position; a new array.

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
        """[pages] int32, in order of position: a view to copy from at once, never to write to."""
        self._check_open()
        return self._table[: self._n_pages]

    def fork(self, n: int | None = None) -> KVSequence:
        """A new sequence that shares the first `n` positions (all by default).

        Needs no free page: a shared partial page is copied by whoever appends to it first.

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

    def remove(self, begin: int, end: int) -> None:
        """Remove positions begin..end-1, which must reach the end of the sequence or be none.

        Raises:
            RequestError: the range is no part of the sequence, or an inner one: keys are rotated to
                their positions, so what follows cannot move up.
        """
        self._check_range(begin, end)
        if begin == end:
            return
        if end != self.length:
            raise RequestError(
                f"positions {begin}..{end - 1} of {self.length} cannot be removed: "
                "only those at the end of a sequence can"
            )
        self.truncate(begin)

    def free(self) -> None:
        """Give all pages back. Twice is fine."""
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
        """Whether the next position lies in a page that somebody else refers to as well."""
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
            # a new array: views that were handed out keep what they show
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
            raise ClosedError("a KV sequence was used after it had been freed")
