"""float32 as JSON: a parser reads the same numbers, and their digits are the fewest."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import pytest

from lamella.base.json_floats import json_row


def assert_same(values: npt.NDArray[np.float32]) -> None:
    found = np.array(json.loads(json_row(values)), np.float64).astype(np.float32)
    assert np.array_equal(found.view(np.uint32), values.view(np.uint32))


def test_all_kinds_of_bits() -> None:
    bits = np.random.default_rng(1).integers(0, 2**32, 3000, dtype=np.uint32)
    values = bits.view(np.float32)
    assert_same(values[np.isfinite(values)])
    assert_same(np.array([0.0, -0.0, 1e-45, 3.4e38], np.float32))


def test_digits_are_the_fewest() -> None:
    values = np.random.default_rng(3).uniform(1e-4, 1, 2000).astype(np.float32)
    texts = json_row(values).strip(b"[]").split(b",")
    for text, value in zip(texts, values, strict=True):
        assert len(text) == len(str(value)), (text, value)


def test_rows_without_numbers_and_of_columns() -> None:
    assert json_row(np.empty(0, np.float32)) == b"[]"
    assert json_row(np.arange(6, dtype=np.float32).reshape(2, 3)[:, 1]) == b"[1.0,4.0]"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_json_lacks(value: float) -> None:
    with pytest.raises(ValueError, match="NaN"):
        json_row(np.array([1, value], np.float32))
