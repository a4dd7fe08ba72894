"""Finds the names of special tokens in a text, as a kernel. A longer name wins anywhere in it.

Names are numbered in the order in which they win: the longest first. The heap has
`name << 32 | position` of the best name that may still be taken at each position. The time is
linear in the text, times the length of the longest name. Tested by tests/model/test_vocab_text.py.
"""

from __future__ import annotations

from typing import Final

from .access import array_kernel, get_i64, get_u8, put_i32, put_i64, put_u8, shared
from .heap import heapify, pop, push
from .trie import longest_token

_LOW: Final = 0xFFFFFFFF


@shared
def _first_taken(taken, begin, end):
    for at in range(begin, end):
        if get_u8(taken, at) != 0:
            return at
    return end


@array_kernel
def vocab_names(
    text, n, first_bytes, slots, mask, names, lengths, room, heap, taken, begins, found, counts
):  # fmt: skip
    """Find names in a text of `n` bytes.

    Args:
        first_bytes: uint8s, [256]: 1 if a name begins with the byte.
        slots, mask, names: the trie of the names.
        lengths: int64s: the bytes of each name.
        room: the number of elements of the next four.
        heap: int64s. taken: uint8s, [n], all 0.
        begins: int64s, the position of each name that is found, in any order.
        found: int32s, the names.
        counts: two int64s: the number of positions at which a name begins; if there is room for
            them, the number of names that are found.
    """
    size = 0
    for at in range(n):
        if get_u8(first_bytes, get_u8(text, at)) != 0:
            name = longest_token(text, at, n, slots, mask, names) >> 32
            if name >= 0:
                if size < room:
                    put_i64(heap, size, (name << 32) | at)
                size += 1
    put_i64(counts, 0, size)
    if size > room:
        return
    heapify(heap, size)
    n_found = 0
    while size > 0:
        entry = pop(heap, size)
        size -= 1
        at, name = entry & _LOW, entry >> 32
        end = at + get_i64(lengths, name)
        taken_at = _first_taken(taken, at, end)
        if taken_at == end:
            put_i64(begins, n_found, at)
            put_i32(found, n_found, name)
            n_found += 1
            for i in range(at, end):
                put_u8(taken, i, 1)
        else:  # a shorter name may fit
            name = longest_token(text, at, taken_at, slots, mask, names) >> 32
            if name >= 0:
                push(heap, size, (name << 32) | at)
                size += 1
    put_i64(counts, 1, n_found)
