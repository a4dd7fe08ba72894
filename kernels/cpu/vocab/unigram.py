"""Unigram as kernels: normalize a text as sentencepiece does, and find its most probable tokens.

Tested by tests/model/test_vocab_unigram.py.
"""

from __future__ import annotations

from typing import Final

from .access import (
    array_kernel,
    get_f64,
    get_i32,
    get_u8,
    put_f64,
    put_i32,
    put_i64,
    put_u8,
    shared,
)
from .trie import child
from .utf8 import n_bytes

_SPACE: Final = 0x20
_MARK: Final = (0xE2, 0x96, 0x81)  # U+2581 stands for a space
_WORD_MASK: Final = 0xFFFFFFFF
_LOWEST: Final = -1.7e308


# --- the map of characters: a double-array trie (Kanda, "Space- and Time-Efficient String
# Dictionaries", 2018; darts-clone), whose leaves have the places of replacements ---


@shared
def _unit(units, i):
    return get_i32(units, i) & _WORD_MASK


@shared
def _offset(unit):
    return (unit >> 10) << ((unit & 0x200) >> 6)


@shared
def longest_match(text, at, n, units, n_units):
    """The longest text of the map at `at`: its bytes << 32 | the place of its replacement, or 0."""
    if n_units == 0:
        return 0
    found, node = 0, _offset(_unit(units, 0))
    for i in range(at, n):
        byte = get_u8(text, i)
        node ^= byte
        if byte == 0 or node >= n_units:
            break
        unit = _unit(units, node)
        if unit & 0x800000FF != byte:
            break
        node ^= _offset(unit)
        if node >= n_units:
            break
        if unit & 0x100 != 0:
            found = (i + 1 - at) << 32 | (_unit(units, node) & 0x7FFFFFFF)
    return found


@shared
def _put_mark(out, n):
    put_u8(out, n, _MARK[0])
    put_u8(out, n + 1, _MARK[1])
    put_u8(out, n + 2, _MARK[2])
    return n + 3


@array_kernel
def vocab_normalize(
    text,
    n,
    units,
    n_units,
    replacements,
    n_replacements,
    add_prefix,
    merge,
    out,
    n_max,
    n_out,
):
    """Write the normalized text of up to `n_max` bytes, and its length, or -1 if it is longer.

    Args:
        text: UTF-8, `n` bytes.
        units: int32s, the map of characters.
        replacements: texts that end with a NUL, as the last byte is one.
        add_prefix: 1 to start with a space.
        merge: 1 to replace several spaces by one, and to remove those at both ends.
        n_out: int64.
    """
    at, done = 0, 0
    begun, pending = add_prefix == 0, 0  # pending: a space that more text must follow
    put_i64(n_out, 0, -1)
    while at < n:
        match = longest_match(text, at, n, units, n_units)
        step, source, i, end = match >> 32, 1, match & _WORD_MASK, n_replacements
        if match == 0:
            step = min(n_bytes(get_u8(text, at)), n - at)
            source, i, end = 0, at, at + step
        while i < end:
            byte = get_u8(replacements, i) if source != 0 else get_u8(text, i)
            if byte == 0 and source != 0:
                break
            i += 1
            if done + 10 > n_max:
                return
            if byte == _SPACE and merge != 0:
                pending = 1 if done > 0 else 0
                continue
            if not begun:
                begun = True
                done = _put_mark(out, done)
            if pending != 0:
                pending = 0
                done = _put_mark(out, done)
            if byte == _SPACE:
                done = _put_mark(out, done)
            else:
                put_u8(out, done, byte)
                done += 1
        at += step
    put_i64(n_out, 0, done)


# --- the most probable tokens ---


@shared
def _reach(best, begin, end):
    """Mark the positions after `begin` to `end` as not yet reached. Return the larger one."""
    while begin < end:
        begin += 1
        put_f64(best, begin, _LOWEST)
    return begin


@shared
def _connect(best, froms, tokens, begin, end, score, token):
    """Reach position `end` from `begin` by a token if the sum of scores is better."""
    total = get_f64(best, begin) + score
    if total > get_f64(best, end):
        put_f64(best, end, total)
        put_i32(froms, end, begin)
        put_i32(tokens, end, token)


@shared
def _write_path(froms, tokens, end, none, out, n_out):
    """Write the tokens of the best path to `end`. Unknown ones that follow each other become one.
    Return the new number of ids."""
    n, at = n_out, end
    while at > 0:
        put_i32(out, n, get_i32(tokens, at))
        n += 1
        at = get_i32(froms, at)
    for i in range((n - n_out) // 2):
        left, right = get_i32(out, n_out + i), get_i32(out, n - 1 - i)
        put_i32(out, n_out + i, right)
        put_i32(out, n - 1 - i, left)
    for i in range(n_out, n):
        token = get_i32(out, i)
        if token != none or n_out == 1 or get_i32(out, n_out - 1) != none:
            put_i32(out, n_out, token)
            n_out += 1
    return n_out


@array_kernel
def vocab_unigram(text, n, slots, mask, ids, scores, none, best, froms, tokens, out):
    """Write the number of tokens and the tokens whose sum of scores is the highest.

    The first of equal sums wins, as in sentencepiece (`EncodeOptimized` in unigram_model.cc). The
    path is final where no token crosses a position, so that memory stays in the cache.

    Args:
        text: UTF-8, `n` bytes.
        slots, mask, ids: the trie of the tokens.
        scores: float64s by id, finite. Element `none` is the score of unknown characters.
        none: the id to write for unknown characters.
        best, froms, tokens: memory for `n + 1` float64s, int32s and int32s.
        out: int32s, room for `n + 1`.
    """
    at, n_out, begin, reached = 0, 1, 0, 0  # `best` and the others count from `begin`
    put_f64(best, 0, 0.0)
    while at < n:
        here = at - begin
        if here == reached and here > 0:
            n_out = _write_path(froms, tokens, here, none, out, n_out)
            begin, reached, here = at, 0, 0
            put_f64(best, 0, 0.0)
        step, node, is_known = min(n_bytes(get_u8(text, at)), n - at), 0, False
        for i in range(at, n):
            node = child(slots, mask, node, get_u8(text, i))
            if node == 0:
                break
            id = get_i32(ids, node)
            if id >= 0:
                end = i + 1 - begin
                reached = _reach(best, reached, end)
                is_known |= end == here + step
                _connect(best, froms, tokens, here, end, get_f64(scores, id), id)
        if not is_known:
            reached = _reach(best, reached, here + step)
            _connect(best, froms, tokens, here, here + step, get_f64(scores, none), none)
        at += step
    n_out = _write_path(froms, tokens, at - begin, none, out, n_out)
    put_i32(out, 0, n_out - 1)
