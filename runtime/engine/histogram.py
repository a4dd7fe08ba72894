"""How often values of each size came: the counts of a histogram, cheap enough for each token.

One thread adds. Any thread may read: a reader may miss the last value. Knows no names of metrics.
Tested by tests/runtime/test_histogram.py.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

SECONDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
TOKENS: Final = tuple(2.0**i for i in range(18))


class Histogram:
    """Counts of values up to each of `bounds`, which ascend."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[float, int]]:
        """The number of values up to each bound; the last bound is infinity."""
        return list(zip((*self._bounds, math.inf), accumulate(list(self._counts)), strict=True))


def of_seconds() -> Histogram:
    """A histogram of times."""
    return Histogram(SECONDS)
