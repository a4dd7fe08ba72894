"""Histograms: the bucket of a value, and sums from the smallest bucket on."""

from __future__ import annotations

import math

from lamella.runtime.engine.histogram import SECONDS, TOKENS, Histogram


def test_values_are_in_the_first_bucket_that_holds_them() -> None:
    histogram = Histogram((1.0, 2.0, 4.0))
    for value in (0.5, 1.0, 1.5, 4.0, 9.0):
        histogram.add(value)
    assert histogram.buckets() == [(1.0, 2), (2.0, 3), (4.0, 4), (math.inf, 5)]
    assert histogram.sum == 16.0


def test_bounds_ascend() -> None:
    for bounds in (SECONDS, TOKENS):
        assert list(bounds) == sorted(set(bounds))
