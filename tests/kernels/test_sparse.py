"""Sparse attention's choice of positions, and attention to the chosen cells."""

from __future__ import annotations

import numpy as np
import pytest
import reference_run
from attention_cases import SEQUENCE, TABLE, index_scores
from backends import Backend, each_backend
from cpu_run import compute as cpu_compute
from reference_run import Array, assert_close, compute, data, ids, leaf, normal, values_of

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, Tensor, ops

F32 = GGMLType.F32
END = np.array([96, 0, 21, 33, 20])  # at most 20: all positions are chosen
TOKENS = list(range(5))


def formula(node: Tensor) -> Array:
    """The scores, from the values of a node's sources."""
    q, k, w = (values_of(src) for src in node.src[:3])
    expected = np.full((5, 96), -np.inf)
    for t, n in enumerate(END):
        cells = [32 * TABLE[SEQUENCE[t]][j // 32] + j % 32 for j in range(n)]
        products = np.maximum(q[0, t] @ k[0, 0, cells].T, 0)
        expected[t, :n] = 0 if n <= 20 else w[0, 0, t] @ products
    return expected


def assert_scores(actual: Array, expected: Array) -> None:
    assert (np.isinf(actual) == np.isinf(expected)).all()
    assert (actual[4, :20] == 0).all()
    seen = np.isfinite(expected)
    assert_close(actual[seen].astype(np.float64), expected[seen], 1e-5)


@pytest.mark.parametrize("type", [F32, GGMLType.F16, GGMLType.Q8_0])
def test_the_reference_is_the_formula(type: GGMLType) -> None:
    node = index_scores(TOKENS, type, END)
    assert_scores(reference_run.run(node)[0, 0], formula(node))


@each_backend
def test_scores(on: Backend) -> None:
    for type in (F32, GGMLType.F16, GGMLType.Q8_0):
        node = index_scores(TOKENS, type, END)
        assert_scores(on.compute(node)[0, 0], formula(node))


@each_backend
def test_positions_that_are_seen_come_first(on: Backend) -> None:
    """Also if their scores are NaN or below all numbers."""
    nan, low = (index_scores(TOKENS, F32, END) for _ in range(2))
    data(nan.src[2])[...] = np.nan
    data(low.src[2])[...] = -np.inf
    for node in (nan, low):
        for scores in (on.compute(node)[0, 0], reference_run.run(node)[0, 0]):
            for t, n in enumerate(END):
                assert not np.isnan(scores[t]).any()
                assert (scores[t, :n] > scores[t, n:].max(initial=-np.inf)).all()


@each_backend
def test_a_token_alone_has_the_same_bits(on: Backend) -> None:
    whole = on.compute(index_scores(TOKENS, GGMLType.F16, END))[0, 0].copy()
    for t in TOKENS:
        alone = on.compute(index_scores([t], GGMLType.F16, END))[0, 0]
        assert alone[0].tobytes() == whole[t].tobytes()


@pytest.mark.parametrize("n_threads", [2, 3])
def test_bits_do_not_depend_on_threads(n_threads: int) -> None:
    whole = cpu_compute(index_scores(TOKENS, F32, END), 1).tobytes()
    assert cpu_compute(index_scores(TOKENS, F32, END), n_threads).tobytes() == whole


@each_backend
def test_pages_that_are_not_seen_may_be_invalid(on: Backend) -> None:
    table = [[5, 0, -7], [2, 99, 1]]
    positions = np.array([[0, 63, 95], [31, 32, 64]])
    node = ops.page_cells(ids(positions), ids(table), ids([0, 1]), page_size=32)
    assert on.compute(node).tolist() == [[[[160, 31, -193], [95, 99 * 32, 32]]]]


@each_backend
def test_attention_to_all_cells_is_attention_to_all_positions(on: Backend) -> None:
    """Pages of one cell, in the order of positions; each token is a sequence of its own."""
    pool = leaf(normal(6 * 32, 96, seed=5) / 4, GGMLType.F16)
    q, end, n = leaf(normal(5, 8, 96)), np.array([96, 40, 21, 33, 1]), 96
    values = ops.view(pool, (64, pool.ne[1]), pool.nb)
    zeros, seq = ids(np.zeros(5)), ids(SEQUENCE)
    whole = ops.flash_attn_ext(
        q, pool, values, ids(TABLE), seq, zeros, zeros, ids(end), page_size=32, scale=0.1
    )
    positions = ids(np.broadcast_to(np.arange(n), (5, n)))
    cells = compute(ops.page_cells(positions, ids(TABLE), seq, page_size=32))
    cells = ids(values_of(cells)[0, 0])
    one = (cells, ids(np.arange(5)), zeros, zeros, ids(end))
    chosen = ops.flash_attn_ext(q, pool, values, *one, page_size=1, scale=0.1)
    assert_close(on.compute(chosen), on.compute(whole), 1e-4)


@pytest.mark.parametrize(("what", "limit"), [("seq", 2), ("end", 97), ("page", 6)])
def test_wrong_numbers_are_refused(what: str, limit: int) -> None:
    seq, end, table = SEQUENCE.copy(), END.copy(), np.array(TABLE)
    match what:
        case "seq":
            seq[2] = 2
        case "end":
            end[2] = 97
        case _:
            table[0, 1] = 6
    whole = index_scores(TOKENS, F32, END)
    args = (*whole.src[:3], *map(ids, (table, seq, end)))
    for run in (compute, cpu_compute):
        with pytest.raises(BackendError, match=f"must be at least 0 and below {limit}"):
            run(ops.index_scores(*args, page_size=32, top_k=20))
