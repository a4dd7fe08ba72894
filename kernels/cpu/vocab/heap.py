"""A binary heap of int64s, the least first. Tested by tests/model/test_vocab_bpe.py."""

from __future__ import annotations

from .access import get_i64, put_i64, shared


@shared
def _sift_down(heap, size, at, entry):
    """Put an entry at `at` or below."""
    child = 2 * at + 1
    while child < size:
        least = get_i64(heap, child)
        if child + 1 < size and get_i64(heap, child + 1) < least:
            child += 1
            least = get_i64(heap, child)
        if least >= entry:
            break
        put_i64(heap, at, least)
        at = child
        child = 2 * at + 1
    put_i64(heap, at, entry)


@shared
def heapify(heap, size):
    """Put entries in any order into the order of a heap."""
    for at in range(size // 2 - 1, -1, -1):
        _sift_down(heap, size, at, get_i64(heap, at))


@shared
def push(heap, size, entry):
    """Add an entry to a heap of `size` entries."""
    at = size
    while at > 0 and get_i64(heap, (at - 1) >> 1) > entry:
        put_i64(heap, at, get_i64(heap, (at - 1) >> 1))
        at = (at - 1) >> 1
    put_i64(heap, at, entry)


@shared
def pop(heap, size):
    """Remove the least of `size` entries and return it."""
    least = get_i64(heap, 0)
    if size > 1:
        _sift_down(heap, size - 1, 0, get_i64(heap, size - 1))
    return least
