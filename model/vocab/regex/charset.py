"""Sets of code points: Unicode's categories, operations on sets, and a partition by sets.

The categories are those of Unicode 16 in unicode.txt (see make_unicode.py), whatever the version of
Python. Surrogates are in no category, as they are not in UTF-8.
Tests: tests/model/test_vocab_regex.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

N_CODE_POINTS: Final = 0x110000

Bounds = npt.NDArray[np.int32]


class CharSet:
    """An immutable set of code points.

    Attributes:
        bounds: ascending code points: the first in the set, the first after it, and so on.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds

    @property
    def key(self) -> bytes:
        """Equal sets have equal keys."""
        return self.bounds.tobytes()

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> CharSet:
        """Return the set of ranges, each with its first and its last code point."""
        bounds: list[int] = []
        for first, last in sorted(ranges):
            if bounds and first <= bounds[-1]:
                bounds[-1] = max(bounds[-1], last + 1)
            else:
                bounds += (first, last + 1)
        return cls(np.array(bounds, np.int32))

    def contains(self, points: Bounds) -> npt.NDArray[np.bool_]:
        """Return for each of these code points whether it is in the set."""
        return (np.searchsorted(self.bounds, points, "right") & 1).astype(bool)

    def __or__(self, other: CharSet) -> CharSet:
        return self._combined(other, np.logical_or)

    def __and__(self, other: CharSet) -> CharSet:
        return self._combined(other, np.logical_and)

    def __invert__(self) -> CharSet:
        return self._combined(ANY, np.not_equal)

    def _combined(self, other: CharSet, operation: Callable[..., Any]) -> CharSet:
        points = _distinct(self.bounds, other.bounds)
        inside = operation(self.contains(points), other.contains(points))
        changes = inside != np.concatenate(([False], inside[:-1]))
        return CharSet(points[changes])


ANY: Final = CharSet.of([(0, N_CODE_POINTS - 1)])


def _distinct(*points: Bounds) -> Bounds:
    """All these code points, ascending."""
    ordered = np.sort(np.concatenate(points))
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))[: len(ordered)]]


@cache
def unicode_set(name: str) -> CharSet:
    """Return the set of a category such as "Lu" or "L", of the script "Han", or of "w" or "s".

    "w" and "s" are the sets of `\\w` and `\\s`.
    """
    return CharSet.of(r for n, ranges in _ranges().items() if n.startswith(name) for r in ranges)


@cache
def _ranges() -> dict[str, list[tuple[int, int]]]:
    ranges: dict[str, list[tuple[int, int]]] = {}
    for line in Path(__file__).with_name("unicode.txt").read_text("ascii").splitlines():
        if not line.startswith("#"):
            name, *items = line.split()
            pairs = (item.partition("-") for item in items)
            ranges.setdefault(name, []).extend(
                (int(first, 16), int(last or first, 16)) for first, _, last in pairs
            )
    return ranges


def partition(sets: Sequence[CharSet]) -> tuple[npt.NDArray[np.uint8], list[list[int]]]:
    """Divide the code points into classes: two points are in one class if the same sets have them.

    Returns:
        the class of each code point [0x110000], and for each class the indices of its sets.
    """
    assert len(sets) < 63, len(sets)
    starts = _distinct(*(chars.bounds for chars in (*sets, ANY)))[:-1]
    keys = np.zeros(len(starts), np.int64)
    for i, chars in enumerate(sets):
        keys |= chars.contains(starts).astype(np.int64) << i
    distinct, classes = np.unique(keys, return_inverse=True)
    assert len(distinct) <= 256, len(distinct)
    sizes = np.diff(starts, append=N_CODE_POINTS)
    members = [[i for i in range(len(sets)) if key >> i & 1] for key in distinct.tolist()]
    return np.repeat(classes.astype(np.uint8), sizes), members
