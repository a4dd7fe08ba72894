"""The memory of sequences: pages in the pool of each group of layers, behind one object.

Sequences can share a prefix of any length. An append to a shared page that is partly used copies
it first. Pools without a window give pages for the whole length at `append`. Pools with a window
give pages just before a ubatch is computed, in `prepare`, and take those back that lie before the
window. So a sequence never has more than the pages of its window and of one ubatch there.

If layers have states, a sequence also has a slot (state_slots.py), which `prepare_states` moves on.

The caller performs the copies that `append` returns. Knows no tensors, no tokens and no policy of
admission or preemption. Not thread-safe. Tests: tests/model/test_kv_sequence.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..base.errors import ClosedError, OutOfMemoryError, RequestError
from .kv_pages import PAGE_SIZE, I32Array, PageList, PagePool
from .state_slots import SequenceStates, SlotPool, SlotRef


class CellCopy(NamedTuple):
    """A copy of `n` consecutive cells, to perform in every layer of the group `group`."""

    group: int
    src_cell: int
    dst_cell: int
    n: int


class KVPool:
    """The pools of all groups of layers.

    Attributes:
        pools: the pool of each group. Their pages have the same size.
        width: the most pages of a sequence.
        n_seqs: the most sequences that pools with a window have pages for; None: no limit.
        slots: those of the layers with states; None: there are none.
        gives_back: a pool has a window, so sequences give pages back and need `prepare`.
    """

    def __init__(
        self,
        n_ctx: int,
        pools: Sequence[PagePool] | None = None,
        *,
        n_seqs: int | None = None,
        page_size: int = PAGE_SIZE,
        slots: SlotPool | None = None,
    ) -> None:
        """Without `pools`, make one of `n_ctx` cells, in pages of `page_size`.

        Raises:
            RequestError: a size is below 1, or the cells exceed an int32.
        """
        self.pools = (PagePool(n_ctx, page_size=page_size),) if pools is None else tuple(pools)
        self.page_size = page_size
        assert all(pool.page_size == page_size for pool in self.pools), "pages differ in size"
        self.width = self.page_count(n_ctx)
        self.n_seqs = n_seqs
        self.slots = slots
        self.gives_back = any(pool.window is not None for pool in self.pools)

    @property
    def n_pages(self) -> int:
        """The number of pages of all pools, scratch pages not counted."""
        return sum(pool.n_pages for pool in self.pools)

    @property
    def n_free(self) -> int:
        """The number of pages that no sequence refers to, evictable pages included."""
        return sum(pool.n_free for pool in self.pools)

    def new_sequence(self) -> KVSequence:
        """Return an empty sequence. It has no page until `append`."""
        return KVSequence(self)

    def has_room(self, n_seqs: int) -> bool:
        """True if every one of `n_seqs` sequences always gets the pages of its window."""
        return self.n_seqs is None or n_seqs <= self.n_seqs

    def page_count(self, n: int) -> int:
        """Return the number of pages of `n` positions."""
        return -(-n // self.page_size)

    def first_page(self, pool: PagePool, n: int) -> int:
        """Return the index of the first page that a sequence of length `n` needs in a pool."""
        return 0 if pool.window is None else pool.window.begin(n) // self.page_size

    def sequence_of(
        self, n: int, pages: Sequence[I32Array], state: SlotRef | None = None
    ) -> KVSequence:
        """Return a new sequence of `n` positions that shares `pages`, and a slot.

        For each pool these are the pages from `first_page` on.
        """
        seq = KVSequence(self)
        for own, found in zip(seq.pages, pages, strict=True):
            own.share(self.first_page(own.pool, n), found)
        if seq.states is not None:
            seq.states.share(state or SlotRef(0, 0))
        seq.length = seq._n_ready = n
        return seq


class KVSequence:
    """The memory of one sequence. Positions 0..length-1 are reserved.

    After `free`, every method but `free` raises ClosedError.

    Attributes:
        pages: its pages in each pool.
        held: pages that a ubatch from this position on sees are not given back; None: no such rule.
        states: its states, which may be those of fewer positions; None: no layer has states.
    """

    def __init__(self, pool: KVPool) -> None:
        self.pool = pool
        self.held: int | None = None
        self.pages = tuple(PageList(own) for own in pool.pools)
        self.states = None if pool.slots is None else SequenceStates(pool.slots)
        self.length = 0
        # Positions below this need no page and no copy at `append`, as the last pages are not
        # shared. `fork` shares them and resets this. `PagePool.cache` does not reset it: after
        # `cache` of a partly filled page, the sequence must not append.
        self._n_ready = 0

    def can_append(self, n: int) -> bool:
        """True if the pools have the pages that `append(n)` needs."""
        if 0 <= n <= self._n_ready - self.length:
            return True
        end = self._end_page(n)
        return end <= self.pool.width and all(
            self._n_wanted(pages, end) <= pages.pool.n_free for pages in self.pages
        )

    def append(self, n: int) -> list[CellCopy]:
        """Reserve the next `n` positions.

        Returns:
            The copies to perform before any cell of the pools is written. There is at most one for
            each group: of the used cells of a shared last page.

        Raises:
            OutOfMemoryError: `can_append(n)` is False; `wanted` and `free` count pages. Nothing has
                changed.
        """
        if 0 <= n <= self._n_ready - self.length:
            self.length += n
            return []
        end = self._end_page(n)
        for pages in self.pages:
            pages.pool.check_free(self._n_wanted(pages, end))
        if end > self.pool.width:  # only pools with windows have pages left
            raise OutOfMemoryError("the page table", end, self.pool.width, "pages")
        copies = self._own_last_pages()
        for pages in self.pages:
            if pages.pool.window is None:
                pages.extend(end)
        self.length += n
        self._n_ready = end * self.pool.page_size
        return copies

    def advance(self) -> bool:
        """Reserve the next position if that needs neither a page nor a copy. Return True then."""
        if self.length >= self._n_ready:
            return False
        self.length += 1
        return True

    def advance_idle(self, n: int, *, guesses: bool = True) -> int:
        """Reserve up to `n` further positions of a sequence that was just appended to, in its own
        pages and in idle ones: no page is evicted or copied. Return how many. Of `guesses`, states
        are kept, so that `take_back` can give up any of them."""
        size, length = self.pool.page_size, self.length
        if guesses and self.states is not None:
            n = min(n, self.states.pool.n_keepable)
        while n and not self._take_idle(self.pool.page_count(length + n)):
            n = max(length + n - 1, 0) // size * size - length  # without the last page
            if n <= 0:
                return 0
        if guesses and self.states is not None:
            self.states.guess(length, n)
        self.length += n
        self._n_ready = max(self._n_ready, self.pool.page_count(self.length) * size)
        return n

    def take_back(self, n: int) -> None:
        """Give up the positions from `n` on, which `advance_idle` or `advance` reserved, and their
        pages. States go back if a step has evaluated them, see `SequenceStates.truncate`."""
        assert 0 < n <= self.length, f"{n} of {self.length} positions"
        if self.states is not None:
            self.states.truncate(n)
        end = self.pool.page_count(n)
        for pages in self.pages:
            pages.truncate(end)
        self.length, self._n_ready = n, end * self.pool.page_size

    def _take_idle(self, end: int) -> bool:
        """Take pages up to index `end - 1` in all pools, if they are idle and fit."""
        if end > self.pool.width or any(
            end - pages.end > pages.pool.n_idle for pages in self.pages
        ):
            return False
        for pages in self.pages:
            pages.extend(end)
        return True

    def prepare(self, begin: int, end: int) -> None:
        """Take the pages that a ubatch with the positions begin..end-1 needs in pools with windows.

        Pages that no position from `begin` on sees are given back.

        Raises:
            OutOfMemoryError: there are more sequences than the pools are made for.
            RequestError: pages that `begin` sees were given back.
        """
        for pages in self.pages:
            if pages.pool.window is not None:
                self._check_window(pages, begin)
                kept = begin if self.held is None else min(begin, self.held)
                pages.drop_before(self.pool.first_page(pages.pool, kept))
                pages.extend(self.pool.page_count(end))

    def fork(self, n: int | None = None) -> KVSequence:
        """Return a new sequence that shares the first `n` positions (all by default).

        Needs no free page: the first `append` to a shared partial page copies it.

        Raises:
            RequestError: not 0 <= n <= length, pages of the window at `n` were given back, or no
                slot has the states of `n` positions.
        """
        n = self.length if n is None else n
        self._check_length(n)
        state = None if self.states is None else self.states.at(n)
        self._n_ready = self.length
        end, shared = self.pool.page_count(n), list[I32Array]()
        for pages in self.pages:
            first = self.pool.first_page(pages.pool, n)
            shared.append(pages.page_numbers()[first - pages.first : max(end - pages.first, 0)])
        return self.pool.sequence_of(n, shared, state)

    def truncate(self, n: int) -> None:
        """Keep the first `n` positions.

        Raises:
            RequestError: not 0 <= n <= length, pages of the window at `n` were given back, or no
                slot has the states of `n` positions.
        """
        self._check_length(n)
        if self.states is not None:
            self.states.truncate(n)
        for pages in self.pages:
            pages.truncate(self.pool.page_count(n))
        self.length = self._n_ready = n

    def free(self) -> None:
        """Release all pages. May be called again."""
        if self._n_ready < 0:
            return
        self.truncate(0)
        self._n_ready = -1

    @property
    def last_is_shared(self) -> bool:
        """True if the next position is in a page with another reference."""
        return any(self._ends_in_shared(pages) for pages in self.pages)

    def _ends_in_shared(self, pages: PageList) -> bool:
        size = self.pool.page_size
        if self.length % size == 0:
            return False
        page = pages.page(self.length // size)
        return page != 0 and pages.pool.is_shared(page)

    def _own_last_pages(self) -> list[CellCopy]:
        """Replace each shared last page that is partly used. Return the copies to perform."""
        size, copies = self.pool.page_size, []
        for group, pages in enumerate(self.pages):
            if self._ends_in_shared(pages):
                old, new = pages.replace_last()
                copies.append(CellCopy(group, old * size, new * size, self.length % size))
        return copies

    def _end_page(self, n: int) -> int:
        """Return the number of pages after `append(n)`."""
        self._check_open()
        assert n > 0, f"append of {n} positions"
        return self.pool.page_count(self.length + n)

    def _n_wanted(self, pages: PageList, end: int) -> int:
        n_more = end - pages.end if pages.pool.window is None else 0
        return n_more + self._ends_in_shared(pages)

    def _check_length(self, n: int) -> None:
        self._check_open()
        if not 0 <= n <= self.length:
            raise RequestError(f"length {n} of a sequence of {self.length}")
        for pages in self.pages:
            self._check_window(pages, n)

    def _check_window(self, pages: PageList, n: int) -> None:
        """Raise RequestError if the list lacks pages that a sequence of length `n` needs."""
        first = self.pool.first_page(pages.pool, n)
        if first < pages.first and first < self.pool.page_count(n):
            raise RequestError(
                f"position {n} of a sequence of {self.length}: pages of its {pages.pool.window} "
                "were given back"
            )

    def _check_open(self) -> None:
        if self._n_ready < 0:
            raise ClosedError("a KV sequence was used after it was freed")
