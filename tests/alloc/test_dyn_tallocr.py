"""The dynamic allocator: each of its rules alone, then all of them against a naive model.

The model has no free lists: it stores the intervals in use and searches the gaps.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from lamella.alloc import DynTensorAllocator
from lamella.alloc.buffer import UNLIMITED

N_CHUNKS_MAX = 16


def free_blocks(d: DynTensorAllocator) -> list[list[tuple[int, int]]]:
    """(offset, size) of the free blocks of each chunk."""
    return [list(zip(c.offsets, c.sizes, strict=True)) for c in d.chunks]


def filled(chunks: Sequence[tuple[int, Sequence[int]]], max_size: int = 64) -> DynTensorAllocator:
    """Chunks given as (n_free, sizes): all sizes are allocated one after the other, then `n_free`
    of each chunk are freed: the 1st, 3rd, 5th ..."""
    d = DynTensorAllocator(8, max_size)
    given: list[list[tuple[int, int, int]]] = []
    for c, (_, sizes) in enumerate(chunks):
        given.append([(*d.alloc(size), size) for size in sizes])
        assert {chunk for chunk, _, _ in given[-1]} == {c}, "the case needs other sizes"
    for (n_free, _), places in zip(chunks, given, strict=True):
        for place in places[::2][:n_free]:
            d.free(*place)
    return d


# --- sizes ---


def test_sizes_are_rounded_up_to_the_alignment() -> None:
    d = DynTensorAllocator(8, 64)
    assert [d.alloc(size) for size in (1, 8, 9, 8)] == [(0, 0), (0, 8), (0, 16), (0, 32)]
    assert d.chunk_sizes == [40]
    d.free(0, 16, 9)  # rounded as in alloc
    assert free_blocks(d) == [[(16, 16), (40, 24)]]


def test_sizes_are_zero_before_the_first_alloc() -> None:
    assert DynTensorAllocator(8, 64).chunk_sizes == []


def test_an_empty_tensor_gets_an_address_but_no_bytes() -> None:
    d = DynTensorAllocator(8, 64)
    assert d.alloc(0) == (0, 0)
    assert d.chunk_sizes == [0]
    assert [d.alloc(64), d.alloc(0)] == [(0, 0), (1, 0)]


def test_freeing_an_empty_tensor_adds_no_block() -> None:
    """An empty block would break the list's order, and neighbors would not be found."""
    d = DynTensorAllocator(8, 64)
    assert [d.alloc(size) for size in (8, 0, 8)] == [(0, 0), (0, 8), (0, 8)]
    d.free(0, 0, 8)
    d.free(0, 8, 8)
    d.free(0, 8, 0)
    assert free_blocks(d) == [[(0, 64)]]


# --- first: the best fit among all blocks except each chunk's last ---


def test_the_best_fit_wins_over_the_first() -> None:
    d = filled([(2, [32, 8, 16, 8])], max_size=128)
    assert free_blocks(d) == [[(0, 32), (40, 16), (64, 64)]]
    assert d.alloc(16) == (0, 40)
    assert d.alloc(16) == (0, 0)  # the rest of a block is a block


def test_an_exact_fit_leaves_no_block() -> None:
    d = filled([(1, [32, 8])], max_size=128)
    d.alloc(32)
    assert free_blocks(d) == [[(40, 88)]]


def test_the_later_block_wins_a_tie() -> None:
    d = filled([(3, [16, 8, 16, 8, 16, 8])], max_size=128)
    assert d.alloc(12) == (0, 48)
    assert d.alloc(12) == (0, 24)
    assert d.alloc(12) == (0, 0)


def test_the_last_block_is_not_searched_first() -> None:
    """Even if it fits exactly and does not reach the chunk's end."""
    d = filled([(2, [32, 8, 16, 8])])
    assert free_blocks(d) == [[(0, 32), (40, 16)]]
    assert d.alloc(16) == (0, 0)


