"""ROPE of the reference kernels, compared with rotations of complex numbers and ggml's YaRN."""

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np
import pytest
from reference_run import (
    ERROR,
    F64Array,
    assert_close,
    compute,
    each_type,
    ids,
    leaf,
    normal,
    run,
    values_of,
)
from rope_cases import CASES, YARN, each_mode

from lamella.graph import GGMLType, RopeMode, ops

POSITIONS = [0, 1, 17, 4095, 2**24 + 1]  # float32 cannot represent the last one


def turns_until(n_dims: int, n_ctx_orig: int, n_rot: float, base: float) -> float:
    """The dimension whose pair turns `n_rot` times in `n_ctx_orig` positions (ggml's corr_dim)."""
    return n_dims * math.log(n_ctx_orig / (n_rot * 2 * math.pi)) / (2 * math.log(base))


def rotation(
    pos: int,
    i: int,
    factor: float,
    *,
    n_dims: int,
    freq_base: float = 10000.0,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    n_ctx_orig: int = 0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> complex:
    """The complex number that multiplies pair i of a token at `pos`."""
    extrapolated = pos / freq_base ** (2 * i / n_dims) / factor
    theta = freq_scale * extrapolated
    if ext_factor != 0:
        start = math.floor(turns_until(n_dims, n_ctx_orig, beta_fast, freq_base))
        end = math.ceil(turns_until(n_dims, n_ctx_orig, beta_slow, freq_base))
        start, end = max(0, start), min(n_dims - 1, end)
        y = (i - start) / max(0.001, end - start)
        mix = (1 - min(1, max(0, y))) * ext_factor
        theta = theta * (1 - mix) + extrapolated * mix
        attn_factor *= 1 + 0.1 * math.log(1 / freq_scale)
    return attn_factor * cmath.exp(1j * theta)


def rotated(
    x: F64Array, pos: list[int], mode: RopeMode, factors: list[float] | None = None, **params: Any
) -> F64Array:
    """x (n, n_tokens, n_head, head_dim), each pair rotated as a complex number."""
    y = x.copy()
    n_dims = params["n_dims"]
    for i in range(n_dims // 2):
        a, b = (2 * i, 2 * i + 1) if mode is RopeMode.NORMAL else (i, i + n_dims // 2)
        for t, p in enumerate(pos):
            turn = rotation(p, i, factors[i] if factors else 1.0, **params)
            pair = (x[:, t, :, a] + 1j * x[:, t, :, b]) * turn
            y[:, t, :, a], y[:, t, :, b] = pair.real, pair.imag
    return y


@each_mode
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("n_dims", [2, 10, 16])
def test_rope(mode: RopeMode, name: str, n_dims: int) -> None:
    x = normal(2, len(POSITIONS), 3, 16)
    params = {**CASES[name], "n_dims": n_dims}
    node = ops.rope(leaf(x), ids(POSITIONS), mode=mode, **params)
    assert_close(run(node), rotated(x, POSITIONS, mode, **params))


@each_mode
@each_type((GGMLType.F32, GGMLType.F16))
def test_rope_with_freq_factors_types_and_strides(mode: RopeMode, type: GGMLType) -> None:
    a = leaf(normal(1, 3, len(POSITIONS), 12), type)  # heads before tokens
    factors = [1.0, 8.0, 3.5, 1.25]
    node = ops.rope(
        ops.permute(a, (0, 2, 1, 3)), ids(POSITIONS), leaf([*factors, 9.0]), n_dims=8, mode=mode
    )
    assert node.type is type
    heads_last = values_of(a).transpose(0, 2, 1, 3)
    expected = rotated(heads_last, POSITIONS, mode, factors, n_dims=8)
    assert_close(run(node), expected, ERROR[type])


@each_mode
def test_rope_with_yarn_and_freq_factors(mode: RopeMode) -> None:
    x = normal(1, len(POSITIONS), 2, 8)
    factors = [1.0, 2.0, 4.0, 0.5]
    node = ops.rope(leaf(x), ids(POSITIONS), leaf(factors), mode=mode, n_dims=8, **YARN)
    assert_close(run(node), rotated(x, POSITIONS, mode, factors, n_dims=8, **YARN))


def test_position_zero_and_dimensions_past_n_dims_stay() -> None:
    x = normal(1, 2, 3, 12)
    y = run(ops.rope(leaf(x), ids([0, 5]), n_dims=8))
    assert (y[0, 0] == x[0, 0]).all()
    assert (y[0, 1, :, 8:] == x[0, 1, :, 8:]).all()
    assert (y[0, 1, :, :8] != x[0, 1, :, :8]).any()


@each_mode
def test_products_depend_on_distance_only(mode: RopeMode) -> None:
    q, k = normal(1, 1, 1, 64), normal(1, 1, 1, 64, seed=1)

    def product(at: int, distance: int) -> float:
        turned = [
            run(ops.rope(leaf(x), ids([pos]), n_dims=64, mode=mode))
            for x, pos in ((q, at + distance), (k, at))
        ]
        return float((turned[0] * turned[1]).sum())

    assert product(1000, 7) == pytest.approx(product(3, 7), abs=1e-4)
    assert abs(product(3, 8) - product(3, 7)) > 1e-2


def test_yarn_leaves_fast_pairs_and_interpolates_slow_ones() -> None:
    x = np.tile([1.0, 0.0], 32).reshape(1, 1, 1, 64)
    scale = 1 + 0.1 * math.log(4)

    def angles(**params: Any) -> list[float]:
        y = run(ops.rope(leaf(x), ids([1]), n_dims=64, **params))[0, 0, 0]
        pairs = y[0::2] + 1j * y[1::2]
        np.testing.assert_allclose(np.abs(pairs), scale if params else 1, rtol=1e-6)
        return [cmath.phase(pair) for pair in pairs]

    plain, yarn = angles(), angles(**YARN)
    # pair 0 turns 4096 / 2 pi times, more than beta_fast; the last one less than once
    assert yarn[0] == pytest.approx(plain[0], rel=1e-6)
    assert yarn[-1] == pytest.approx(plain[-1] / 4, rel=1e-6)


def test_rope_of_an_empty_tensor() -> None:
    node = ops.rope(leaf(np.zeros((0, 2, 8))), ids([]), n_dims=8)
    assert run(node).shape == (1, 0, 2, 8)
    no_heads = compute(ops.rope(leaf(np.zeros((3, 0, 8))), ids([1, 2, 3]), n_dims=8))
    assert no_heads.ne == (8, 0, 3, 1)
