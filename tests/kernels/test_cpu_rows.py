"""Norms, softmax, sums and masks on the CPU, against the reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cpu_check import Build, check, check_in_place, computed
from reference_run import each_type, leaf, normal, values_of

from lamella.graph import GGMLType, ops
from lamella.kernels.cpu.ops.rows import BLOCK

F32, F16 = GGMLType.F32, GGMLType.F16

# rows of part of a vector, of vectors, of more than a block
SHAPES = [(1,), (16,), (17,), (7, 300), (2, 2 * BLOCK + 40), (2, 3, 5, 33)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
each_norm = pytest.mark.parametrize("norm", [ops.norm, ops.rms_norm])


@each_shape
@pytest.mark.parametrize("eps", [1e-5, 0.5])
@each_norm
def test_norms(norm: Build, shape: tuple[int, ...], eps: float) -> None:
    x = leaf(normal(*shape) + 0.3)
    check(norm, x, eps=eps)
    check_in_place(norm, x, eps=eps)


@each_norm
def test_norms_of_strided_rows(norm: Build) -> None:
    x = leaf(normal(2, 3, 4, 20))
    check(norm, ops.permute(x, (0, 2, 3, 1)), eps=1e-6)
    heads = ops.view(x, (16, 4, 3), nb=(4, 80, 320))
    check(norm, heads, eps=1e-6)


def test_rms_norm_of_zeros() -> None:
    zeros = leaf(np.zeros((2, 20)))
    assert (check(ops.rms_norm, zeros, eps=1e-6) == 0).all()
    assert np.isnan(check(ops.rms_norm, zeros, eps=0.0)).all()


def test_norm_of_a_row_far_from_zero() -> None:
    # the squares' own mean would lose all digits of the variance
    check(ops.norm, leaf(normal(4, 300) + 3000), eps=1e-5, error=1e-3)


@each_shape
def test_sum_rows(shape: tuple[int, ...]) -> None:
    check(ops.sum_rows, leaf(np.abs(normal(*shape))))
    check(ops.sum_rows, ops.permute(leaf(np.abs(normal(*shape))), (0, 2, 3, 1)))


def test_sum_of_no_elements_is_zero() -> None:
    assert check(ops.sum_rows, leaf(np.zeros((3, 0)))).tolist() == [[[[0.0], [0.0], [0.0]]]]


def test_sums_of_long_rows_keep_their_digits() -> None:
    check(ops.sum_rows, leaf(np.full((1, 2**20), 0.1)))


@each_shape
def test_soft_max(shape: tuple[int, ...]) -> None:
    x = leaf(4 * normal(*shape))
    check(ops.soft_max, x)
    check(ops.soft_max, x, scale=0.25)
    check_in_place(ops.soft_max, x)


@pytest.mark.parametrize("mask_shape", [(1, 1, 5, 40), (1, 1, 8, 40), (2, 6, 5, 40), (2, 3, 6, 40)])
@each_type((F32, F16))
@pytest.mark.parametrize("max_bias", [0.0, 8.0])
def test_soft_max_with_mask(mask_shape: tuple[int, ...], type: GGMLType, max_bias: float) -> None:
    mask = normal(*mask_shape, seed=1)
    mask[..., 2:, 25:] = -math.inf
    x = leaf(normal(4, 6, 5, 40))
    check(ops.soft_max, x, leaf(mask, type), scale=0.3, max_bias=max_bias)
    check_in_place(ops.soft_max, x, leaf(mask, type), scale=0.3, max_bias=max_bias)


def test_soft_max_over_a_mask_of_its_layout() -> None:
    check_in_place(ops.soft_max, leaf(normal(3, 40)), leaf(normal(3, 40, seed=1)))


@pytest.mark.parametrize("n_head", [1, 3, 8, 12, 40])
def test_alibi_of_any_number_of_heads(n_head: int) -> None:
    mask = leaf(-np.arange(20.0)[None])
    check(ops.soft_max, leaf(normal(n_head, 1, 20)), mask, max_bias=8.0)


def test_soft_max_of_a_masked_row_is_nan_and_leaves_others_alone() -> None:
    mask = np.array([[-math.inf] * 3, [0.0, -math.inf, 0.0]])
    result = check(ops.soft_max, leaf(np.zeros((2, 3))), leaf(mask))[0, 0]
    assert np.isnan(result[0]).all()
    assert result[1].tolist() == [0.5, 0.0, 0.5]


def test_soft_max_of_large_scores() -> None:
    assert check(ops.soft_max, leaf([3e38, -3e38, 3e38])).ravel().tolist() == [0.5, 0.0, 0.5]
    check(ops.soft_max, leaf([3e38, 0.0]), scale=10.0)


@pytest.mark.parametrize("mask", [ops.diag_mask_inf, ops.diag_mask_zero])
@pytest.mark.parametrize("n_past", [0, 3, 20, 100])
def test_diagonal_masks(mask: Build, n_past: int) -> None:
    x = leaf(normal(2, 3, 7, 37))
    check(mask, x, n_past=n_past, error=0)
    check_in_place(mask, x, n_past=n_past)


def test_a_row_has_the_same_bits_alone() -> None:
    x = normal(40, 300)
    for build in (lambda t: ops.rms_norm(t, 1e-5), lambda t: ops.norm(t, 1e-5), ops.soft_max):
        node = build(leaf(x))
        computed(node, 3)
        alone = build(leaf(x[17:18], shift=4))
        computed(alone)
        assert (values_of(alone)[0, 0, 0] == values_of(node)[0, 0, 17]).all()
