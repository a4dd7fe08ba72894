"""Matrix products of the reference kernels, compared with float64 einsum."""

from __future__ import annotations

import numpy as np
import pytest
from reference_run import (
    DECODED,
    ENCODED,
    F64Array,
    assert_close,
    compute,
    data,
    each_type,
    ids,
    leaf,
    normal,
    run,
    values_of,
)

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, Tensor, ops
from lamella.graph.ops.check import FLOATS
from lamella.kernels.reference.matrix import N_ROWS_DECODED


def products(a: F64Array, b: F64Array) -> F64Array:
    """(y, x, n, k) and (j, i, m, k) -> (j, i, m, n); a's batches repeat over b's."""
    stretched = np.repeat(a, b.shape[0] // a.shape[0], axis=0)
    stretched = np.repeat(stretched, b.shape[1] // a.shape[1], axis=1)
    result: F64Array = np.einsum("jink,jimk->jimn", stretched, b)
    return result


@each_type([t for t in DECODED if t.is_quantized and t not in ENCODED])
def test_random_blocks_have_every_byte(type: GGMLType) -> None:
    assert (np.unique(data(leaf(np.zeros((37, 512)), type))) == np.arange(256)).all()


@each_type(DECODED)
def test_mul_mat_decodes_weights(type: GGMLType) -> None:
    a, b = leaf(normal(5, 512), type), leaf(normal(3, 512, seed=1))
    assert_close(run(ops.mul_mat(a, b)), products(values_of(a), values_of(b)), 5e-6)


@each_type(FLOATS)
def test_mul_mat_by_other_types(type: GGMLType) -> None:
    b = leaf(normal(3, 64, seed=1), type)
    for a_type in (*FLOATS, GGMLType.Q4_0):
        a = leaf(normal(5, 64), a_type)
        assert_close(run(ops.mul_mat(a, b)), products(values_of(a), values_of(b)))


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((1, 1, 1, 1), (1, 1, 1, 1)),
        ((1, 1, 4, 7), (1, 1, 1, 7)),
        ((1, 1, 4, 7), (2, 3, 5, 7)),
        ((1, 2, 4, 7), (3, 6, 5, 7)),
        ((2, 3, 4, 7), (4, 3, 5, 7)),
        ((2, 2, 1, 33), (4, 8, 2, 33)),
        ((1, 1, N_ROWS_DECODED + 3, 2), (1, 1, 2, 2)),
    ],
)
def test_mul_mat_shapes(a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    a, b = normal(*a_shape), normal(*b_shape, seed=1)
    assert_close(run(ops.mul_mat(leaf(a), leaf(b))), products(a, b))


@each_type((GGMLType.F32, GGMLType.F16, GGMLType.Q8_0))
def test_mul_mat_of_strided_sources(type: GGMLType) -> None:
    k = leaf(normal(6, 2, 32), type)  # (cells, heads, head_dim), like a KV cache
    q = leaf(normal(5, 4, 32, seed=1))
    node = ops.mul_mat(ops.permute(k, (0, 2, 1, 3)), ops.permute(q, (0, 2, 1, 3)))
    heads_first = values_of(k).transpose(0, 2, 1, 3), values_of(q).transpose(0, 2, 1, 3)
    assert_close(run(node), products(*heads_first))
    # rows of b with gaps between their elements
    turned = ops.transpose(leaf(normal(32, 5, seed=1)))
    flat = leaf(normal(3, 32), type)
    expected = products(values_of(flat), normal(1, 1, 32, 5, seed=1).swapaxes(2, 3))
    assert_close(run(ops.mul_mat(flat, turned)), expected)


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [((0, 7), (2, 7)), ((3, 7), (0, 7)), ((3, 7), (0, 2, 7)), ((2, 3, 7), (0, 2, 3, 7))],
)
def test_mul_mat_of_empty_tensors(a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    node = compute(ops.mul_mat(leaf(np.zeros(a_shape)), leaf(np.zeros(b_shape))))
    assert node.is_empty


@each_type((GGMLType.F32, GGMLType.Q8_0))
def test_mul_mat_of_empty_rows_is_zero(type: GGMLType) -> None:
    # a view of a larger tensor: an empty row by itself counts as transposed
    a = ops.view(leaf(normal(3, 32), type), (0, 3), nb=(type.type_size, type.row_size(32)))
    node = ops.mul_mat(a, leaf(np.zeros((2, 0))))
    assert run(node).tolist() == [[[[0.0] * 3] * 2]]


def test_mul_mat_sums_in_float32() -> None:
    # the sum loses digits on purpose: other backends sum in float32 too
    large = leaf([[2.0**24, 1.0]])
    assert run(ops.mul_mat(large, leaf([[1.0, 1.0]]))).item() == 2.0**24


def chosen_products(a: Tensor, b: Tensor, chosen: list[list[int]]) -> F64Array:
    """The product of each token and use, one by one: (1, n_tokens, n_used, n)."""
    experts, rows = values_of(a)[0], values_of(b)[0]
    n_tokens, n_used = np.shape(chosen)
    result = np.empty((1, n_tokens, n_used, experts.shape[1]))
    for t, u in np.ndindex(n_tokens, n_used):
        result[0, t, u] = experts[chosen[t][u]] @ rows[t, u % rows.shape[1]]
    return result


CHOSEN = [[0, 3, 1, 1], [2, 2, 2, 0], [3, 1, 0, 2]]


@each_type(DECODED)
def test_mul_mat_id_decodes_experts(type: GGMLType) -> None:
    a, b = leaf(normal(4, 3, 256), type), leaf(normal(3, 1, 256, seed=1))
    result = run(ops.mul_mat_id(a, b, ids(CHOSEN)))
    assert_close(result, chosen_products(a, b, CHOSEN), 5e-6)


@pytest.mark.parametrize("n_rows", [1, 2, 4])
@each_type(FLOATS)
def test_mul_mat_id_repeats_rows_over_uses(n_rows: int, type: GGMLType) -> None:
    a, b = leaf(normal(4, 5, 7)), leaf(normal(3, n_rows, 7, seed=1), type)
    assert_close(run(ops.mul_mat_id(a, b, ids(CHOSEN))), chosen_products(a, b, CHOSEN))


def test_mul_mat_id_of_strided_sources() -> None:
    a, b = leaf(normal(3, 4, 7)), leaf(normal(2, 3, 7, seed=1))
    table = ids([[*row, 9] for row in CHOSEN])
    some = ops.view(table, (4, 3), nb=(4, 20))
    experts, rows = ops.permute(a, (0, 2, 1, 3)), ops.permute(b, (0, 2, 1, 3))
    result = run(ops.mul_mat_id(experts, rows, some))
    assert_close(result, chosen_products(experts, rows, CHOSEN))


def test_mul_mat_id_with_top_k() -> None:
    scores = normal(3, 6)
    chosen = ops.top_k(leaf(scores), 2)
    a, b = leaf(normal(6, 5, 8)), leaf(normal(3, 1, 8, seed=1))
    expected = [np.argsort(-row)[:2].tolist() for row in scores]
    result = run(ops.mul_mat_id(a, b, chosen))
    assert_close(result, chosen_products(a, b, expected))


@pytest.mark.parametrize("bad", [-1, 4])
def test_mul_mat_id_refuses_experts_out_of_range(bad: int) -> None:
    a, b = leaf(normal(4, 5, 7)), leaf(normal(1, 1, 7))
    node = ops.mul_mat_id(a, b, ids([[0, bad]]))
    message = f"mul_mat_id .*: expert {bad} must be at least 0 and below 4"
    with pytest.raises(BackendError, match=message):
        compute(node)


def test_mul_mat_id_of_empty_tensors() -> None:
    a = leaf(normal(4, 5, 7))
    no_tokens = ops.mul_mat_id(a, leaf(np.zeros((0, 1, 7))), ids(np.zeros((0, 2))))
    assert run(no_tokens).shape == (1, 0, 2, 5)
    no_uses = ops.mul_mat_id(a, leaf(np.zeros((3, 1, 7))), ids(np.zeros((3, 0))))
    assert run(no_uses).shape == (1, 3, 0, 5)
