"""Bookkeeping of a paged pool of keys and values: the pages of each sequence.

A pool is a row of cells, one per token, divided into pages. A `PageList` has the pages of one
sequence in order of position: position p is in cell `pages[p // page_size] * page_size +
p % page_size`. Pages are reference-counted, so sequences can share them. Page 0 is scratch: padding
tokens write there, and no sequence has it.

A model has a pool for each group of layers; `kv_sequence` has the sequences over all pools. Knows
no tensors and no tokens. Not thread-safe. Tests: tests/model/test_kv_sequence.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from ..base.errors import OutOfMemoryError, RequestError
from .layer_memory import Window

I32Array = npt.NDArray[np.int32]

PAGE_SIZE: Final = 32  # cells


class PagePool:
    """The pages of one pool: `n_pages` for sequences, and the scratch page 0.

    `n_cells` is rounded up to whole pages. Tensors need `n_cells_total` cells.

    Attributes:
        window: sequences give pages back that lie before it; None: they keep all pages.
        evict: uncaches this number of evictable pages, or more.
        name: for messages.
    """

    def __init__(
        self, n_cells: int, *, window: Window | None = None, page_size: int = PAGE_SIZE
    ) -> None:
        """Raise RequestError if a size is below 1 or the cells exceed an int32."""
        self.window = window
        self.evict: Callable[[int], None] | None = None
        self.name = "the KV pool" if window is None else f"the KV pool of {window}"
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
        self.offsets = np.arange(page_size, dtype=np.int32)

    @property
    def n_free(self) -> int:
        """The number of pages that no sequence refers to, evictable pages included."""
        return self.n_idle + self._n_evictable

    @property
    def n_idle(self) -> int:
        """The number of pages without a reference: to take one evicts nothing."""
        return len(self._released) + self.n_pages - self._n_used

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

    def is_shared(self, page: int) -> bool:
        """True if a page has several references."""
        return bool(self._n_refs[page] > 1)

    def is_evictable(self, page: int) -> bool:
        """True if a page is cached and no sequence has it."""
        return bool(self._is_cached[page] and self._n_refs[page] == 1)

    def check_free(self, n: int) -> None:
        """Raise OutOfMemoryError if fewer than `n` pages are free."""
        if n > self.n_free:
            raise OutOfMemoryError(self.name, n, self.n_free, "pages")

    def take(self, n: int) -> list[int]:
        """Return `n` free pages, now used.

        Raises:
            OutOfMemoryError: fewer are free; nothing has changed.
        """
        self.check_free(n)
        if n > self.n_idle:
            assert self.evict is not None, "pages are cached, but evict is not set"
            self.evict(n - self.n_idle)
            assert n <= self.n_idle, f"{n} pages are needed, {self.n_idle} are idle after evict"
        n_again = min(n, len(self._released))
        pages = self._released[len(self._released) - n_again :]
        del self._released[len(self._released) - n_again :]
        pages += range(self._n_used + 1, self._n_used + 1 + n - n_again)
        self._n_used += n - n_again
        self._n_refs[pages] = 1
        return pages

    def share(self, pages: I32Array) -> None:
        """Add a reference to distinct pages that are used or cached."""
        self._n_evictable -= self._count_evictable(pages)
        self._n_refs[pages] += 1

    def _count_evictable(self, pages: I32Array) -> int:
        return int(np.count_nonzero(self._is_cached[pages] & (self._n_refs[pages] == 1)))

    def release(self, pages: I32Array) -> None:
        """Remove a reference from distinct pages."""
        self._n_refs[pages] -= 1
        self._n_evictable += self._count_evictable(pages)
        assert not (self._n_refs[pages] < 0).any(), f"a page of {pages} was released twice"
        self._released.extend(pages[self._n_refs[pages] == 0].tolist())


class PageList:
    """The pages of one sequence in one pool: those with index `first` to `end - 1`.

    Page i has the positions i * page_size to (i + 1) * page_size - 1. Pages before `first` were
    given back.
    """

    __slots__ = ("_table", "_words", "end", "first", "pool")

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.first = 0
        self.end = 0
        self._table = np.empty(8, np.int32)  # grows by doubling; first..end - 1 are valid
        self._words = self._table.data

    def __len__(self) -> int:
        return self.end - self.first

    def page(self, index: int) -> int:
        """Return the page with this index; 0 if the list does not have it."""
        return int(self._table[index]) if self.first <= index < self.end else 0

    def page_numbers(self) -> I32Array:
        """Return the pages in order of position: int32 [end - first], a view.

        Copy from it before the next change of the list, and do not write to it.
        """
        return self._table[self.first : self.end]

    def page_words(self) -> memoryview:
        """Return what `page_numbers` returns, as a view that is copied faster."""
        return self._words[self.first : self.end]

    def cell(self, pos: int) -> int:
        """Return the cell of a position."""
        size = self.pool.page_size
        index = pos // size
        assert self.first <= index < self.end, f"position {pos} has no page"
        return self._words[index] * size + pos % size

    def cells(self, begin: int, end: int) -> I32Array:
        """Return the cell of each position in begin..end-1: int32 [end - begin], a new array."""
        if begin == end:
            return np.empty(0, np.int32)
        size = self.pool.page_size
        first, last = begin // size, (end - 1) // size
        assert self.first <= first <= last < self.end, f"positions {begin}..{end} have no pages"
        if first == last:  # decoding: one token
            shift = (int(self._table[first]) - first) * size
            return np.arange(begin + shift, end + shift, dtype=np.int32)
        rows = self._table[first : last + 1, None] * np.int32(size) + self.pool.offsets
        return rows.reshape(-1)[begin - first * size : end - first * size]

    def extend(self, end: int) -> None:
        """Take pages from the pool until the list has those up to index `end - 1`.

        Raises:
            OutOfMemoryError: too few pages are free; nothing has changed.
        """
        if end > self.end:
            self._append(self.pool.take(end - self.end))

    def share(self, first: int, pages: I32Array) -> None:
        """Add references to pages, the first with index `first`, to this list, which is empty."""
        assert not len(self), "the list has pages"
        self.pool.share(pages)
        self.first = self.end = first
        self._append(pages)

    def drop_before(self, first: int) -> None:
        """Give pages back whose index is below `first`."""
        n = min(first, self.end)
        if n > self.first:
            self.pool.release(self._table[self.first : n])
        if first > self.first:
            self.first, self.end = first, max(first, self.end)

    def truncate(self, end: int) -> None:
        """Give pages back whose index is `end` or more."""
        if end < self.end:
            self.pool.release(self._table[max(self.first, end) : self.end])
            self.first, self.end = min(self.first, end), end

    def replace_last(self) -> tuple[int, int]:
        """Replace the last page by a free one. Return both, the old one first.

        Raises:
            OutOfMemoryError: no page is free; nothing has changed.
        """
        (page,) = self.pool.take(1)
        last = self._table[self.end - 1 : self.end]
        old = int(last[0])
        self.pool.release(last)
        last[0] = page
        return old, page

    def _append(self, pages: list[int] | I32Array) -> None:
        end = self.end + len(pages)
        if end > len(self._table):
            # a new array, so that views returned earlier do not change
            table = np.empty(max(end, 2 * len(self._table)), np.int32)
            table[self.first : self.end] = self._table[self.first : self.end]
            self._table, self._words = table, table.data
        self._table[self.end : end] = pages
        self.end = end
