"""Guesses for benchmarks of random models: taken as often as is asked for, right or wrong.

Tested by tests/runtime/test_drafts.py.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from .source import Draft


class SyntheticSource:
    """Guesses that the last token repeats. `takes` says which guesses the text takes."""

    def __init__(self, rates: Sequence[float], seed: int) -> None:
        self._rates = rates
        self._random = random.Random(seed)

    def draft(self, tokens: Sequence[int], n_max: int) -> Draft:
        return Draft([tokens[-1]] * min(n_max, len(self._rates)), "synthetic")

    def takes(self, i: int) -> bool:
        """True if the text takes guess `i` of a draft, once it has taken those before it."""
        return self._random.random() < self._rates[i]
