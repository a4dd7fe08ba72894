"""ARGSORT and TOP_K: stable, in both orders, like NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference_run
from backends import CUDA, Backend, each_backend
from cuda_grid import needs_compiler
from matrix import combinations
from op_cases import bits_of
from reference_run import Array, leaf, normal

from lamella.graph import SortOrder, ops
from lamella.kernels.cpu.ops.sort import N_INSERTED
from lamella.kernels.cuda.ops import sort
from lamella.kernels.cuda.ops.sort import HELD, MAX_K, MAX_THREADS, TILE

EDGES = [math.nan, 0.0, -0.0, math.inf, -math.inf, 1e-45, -1e-45, 3e38, -3e38, -math.nan]
GROUP = HELD * MAX_THREADS

each_order = pytest.mark.parametrize("order", SortOrder, ids=lambda order: order.name)
# both algorithms of the CPU, and their border; on a GPU one, two, three and more tiles, the last
# short
LENGTHS = [
    *[1, 2, 8, N_INSERTED - 1, N_INSERTED, N_INSERTED + 1, 65, 1000],
    *[TILE, TILE + 1, 3 * TILE, 5 * TILE + 7],
]


def edges(*shape: int) -> Array:
    return np.random.default_rng(shape[-1]).choice(EDGES, shape)


@each_backend
@pytest.mark.parametrize(("n", "order"), combinations(LENGTHS, SortOrder), ids=str)
def test_argsort(on: Backend, n: int, order: SortOrder) -> None:
    rows = 3 if n <= TILE else 1
    equal = np.round(normal(rows, n))
    large = 1e30 * normal(rows - 1, 1, 2, n) if rows > 1 else 1e30 * normal(1, n)
    for x in (normal(rows, n), np.sort(normal(rows, n)), large, equal, edges(rows, n)):
        on.check(ops.argsort, leaf(x), order=order)
    assert on.check(ops.argsort, leaf(np.ones(n)), order=order).ravel().tolist() == list(range(n))


@each_backend
@each_order
def test_argsort_of_strided_rows(on: Backend, order: SortOrder) -> None:
    on.check(ops.argsort, ops.transpose(leaf(normal(2, 70, 9))), order=order)
    on.check(ops.argsort, ops.permute(leaf(normal(2, 70, 9)), (0, 2, 1, 3)), order=order)


@each_backend
@each_order
def test_a_vocabulary(on: Backend, order: SortOrder) -> None:
    on.check(ops.argsort, leaf(normal(1, 20_000)), order=order)


@needs_compiler
def test_cuda_rows_are_sorted_in_lots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sort, "MAX_SCRATCH", 2 * 8 * 2 * (TILE + 5))
    CUDA.check(ops.argsort, leaf(normal(5, TILE + 5)), order=SortOrder.ASC)


# --- the first ones only ---


@each_backend
@pytest.mark.parametrize(
    ("n", "k"),
    [
        *[(1000, 1), (1000, 2), (1000, 3), (1000, 64), (1000, 500), (1000, 1000)],
        *[(1, 1), (2, 2), (64, 8), (TILE, 5), (TILE, TILE)],  # a GPU sorts all of them
        *[(TILE + 1, 1), (TILE + 1, 40), (GROUP, MAX_K), (GROUP, 3)],  # one group
        *[(GROUP + 1, 1), (GROUP + 1, 2), (2 * GROUP + 9, 40), (3 * GROUP, 1000)],  # two rounds
        (9 * GROUP + 1, MAX_K),  # three
        *[(TILE + 1, TILE + 1), (3 * TILE, MAX_K + 1)],  # too many for rounds
    ],
)
def test_the_first_k_are_those_of_a_descending_sort(on: Backend, n: int, k: int) -> None:
    rising = np.sort(normal(1, n))  # all in the last group
    for x in (normal(2, n), rising, -rising, np.round(normal(1, n)), edges(1, n)):
        first = on.check(ops.top_k, leaf(x), k=k)
        order = reference_run.run(ops.argsort(leaf(x), SortOrder.DESC))
        np.testing.assert_array_equal(first, order[..., :k])


@each_backend
@pytest.mark.parametrize("n", [1000, GROUP, 2 * GROUP])
def test_the_first_of_equals(on: Backend, n: int) -> None:
    for k in (1, 50):
        for values in (np.full(n, 2.5), np.full(n, math.nan), np.full(n, -math.inf)):
            assert on.check(ops.top_k, leaf(values), k=k).ravel().tolist() == list(range(k))


@each_backend
@pytest.mark.parametrize(
    ("n", "k"),
    [(1, 1), (33, 8), (TILE, 40), (TILE + 1, 1), (2 * GROUP + 9, 40), (3 * TILE, MAX_K + 1)],
)
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 1.0])
def test_elements_that_a_mask_leaves_out_are_last(
    on: Backend, n: int, k: int, share: float
) -> None:
    mask = np.random.default_rng(n).random((2, n)) < share
    for x in (normal(2, n), edges(2, n)):
        found = on.check(ops.top_k, leaf(x), k=k, mask=bits_of(mask)).astype(int)[0, 0]
        for ids, row, kept in zip(found, x, mask, strict=True):
            order = np.argsort(np.where(kept, -row, math.nan), kind="stable")
            assert ids.tolist() == order[:k].tolist()


@each_backend
@pytest.mark.parametrize("n", [70, TILE + 70])
def test_the_first_of_strided_rows(on: Backend, n: int) -> None:
    on.check(ops.top_k, ops.transpose(leaf(normal(2, n, 3))), k=7)
    on.check(ops.top_k, ops.permute(leaf(normal(2, 3, 2, n)), (0, 2, 3, 1)), k=7)


@each_backend
def test_argsort_top_k(on: Backend) -> None:
    x = normal(3, 128)
    node = ops.argsort_top_k(leaf(x), 4)
    order = on.check(ops.argsort, leaf(x), order=SortOrder.DESC).astype(int)
    assert node.ne[0] == 4
    assert (np.take_along_axis(x, order[0, 0], axis=-1)[:, 0] == x.max(axis=-1)).all()
