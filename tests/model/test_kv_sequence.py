"""The bookkeeping of sequences: exact sharing, copies before writes, windows, random operations."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from lamella.base.errors import ClosedError, OutOfMemoryError, RequestError
from lamella.model.kv_groups import window_cells
from lamella.model.kv_pages import PageList, PagePool
from lamella.model.kv_prefix import PrefixTree
from lamella.model.kv_sequence import CellCopy, KVPool, KVSequence
from lamella.model.layer_memory import Window
from lamella.model.params import ContextParams


def sequence(pool: KVPool, n: int) -> KVSequence:
    seq = pool.new_sequence()
    assert seq.append(n) == []
    return seq


def cells(seq: KVSequence) -> list[int]:
    found: list[int] = seq.pages[0].cells(0, seq.length).tolist()
    return found


def test_cells_are_rounded_up_to_pages_plus_the_scratch_page() -> None:
    pool = KVPool(33, page_size=32)
    assert (pool.n_pages, pool.pools[0].n_cells_total, pool.n_free) == (2, 96, 2)
    assert KVPool(64, page_size=32).n_pages == 2


@pytest.mark.parametrize(("n_cells", "page_size"), [(0, 32), (-1, 32), (8, 0), (2**31 - 1, 32)])
def test_invalid_sizes_are_refused(n_cells: int, page_size: int) -> None:
    with pytest.raises(RequestError):
        KVPool(n_cells, page_size=page_size)


def test_a_sequence_can_use_all_pages_but_the_scratch_page() -> None:
    pool = KVPool(16, page_size=4)
    seq = sequence(pool, 16)
    assert sorted(cells(seq)) == list(range(4, 20))
    assert not seq.can_append(1)


def test_cells_follow_positions() -> None:
    pool = KVPool(32, page_size=4)
    other = sequence(pool, 1)
    seq = sequence(pool, 3)
    other.append(4)
    seq.append(6)
    table = seq.pages[0].page_numbers()
    assert table.dtype == np.int32
    expected = [int(table[p // 4]) * 4 + p % 4 for p in range(9)]
    assert cells(seq) == expected
    assert len(set(cells(seq)) | set(cells(other))) == 14
    for begin in range(10):
        for end in range(begin, 10):
            part = seq.pages[0].cells(begin, end)
            assert part.dtype == np.int32
            assert part.tolist() == expected[begin:end]


def test_a_page_table_grows() -> None:
    pool = KVPool(1000, page_size=2)
    seq = sequence(pool, 1)
    before = seq.pages[0].page_numbers()
    for _ in range(999):
        seq.append(1)
    assert before.tolist() == seq.pages[0].page_numbers()[:1].tolist()
    assert sorted(cells(seq)) == list(range(2, 1002))


def test_an_append_that_does_not_fit_changes_nothing() -> None:
    pool = KVPool(12, page_size=4)
    sequence(pool, 4)
    seq = sequence(pool, 3)
    before = cells(seq)
    assert seq.can_append(5)
    assert not seq.can_append(6)
    with pytest.raises(OutOfMemoryError) as caught:
        seq.append(6)
    assert (caught.value.wanted, caught.value.free) == (2, 1)
    assert (cells(seq), seq.length, pool.n_free) == (before, 3, 1)
    assert seq.append(5) == []


def test_the_first_append_copies_a_shared_partial_page() -> None:
    pool = KVPool(40, page_size=4)
    parent = sequence(pool, 6)
    child = parent.fork()
    assert cells(child) == cells(parent)
    assert pool.n_free == 8
    old = cells(parent)
    (copy,) = parent.append(1)
    assert cells(child) == old
    assert copy == CellCopy(group=0, src_cell=old[4], dst_cell=cells(parent)[4], n=2)
    assert cells(parent)[:4] == old[:4]
    assert child.append(1) == []  # the page is the child's own now
    assert cells(child)[:6] == old


def test_a_fork_inside_a_full_page_shares_exactly_its_positions() -> None:
    pool = KVPool(40, page_size=4)
    parent = sequence(pool, 8)
    child = parent.fork(5)
    assert (child.length, cells(child)) == (5, cells(parent)[:5])
    (copy,) = child.append(4)
    assert copy.n == 1
    assert set(cells(child)[4:]).isdisjoint(cells(parent))


def test_whole_pages_are_shared_without_copies() -> None:
    pool = KVPool(40, page_size=4)
    parent = sequence(pool, 8)
    child = parent.fork()
    assert child.append(1) == []
    assert parent.append(1) == []
    assert cells(child)[:8] == cells(parent)[:8]
    assert cells(child)[8] != cells(parent)[8]


def test_a_copy_needs_a_page() -> None:
    pool = KVPool(8, page_size=4)
    parent = sequence(pool, 6)
    child = parent.fork()
    assert not child.can_append(1)
    assert child.can_append(0)
    with pytest.raises(OutOfMemoryError):
        child.append(1)
    parent.free()
    assert child.append(1) == []  # the page is not shared any more


def test_append_after_truncation_into_a_shared_page_copies_it() -> None:
    pool = KVPool(40, page_size=4)
    parent = sequence(pool, 8)
    child = parent.fork()
    parent.truncate(7)
    (copy,) = parent.append(1)
    assert copy.n == 3
    assert cells(child)[7] != cells(parent)[7]


def test_truncation_releases_whole_pages() -> None:
    pool = KVPool(40, page_size=4)
    seq = sequence(pool, 11)
    before = cells(seq)
    seq.truncate(8)
    assert (seq.length, pool.n_free) == (8, 8)
    seq.truncate(5)
    assert cells(seq) == before[:5]
    seq.truncate(5)
    seq.truncate(0)
    assert pool.n_free == 10
    seq.append(3)
    assert seq.length == 3


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.fork(5),
        lambda s: s.fork(-1),
        lambda s: s.truncate(5),
        lambda s: s.truncate(-1),
    ],
)
def test_ranges_outside_the_sequence_are_refused(use: Callable[[KVSequence], object]) -> None:
    pool = KVPool(40, page_size=4)
    seq = sequence(pool, 4)
    with pytest.raises(RequestError, match="of a sequence of 4"):
        use(seq)
    assert (seq.length, pool.n_free) == (4, 9)


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.append(0),
        lambda s: s.append(1),
        lambda s: s.can_append(0),
        lambda s: s.fork(),
        lambda s: s.truncate(0),
    ],
)
def test_a_freed_sequence_is_closed(use: Callable[[KVSequence], object]) -> None:
    pool = KVPool(40, page_size=4)
    seq = sequence(pool, 3)
    seq.free()
    seq.free()
    assert pool.n_free == 10
    with pytest.raises(ClosedError):
        use(seq)


def test_empty_forks_and_full_pools() -> None:
    pool = KVPool(1, page_size=4)
    seq = sequence(pool, 4)
    empty = seq.fork(0)
    assert cells(empty) == []
    assert not empty.can_append(1)
    seq.free()
    empty.append(4)
    assert pool.n_free == 0


# --- windows ---

WINDOWS = {
    "1": (Window(1),),
    "3": (Window(3),),
    "10": (Window(10),),
    "chunks": (Window(6, chunked=True),),
    "several": (Window(2), Window(9), Window(5, chunked=True)),
}


def window_pool(
    n_ctx: int, windows: Sequence[Window], n_seqs: int, page_size: int, n_ubatch: int = 5
) -> KVPool:
    """Return a pool without a window, and one for each window with the smallest size."""
    params = ContextParams(n_parallel=n_seqs, swa_prefix=0)
    pools = [PagePool(n_ctx, page_size=page_size)]
    for window in windows:
        n_cells = window_cells(window.n_swa, params, n_ubatch, page_size)
        pools.append(PagePool(n_cells, window=window, page_size=page_size))
    return KVPool(n_ctx, pools, n_seqs=n_seqs, page_size=page_size)


def test_pages_before_the_window_are_given_back() -> None:
    pool = window_pool(64, [Window(6)], 1, 4)
    seq = pool.new_sequence()
    seq.append(30)
    assert (len(seq.pages[0]), len(seq.pages[1])) == (8, 0)
    held = []
    for pos in range(30):
        seq.prepare(pos, pos + 1)
        held.append((seq.pages[1].first, seq.pages[1].end))
    # position 13 sees 8 to 13, which are pages 2 and 3
    assert held[:4] == [(0, 1)] * 4
    assert held[13] == (2, 4)
    assert held[29] == (6, 8)
    assert pool.pools[1].n_free == pool.pools[1].n_pages - 2


def test_positions_without_a_page_are_refused() -> None:
    pool = window_pool(64, [Window(6)], 2, 4)
    seq = pool.new_sequence()
    seq.append(30)
    seq.prepare(0, 5)
    seq.prepare(25, 30)
    for use in (seq.fork, seq.truncate, lambda n: seq.prepare(n, n + 1)):
        with pytest.raises(RequestError, match="pages of its window 6 were given back"):
            use(20)
    assert seq.length == 30
    assert seq.fork(26).length == 26
    seq.truncate(0)
    assert pool.pools[1].n_free == pool.pools[1].n_pages - 2  # those of the fork


def test_only_the_page_table_limits_sequences_of_windows() -> None:
    params = ContextParams(n_parallel=1, swa_prefix=0)
    own = PagePool(window_cells(6, params, 1, 4), window=Window(6), page_size=4)
    pool = KVPool(100, [own], page_size=4)
    seq = pool.new_sequence()
    assert seq.can_append(100)
    assert not seq.can_append(101)
    with pytest.raises(OutOfMemoryError):
        seq.append(101)
    seq.append(100)
    for pos in range(100):
        seq.prepare(pos, pos + 1)
    seq.free()
    assert pool.n_free == pool.n_pages


class Model:
    """A simple model of the pools: sequences are lists, cells of each pool are a dict."""

    def __init__(self, seed: int, windows: Sequence[Window] = ()) -> None:
        self.random = random.Random(seed)
        self.n_seqs = self.random.randint(1, 6) if windows else 1000
        self.n_ubatch = self.random.choice([1, 5])
        n_ctx, page_size = self.random.randint(1, 60), self.random.choice([1, 3, 4])
        self.pool = window_pool(n_ctx, windows, self.n_seqs, page_size, self.n_ubatch)
        self.contents: list[dict[int, int]] = [{} for _ in self.pool.pools]
        self.live: list[tuple[KVSequence, list[int]]] = []
        self.n_written = 0

    def step(self) -> None:
        actions = [self.new, self.append, self.append, self.append, self.fork]
        action = self.random.choice([*actions, self.truncate, self.free])
        if self.live or action == self.new:
            action()
        self.check()

    def new(self) -> None:
        if len(self.live) < self.n_seqs:
            self.live.append((self.pool.new_sequence(), []))

    def append(self) -> None:
        seq, tokens = self.random.choice(self.live)
        n = self.random.choice([0, 1, 1, 2, 5, 9, 20])
        if not seq.can_append(n):
            with pytest.raises(OutOfMemoryError):
                seq.append(n)
            return
        for copy in seq.append(n):
            content = self.contents[copy.group]
            for i in range(copy.n):
                content[copy.dst_cell + i] = content[copy.src_cell + i]
        while len(tokens) < seq.length:
            self.evaluate(seq, tokens, min(seq.length - len(tokens), self.n_ubatch))

    def evaluate(self, seq: KVSequence, tokens: list[int], n: int) -> None:
        begin = len(tokens)
        tokens += range(self.n_written, self.n_written + n)
        self.n_written += n
        seq.prepare(begin, begin + n)  # the pools are always large enough
        for pages, content in zip(seq.pages, self.contents, strict=True):
            cells = pages.cells(begin, begin + n).tolist()
            content.update(zip(cells, tokens[begin:], strict=True))
            self.check_seen(pages, content, tokens, begin)

    def fork(self) -> None:
        seq, tokens = self.random.choice(self.live)
        n = self.cut(seq, tokens)
        if len(self.live) < self.n_seqs and self.can_cut(seq, n):
            self.live.append((seq.fork(n), tokens[:n]))

    def truncate(self) -> None:
        seq, tokens = self.random.choice(self.live)
        n = self.cut(seq, tokens)
        if self.can_cut(seq, n):
            seq.truncate(n)
            del tokens[n:]
        else:
            with pytest.raises(RequestError):
                seq.truncate(n)

    def cut(self, seq: KVSequence, tokens: list[int]) -> int:
        nearby = max(len(tokens) - self.random.randint(0, 6), 0)
        return self.random.choice([nearby, self.random.randint(0, len(tokens))])

    def can_cut(self, seq: KVSequence, n: int) -> bool:
        """True if every pool has the pages of the window at length `n`."""
        size = self.pool.page_size
        return all(
            pages.page(i)
            for pages in seq.pages
            for i in range(first_seen(pages, n) // size, -(-n // size))
        )

    def free(self) -> None:
        seq, _ = self.live.pop(self.random.randrange(len(self.live)))
        seq.free()

    def check(self) -> None:
        size = self.pool.page_size
        for g, (pool, content) in enumerate(zip(self.pool.pools, self.contents, strict=True)):
            used = set()
            for seq, tokens in self.live:
                pages = seq.pages[g]
                assert seq.length == len(tokens)
                if pool.window is None:
                    assert len(pages) == -(-len(tokens) // size)  # no more than needed, so no leak
                else:
                    assert len(pages) <= pool.n_pages // self.n_seqs
                self.check_seen(pages, content, tokens, len(tokens))
                used |= set(pages.page_numbers().tolist())
            assert 0 not in used
            assert pool.n_free == pool.n_pages - len(used)

    def check_seen(
        self, pages: PageList, content: dict[int, int], tokens: list[int], pos: int
    ) -> None:
        """Check the positions before `pos` that a token there sees."""
        begin = first_seen(pages, pos)
        found = [content[c] for c in pages.cells(begin, pos).tolist()]
        assert found == tokens[begin:pos]


def first_seen(pages: PageList, pos: int) -> int:
    return 0 if pages.pool.window is None else pages.pool.window.begin(pos)


def run_model(model: Model) -> None:
    for _ in range(150):
        model.step()
    for seq, _ in model.live:
        seq.free()
    assert model.pool.n_free == model.pool.n_pages


@pytest.mark.parametrize("seed", range(20))
def test_random_operations_keep_the_cells_of_every_sequence(seed: int) -> None:
    run_model(Model(seed))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", WINDOWS)
def test_random_operations_keep_the_cells_of_every_window(name: str, seed: int) -> None:
    run_model(Model(seed, WINDOWS[name]))


def windowed() -> KVPool:
    return KVPool(
        64, [PagePool(64, page_size=4), PagePool(40, window=Window(6), page_size=4)], page_size=4
    )


def test_positions_of_guesses_are_taken_back() -> None:
    pool = KVPool(32, page_size=4)
    seq = pool.new_sequence()
    seq.append(3)
    assert seq.advance_idle(4) == 4 and seq.length == 7
    seq.take_back(4)
    assert (seq.length, pool.n_free) == (4, 7)
    assert seq.advance_idle(3) == 3 and seq.length == 7
    seq.take_back(7)
    assert seq.advance() and not seq.advance()  # position 7 is in its own page
    seq.free()
    assert pool.n_free == 8


def test_guesses_evict_nothing() -> None:
    pool = KVPool(16, page_size=4)
    tree = PrefixTree(pool)
    kept = pool.new_sequence()
    kept.append(8)
    tree.insert(range(8), kept, ended=True)
    kept.free()
    seq = pool.new_sequence()
    seq.append(6)  # two pages are idle, and both are taken
    assert seq.advance_idle(7) == 2  # to the end of its page
    assert len(tree) == 2
    assert seq.can_append(4)  # for the text itself, a page would be evicted


def test_guesses_stay_within_the_table() -> None:
    pool = KVPool(8, [PagePool(64, page_size=4)], page_size=4)
    seq = pool.new_sequence()
    seq.append(5)
    assert seq.advance_idle(20) == 3


def test_pages_of_a_window_are_held_for_taking_back() -> None:
    for held in (None, 8):
        pool = windowed()
        seq = pool.new_sequence()
        seq.append(8)
        seq.prepare(0, 8)
        seq.held = held
        for pos in range(8, 16):  # drafted one by one
            seq.append(1)
            seq.prepare(pos, pos + 1)
        if held is None:
            with pytest.raises(RequestError):
                seq.truncate(8)
        else:
            seq.truncate(8)
            seq.append(1)
            seq.prepare(8, 9)
