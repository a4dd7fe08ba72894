"""float32 as JSON: a parser reads the same numbers, and their digits are the fewest."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import pytest

from lamella.base.json_floats import json_rows


def json_floats(values: npt.NDArray[np.float32]) -> bytes:
    (text,) = json_rows(values[None])
    return text


def read_back(text: bytes) -> npt.NDArray[np.float32]:
    return np.array(json.loads(b"[" + text + b"]"), np.float64).astype(np.float32)


def assert_same(values: npt.NDArray[np.float32]) -> None:
    found = read_back(json_floats(values))
    assert np.array_equal(found.view(np.uint32), values.view(np.uint32))


def test_usual_numbers() -> None:
    values = np.array([0.25, -1.5, 0.0, -0.0, 12.0, 0.1, 99.99999, 1e-8, 3.0517578e-05], np.float32)
    assert json_floats(values) == b"0.25,-1.5,0.0,-0.0,12.0,0.1,99.99999,1e-08,0.000030517578"


def test_rare_sizes() -> None:
    values = np.array([100, 123.456, 3.4e38, 1e-45, -1e-9, 2**24], np.float32)
    assert json_floats(values) == b"100.0,123.456,3.4e+38,1e-45,-1e-09,1.6777216e+07"


def test_all_kinds_of_bits() -> None:
    bits = np.random.default_rng(1).integers(0, 2**32, 3000, dtype=np.uint32)
    values = bits.view(np.float32)
    assert_same(values[np.isfinite(values)])


def test_numbers_of_vectors() -> None:
    random = np.random.default_rng(2)
    for size in (1e-6, 0.03, 1.0, 30.0):
        assert_same((size * random.standard_normal(20_000)).astype(np.float32))


def test_digits_are_the_fewest() -> None:
    values = np.random.default_rng(3).uniform(1e-4, 1, 2000).astype(np.float32)
    for text, value in zip(json_floats(values).split(b","), values, strict=True):
        assert len(text) == len(str(value)), (text, value)


@pytest.mark.parametrize("shape", [(7, 3), (2, 9000), (5000, 4), (3, 1), (1, 0), (0, 5)])
def test_rows(shape: tuple[int, int]) -> None:
    values = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    found = list(json_rows(values))
    assert len(found) == shape[0]
    assert b"[" + b",".join(found) + b"]" == b"[" + b",".join(map(json_floats, values)) + b"]"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_json_lacks(value: float) -> None:
    with pytest.raises(ValueError, match="NaN"):
        json_floats(np.array([1, value], np.float32))
