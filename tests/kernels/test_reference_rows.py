"""Norms, softmax, sums, sorting and masks of the reference kernels, checked by loops over rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from reference_run import (
    Array,
    F64Array,
    assert_close,
    compute,
    data,
    each_type,
    leaf,
    normal,
    run,
)

from lamella.graph import GGMLType, SortOrder, Tensor, ops
from lamella.kernels.reference.rows import alibi_slopes

SHAPES = [(1,), (300,), (4, 7), (2, 3, 5, 33)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def by_row(f: Callable[[list[float]], list[float]], x: F64Array) -> F64Array:
    """f of each row, as a 4-D array."""
    rows = [f([float(v) for v in row]) for row in x.reshape(-1, x.shape[-1])]
    shape = (1,) * (4 - x.ndim) + x.shape[:-1]
    return np.array(rows, np.float64).reshape(*shape, -1)


def norm_of(row: list[float], eps: float) -> list[float]:
    mean = math.fsum(row) / len(row)
    return rms_norm_of([v - mean for v in row], eps)


def rms_norm_of(row: list[float], eps: float) -> list[float]:
    squares = math.fsum(v * v for v in row) / len(row)
    return [v / math.sqrt(squares + eps) for v in row]


def softmax_of(row: list[float]) -> list[float]:
    # no maximum is subtracted: float64 has the exponentials of scores up to 700
    total = math.fsum(math.exp(v) for v in row)
    return [math.exp(v) / total for v in row]


@each_shape
def test_sum_rows(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    assert_close(run(ops.sum_rows(leaf(x))), by_row(lambda row: [math.fsum(row)], x))


def test_sum_rows_cancels_in_float64() -> None:
    assert run(ops.sum_rows(leaf([1e8, 1.0, -1e8, 0.5]))).item() == 1.5


def test_sum_of_no_elements_is_zero() -> None:
    assert run(ops.sum_rows(leaf(np.zeros((3, 0))))).tolist() == [[[[0.0], [0.0], [0.0]]]]
    assert run(ops.sum_rows(leaf(np.zeros((0, 3))))).shape == (1, 1, 0, 1)


@each_shape
@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.5])
def test_norms(shape: tuple[int, ...], eps: float) -> None:
    x = normal(*shape) + 0.3
    expected = by_row(lambda row: rms_norm_of(row, eps), x)
    assert_close(run(ops.rms_norm(leaf(x), eps)), expected)
    if shape[-1] > 1 or eps > 0:
        expected = by_row(lambda row: norm_of(row, eps), x)
        assert_close(run(ops.norm(leaf(x), eps)), expected)


def test_norms_of_strided_and_empty_rows() -> None:
    x = normal(2, 3, 4, 9)
    for op, f in ((ops.rms_norm, rms_norm_of), (ops.norm, norm_of)):
        turned = ops.permute(leaf(x), (0, 2, 1, 3))
        expected = by_row(partial(f, eps=1e-6), x.transpose(0, 2, 1, 3))
        assert_close(run(op(turned, 1e-6)), expected)
        assert run(op(leaf(np.zeros((0, 3))), 1e-6)).shape == (1, 1, 0, 3)
        assert run(op(leaf(np.zeros((3, 0))), 1e-6)).shape == (1, 1, 3, 0)


def test_rms_norm_of_zeros() -> None:
    assert run(ops.rms_norm(leaf([0.0, 0.0]), 1e-6)).ravel().tolist() == [0, 0]
    assert np.isnan(run(ops.rms_norm(leaf([0.0, 0.0]), 0.0))).all()


@each_shape
def test_soft_max(shape: tuple[int, ...]) -> None:
    x = 4 * normal(*shape)
    assert_close(run(ops.soft_max(leaf(x))), by_row(softmax_of, x))
    assert_close(run(ops.soft_max(leaf(x), scale=0.25)), by_row(softmax_of, x * 0.25))


def masked_scores(x: F64Array, mask: F64Array, scale: float, slopes: list[float]) -> F64Array:
    """x * scale + slope(head) * mask; the mask's batch indices wrap around."""
    result = np.empty(x.shape)
    for n, head, token in np.ndindex(x.shape[:3]):
        row = mask[n % mask.shape[0], head % mask.shape[1], token]
        result[n, head, token] = x[n, head, token] * scale + slopes[head] * row
    return result


@pytest.mark.parametrize("mask_shape", [(1, 1, 5, 7), (1, 1, 8, 7), (2, 6, 5, 7), (2, 3, 6, 7)])
@each_type((GGMLType.F32, GGMLType.F16))
@pytest.mark.parametrize("max_bias", [0.0, 8.0])
def test_soft_max_with_mask(mask_shape: tuple[int, ...], type: GGMLType, max_bias: float) -> None:
    x = normal(4, 6, 5, 7)
    mask = normal(*mask_shape, seed=1).astype(np.float16).astype(np.float64)
    mask[..., 2:, 4:] = -np.inf
    node = ops.soft_max(leaf(x), leaf(mask, type), 0.3, max_bias)
    slopes = ggml_slopes(6, max_bias)
    assert_close(run(node), by_row(softmax_of, masked_scores(x, mask, 0.3, slopes)))


