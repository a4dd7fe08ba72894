"""The merges of a vocabulary as a hash table from pairs of symbols to ranks and results.

A symbol is the id of a text in an index (index.py). `pairs` are 2^k entries of two int64s: -1 or
the pair, and `rank << 32 | result`. A rank is an int32; the lowest comes first. `bridges` are bits,
one for the hashes of two characters: it is clear if no merge joins a text that ends in the first to
one that begins with the second. BPE vocabularies list their merges. In an SPM vocabulary, any two
symbols are merged if the result is a token.
Tested by tests/model/test_vocab_bpe.py and tests/model/test_vocab_spm.py.
"""

from __future__ import annotations

from typing import Final

from .access import array_kernel, get_i32, get_i64, get_u8, put_i32, put_i64, put_u8, shared
from .index import EMPTY, HASH_MASK, find_text, hash_byte, hash_text

NO_PAIR: Final = 0x7FFFFFFFFFFFFFFF  # greater than every rank << 32 | result
BRIDGE_BYTES: Final = 1 << 17
_CHARACTER_MASK: Final = (1 << 10) - 1
_SPACE: Final = 0x20
_FIRST: Final = -0x80000000  # before all ranks
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


@shared
def _add_merge(left, right, value, pairs, mask):
    """Add a merge if no earlier one is of the same pair. Return the number of added ones."""
    slot = _pair_slot(left, right, mask)
    key = (left << 32) | right
    while get_i64(pairs, 2 * slot) != EMPTY:
        if get_i64(pairs, 2 * slot) == key:
            return 0
        slot = (slot + 1) & mask
    put_i64(pairs, 2 * slot, key)
    put_i64(pairs, 2 * slot + 1, value)
    return 1


@shared
def _add_bridge(left_hash, right_hash, bridges):
    bit = _bridge_bit(left_hash, right_hash)
    put_u8(bridges, bit >> 3, get_u8(bridges, bit >> 3) | (1 << (bit & 7)))


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
            _add_merge(left, right, (rank << 32) | result, pairs, pairs_mask)
            last, first = _hash_of_last(text, 0, middle), _hash_of_first(text, middle, size)
            _add_bridge(last, first, bridges)


@shared
def _end_of_character(data, begin, end):
    at = begin + 1
    while at < end and get_u8(data, at) & 0xC0 == 0x80:
        at += 1
    return at


@shared
def _worse_rank(ranks, n, left, right):
    """The rank of the worse of two symbols. Characters that are no tokens come first."""
    left_rank = get_i32(ranks, left) if left < n else _FIRST
    right_rank = get_i32(ranks, right) if right < n else _FIRST
    return max(left_rank, right_rank)


@shared
def _keep_best(parts, id, left, right, ranks, n):
    before = get_i32(parts, 2 * id)
    if before >= 0:
        known = _worse_rank(ranks, n, before, get_i32(parts, 2 * id + 1))
        if known <= _worse_rank(ranks, n, left, right):
            return
    put_i32(parts, 2 * id, left)
    put_i32(parts, 2 * id + 1, right)


@array_kernel
def vocab_parts(
    data, spans, slots, mask, n, ranks, powers, pairs, pairs_mask, room, bridges, parts, unknown,
    n_pairs,
):  # fmt: skip
    """Fill the table and the bridges with all pairs of symbols that together are a token.

    Args:
        data, spans, slots, mask: an index of the symbols' texts.
        n: the number of tokens. Those that the index does not find have no pairs.
        ranks: int32s, [n]: the rank of the merges to a token. A lower rank comes first.
        powers: int64s: BASE ** i modulo 2^31, for the bytes of the longest token.
        pairs, bridges: the tables to fill; each word of `pairs` is -1, each byte of `bridges` 0.
        room: the largest number of pairs.
        parts: int32s, [2 * n], all -1: the pair whose worse token has the lowest rank.
        unknown: uint8s, [n]: 1 is written for a token with a character that is not in the index.
        n_pairs: an int64, the number of pairs; -1 if there is no room for them.
    """
    size = 0
    put_i64(n_pairs, 0, -1)
    for id in range(n):
        begin, end = get_i64(spans, 2 * id), get_i64(spans, 2 * id + 1)
        whole_hash = hash_text(data, begin, end)
        if begin == end or find_text(data, begin, end, whole_hash, data, spans, slots, mask) != id:
            continue
        at, prefix_hash, last_hash = begin, 0, 0
        while at < end:
            next_at = _end_of_character(data, at, end)
            h = hash_text(data, at, next_at)
            if find_text(data, at, next_at, h, data, spans, slots, mask) < 0:
                put_u8(unknown, id, 1)
            if at > begin:
                _add_bridge(last_hash, h, bridges)
                left = find_text(data, begin, at, prefix_hash, data, spans, slots, mask)
                if left >= 0:
                    rest = prefix_hash * get_i64(powers, end - at)
                    rest_hash = (whole_hash - (rest & HASH_MASK)) & HASH_MASK
                    right = find_text(data, at, end, rest_hash, data, spans, slots, mask)
                    if right >= 0:
                        if size == room:
                            return
                        value = (get_i32(ranks, id) << 32) | id
                        size += _add_merge(left, right, value, pairs, pairs_mask)
                        _keep_best(parts, id, left, right, ranks, n)
            for i in range(at, next_at):
                prefix_hash = hash_byte(prefix_hash, get_u8(data, i))
            at, last_hash = next_at, h
    put_i64(n_pairs, 0, size)
