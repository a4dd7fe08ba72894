"""Splits a text into words by tables of regular expressions, as a kernel.

model/vocab/regex/automaton.py makes the tables. Each expression splits the words of the one before
it: matches are words, and so is the text between two matches. Two passes over each word are enough.
Tested by tests/model/test_vocab_splitter.py.
"""

from __future__ import annotations

from typing import Final

from .access import (
    array_kernel,
    get_i32,
    get_i64,
    get_u8,
    get_u16,
    put_i32,
    put_i64,
    put_u16,
    shared,
)
from .utf8 import code_point, n_bytes

# places in the table of choices
START: Final = 0  # where a match starts
END: Final = 0xFFFF  # as next place: the match ends
NONE: Final = 0xFFFE  # as next place: no match starts here

# words of an expression in the layout
BACK: Final = 0  # where its table `back` begins
CHOICE: Final = 1
N_CLASSES: Final = 2
N_STATES: Final = 3
LAYOUT_WORDS: Final = 4


@shared
def fill_states(text, begin, end, classes, tables, back, n_classes, states):
    """Write the state before each character, at its first byte, and state 0 at the end."""
    state = 0
    put_u16(states, end, 0)
    at = end
    while at > begin:
        behind = at
        at -= 1
        point = get_u8(text, at)
        if point >= 0x80:
            while get_u8(text, at) & 0xC0 == 0x80:
                at -= 1
            point = code_point(text, at, behind - at)
        state = get_u16(tables, back + state * n_classes + get_u8(classes, point))
        put_u16(states, at, state)


@shared
def put_words(text, begin, end, tables, choice, n_states, states, ends, n):
    """Write the ends of the words from `begin` to `end`, after `n` others. Return the sum."""
    at = begin
    between = begin  # where the text since the last match begins
    while at < end:
        place = get_u16(tables, choice + START * n_states + get_u16(states, at))
        if place == NONE:
            at += n_bytes(get_u8(text, at))
            continue
        if between < at:
            put_i32(ends, n, at)
            n += 1
        while place != END:
            at += n_bytes(get_u8(text, at))
            place = get_u16(tables, choice + place * n_states + get_u16(states, at))
        put_i32(ends, n, at)
        n += 1
        between = at
    if between < end:
        put_i32(ends, n, end)
        n += 1
    return n


@shared
def split_words(text, size, classes, tables, layout, n_expressions, states, spare, ends):
    """Write the ends of all words to `ends`. Return their number.

    `text` is valid UTF-8, `classes` has the class of each code point (uint8s). `ends` and `spare`
    have room for `size` int32s, `states` for `size + 1` uint16s.
    """
    source, target = ends, spare
    if n_expressions % 2 != 0:
        source, target = spare, ends
    n = 0
    if size > 0:
        put_i32(source, 0, size)
        n = 1
    for i in range(n_expressions):
        at = LAYOUT_WORDS * i
        back, choice = get_i64(layout, at + BACK), get_i64(layout, at + CHOICE)
        n_classes, n_states = get_i64(layout, at + N_CLASSES), get_i64(layout, at + N_STATES)
        begin, n_out = 0, 0
        for j in range(n):
            end = get_i32(source, j)
            fill_states(text, begin, end, classes, tables, back, n_classes, states)
            n_out = put_words(text, begin, end, tables, choice, n_states, states, target, n_out)
            begin = end
        n = n_out
        source, target = target, source
    return n


@array_kernel
def vocab_split(text, size, classes, tables, layout, n_expressions, states, spare, ends, n_words):
    """Write the ends of the words of a text, and their number to `n_words`."""
    n = split_words(text, size, classes, tables, layout, n_expressions, states, spare, ends)
    put_i64(n_words, 0, n)
