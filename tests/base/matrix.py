"""Parameters of a test: a few always run, all run with --full.

    @pytest.mark.parametrize(("type", "n"), combinations(TYPES, [1, 7, 64]))
    def test_x(type: GGMLType, n: int) -> None: ...

    @pytest.mark.parametrize("seed", first(5, range(40)))
    def test_y(seed: int) -> None: ...

Tested by tests/base/test_matrix.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def combinations(*axes: Iterable[Any]) -> list[Any]:
    """All combinations of the values of the axes. Those off the diagonal are marked `full`.

    The diagonal has as many combinations as the longest axis has values. It contains each value of
    each axis at least once.
    """
    values = [list(axis) for axis in axes]
    longest = max(len(axis) for axis in values)
    diagonal = {tuple(i % len(axis) for axis in values) for i in range(longest)}
    return [
        pytest.param(*chosen, marks=() if place in diagonal else pytest.mark.full)
        for place, chosen in zip(
            itertools.product(*(range(len(axis)) for axis in values)),
            itertools.product(*values),
            strict=True,
        )
    ]


def first(n: int, values: Iterable[Any]) -> list[Any]:
    """All values. Those after the first `n` are marked `full`."""
    marks = ((), pytest.mark.full)
    return [pytest.param(value, marks=marks[i >= n]) for i, value in enumerate(values)]
