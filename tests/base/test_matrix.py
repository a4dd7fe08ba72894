"""Combinations of parameters: which of them always run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from matrix import combinations, first


def split(*axes: Sequence[object]) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """The combinations that always run, and all combinations."""
    found = combinations(*axes)
    return [tuple(p.values) for p in found if not p.marks], [tuple(p.values) for p in found]


def test_all_combinations_occur_once() -> None:
    _, every = split("ab", [1, 2, 3])
    assert every == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("b", 3)]


@pytest.mark.parametrize("sizes", [(1,), (4,), (3, 3), (2, 5), (7, 2), (4, 2), (3, 1, 8)])
def test_each_value_always_runs(sizes: tuple[int, ...]) -> None:
    always, _ = split(*(range(n) for n in sizes))
    assert len(always) == max(sizes)
    assert [{c[i] for c in always} for i in range(len(sizes))] == [{*range(n)} for n in sizes]


def test_the_others_are_marked_full() -> None:
    marks = [mark.name for parameter in combinations("ab", "cd") for mark in parameter.marks]
    assert marks == ["full", "full"]


def test_the_first_values_always_run() -> None:
    found = [(*p.values, len(p.marks)) for p in first(2, "abcd")]
    assert found == [("a", 0), ("b", 0), ("c", 1), ("d", 1)]
