"""ARGSORT and TOP_K of the CUDA kernels: stable, as NumPy sorts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cuda_check import check
from cuda_grid import needs_compiler
from reference_run import Array, leaf, normal

from lamella.graph import SortOrder, ops
from lamella.kernels.cuda.ops import sort
from lamella.kernels.cuda.ops.sort import HELD, MAX_K, MAX_THREADS, TILE

pytestmark = needs_compiler

EDGES = [math.nan, 0.0, -0.0, math.inf, -math.inf, 1e-45, -1e-45, 3e38, -3e38, -math.nan]
GROUP = HELD * MAX_THREADS

each_order = pytest.mark.parametrize("order", SortOrder, ids=lambda order: order.name)
# one tile; two, three and more of them, whose last is short
each_length = pytest.mark.parametrize("n", [1, 2, 65, TILE, TILE + 1, 3 * TILE, 5 * TILE + 7])


def edges(*shape: int) -> Array:
    return np.random.default_rng(shape[-1]).choice(EDGES, shape)


@each_order
@each_length
def test_argsort(n: int, order: SortOrder) -> None:
    check(ops.argsort, leaf(normal(3, n)), order=order)
    check(ops.argsort, leaf(np.round(normal(3, n))), order=order)
    check(ops.argsort, leaf(edges(2, n)), order=order)
    assert check(ops.argsort, leaf(np.ones(n)), order=order).ravel().tolist() == list(range(n))


@each_order
def test_argsort_of_strided_rows(order: SortOrder) -> None:
    check(ops.argsort, ops.transpose(leaf(normal(2, 70, 9))), order=order)
    check(ops.argsort, ops.permute(leaf(normal(2, 70, 9)), (0, 2, 1, 3)), order=order)


@each_order
def test_a_vocabulary(order: SortOrder) -> None:
    check(ops.argsort, leaf(normal(1, 50_000)), order=order)


def test_rows_are_sorted_in_lots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sort, "MAX_SCRATCH", 2 * 8 * 2 * (TILE + 5))
    check(ops.argsort, leaf(normal(5, TILE + 5)), order=SortOrder.ASC)


@pytest.mark.parametrize(
    ("n", "k"),
    [
        *[(1, 1), (2, 2), (64, 8), (TILE, 5), (TILE, TILE)],  # all are sorted
        *[(TILE + 1, 1), (TILE + 1, 40), (GROUP, MAX_K), (GROUP, 3)],  # one group
        *[(GROUP + 1, 1), (GROUP + 1, 2), (2 * GROUP + 9, 40), (3 * GROUP, 1000)],  # two rounds
        (9 * GROUP + 1, MAX_K),  # three
        *[(TILE + 1, TILE + 1), (3 * TILE, MAX_K + 1)],  # more than are sought in rounds
    ],
)
def test_top_k(n: int, k: int) -> None:
    check(ops.top_k, leaf(normal(2, n)), k=k)
    check(ops.top_k, leaf(np.round(normal(1, n))), k=k)
    check(ops.top_k, leaf(edges(1, n)), k=k)
    check(ops.top_k, leaf(np.sort(normal(1, n))), k=k)  # all in the last group


@pytest.mark.parametrize("n", [GROUP, 2 * GROUP])
def test_the_first_of_equals(n: int) -> None:
    for k in (1, 50):
        for values in (np.full(n, 2.5), np.full(n, math.nan), np.full(n, -math.inf)):
            assert check(ops.top_k, leaf(values), k=k).ravel().tolist() == list(range(k))


def test_top_k_of_strided_rows() -> None:
    check(ops.top_k, ops.transpose(leaf(normal(2, TILE + 70, 3))), k=4)
    check(ops.top_k, ops.permute(leaf(normal(2, 3, 2, TILE + 70)), (0, 2, 3, 1)), k=4)
