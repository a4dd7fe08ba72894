"""The merges of a BPE vocabulary as a hash table: a pair of symbols to its rank and its result.

A symbol is the id of a text in an index (index.py). `pairs` are 2^k entries of two int64s: -1 or
the pair, and `rank << 32 | result`. `bridges` are bits, one for the hashes of two characters: it is
clear if no merge joins a text that ends in the first to one that begins with the second.
Tested by tests/model/test_vocab_bpe.py.
"""

from __future__ import annotations

from typing import Final

from .access import array_kernel, get_i64, get_u8, put_i64, put_u8, shared
from .index import EMPTY, HASH_MASK, find_text, hash_byte, hash_text

NO_PAIR: Final = 0x7FFFFFFFFFFFFFFF  # greater than every rank << 32 | result
BRIDGE_BYTES: Final = 1 << 17
_CHARACTER_MASK: Final = (1 << 10) - 1
_SPACE: Final = 0x20
_LEFT: Final = 0x5851F42D
_RIGHT: Final = 0x4C957F2D


@shared
def _pair_slot(left, right, mask):
    return ((((left * _LEFT + right * _RIGHT) & HASH_MASK) * _LEFT) >> 20) & mask


@shared
def merge_of(left, right, pairs, mask):
    """Return `rank << 32 | result` of two symbols; NO_PAIR if no merge joins them."""
    key = (left << 32) | right
    slot = _pair_slot(left, right, mask)
    found = get_i64(pairs, 2 * slot)
    while found != EMPTY:
        if found == key:
            return get_i64(pairs, 2 * slot + 1)
        slot = (slot + 1) & mask
        found = get_i64(pairs, 2 * slot)
    return NO_PAIR


@shared
def _bridge_bit(left_hash, right_hash):
    return ((left_hash & _CHARACTER_MASK) << 10) | (right_hash & _CHARACTER_MASK)


@shared
def may_merge(left_hash, right_hash, bridges):
    """0 if no merge joins texts at the boundary of two characters with these hashes."""
    bit = _bridge_bit(left_hash, right_hash)
    return (get_u8(bridges, bit >> 3) >> (bit & 7)) & 1


@shared
def _hash_of_first(data, begin, end):
    """The hash of the first character of a text in UTF-8."""
    h = hash_byte(0, get_u8(data, begin))
    at = begin + 1
    while at < end and get_u8(data, at) & 0xC0 == 0x80:
        h = hash_byte(h, get_u8(data, at))
        at += 1
    return h


@shared
def _hash_of_last(data, begin, end):
    """The hash of the last character of a text in UTF-8."""
    at = end - 1
    while at > begin and get_u8(data, at) & 0xC0 == 0x80:
        at -= 1
    return hash_text(data, at, end)


@array_kernel
def vocab_merges(
    merges, merge_begins, merge_ends, n,
    data, spans, slots, mask,
    pairs, pairs_mask, bridges, text, failed, invalid,
):  # fmt: skip
    """Fill the table and the bridges with `n` merges: texts of two symbols with a space between.

    Args:
        data, spans, slots, mask: an index of the symbols' texts.
        pairs, bridges: the tables to fill; each word of `pairs` is -1, each byte of `bridges` 0.
        text: uint8s, memory for the longest merge.
        failed: uint8s; 1 is written for a merge of texts that are not in the index.
        invalid: an int64; the first merge without a space is written, or -1.
    """
    put_i64(invalid, 0, -1)
    for rank in range(n):
        size, middle, part_hash, left_hash, whole_hash = 0, -1, 0, 0, 0
        for at in range(get_i64(merge_begins, rank), get_i64(merge_ends, rank)):
            byte = get_u8(merges, at)
            if byte == _SPACE and middle < 0:
                middle, left_hash, part_hash = size, whole_hash, 0
            else:
                put_u8(text, size, byte)
                part_hash, whole_hash = hash_byte(part_hash, byte), hash_byte(whole_hash, byte)
                size += 1
        if middle < 0:
            put_i64(invalid, 0, rank)
            return
        left = find_text(text, 0, middle, left_hash, data, spans, slots, mask)
        right = find_text(text, middle, size, part_hash, data, spans, slots, mask)
        result = find_text(text, 0, size, whole_hash, data, spans, slots, mask)
        if left < 0 or right < 0 or result < 0 or middle in (0, size):
            put_u8(failed, rank, 1)
        else:
            slot = _pair_slot(left, right, pairs_mask)
            key = (left << 32) | right
            while get_i64(pairs, 2 * slot) != EMPTY and get_i64(pairs, 2 * slot) != key:
                slot = (slot + 1) & pairs_mask
            if get_i64(pairs, 2 * slot) == EMPTY:  # else an earlier merge is equal
                put_i64(pairs, 2 * slot, key)
                put_i64(pairs, 2 * slot + 1, (rank << 32) | result)
            bit = _bridge_bit(_hash_of_last(text, 0, middle), _hash_of_first(text, middle, size))
            put_u8(bridges, bit >> 3, get_u8(bridges, bit >> 3) | (1 << (bit & 7)))
