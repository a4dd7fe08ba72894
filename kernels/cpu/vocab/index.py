"""A hash table from texts to ids, as kernels: built, searched, and used by other kernels.

The texts are an array of bytes. `spans` are two int64s per text: where it begins and ends. `slots`
are 2^k int64s, at least twice as many as texts: -1, or the hash and the id of a text. A hash is a
polynomial of the bytes modulo 2^31, so that hashes of parts of a text can be derived from those of
its beginnings. Tested by tests/model/test_vocab_table.py.
"""

from __future__ import annotations

from typing import Final

from .access import array_kernel, get_i64, get_u8, put_i64, shared

BASE: Final = 0x01000193  # of the polynomial
HASH_MASK: Final = 0x7FFFFFFF
EMPTY: Final = -1
_MIX: Final = 0x5851F42D
_ID_MASK: Final = 0xFFFFFFFF


@shared
def hash_byte(h, byte):
    """The hash of a text and one more byte. The hash of no text is 0."""
    return (h * BASE + byte + 1) & HASH_MASK


@shared
def hash_text(data, begin, end):
    h = 0
    for i in range(begin, end):
        h = hash_byte(h, get_u8(data, i))
    return h


@shared
def slot_of(h, mask):
    """The slot at which the search for a hash begins."""
    return ((h * _MIX) >> 20) & mask


@shared
def same_text(data, begin, end, other, other_begin, other_end):
    """1 if two texts are equal, else 0."""
    if end - begin != other_end - other_begin:
        return 0
    for i in range(end - begin):
        if get_u8(data, begin + i) != get_u8(other, other_begin + i):
            return 0
    return 1


@shared
def find_text(text, begin, end, h, data, spans, slots, mask):
    """The id of the text with hash `h` from `begin` to `end` of `text`; -1 if there is none.

    `mask`: the number of slots - 1.
    """
    slot = slot_of(h, mask)
    entry = get_i64(slots, slot)
    while entry != EMPTY:
        if entry >> 32 == h:
            id = entry & _ID_MASK
            at, at_end = get_i64(spans, 2 * id), get_i64(spans, 2 * id + 1)
            if same_text(text, begin, end, data, at, at_end) != 0:
                return id
        slot = (slot + 1) & mask
        entry = get_i64(slots, slot)
    return -1


@array_kernel
def vocab_index(data, spans, n, wanted, slots, mask):
    """Build the table of the texts that `wanted` (uint8s) selects. The first of equal ones wins."""
    for slot in range(mask + 1):
        put_i64(slots, slot, EMPTY)
    for id in range(n):
        begin, end = get_i64(spans, 2 * id), get_i64(spans, 2 * id + 1)
        if get_u8(wanted, id) != 0:
            h = hash_text(data, begin, end)
            if find_text(data, begin, end, h, data, spans, slots, mask) < 0:
                slot = slot_of(h, mask)
                while get_i64(slots, slot) != EMPTY:
                    slot = (slot + 1) & mask
                put_i64(slots, slot, (h << 32) | id)


@array_kernel
def vocab_find(text, n, data, spans, slots, mask, out):
    """Write the id of a text of `n` bytes to `out`, or -1."""
    h = hash_text(text, 0, n)
    put_i64(out, 0, find_text(text, 0, n, h, data, spans, slots, mask))
