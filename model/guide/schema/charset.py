"""Sets of characters as sorted ranges of code points.

The characters are those of UTF-8: all code points but the surrogates. The classes of Python's
`re` exist in two sizes: a narrow one, which is inside of what every engine means by `\\d`, `\\w`
and `\\s`, and a wide one, which holds all that Python's `re` means. Tested by
tests/model/test_guide_schema_patterns.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final

Ranges = tuple[tuple[int, int], ...]  # (first, last), sorted, apart

NO_CHARS: Final[Ranges] = ()
ALL_CHARS: Final[Ranges] = ((0, 0xD7FF), (0xE000, sys.maxunicode))
DIGITS: Final[Ranges] = ((0x30, 0x39),)
WORD: Final[Ranges] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACE: Final[Ranges] = ((0x09, 0x0D), (0x20, 0x20))
# the line ends of ECMA 262, which its `.` does not match; of Python's `re`, only the first
LINE_ENDS: Final[Ranges] = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
# str.isspace, and what ECMA 262 adds to it
WIDE_SPACE: Final[Ranges] = (
    (0x09, 0x0D),
    (0x1C, 0x20),
    (0x85, 0x85),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)


def ranges_of(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """The set of the given ranges, in any order, without surrogates."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(pairs):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return intersect(tuple(merged), ALL_CHARS)


def union(*sets: Ranges) -> Ranges:
    return ranges_of(pair for ranges in sets for pair in ranges)


def intersect(a: Ranges, b: Ranges) -> Ranges:
    found = []
    i = j = 0
    while i < len(a) and j < len(b):
        first, last = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if first <= last:
            found.append((first, last))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def complement(ranges: Ranges) -> Ranges:
    gaps = []
    start = 0
    for first, last in ranges:
        if first > start:
            gaps.append((start, first - 1))
        start = last + 1
    if start <= sys.maxunicode:
        gaps.append((start, sys.maxunicode))
    return intersect(tuple(gaps), ALL_CHARS)


def has(ranges: Ranges, char: int) -> bool:
    return any(first <= char <= last for first, last in ranges)


def _scan(test: Callable[[str], bool]) -> Ranges:
    return ranges_of(
        (c, c) for first, last in ALL_CHARS for c in range(first, last + 1) if test(chr(c))
    )


@cache
def wide_digits() -> Ranges:
    return _scan(str.isdecimal)


@cache
def wide_word() -> Ranges:
    return union(WORD, _scan(str.isalnum))
