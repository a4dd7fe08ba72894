"""Pooling and normalization of vectors."""

from __future__ import annotations

import numpy as np
import pytest

from lamella.model.pooling import Pooling, normalized

ROWS = np.array([[1, 2], [3, 4], [5, -9]], np.float32)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [("NONE", ROWS), ("MEAN", [3, -1]), ("CLS", [1, 2]), ("LAST", [5, -9])],
)
def test_pooling(pooling: str, expected: object) -> None:
    assert np.array_equal(Pooling[pooling].of(ROWS), np.asarray(expected, np.float32))


def test_a_mean_s_bits_depend_on_its_rows_only() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 40)).astype(np.float32)
    among = np.concatenate([rows[:7], rows, rows])
    assert np.array_equal(Pooling.MEAN.of(among[7:307]), Pooling.MEAN.of(rows.copy()))


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        (-1, [3, -4]),
        (0, [24570, -32760]),
        (1, [3 / 7, -4 / 7]),
        (2, [0.6, -0.8]),
        (3, [3 / 91 ** (1 / 3), -4 / 91 ** (1 / 3)]),
        (1000, [0, 0]),  # the length is infinite, as in llama.cpp
    ],
)
def test_normalization(norm: int, expected: list[float]) -> None:
    vector = np.array([3, -4], np.float32)
    assert normalized(vector, norm) == pytest.approx(expected, rel=1e-6)
    assert normalized(np.stack([vector] * 2), norm)[1] == pytest.approx(expected, rel=1e-6)
    assert normalized(vector, norm).dtype == np.float32


@pytest.mark.parametrize("norm", [-1, 0, 1, 2, 3])
def test_zeros_stay_zeros(norm: int) -> None:
    assert normalized(np.zeros(3, np.float32), norm).tolist() == [0, 0, 0]
