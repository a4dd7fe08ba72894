"""ARGSORT and TOP_K on the CPU: stable, in both orders, as NumPy sorts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cpu_check import check
from reference_run import leaf, normal

from lamella.graph import SortOrder, ops
from lamella.kernels.cpu.ops.sort import N_INSERTED

each_order = pytest.mark.parametrize("order", SortOrder, ids=lambda order: order.name)
# both ways of sorting, and where one ends
each_length = pytest.mark.parametrize(
    "n", [1, 2, 8, N_INSERTED - 1, N_INSERTED, N_INSERTED + 1, 1000]
)


@each_order
@each_length
def test_rows_of_all_lengths(n: int, order: SortOrder) -> None:
    check(ops.argsort, leaf(normal(5, n)), order=order)
    check(ops.argsort, leaf(np.sort(normal(5, n))), order=order)
    check(ops.argsort, leaf(1e30 * normal(2, 2, 3, n)), order=order)


@each_order
@each_length
def test_equal_values_keep_their_order(n: int, order: SortOrder) -> None:
    check(ops.argsort, leaf(np.round(normal(5, n))), order=order)
    assert check(ops.argsort, leaf(np.ones(n)), order=order).ravel().tolist() == list(range(n))


@each_order
@each_length
def test_zeros_infinities_and_nan(n: int, order: SortOrder) -> None:
    edges = [math.nan, 0.0, -0.0, math.inf, -math.inf, 1e-45, -1e-45, 3e38, -3e38, -math.nan]
    check(ops.argsort, leaf(np.random.default_rng(n).choice(edges, (6, n))), order=order)


@each_order
def test_strided_rows(order: SortOrder) -> None:
    check(ops.argsort, ops.transpose(leaf(normal(2, 70, 9))), order=order)
    check(ops.argsort, ops.permute(leaf(normal(2, 70, 9)), (0, 2, 1, 3)), order=order)


@each_order
def test_a_vocabulary(order: SortOrder) -> None:
    check(ops.argsort, leaf(normal(2, 50_000)), order=order)


# --- the first ones only ---


@pytest.mark.parametrize("k", [1, 2, 3, 8, 64, 500, 1000])
def test_the_first_k_are_those_of_a_descending_sort(k: int) -> None:
    edges = [math.nan, 0.0, -0.0, math.inf, -math.inf, 1e-45, -1e-45, 3e38, -3e38, -math.nan]
    random = np.random.default_rng(k)
    for x in (
        normal(3, 1000),
        np.sort(normal(3, 1000)),
        -np.sort(normal(3, 1000)),
        np.round(normal(2, 2, 3, 1000)),
        random.choice(edges, (6, 1000)),
        np.full((2, 1000), math.nan),
    ):
        first = check(ops.top_k, leaf(x), k=k)
        np.testing.assert_array_equal(
            first, check(ops.argsort, leaf(x), order=SortOrder.DESC)[..., :k]
        )


def test_the_first_of_strided_rows() -> None:
    check(ops.top_k, ops.transpose(leaf(normal(2, 70, 9))), k=7)
    check(ops.top_k, ops.permute(leaf(normal(2, 70, 9)), (0, 2, 1, 3)), k=7)


def test_argsort_top_k() -> None:
    x = normal(3, 128)
    node = ops.argsort_top_k(leaf(x), 4)
    order = check(ops.argsort, leaf(x), order=SortOrder.DESC).astype(int)
    assert node.ne[0] == 4
    assert (np.take_along_axis(x, order[0, 0], axis=-1)[:, 0] == x.max(axis=-1)).all()
