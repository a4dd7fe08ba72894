"""WordPiece as a kernel: normalizes a text, splits it into words, and matches the longest tokens.

Tested by tests/model/test_vocab_wordpiece.py.
"""

from __future__ import annotations

from typing import Final

from .access import array_kernel, get_u8, put_i32, put_u8, shared
from .trie import longest_token
from .utf8 import code_point, n_bytes

_LOW: Final = 0xFFFFFFFF

# kinds of characters
LETTER: Final = 0  # also those that disappear, which have a text of 0 bytes
SPACE: Final = 1
ALONE: Final = 2  # a word of one character

# bytes of an entry: kind, number of characters, number of bytes, text
ENTRY: Final = 16
N_CHARACTERS: Final = 1
N_TEXT: Final = 2
TEXT: Final = 3

PAGE: Final = 256  # characters
MARK: Final = (0xE2, 0x96, 0x81)  # U+2581, at the start of each word
N_MARK: Final = len(MARK)

# Tokens may be single bytes: "!" may become one for each byte of MARK and one for itself. No
# character of any size becomes more for each of its bytes.
IDS_PER_BYTE: Final = N_MARK + 1


@shared
def _append(word, n, entries, entry):
    """Append the text of an entry to the word of `n` bytes. Return its new length."""
    n_text = get_u8(entries, entry + N_TEXT)
    for i in range(n_text):
        put_u8(word, n + i, get_u8(entries, entry + TEXT + i))
    return n + n_text


@shared
def _is_mark(word, at, n):
    """1 if U+2581 is at `at` in a word of `n` bytes, else 0."""
    if n - at < N_MARK or get_u8(word, at) != MARK[0]:
        return 0
    return 1 if get_u8(word, at + 1) == MARK[1] and get_u8(word, at + 2) == MARK[2] else 0


@shared
def _match(word, n, slots, mask, ids, out, n_out, unk):
    """Write the tokens of a word of `n` bytes, or `unk`. Return the new number of ids."""
    at, first = 0, n_out
    while at < n:
        found = longest_token(word, at, n, slots, mask, ids)
        if found < 0 or (at > 0 and _is_mark(word, at, n) != 0):  # a token of the start of a word
            put_i32(out, first, unk)
            return first + 1
        put_i32(out, n_out, found >> 32)
        n_out += 1
        at = found & _LOW
    return n_out


@array_kernel
def vocab_wordpiece(text, n_text, entries, pages, slots, mask, ids, word, n_word_max, unk, out):
    """Write the number of ids, then the ids. The number is -1 if a page of the text is missing.

    Args:
        text: valid UTF-8, `n_text` bytes.
        entries: for each character, ENTRY bytes.
        pages: uint8s; 0 if the entries of these PAGE characters are missing.
        slots, mask, ids: the trie of the tokens.
        word: memory that starts with MARK and has room for entries of `n_word_max` characters.
        unk: the id of a word that is not made of tokens, or has more than `n_word_max` characters.
        out: int32s, room for `IDS_PER_BYTE * n_text + 1`.
    """
    at, n_out, n, n_characters = 0, 1, N_MARK, 0
    put_i32(out, 0, -1)
    while True:
        kind, entry, step = SPACE, 0, 0  # the end of the text
        if at < n_text:
            step = n_bytes(get_u8(text, at))
            c = code_point(text, at, step)
            if get_u8(pages, c // PAGE) == 0:
                return
            entry = ENTRY * c
            kind = get_u8(entries, entry)
        if kind == LETTER or (kind == ALONE and n_characters == 0):
            n_characters += get_u8(entries, entry + N_CHARACTERS)
            if n_characters <= n_word_max:
                n = _append(word, n, entries, entry)
            at += step
        elif n_characters == 0:
            if at == n_text:
                break
            at += step
        if kind != LETTER and n_characters > 0:
            if n_characters <= n_word_max:
                n_out = _match(word, n, slots, mask, ids, out, n_out, unk)
            else:
                put_i32(out, n_out, unk)
                n_out += 1
            n, n_characters = N_MARK, 0
    put_i32(out, 0, n_out - 1)
