"""Norms, softmax, sums and masks, compared with the reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
from backends import Backend, Build, each_backend
from reference_run import each_type, leaf, normal, values_of

from lamella.graph import GGMLType, ops
from lamella.kernels.cpu.ops.rows import BLOCK
from lamella.kernels.cuda.ops.rows import HELD, MAX_THREADS, row_threads

F32, F16 = GGMLType.F32, GGMLType.F16

# rows of a part of a vector, of vectors, of more than a block. On a GPU: rows of a warp, of several
# warps, and too long for registers
SHAPES = [
    *[(1,), (3,), (16,), (17,), (7, 256), (2, 257), (7, 300), (2, 3, 5, 33)],
    *[(2, 2 * BLOCK + 40), (2, 2050), (2, HELD * MAX_THREADS + 4101)],
]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
each_norm = pytest.mark.parametrize("norm", [ops.norm, ops.rms_norm])


@each_backend
@each_shape
@each_norm
def test_norms(on: Backend, norm: Build, shape: tuple[int, ...]) -> None:
    x = leaf(normal(*shape) + 0.3)
    for eps in (1e-5, 0.5):
        on.check(norm, x, eps=eps)
    on.check_in_place(norm, x, eps=1e-5)


@each_backend
@each_norm
def test_norms_of_strided_rows(on: Backend, norm: Build) -> None:
    x = leaf(normal(2, 3, 4, 20))
    on.check(norm, ops.permute(x, (0, 2, 3, 1)), eps=1e-6)
    heads = ops.view(x, (16, 4, 3), nb=(4, 80, 320))
    on.check(norm, heads, eps=1e-6)


@each_backend
def test_rms_norm_of_zeros(on: Backend) -> None:
    zeros = leaf(np.zeros((2, 20)))
    assert (on.check(ops.rms_norm, zeros, eps=1e-6) == 0).all()
    assert np.isnan(on.check(ops.rms_norm, zeros, eps=0.0)).all()


@each_backend
def test_norm_of_a_row_far_from_zero(on: Backend) -> None:
    # the mean of squares would lose all digits of the variance
    on.check(ops.norm, leaf(normal(4, 300) + 3000), eps=1e-5, error=1e-3)


@each_backend
@each_shape
def test_sum_rows(on: Backend, shape: tuple[int, ...]) -> None:
    on.check(ops.sum_rows, leaf(np.abs(normal(*shape))))
    on.check(ops.sum_rows, ops.permute(leaf(np.abs(normal(*shape))), (0, 2, 3, 1)))


@each_backend
def test_sum_of_no_elements_is_zero(on: Backend) -> None:
    assert on.check(ops.sum_rows, leaf(np.zeros((3, 0)))).tolist() == [[[[0.0], [0.0], [0.0]]]]


@each_backend
def test_sums_of_long_rows_keep_their_digits(on: Backend) -> None:
    on.check(ops.sum_rows, leaf(np.full((1, 2**20), 0.1)), error=1e-6)


@each_backend
@each_shape
def test_soft_max(on: Backend, shape: tuple[int, ...]) -> None:
    x = leaf(4 * normal(*shape))
    on.check(ops.soft_max, x)
    on.check(ops.soft_max, x, scale=0.25)
    on.check_in_place(ops.soft_max, x)


@each_backend
@pytest.mark.parametrize("mask_shape", [(1, 1, 5, 40), (1, 1, 8, 40), (2, 6, 5, 40), (2, 3, 6, 40)])
@each_type((F32, F16))
@pytest.mark.parametrize("max_bias", [0.0, 8.0])
def test_soft_max_with_mask(
    on: Backend, mask_shape: tuple[int, ...], type: GGMLType, max_bias: float
) -> None:
    mask = normal(*mask_shape, seed=1)
    mask[..., 2:, 25:] = -math.inf
    x = leaf(normal(4, 6, 5, 40))
    on.check(ops.soft_max, x, leaf(mask, type), scale=0.3, max_bias=max_bias)
    on.check_in_place(ops.soft_max, x, leaf(mask, type), scale=0.3, max_bias=max_bias)


@each_backend
@pytest.mark.parametrize("n", [40, HELD * MAX_THREADS + 101])
def test_soft_max_over_a_mask_of_its_layout(on: Backend, n: int) -> None:
    x, mask = leaf(normal(3, n)), leaf(normal(3, n, seed=1))
    on.check(ops.soft_max, x, mask)
    on.check_in_place(ops.soft_max, x, mask)


@each_backend
@pytest.mark.parametrize("n_head", [1, 3, 8, 12, 40])
def test_alibi_of_any_number_of_heads(on: Backend, n_head: int) -> None:
    mask = leaf(-np.arange(20.0)[None])
    on.check(ops.soft_max, leaf(normal(n_head, 1, 20)), mask, max_bias=8.0)


@each_backend
def test_soft_max_of_a_masked_row_is_nan_and_leaves_others_alone(on: Backend) -> None:
    mask = np.array([[-math.inf] * 3, [0.0, -math.inf, 0.0]])
    result = on.check(ops.soft_max, leaf(np.zeros((2, 3))), leaf(mask))[0, 0]
    assert np.isnan(result[0]).all()
    assert result[1].tolist() == [0.5, 0.0, 0.5]


@each_backend
def test_soft_max_of_large_scores(on: Backend) -> None:
    assert on.check(ops.soft_max, leaf([3e38, -3e38, 3e38])).ravel().tolist() == [0.5, 0.0, 0.5]
    on.check(ops.soft_max, leaf([3e38, 0.0]), scale=10.0)
    on.check(ops.soft_max, leaf([-300.0, -301.0, -302.0]))


@each_backend
@pytest.mark.parametrize("mask", [ops.diag_mask_inf, ops.diag_mask_zero])
@pytest.mark.parametrize("n_past", [0, 3, 20, 100])
def test_diagonal_masks(on: Backend, mask: Build, n_past: int) -> None:
    x = leaf(normal(2, 3, 7, 37))
    on.check(mask, x, n_past=n_past, error=0)
    on.check_in_place(mask, x, n_past=n_past)


@each_backend
def test_a_row_has_the_same_bits_alone(on: Backend) -> None:
    x = normal(40, 300)
    for build in (lambda t: ops.rms_norm(t, 1e-5), lambda t: ops.norm(t, 1e-5), ops.soft_max):
        node = build(leaf(x))
        on.computed(node)
        alone = on.check(build, leaf(x[17:18], shift=4))
        assert (alone[0, 0, 0] == values_of(node)[0, 0, 17]).all()


def test_cuda_threads_of_a_row() -> None:
    lengths = (1, 256, 257, 2048, 4096, 8192, 10**6)
    assert [row_threads(n) for n in lengths] == [32, 32, 64, 256, 512, 1024, 1024]
