"""Pages of prefixes in host memory: those that left their pool, up to a number of bytes.

The least valuable ones leave first (`aging`), for files if there are any (`page_files`). A page has
a key, which stands for all tokens up to its end, and for the identity of its keys and values. Any
thread may use a store. Knows no pools and no tensors. Tested by tests/model/test_page_store.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock

from .aging import Aging
from .page_files import Page, PageFiles, PageKey


@dataclass(slots=True)
class StoreCounts:
    """Counters of pages. Any thread may read them.

    `n_stored` left their pool for memory, `n_dropped` left memory and are in no file. Tokens of
    `n_restored` came back instead of being evaluated.
    """

    n_stored: int = 0
    n_dropped: int = 0
    n_restored: int = 0


class PageStore:
    """Pages in memory.

    Attributes:
        limit: the most bytes, those that wait to be written to files included; None: no limit.
        counts: what became of pages.
        files: where pages go that leave memory; None: they are lost.
    """

    def __init__(self, limit: int | None, files: PageFiles | None = None) -> None:
        self.limit = limit
        self.counts = StoreCounts()
        self.files = files
        self._n_most = limit  # bytes of pages that do not wait to be written
        if limit is not None and files is not None:
            self._n_most = limit - files.n_pending_max
        self._pages = dict[PageKey, Page]()
        self._aging = Aging[PageKey]()
        self._n_bytes = 0
        self._lock = Lock()

    def __len__(self) -> int:
        """The number of pages."""
        return len(self._pages)

    @property
    def n_bytes(self) -> int:
        """The bytes of all pages, those that wait to be written included."""
        return self._n_bytes + (0 if self.files is None else self.files.n_pending)

    @property
    def n_room(self) -> int | None:
        """The bytes that fit before a page leaves; None: any number."""
        return None if self._n_most is None else max(self._n_most - self._n_bytes, 0)

    def has(self, key: PageKey) -> bool:
        """True if a page is in memory. Does not use it."""
        return self.peek(key) is not None

    def peek(self, key: PageKey) -> Page | None:
        """Return a page in memory, without using it."""
        with self._lock:
            page = self._pages.get(key)
        return self.files.get(key) if page is None and self.files is not None else page

    def use(self, keys: Sequence[PageKey]) -> None:
        """Mark pages as used, the first one as the most recently."""
        with self._lock:
            for key in reversed(keys):
                if key in self._pages:
                    self._aging.use(key)

    def keep(
        self, key: PageKey, n_bytes: int, read: Callable[[], Page], worth: float = 1.0
    ) -> None:
        """Store a page of `n_bytes`, which `read` returns, or use the one that is there."""
        if self._is_used(key, worth):
            return
        if self._n_most is not None and n_bytes > self._n_most:
            self.counts.n_dropped += 1
            return
        self.put(key, read(), worth)
        self.counts.n_stored += 1

    def put(self, key: PageKey, page: Page, worth: float = 1.0) -> None:
        """Store a page as the most recently used. Others leave if there is no room."""
        with self._lock:
            if key not in self._pages:
                self._pages[key] = page
                self._n_bytes += page.n_bytes
                self._aging.use(key, worth)
            self._shrink()

    def forget(self, keys: Sequence[PageKey]) -> None:
        """Remove pages."""
        with self._lock:
            for key in keys:
                page = self._pages.pop(key, None)
                self._aging.remove(key)
                self._n_bytes -= 0 if page is None else page.n_bytes

    def newest(self) -> Iterator[tuple[PageKey, Page]]:
        """Yield the pages that are there now, the most valuable first."""
        with self._lock:
            pages = [(key, self._pages[key]) for key in self._aging.highest()]
        return iter(pages)

    def _is_used(self, key: PageKey, worth: float) -> bool:
        with self._lock:
            found = key in self._pages
            if found:
                self._aging.use(key, worth)
            return found

    def _shrink(self) -> None:
        while self._n_most is not None and self._n_bytes > self._n_most:
            key = self._aging.pop()
            assert key is not None, "there are bytes, but no pages"
            page = self._pages.pop(key)
            self._n_bytes -= page.n_bytes
            if self.files is None or not self.files.put(key, page):
                self.counts.n_dropped += 1
