"""Merging the symbols of words by rank: byte pair encoding, also that of SPM vocabularies.

A word's arrays are indexed by the byte at which a symbol begins: `symbols` (int32s; -1: no merge
knows the text), `values` (int64s: `merge_of` the symbol and the next one), `nexts` and `prevs`
(int32s; after the last symbol comes the word's end). The next merge of a short word is found by a
search, that of a long one by a heap of `rank << 32 | byte`, which takes O(n log n).
Tested by tests/model/test_vocab_bpe.py.
"""

from __future__ import annotations

from typing import Final

from .access import array_kernel, get_i32, get_i64, get_u8, put_i32, put_i64, shared
from .heap import heapify, pop, push
from .index import find_text, hash_byte, hash_text
from .merges import NO_PAIR, may_merge, merge_of

SHORT: Final = 48  # bytes of a word that is searched without a heap
_LOW: Final = 0xFFFFFFFF
_NEWLINE: Final = 0x0A

# words that become the token with their text without merges
NO_WORDS: Final = 0
ALL_WORDS: Final = 1
NEWLINE_WORDS: Final = 2  # those of newlines only


@shared
def _join(at, value, n, symbols, values, nexts, prevs, pairs, pairs_mask):
    """Replace the symbols at `at` and after it by the result of their merge."""
    symbol, right = value & _LOW, get_i32(nexts, at)
    after = get_i32(nexts, right)
    put_i32(symbols, at, symbol)
    put_i32(nexts, at, after)
    put_i64(values, right, NO_PAIR)
    value = NO_PAIR
    if after < n:
        put_i32(prevs, after, at)
        if get_i32(symbols, after) >= 0:
            value = merge_of(symbol, get_i32(symbols, after), pairs, pairs_mask)
    put_i64(values, at, value)
    if at > 0:
        before = get_i32(prevs, at)
        if get_i32(symbols, before) >= 0:
            put_i64(values, before, merge_of(get_i32(symbols, before), symbol, pairs, pairs_mask))


@shared
def _merge_short(n, symbols, values, nexts, prevs, pairs, pairs_mask):
    while True:
        best, at = NO_PAIR, 0
        for i in range(n):
            value = get_i64(values, i)
            if value >> 32 < best >> 32:
                best, at = value, i
        if best == NO_PAIR:
            return
        _join(at, best, n, symbols, values, nexts, prevs, pairs, pairs_mask)


@shared
def _merge_long(n, symbols, values, nexts, prevs, pairs, pairs_mask, heap):
    size = 0
    for i in range(n):
        value = get_i64(values, i)
        if value != NO_PAIR:
            put_i64(heap, size, (value >> 32 << 32) | i)
            size += 1
    heapify(heap, size)
    while size > 0:
        entry = pop(heap, size)
        size -= 1
        at = entry & _LOW
        value = get_i64(values, at)
        if value >> 32 == entry >> 32:  # else another merge came first
            _join(at, value, n, symbols, values, nexts, prevs, pairs, pairs_mask)
            value = get_i64(values, at)
            if value != NO_PAIR:
                push(heap, size, (value >> 32 << 32) | at)
                size += 1
            if at > 0:
                before = get_i32(prevs, at)
                value = get_i64(values, before)
                if value != NO_PAIR:
                    push(heap, size, (value >> 32 << 32) | before)
                    size += 1


@shared
def _only_newlines(text, begin, end):
    for i in range(begin, end):
        if get_u8(text, i) != _NEWLINE:
            return 0
    return 1


@shared
def _word_token(text, begin, end, whole_words, data, spans, slots, mask):
    """The token that is the whole word, if the vocabulary prefers it to merges; else -1."""
    if whole_words == NO_WORDS or (
        whole_words == NEWLINE_WORDS and _only_newlines(text, begin, end) == 0
    ):
        return -1
    h = hash_text(text, begin, end)
    return find_text(text, begin, end, h, data, spans, slots, mask)


@shared
def _fill_bytes(text, begin, n, symbols, values, nexts, prevs, byte_symbols, pairs, pairs_mask):
    """Make each byte of a word a symbol."""
    for i in range(n):
        symbol = get_i32(byte_symbols, get_u8(text, begin + i))
        put_i32(symbols, i, symbol)
        put_i32(nexts, i, i + 1)
        put_i32(prevs, i, i - 1)
        put_i64(values, i, NO_PAIR)
        if i > 0 and symbol >= 0 and get_i32(symbols, i - 1) >= 0:
            value = merge_of(get_i32(symbols, i - 1), symbol, pairs, pairs_mask)
            put_i64(values, i - 1, value)


