"""Pages that left a pool: which are kept, found and worth their copies."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamella.alloc.buffer import Bytes
from lamella.model.kv_pages import PagePool
from lamella.model.kv_prefix import PLAIN, PrefixIdentity, PrefixTree
from lamella.model.kv_restore import PageCache, Restorable
from lamella.model.kv_sequence import KVPool, KVSequence
from lamella.model.layer_memory import Window
from lamella.model.page_files import PageFiles
from lamella.model.page_store import PageStore
from lamella.model.state_slots import SlotPool

PAGE = 4
TEXT = tuple(range(100, 200))
OTHER = tuple(range(200, 300))


class Toy:
    """Pools of 10 pages. A cell has a number for each token and its position.

    With `n_kept` there are slots, of which so many are for the tree. Their state is a number. With
    a `folder`, pages go to files.
    """

    def __init__(
        self,
        *windows: Window,
        limit: int | None = None,
        n_kept: int | None = None,
        state_bytes: int = 8,
        has_full: bool = True,
        folder: Path | None = None,
    ) -> None:
        kinds = (None, *windows) if has_full else windows
        pools = [PagePool(40, page_size=PAGE, window=window) for window in kinds]
        slots = None if n_kept is None else SlotPool(1, n_kept)
        self.state_bytes = state_bytes
        self.marks: Sequence[int] = range(8, 40, 8)
        self.states = np.zeros((2 + (n_kept or 0) + 1, state_bytes // 8), np.int64)
        self.pool = KVPool(40, pools, page_size=PAGE, slots=slots)
        self.cells = [np.zeros(own.n_cells_total, np.int64) for own in pools]
        self.tree = PrefixTree(self.pool)
        files = None if folder is None else self.files(folder)
        self.store = PageStore(limit, files)
        self.cache = PageCache(self.pool, self.tree, self, self.store)

    def files(self, folder: Path) -> PageFiles:
        sizes = [self.page_bytes(g) for g in range(len(self.cells) + 1)]
        files = PageFiles(folder, dict, sizes, PAGE, limit=1 << 20, n_pending_max=600)
        files.start()
        assert files.starting.future.result(5) is None
        return files

    def page_bytes(self, group: int) -> int:
        return 8 * PAGE if group < len(self.cells) else self.state_bytes

    def read_page(self, group: int, page: int) -> Bytes:
        if group == len(self.cells):
            return np.array(self.states[page]).view(np.uint8)
        return self.cells[group].view(np.uint8)[32 * page : 32 * page + 32].copy()

    def write_page(self, group: int, page: int, data: Bytes) -> None:
        if group == len(self.cells):
            self.states[page] = data.view(np.int64)
            return
        self.cells[group].view(np.uint8)[32 * page : 32 * page + 32] = data

    def content(self, tokens: Sequence[int]) -> np.ndarray:
        return np.cumsum(np.array(tokens, np.int64)) * 1000 + np.arange(len(tokens))

    def compute(self, tokens: Sequence[int], *, in_flight: bool = False, chunk: int = 8) -> None:
        """Evaluate a prompt and leave it in the tree."""
        seq = self.pool.new_sequence()
        seq.append(len(tokens))
        self.mark(seq, tokens)
        node = None
        for begin in range(0, len(tokens), chunk):
            end = min(begin + chunk, len(tokens))
            seq.prepare(begin, end)
            for cells, pages in zip(self.cells, seq.pages, strict=True):
                cells[pages.cells(begin, end)] = self.content(tokens)[begin:end]
            if seq.states is not None:
                slots = seq.states.run(begin, end)
                for token, (src, dst) in zip(tokens[begin:end], slots, strict=True):
                    self.states[dst] = self.next_state(self.states[src] if src >= 0 else 0, token)
            node = self.tree.insert(
                tokens[:end], seq, ended=end == len(tokens), after=node, in_flight=in_flight
            )
        seq.free()

    def mark(self, seq: KVSequence, tokens: Sequence[int]) -> None:
        if seq.states is not None:
            seq.states.marks = frozenset({*self.marks, len(tokens) - 1})

    def next_state(self, state: object, token: int) -> np.ndarray:
        return np.asarray(state) * 3 + token

    def evict_states(self) -> None:
        """All states leave their slots, and no page leaves its pool."""
        slots = self.pool.slots
        assert slots is not None
        for slot in slots.take(slots.n_free):
            slots.drop(slot)

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
        if seq.states is not None:
            state: object = 0
            for token in tokens[:n]:
                state = self.next_state(state, token)
            assert seq.states.length == n
            assert (self.states[seq.states.slot] == state).all()


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


def test_states_come_back_with_their_pages() -> None:
    toy = Toy(n_kept=2)
    toy.compute(TEXT[:34])
    toy.compute(OTHER[:34])
    assert toy.restored(TEXT[:35]) == 32
    assert toy.restored(OTHER[:34]) >= 32
    assert toy.restored([*TEXT[:31], 7, 7, 7]) == 24  # where there is a state
    assert toy.restored([*TEXT[:7], 7]) == 0
    assert toy.restored([7, *TEXT[:30]]) == 0


def test_a_state_without_pages_comes_back() -> None:
    """Layers that have nothing but states."""
    toy = Toy(has_full=False, n_kept=1)
    toy.compute(TEXT[:34])
    toy.compute(OTHER[:34])
    assert toy.restored(TEXT[:34]) == 32
    assert toy.restored([*TEXT[:20], 7]) == 16


def test_pages_in_the_pool_need_their_state_only() -> None:
    toy = Toy(n_kept=3)
    toy.compute(TEXT[:30])
    toy.evict_states()
    n, found = toy.found(TEXT[:30])
    assert (n, found and found.length) == (0, 24)
    assert found is not None and [each.key.group for each in found.missing] == [1]
    assert found.gain == 24
    assert toy.restored(TEXT[:30]) == 24
    assert toy.store.counts.n_restored == 24


def test_the_states_that_save_most_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state has as many bytes as 32 tokens; two fit."""
    toy = Toy(n_kept=4, state_bytes=32 * 8, limit=2 * (32 * 8 + 16))
    monkeypatch.setattr(toy, "marks", (4, 28, 32, 36))
    toy.compute(TEXT[:38])
    toy.evict_states()
    assert toy.store.counts.n_dropped == 2
    found = [toy.found([*TEXT[:n], 7])[1] for n in (4, 28, 32, 36)]
    # of 4 tokens each but for the second one, the latest ones stay
    assert [each and each.length for each in found] == [None, 28, 28, 36]


