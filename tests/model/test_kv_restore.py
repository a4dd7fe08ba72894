"""Pages that left a pool: which are kept, found and worth their copies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lamella.alloc.buffer import Bytes
from lamella.model.kv_pages import PagePool
from lamella.model.kv_prefix import PLAIN, PrefixIdentity, PrefixTree
from lamella.model.kv_restore import PageCache, Restorable
from lamella.model.kv_sequence import KVPool, KVSequence
from lamella.model.layer_memory import Window
from lamella.model.page_store import PageStore

PAGE = 4
TEXT = tuple(range(100, 200))
OTHER = tuple(range(200, 300))


class Toy:
    """Pools of 10 pages. A cell has a number for each token and its position."""

    def __init__(self, *windows: Window, limit: int | None = None) -> None:
        pools = [PagePool(40, page_size=PAGE, window=window) for window in (None, *windows)]
        self.pool = KVPool(40, pools, page_size=PAGE)
        self.cells = [np.zeros(own.n_cells_total, np.int64) for own in pools]
        self.tree = PrefixTree(self.pool)
        self.store = PageStore(limit)
        self.cache = PageCache(self.pool, self.tree, self, self.store)

    def page_bytes(self, group: int) -> int:
        return 8 * PAGE

    def read_page(self, group: int, page: int) -> Bytes:
        return self.cells[group].view(np.uint8)[32 * page : 32 * page + 32].copy()

    def write_page(self, group: int, page: int, data: Bytes) -> None:
        self.cells[group].view(np.uint8)[32 * page : 32 * page + 32] = data

    def content(self, tokens: Sequence[int]) -> np.ndarray:
        return np.cumsum(np.array(tokens, np.int64)) * 1000 + np.arange(len(tokens))

    def compute(self, tokens: Sequence[int], *, in_flight: bool = False, chunk: int = 8) -> None:
        """Evaluate a prompt and leave it in the tree."""
        seq = self.pool.new_sequence()
        seq.append(len(tokens))
        node = None
        for begin in range(0, len(tokens), chunk):
            end = min(begin + chunk, len(tokens))
            seq.prepare(begin, end)
            for cells, pages in zip(self.cells, seq.pages, strict=True):
                cells[pages.cells(begin, end)] = self.content(tokens)[begin:end]
            node = self.tree.insert(
                tokens[:end], seq, ended=end == len(tokens), after=node, in_flight=in_flight
            )
        seq.free()

    def found(
        self, tokens: Sequence[int], identity: PrefixIdentity = PLAIN
    ) -> tuple[int, Restorable | None]:
        """The tokens that the tree has, and what can be restored."""
        seq = self.tree.find(tokens, identity)
        n = seq.length
        seq.free()
        return n, self.cache.find(tokens, identity, n)

    def restored(self, tokens: Sequence[int]) -> int:
        """Restore a prefix, check its cells, and return its length."""
        n, found = self.found(tokens)
        if found is None:
            return n
        seq = self.cache.share(found)
        pages = self.cache.load(found)
        seq.append(len(tokens) - seq.length)
        self.cache.write(seq, found, pages)
        self.check(seq, found.length, tokens)
        seq.free()
        return found.length

    def check(self, seq: KVSequence, n: int, tokens: Sequence[int]) -> None:
        for cells, pages in zip(self.cells, seq.pages, strict=True):
            begin = 0 if pages.pool.window is None else pages.pool.window.begin(n)
            assert (cells[pages.cells(begin, n)] == self.content(tokens)[begin:n]).all()


WINDOWS = [(), (Window(6),), (Window(3), Window(8, chunked=True))]


@pytest.mark.parametrize("windows", WINDOWS)
def test_evicted_pages_come_back(windows: Sequence[Window]) -> None:
    toy = Toy(*windows)
    toy.compute(TEXT[:34])
    toy.compute(OTHER[:34])
    assert toy.restored(TEXT[:35]) == 32
    assert toy.restored(OTHER[:34]) >= 32
    assert toy.restored([*TEXT[:18], 7, 7, 7]) in (0, 16)
    assert toy.restored([7, *TEXT[:30]]) == 0


def test_equal_tokens_after_others_are_another_page() -> None:
    toy = Toy()
    toy.compute(TEXT[:34])
    toy.compute(OTHER[:34])
    n, found = toy.found([*OTHER[:4], *TEXT[4:34]])
    assert (n, found) == (4, None)
    assert toy.found(TEXT[:34], PrefixIdentity("salt")) == (0, None)
    assert toy.found(TEXT[:34], PrefixIdentity(lora=(0.5,))) == (0, None)


def test_pages_that_are_not_computed_are_not_kept() -> None:
    toy = Toy()
    toy.compute(TEXT[:34], in_flight=True)
    toy.compute(OTHER[:34])
    assert len(toy.store) == 0
    toy.tree.confirm()
    toy.compute(TEXT[:34])
    assert len(toy.store) > 0


def test_partly_filled_pages_are_not_kept() -> None:
    toy = Toy()
    toy.compute(TEXT[:3])
    toy.compute(OTHER[:40])
    assert len(toy.store) == 0


def test_pages_of_a_prompt_that_failed_are_not_kept() -> None:
    toy = Toy()
    toy.compute(TEXT[:34], in_flight=True)
    toy.tree.discard()
    toy.compute(OTHER[:34])
    assert toy.found(TEXT[:34]) == (0, None) and len(toy.store) == 0


def test_a_restored_page_is_not_copied_again() -> None:
    toy = Toy()
    for _ in range(4):
        toy.compute(TEXT[:34])
        toy.compute(OTHER[:34])
    assert toy.store.counts.n_stored == len(toy.store) <= 16


def test_few_tokens_are_not_worth_many_copies() -> None:
    toy = Toy(Window(30))
    toy.compute(TEXT[:34])
    toy.compute(OTHER[:34])
    n, found = toy.found(TEXT[:34])
    assert n < 8 and found is not None and len(found.missing) > 8
    # for 4 tokens more, the 8 pages of the window would be copied
    assert toy.cache.find(TEXT[:34], PLAIN, 28) is None


def test_a_prefix_that_memory_cannot_hold_is_cut() -> None:
    toy = Toy(limit=6 * (32 + 16))
    toy.compute(TEXT[:40])
    toy.compute(OTHER[:40])
    assert toy.store.n_bytes <= 6 * 48 and toy.store.counts.n_dropped == 4
    assert toy.restored(TEXT[:40]) == 6 * 4  # its first pages left the tree last


def test_a_device_that_fails_costs_pages_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(group: int, page: int) -> Bytes:
        raise MemoryError

    toy = Toy()
    toy.compute(TEXT[:34])
    monkeypatch.setattr(toy, "read_page", fails)
    toy.compute(OTHER[:34])
    assert len(toy.store) == 0 and toy.store.counts.n_dropped > 0


def test_forgotten_prefixes_leave_the_store() -> None:
    toy = Toy()
    toy.compute(TEXT[:34])
    toy.compute(OTHER[:40])  # all pages of the pool
    assert toy.found(TEXT[:34])[1] is not None
    toy.cache.forget(TEXT[:34])
    assert toy.found(TEXT[:34]) == (0, None)
    assert toy.restored(OTHER[:34]) >= 32