def test_the_last_chunk_with_a_fitting_block_wins() -> None:
    """A better fit in an earlier chunk does not count."""
    d = filled([(1, [16, 48]), (1, [32, 32]), (1, [8, 56])])
    for c, offset in ((0, 56), (1, 56), (2, 56)):
        d.free(c, offset, 8)  # now the first block is not the last
    assert d.alloc(16) == (1, 0)
    assert d.alloc(16) == (1, 16)
    assert d.alloc(16) == (0, 0)


def test_memory_used_before_is_preferred_to_growth() -> None:
    """Even if the space after it would fit better."""
    d = filled([(1, [24, 8])], max_size=40)
    assert d.alloc(8) == (0, 0)
    assert d.chunk_sizes == [32]


# --- then: among the chunks' last blocks ---


def emptied(*sizes: int) -> DynTensorAllocator:
    """Chunks that are one free block from 0 on, with the first `sizes[c]` bytes used before."""
    return filled([(1, [size]) for size in sizes])


@pytest.mark.parametrize(
    ("before", "size", "chunk"),
    [
        ((64, 48), 40, 1),  # 24 or 8 bytes left over
        ((48, 64), 40, 0),
        ((64, 40), 40, 1),  # an exact fit is the best
        ((48, 48), 40, 0),  # a tie: the earlier
        ((48, 64), 56, 1),  # no growth wins over growth by 8, whatever the order
        ((64, 48), 56, 0),
        ((40, 48), 56, 1),  # growth by 16 or 8
        ((48, 40), 56, 0),
        ((48, 48), 56, 0),  # a tie: the earlier
        ((64, 40, 56), 48, 2),
        ((40, 48, 40), 64, 1),
    ],
)
def test_the_least_waste_else_the_least_growth(
    before: Sequence[int], size: int, chunk: int
) -> None:
    d = emptied(*before)
    assert d.alloc(size) == (chunk, 0)
    sizes = list(before)
    sizes[chunk] = max(size, sizes[chunk])
    assert d.chunk_sizes == sizes


def test_growth_counts_from_where_the_last_block_begins() -> None:
    d = filled([(0, [48]), (0, [32, 24])])
    d.free(1, 32, 24)
    assert free_blocks(d) == [[(48, 16)], [(32, 32)]]
    assert d.alloc(16) == (1, 32)  # needs no growth: chunk 1 was used up to 56
    assert d.alloc(16) == (1, 48)  # growth by 8, in chunk 0 it would be 16
    assert d.chunk_sizes == [48, 64]


def test_a_last_block_that_is_too_small_does_not_count() -> None:
    d = filled([(0, [40]), (0, [48])])
    assert d.alloc(24) == (0, 40)
    assert d.alloc(16) == (1, 48)


def test_a_full_chunk_has_no_last_block() -> None:
    d = filled([(0, [64]), (0, [40])])
    assert free_blocks(d) == [[], [(40, 24)]]
    assert d.alloc(8) == (1, 40)


# --- else: a new chunk ---


def test_a_new_chunk_if_no_other_has_space() -> None:
    d = filled([(0, [40]), (0, [32])])
    assert d.alloc(40) == (2, 0)
    assert d.chunk_sizes == [40, 32, 40]
    assert d.alloc(24) == (0, 40)  # space in older chunks is still used: an exact fit


def test_a_larger_tensor_gets_a_chunk_of_its_own_size() -> None:
    d = DynTensorAllocator(8, 64)
    d.alloc(8)
    assert d.alloc(100) == (1, 0)
    assert d.chunk_sizes == [8, 104]
    assert free_blocks(d)[1] == []
    assert d.alloc(60) == (2, 0)
    d.free(1, 0, 100)
    assert d.alloc(100) == (1, 0)