@shared
def _fill_characters(
    text, begin, end, symbols, values, nexts, prevs,
    data, spans, slots, mask, pairs, pairs_mask, bridges,
):  # fmt: skip
    """Make each character a symbol, up to a boundary over which nothing is merged.

    Return the number of bytes.
    """
    n, last, last_hash = 0, -1, 0
    while begin + n < end:
        size, h = 1, hash_byte(0, get_u8(text, begin + n))
        while begin + n + size < end and get_u8(text, begin + n + size) & 0xC0 == 0x80:
            h = hash_byte(h, get_u8(text, begin + n + size))
            size += 1
        if last >= 0 and may_merge(last_hash, h, bridges) == 0:
            break
        at = begin + n
        symbol = find_text(text, at, at + size, h, data, spans, slots, mask)
        put_i32(symbols, n, symbol)
        put_i32(nexts, n, n + size)
        put_i32(prevs, n, last)
        for i in range(n, n + size):
            put_i64(values, i, NO_PAIR)
        if last >= 0 and symbol >= 0 and get_i32(symbols, last) >= 0:
            put_i64(values, last, merge_of(get_i32(symbols, last), symbol, pairs, pairs_mask))
        last, last_hash = n, h
        n += size
    return n


@shared
def _write_ids(text, begin, n, symbols, nexts, n_tokens, byte_ids, unk, ids, n_ids, found):
    """Write the ids of a word's symbols, and return the new number of ids.

    A symbol that is no token becomes `unk`, or the tokens of its bytes if `unk` is -1. A byte
    without a token is skipped. The position of the first one is written to `found[1]`.
    """
    at = 0
    while at < n:
        symbol, after = get_i32(symbols, at), get_i32(nexts, at)
        if 0 <= symbol < n_tokens:
            put_i32(ids, n_ids, symbol)
            n_ids += 1
        elif unk >= 0:
            put_i32(ids, n_ids, unk)
            n_ids += 1
        else:
            for i in range(begin + at, begin + after):
                id = get_i32(byte_ids, get_u8(text, i))
                if id >= 0:
                    put_i32(ids, n_ids, id)
                    n_ids += 1
                elif get_i64(found, 1) < 0:
                    put_i64(found, 1, i)
        at = after
    return n_ids


@array_kernel
def vocab_bpe(
    text, word_ends, n_words, by_character, whole_words, n_tokens, byte_symbols, byte_ids, unk,
    data, spans, slots, mask, pairs, pairs_mask, bridges,
    symbols, values, nexts, prevs, heap, ids, found,
):  # fmt: skip
    """Encode the words of a text.

    Args:
        word_ends: int32s, [n_words]: where each word ends.
        by_character: 1 if characters are merged; 0 if bytes are.
        whole_words: which words become the token with their text: NO_WORDS, ALL_WORDS,
            NEWLINE_WORDS.
        n_tokens: symbols from this one on are no tokens.
        byte_symbols, byte_ids: int32s, [256]: the symbol and the token of each byte, or -1.
        unk: the token for symbols that are no tokens; -1: they become the tokens of their bytes.
        data, spans, slots, mask: an index of the texts of symbols.
        pairs, pairs_mask, bridges: see merges.py.
        symbols, values, nexts, prevs: memory for the bytes of the longest word.
        heap: int64s, memory for twice as many.
        ids: int32s, the result; memory for as many ids as bytes.
        found: two int64s: the number of ids; the position of the first byte without a token, or -1.
    """
    begin, n_ids = 0, 0
    put_i64(found, 1, -1)
    for word in range(n_words):
        word_end = get_i32(word_ends, word)
        id = _word_token(text, begin, word_end, whole_words, data, spans, slots, mask)
        if 0 <= id < n_tokens:
            put_i32(ids, n_ids, id)
            n_ids += 1
            begin = word_end
        while begin < word_end:
            if by_character != 0:
                n = _fill_characters(
                    text, begin, word_end, symbols, values, nexts, prevs,
                    data, spans, slots, mask, pairs, pairs_mask, bridges,
                )  # fmt: skip
            else:
                n = word_end - begin
                _fill_bytes(
                    text, begin, n, symbols, values, nexts, prevs, byte_symbols, pairs, pairs_mask
                )
            if n <= SHORT:
                _merge_short(n, symbols, values, nexts, prevs, pairs, pairs_mask)
            else:
                _merge_long(n, symbols, values, nexts, prevs, pairs, pairs_mask, heap)
            n_ids = _write_ids(
                text, begin, n, symbols, nexts, n_tokens, byte_ids, unk, ids, n_ids, found
            )
            begin += n
    put_i64(found, 0, n_ids)