@pytest.mark.parametrize("has_full", [True, False])
def test_a_state_far_before_the_end_comes_from_a_file(tmp_path: Path, has_full: bool) -> None:
    """Memory has room for a few states: those that no file has need none."""
    how: dict[str, Any] = {"n_kept": 1, "state_bytes": 512, "limit": 2600, "has_full": has_full}
    toy = Toy(**how, folder=tmp_path)
    toy.marks = (8,)
    toy.compute(TEXT[:38])
    toy.cache.close(5)
    toy = Toy(**how, folder=tmp_path)
    fetch = toy.cache.fetch(TEXT[:38], PLAIN, 0)
    assert fetch is not None
    fetch.future.result(5)
    assert toy.restored(TEXT[:38]) == 8


@pytest.mark.parametrize("limit", [400, 1500, None])
@pytest.mark.parametrize("kinds", [(True, ()), (True, (Window(6),)), (False, ())])
def test_random_prompts_with_states(
    kinds: tuple[bool, Sequence[Window]], limit: int | None
) -> None:
    has_full, windows = kinds
    toy = Toy(*windows, has_full=has_full, n_kept=2, limit=limit, state_bytes=64)
    chance = random.Random(1)
    n_restored = 0
    for _ in range(150):
        text = chance.choice([TEXT, OTHER])
        tokens = [*text[: chance.randrange(1, 38)], *(chance.randrange(3) for _ in range(3))]
        if chance.random() < 0.5:
            n_restored += toy.restored(tokens)
        else:
            toy.compute(tokens[:40], chunk=chance.choice([3, 8, 20]))
        assert limit is None or toy.store.n_bytes <= limit
    assert n_restored > 100
    slots = toy.pool.slots
    assert slots is not None and slots.n_free == slots.n_pages and slots.n_keepable == 2
