"""The KV pool's bookkeeping: exact sharing, copies before writes, edge cases, random operations."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from lamella.base.errors import ClosedError, OutOfMemoryError, RequestError
from lamella.model.kv_sequence import CellCopy, KVPool, KVSequence


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


class Model:
    """A simple model of the pool: sequences are lists, cells are a dict."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.pool = KVPool(self.random.randint(1, 60), page_size=self.random.choice([1, 3, 4]))
        self.content: dict[int, int] = {}
        self.live: list[tuple[KVSequence, list[int]]] = []
        self.n_written = 0

    def step(self) -> None:
        actions = [self.new, self.append, self.append, self.append, self.fork]
        action = self.random.choice([*actions, self.truncate, self.free])
        if self.live or action == self.new:
            action()
        self.check()

    def new(self) -> None:
        self.live.append((self.pool.new_sequence(), []))

    def append(self) -> None:
        seq, tokens = self.random.choice(self.live)
        n = self.random.choice([0, 1, 1, 2, 5, 9])
        if not seq.can_append(n):
            with pytest.raises(OutOfMemoryError):
                seq.append(n)
            return
        for copy in seq.append(n):
            for i in range(copy.n):
                self.content[copy.dst_cell + i] = self.content[copy.src_cell + i]
        for cell in seq.pages[0].cells(seq.length - n, seq.length).tolist():
            self.n_written += 1
            self.content[cell] = self.n_written
            tokens.append(self.n_written)

    def fork(self) -> None:
        seq, tokens = self.random.choice(self.live)
        n = self.random.randint(0, len(tokens))
        self.live.append((seq.fork(n), tokens[:n]))

    def truncate(self) -> None:
        seq, tokens = self.random.choice(self.live)
        n = self.random.randint(0, len(tokens))
        seq.truncate(n)
        del tokens[n:]

    def free(self) -> None:
        seq, _ = self.live.pop(self.random.randrange(len(self.live)))
        seq.free()

    def check(self) -> None:
        size = self.pool.page_size
        used = set()
        for seq, tokens in self.live:
            table = seq.pages[0].page_numbers().tolist()
            assert seq.length == len(tokens)
            assert len(table) == -(-len(tokens) // size)  # no more than needed, so no leak
            assert [self.content[c] for c in cells(seq)] == tokens
            used |= set(table)
        assert 0 not in used
        assert self.pool.n_free == self.pool.n_pages - len(used)


@pytest.mark.parametrize("seed", range(20))
def test_random_operations_keep_the_cells_of_every_sequence(seed: int) -> None:
    model = Model(seed)
    for _ in range(150):
        model.step()
    for seq, _ in model.live:
        seq.free()
    assert model.pool.n_free == model.pool.n_pages
