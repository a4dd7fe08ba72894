"""Norms, softmax and sums of the CUDA kernels, against the reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cuda_check import Build, check, check_in_place
from cuda_grid import needs_compiler
from reference_run import each_type, leaf, normal

from lamella.graph import GGMLType, ops
from lamella.kernels.cuda.ops.rows import HELD, MAX_THREADS, row_threads

pytestmark = needs_compiler

F32, F16 = GGMLType.F32, GGMLType.F16

# rows of a warp, several of them in a block; of more warps; longer than what registers hold
SHAPES = [(1,), (3,), (7, 256), (2, 257), (2, 3, 5, 33), (2, 2050), (2, HELD * MAX_THREADS + 4101)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
each_norm = pytest.mark.parametrize("norm", [ops.norm, ops.rms_norm])


def test_threads_of_a_row() -> None:
    lengths = (1, 256, 257, 2048, 4096, 8192, 10**6)
    assert [row_threads(n) for n in lengths] == [32, 32, 64, 256, 512, 1024, 1024]


@each_shape
@each_norm
def test_norms(norm: Build, shape: tuple[int, ...]) -> None:
    x = leaf(normal(*shape) + 0.3)
    for eps in (1e-5, 0.5):
        check(norm, x, eps=eps)
    check_in_place(norm, x, eps=1e-5)


@each_norm
def test_norms_of_strided_rows(norm: Build) -> None:
    x = leaf(normal(2, 3, 4, 20))
    check(norm, ops.permute(x, (0, 2, 3, 1)), eps=1e-6)
    check(norm, ops.view(x, (16, 4, 3), nb=(4, 80, 320)), eps=1e-6)


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
    check(ops.sum_rows, leaf(np.full((1, 2**20), 0.1)), error=1e-6)


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


@pytest.mark.parametrize("n", [40, HELD * MAX_THREADS + 101])
def test_soft_max_over_a_mask_of_its_layout(n: int) -> None:
    x, mask = leaf(normal(3, n)), leaf(normal(3, n, seed=1))
    check(ops.soft_max, x, mask)
    check_in_place(ops.soft_max, x, mask)


@pytest.mark.parametrize("n_head", [1, 3, 8, 12, 40])
def test_alibi_of_any_number_of_heads(n_head: int) -> None:
    mask = leaf(-np.arange(20.0)[None])
    check(ops.soft_max, leaf(normal(n_head, 1, 20)), mask, max_bias=8.0)


def test_soft_max_of_a_masked_row_is_nan_and_leaves_others_alone() -> None:
    mask = np.array([[-math.inf] * 3, [0.0, -math.inf, 0.0]])
    result = check(ops.soft_max, leaf(np.zeros((2, 3))), leaf(mask))[0, 0]
    assert np.isnan(result[0]).all()
    assert result[1].tolist() == [0.5, 0.0, 0.5]


def test_soft_max_of_scores_far_from_zero() -> None:
    assert check(ops.soft_max, leaf([3e38, -3e38, 3e38])).ravel().tolist() == [0.5, 0.0, 0.5]
    check(ops.soft_max, leaf([3e38, 0.0]), scale=10.0)
    check(ops.soft_max, leaf([-300.0, -301.0, -302.0]))