def ggml_slopes(n_head: int, max_bias: float) -> list[float]:
    """ALiBi slopes by ggml's definition, one head after the other."""
    if max_bias == 0:
        return [1.0] * n_head
    n_head_log2 = 2 ** math.floor(math.log2(n_head))
    m0 = 2 ** (-max_bias / n_head_log2)
    m1 = 2 ** (-(max_bias / 2) / n_head_log2)
    first = [m0 ** (h + 1) for h in range(n_head_log2)]
    return first + [m1 ** (2 * (h - n_head_log2) + 1) for h in range(n_head_log2, n_head)]


@pytest.mark.parametrize("n_head", [1, 2, 3, 6, 8, 12, 40])
def test_alibi_slopes(n_head: int) -> None:
    for max_bias in (0.0, 8.0, 4.0):
        expected = np.array(ggml_slopes(n_head, max_bias))
        np.testing.assert_allclose(alibi_slopes(n_head, max_bias), expected, rtol=1e-6)


def test_alibi_slopes_of_the_paper() -> None:
    assert alibi_slopes(8, 8.0).tolist() == [2.0**-h for h in range(1, 9)]
    # "every other one of twice as many heads" (arXiv 2108.12409, the authors' code)
    twelve = alibi_slopes(12, 8.0)
    np.testing.assert_allclose(twelve[8:], alibi_slopes(16, 8.0)[0:8:2], rtol=1e-6)


def test_soft_max_of_a_masked_row_is_nan_and_leaves_others_alone() -> None:
    mask = np.array([[-np.inf] * 3, [0.0, -np.inf, 0.0]])
    result = run(ops.soft_max(leaf(np.zeros((2, 3))), leaf(mask)))[0, 0]
    assert np.isnan(result[0]).all()
    assert result[1].tolist() == [0.5, 0.0, 0.5]


def test_soft_max_of_large_scores() -> None:
    assert run(ops.soft_max(leaf([3e38, -3e38, 3e38]))).ravel().tolist() == [0.5, 0.0, 0.5]
    assert np.isnan(run(ops.soft_max(leaf([3e38, 0.0]), scale=10.0))).any()


def test_soft_max_sums_in_float64() -> None:
    # 1 + exp(-16.7) is 1 in float32
    largest = run(ops.soft_max(leaf([0.0, -16.7]))).flat[0]
    assert largest == np.float32(1 / (1 + math.exp(-16.7))) < 1


def test_soft_max_of_an_empty_tensor() -> None:
    for shape in ((0, 3), (3, 0), (2, 0, 3, 4)):
        assert run(ops.soft_max(leaf(np.zeros(shape)))).size == 0


def sorted_indices(row: Array, descending: bool) -> list[int]:
    return sorted(range(len(row)), key=lambda i: -row[i] if descending else row[i])


@pytest.mark.parametrize("order", SortOrder)
def test_argsort_is_stable(order: SortOrder) -> None:
    x = np.random.default_rng(0).integers(0, 6, (2, 3, 4, 50)).astype(np.float64)
    x[..., 7] = np.inf
    result = run(ops.argsort(leaf(x), order))
    for index in np.ndindex(x.shape[:3]):
        assert result[index].tolist() == sorted_indices(x[index], order is SortOrder.DESC)


def test_argsort_of_a_transposed_and_an_empty_source() -> None:
    x = normal(5, 8)
    result = run(ops.argsort(ops.transpose(leaf(x))))[0, 0]
    assert [row.tolist() for row in result] == [sorted_indices(row, False) for row in x.T]
    assert run(ops.argsort(leaf(np.zeros((0, 3))))).shape == (1, 1, 0, 3)


def test_top_k() -> None:
    x = np.array([[3.0, 1.0, 3.0, 2.0], [0.0, 5.0, -1.0, 5.0]])
    assert run(ops.top_k(leaf(x), 3)).tolist() == [[[[0, 2, 3], [1, 3, 0]]]]


@pytest.mark.parametrize("n_past", [0, 2, 9])
@pytest.mark.parametrize("turned", [False, True])
def test_diag_mask(n_past: int, turned: bool) -> None:
    x = normal(2, 3, 5, 5)
    builders: list[tuple[Callable[[Tensor, int], Tensor], float]] = [
        (ops.diag_mask_inf, -np.inf),
        (ops.diag_mask_zero, 0.0),
    ]
    for build, value in builders:
        a = ops.transpose(leaf(x)) if turned else leaf(x)
        expected = x.swapaxes(2, 3).copy() if turned else x.copy()
        for token in range(5):
            expected[:, :, token, n_past + token + 1 :] = value
        assert (run(build(a, n_past)) == expected).all()
        assert run(build(leaf(np.zeros((0, 3))), n_past)).shape == (1, 1, 0, 3)


def test_diag_mask_then_soft_max_is_causal() -> None:
    scores = ops.diag_mask_inf(leaf(normal(4, 4)), 0)
    weights = data(compute(ops.soft_max(scores)))[0, 0]
    assert (np.triu(weights, 1) == 0).all()
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)