def test_the_sixteenth_chunk_is_unlimited() -> None:
    d = DynTensorAllocator(8, 8)
    assert [d.alloc(8) for _ in range(15)] == [(c, 0) for c in range(15)]
    assert d.alloc(8) == (15, 0)
    assert d.alloc(1000) == (15, 8)
    assert d.alloc(2**50) == (15, 1008)
    d.free(3, 0, 8)
    assert d.alloc(8) == (3, 0)
    assert d.chunk_sizes == [8] * 15 + [1008 + 2**50]


def test_an_unlimited_type_needs_one_chunk() -> None:
    d = DynTensorAllocator(64, UNLIMITED)
    assert [d.alloc(2**50) for _ in range(3)] == [(0, i * 2**50) for i in range(3)]


def test_chunks_stay_below_the_type_s_max_size() -> None:
    """If it is no multiple of the alignment, the rest stays unused."""
    d = DynTensorAllocator(64, 100)
    assert [d.alloc(64), d.alloc(36)] == [(0, 0), (1, 0)]


# --- freeing ---


def test_free_blocks_merge_with_their_neighbors() -> None:
    d = filled([(0, [8, 16, 24, 8])])
    for offset, size, blocks in (
        (8, 16, [(8, 16), (56, 8)]),  # with none
        (0, 8, [(0, 24), (56, 8)]),  # with the next
        (24, 24, [(0, 48), (56, 8)]),  # with the one before
        (48, 8, [(0, 64)]),  # with both
    ):
        d.free(0, offset, size)
        assert free_blocks(d) == [blocks]


def test_the_last_merges_with_the_space_after_it() -> None:
    d = filled([(0, [8, 16])])
    d.free(0, 8, 16)
    assert free_blocks(d) == [[(8, 56)]]


def test_a_full_chunk_gets_its_first_block_back() -> None:
    d = filled([(0, [32, 32])])
    d.free(0, 0, 32)
    assert free_blocks(d) == [[(0, 32)]]


def test_blocks_of_two_chunks_do_not_merge() -> None:
    d = filled([(0, [32, 32]), (0, [32, 32])])
    d.free(0, 32, 32)
    d.free(1, 0, 32)
    assert free_blocks(d) == [[(32, 32)], [(0, 32)]]


def test_part_of_an_allocation_may_be_freed() -> None:
    """This happens when an op works in place and needs less."""
    d = filled([(0, [48, 8])], max_size=128)
    d.free(0, 16, 32)
    assert free_blocks(d) == [[(16, 32), (56, 72)]]
    d.free(0, 0, 16)
    assert free_blocks(d) == [[(0, 48), (56, 72)]]


def test_max_size_is_the_peak_of_each_chunk() -> None:
    d = filled([(0, [40, 24]), (0, [48])])
    assert d.chunk_sizes == [64, 48]
    d.free(0, 40, 24)
    d.free(1, 0, 48)
    assert d.chunk_sizes == [64, 48]
    d.alloc(16)
    assert d.chunk_sizes == [64, 48]


# --- all rules at once ---

Interval = tuple[int, int]  # offset, end


