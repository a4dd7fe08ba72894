"""Characters of valid UTF-8. Tested by tests/model/test_vocab_wordpiece.py."""

from __future__ import annotations

from .access import get_u8, shared


@shared
def n_bytes(lead):
    """The number of bytes of a character with this first byte; 1 for an invalid first byte."""
    if lead < 0xC0:
        return 1
    if lead < 0xE0:
        return 2
    return 3 if lead < 0xF0 else 4


@shared
def code_point(text, at, n):
    """The code point of the character of `n` bytes at `at`."""
    c = get_u8(text, at)
    if n > 1:
        c &= 0x7F >> n
        for i in range(1, n):
            c = c << 6 | (get_u8(text, at + i) & 0x3F)
    return c
