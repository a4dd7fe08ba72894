"""Texts in characters that stand for bytes, as in GPT-2's vocabulary: conversion to the bytes.

Tested by tests/model/test_vocab_bpe.py.
"""

from __future__ import annotations

from typing import Final

from .access import array_kernel, get_i32, get_i64, get_u8, put_i64, put_u8, shared

N_CODES: Final = 0x180  # the largest character is below
_FIRST_LEAD: Final = 0xC2  # of two bytes of UTF-8
_LAST_LEAD: Final = 0xC5


@shared
def _byte_at(data, at, end, byte_of):
    """The byte for the character at a position; -1 if it stands for no byte."""
    lead = get_u8(data, at)
    if lead < 0x80:
        return get_i32(byte_of, lead)
    if lead < _FIRST_LEAD or lead > _LAST_LEAD or at + 1 >= end:
        return -1
    rest = get_u8(data, at + 1)
    return get_i32(byte_of, (lead & 0x1F) << 6 | rest & 0x3F) if rest & 0xC0 == 0x80 else -1


@array_kernel
def vocab_bytes(data, begins, ends, n, byte_of, out, out_ends, other):
    """Write the bytes for `n` texts to `out`, where each begins as in `data`, and its end.

    Args:
        byte_of: int32s, [N_CODES]: the byte for each character, or -1.
        other: uint8s, [n]: 1 is written for a text with other characters, which is copied.
    """
    for id in range(n):
        begin, end = get_i64(begins, id), get_i64(ends, id)
        at, size = begin, 0
        while at < end:
            byte = _byte_at(data, at, end, byte_of)
            if byte < 0:
                break
            put_u8(out, begin + size, byte)
            size += 1
            at += 1 if get_u8(data, at) < 0x80 else 2
        if at < end:
            size = end - begin
            for i in range(begin, end):
                put_u8(out, i, get_u8(data, i))
        put_u8(other, id, 1 if at < end else 0)
        put_i64(out_ends, id, begin + size)
