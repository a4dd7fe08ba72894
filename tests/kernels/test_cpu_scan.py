"""Comparisons as bits, and exponentials rounded once, through tiny kernels."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numba import cfunc, types

from lamella.kernels.cpu.simd.memory import load_f32, load_f32x16, store_f32x16, store_i64
from lamella.kernels.cpu.simd.scan import (
    LOWEST_EXPONENT,
    count_bits,
    exp_rounded,
    f32_bits,
    lowest_bit,
    mask_ge,
    mask_nan,
)

LANES = 16
INF = math.inf
F32Array = npt.NDArray[np.float32]

# mypy: disable-error-code="no-untyped-def, no-untyped-call"


def run(function: Callable[..., None], *args: int | npt.NDArray[Any]) -> None:
    """Compile a function of int64s and call it. Arrays are passed as addresses."""
    compiled = cfunc(types.void(*[types.int64] * len(args)), error_model="numpy")(function)
    words = [int(a.ctypes.data) if isinstance(a, np.ndarray) else a for a in args]
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(args))(compiled.address)(*words)


def exps(x: F32Array) -> F32Array:
    n = -(-len(x) // LANES) * LANES
    padded, result = np.zeros(n, np.float32), np.empty(n, np.float32)
    padded[: len(x)] = x

    def kernel(x, to, n):
        for i in range(0, n, LANES):
            store_f32x16(to + 4 * i, exp_rounded(load_f32x16(x + 4 * i)))

    run(kernel, padded, result, n)
    return result[: len(x)]


EDGES = [0.0, -0.0, 1.0, -1.0, math.nextafter(1, 2), 1e-45, -1e-45, 3e38, INF, -INF, math.nan]


@pytest.mark.parametrize("shift", range(len(EDGES)))
def test_masks_compare_lane_by_lane(shift: int) -> None:
    x = np.resize(np.array(EDGES, np.float32), LANES)
    y = np.roll(x, shift)
    result = np.zeros(2, np.int64)

    def kernel(x, y, to):
        store_i64(to, mask_ge(load_f32x16(x), load_f32x16(y)))
        store_i64(to + 8, mask_nan(load_f32x16(x), load_f32x16(y)))

    run(kernel, x, y, result)
    for mask, wanted in zip(result.tolist(), (x >= y, np.isnan(x) | np.isnan(y)), strict=True):
        assert mask == sum(1 << i for i in range(LANES) if wanted[i])


@pytest.mark.parametrize("n", [1, 2, 0x8000, 0b1010100, 0xFFFF, 1 << 62, -1])
def test_bits_of_an_int(n: int) -> None:
    result = np.zeros(2, np.int64)

    def kernel(n, to):
        store_i64(to, count_bits(n))
        store_i64(to + 8, lowest_bit(n))

    run(kernel, n, result)
    pattern = n % 2**64
    assert result.tolist() == [pattern.bit_count(), (pattern & -pattern).bit_length() - 1]


def test_bits_of_a_float() -> None:
    x = np.array(EDGES, np.float32)
    result = np.zeros(len(x), np.int64)

    def kernel(x, to, n):
        for i in range(n):
            store_i64(to + 8 * i, f32_bits(load_f32(x + 4 * i)))

    run(kernel, x, result, len(x))
    np.testing.assert_array_equal(result, x.view(np.int32))


def test_exponentials_are_rounded_once() -> None:
    rng = np.random.default_rng(0)
    parts = [-rng.random(100_000) * scale for scale in (110.0, 20.0, 1.0, 1e-3, 1e-7)]
    x = np.concatenate(parts).astype(np.float32)
    exact = np.array([math.exp(float(value)) for value in x])
    # float64 cannot decide next to a tie between two float32s: once in 10**8 times
    assert np.count_nonzero(exps(x) != exact.astype(np.float32)) <= 1


def test_exponentials_at_the_ends() -> None:
    below = np.nextafter(np.float32(LOWEST_EXPONENT), np.float32(-INF))
    x = [0.0, -0.0, -1e-45, LOWEST_EXPONENT, float(below), -3e38, -INF, -103.9, -103.97, -87.4]
    values = np.array(x, np.float32)
    wanted = [float(np.float32(math.exp(float(v)))) for v in values]
    assert exps(values).tolist() == wanted
    assert wanted[3:7] == [0.0] * 4
    assert 0 < wanted[7] < 2**-148  # subnormal