class NaiveAllocator:
    """The same rules, applied to the gaps between the intervals in use."""

    def __init__(self, alignment: int, max_size: int) -> None:
        self.alignment, self.max_size = alignment, min(max_size, UNLIMITED // 2)
        self.rooms: list[int] = []
        self.used: list[set[Interval]] = []
        self.peaks: list[int] = []

    def gaps(self, c: int) -> list[Interval]:
        gaps, begin = [], 0
        for offset, end in sorted(self.used[c]):
            if offset > begin:
                gaps.append((begin, offset))
            begin = end
        return gaps + ([(begin, self.rooms[c])] if begin < self.rooms[c] else [])

    def _choose(self, size: int) -> tuple[int, int]:
        chunks = range(len(self.rooms))
        inner = [
            (-c, end - begin, -begin, c, begin)  # last chunk, least waste, latest
            for c in chunks
            for begin, end in self.gaps(c)[:-1]
            if end - begin >= size
        ]
        if inner:
            return min(inner)[3:]
        last = [(c, *self.gaps(c)[-1]) for c in chunks if self.gaps(c)]
        fitting = [(self.peaks[c] - begin - size, c, begin) for c, begin, end in last
                   if end - begin >= size]  # fmt: skip
        kept = [(left, c, begin) for left, c, begin in fitting if left >= 0]
        grown = [(-left, c, begin) for left, c, begin in fitting if left < 0]
        if fitting:
            return min(kept or grown)[1:]
        unlimited = len(self.rooms) == N_CHUNKS_MAX - 1
        self.rooms.append(UNLIMITED // 2 if unlimited else max(size, self.max_size))
        self.used.append(set())
        self.peaks.append(0)
        return len(self.rooms) - 1, 0

    def alloc(self, size: int) -> tuple[int, int]:
        size = -(-size // self.alignment) * self.alignment
        c, offset = self._choose(size)
        self.used[c].add((offset, offset + size))
        self.peaks[c] = max(self.peaks[c], offset + size)
        return c, offset

    def free(self, c: int, offset: int) -> None:
        (interval,) = (i for i in self.used[c] if i[0] == offset)
        self.used[c].remove(interval)


@pytest.mark.parametrize("max_size", [16, 100, 256, UNLIMITED])
@pytest.mark.parametrize("seed", range(6))
def test_random_runs_equal_the_naive_model(seed: int, max_size: int) -> None:
    rng = random.Random(seed)
    alignment = rng.choice([1, 8, 32])
    d, naive = DynTensorAllocator(alignment, max_size), NaiveAllocator(alignment, max_size)
    live: list[tuple[int, int, int]] = []
    for step in range(300):
        # memory fills and empties several times
        if live and rng.random() < (0.25 if step // 60 % 2 == 0 else 0.75):
            c, offset, size = live.pop(rng.randrange(len(live)))
            d.free(c, offset, size)
            naive.free(c, offset)
        else:
            size = rng.choice([1, 8, 24, 40, 64, rng.randint(1, 300)])
            place = d.alloc(size)
            assert place == naive.alloc(size), f"step {step}: {size} bytes"
            live.append((*place, size))
        assert d.chunk_sizes == naive.peaks
        assert free_blocks(d) == [
            [(begin, end - begin) for begin, end in naive.gaps(c)] for c in range(len(naive.rooms))
        ]
    for block in live:
        d.free(*block)
    assert free_blocks(d) == [[(0, room)] for room in naive.rooms]


@pytest.mark.parametrize("seed", range(6))
def test_random_runs_with_empty_tensors_stay_sound(seed: int) -> None:
    """Addresses of empty tensors may be anywhere, but must not disturb the others."""
    rng = random.Random(seed)
    d = DynTensorAllocator(8, 128)
    live: list[tuple[int, int, int]] = []
    for _ in range(300):
        if live and rng.random() < 0.5:
            d.free(*live.pop(rng.randrange(len(live))))
        else:
            size = rng.choice([0, 0, 8, 16, 40])
            c, offset = d.alloc(size)
            others = [(o, o + s) for b, o, s in live if b == c and s]
            assert not size or all(offset + size <= o or end <= offset for o, end in others)
            assert offset + size <= d.chunk_sizes[c]
            live.append((c, offset, size))
    for place in live:
        d.free(*place)
    # all is one block again, despite empty tensors
    assert [max(c.sizes) for c in d.chunks] == [128] * len(d.chunks)


def test_the_random_runs_cover_enough() -> None:
    """They need many chunks, and reuse them."""
    d, rng = DynTensorAllocator(8, 64), random.Random(0)
    places = [d.alloc(rng.randint(1, 64)) for _ in range(100)]
    assert len(d.chunks) == N_CHUNKS_MAX
    assert len({c for c, _ in places}) == N_CHUNKS_MAX
