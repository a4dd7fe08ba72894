"""Rows by index, copies, joins and repetitions of the reference kernels."""

from __future__ import annotations

import numpy as np
import pytest
from reference_run import (
    DECODED,
    ENCODED,
    F64Array,
    compute,
    data,
    each_type,
    ids,
    leaf,
    normal,
    place,
    run,
    values_of,
)

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, Tensor, ops
from lamella.graph.ops.check import FLOATS

PLAIN = [t for t in GGMLType if not t.is_quantized]
QUANTIZED = [t for t in ENCODED if t.is_quantized]


def as_type(x: F64Array, type: GGMLType) -> F64Array:
    """x rounded to the type and back."""
    return values_of(leaf(x, type))


@each_type(DECODED)
def test_get_rows_decodes(type: GGMLType) -> None:
    a = leaf(normal(7, 512), type)
    node = ops.get_rows(a, ids([6, 0, 3, 3]))
    assert node.type is GGMLType.F32
    assert (run(node)[0, 0] == values_of(a)[0, 0, [6, 0, 3, 3]]).all()


@each_type((GGMLType.F32, GGMLType.BF16, GGMLType.Q8_0))
def test_get_rows_in_batches(type: GGMLType) -> None:
    a = leaf(normal(3, 2, 5, 64), type)
    rows = np.random.default_rng(0).integers(0, 5, (3, 2, 4))
    result = run(ops.get_rows(a, ids(rows)))
    assert result.shape == (3, 2, 4, 64)
    for j, i, m in np.ndindex(rows.shape):
        assert (result[j, i, m] == values_of(a)[j, i, rows[j, i, m]]).all()


def test_get_rows_of_strided_sources() -> None:
    a = leaf(normal(6, 8))
    some = ops.view(ids([[5, 9], [0, 9], [2, 9]]), (1, 3), nb=(4, 8))
    columns = ops.transpose(a)
    flat = ops.reshape(ops.cont(some), (3,))
    assert (run(ops.get_rows(columns, flat))[0, 0] == values_of(a)[0, 0].T[[5, 0, 2]]).all()
    # ids with gaps between them: every second one
    gaps = compute(ops.transpose(some))
    assert gaps.nb[0] == 8
    assert (run(ops.get_rows(columns, gaps))[0, 0] == values_of(a)[0, 0].T[[5, 0, 2]]).all()


def test_get_rows_keeps_integers() -> None:
    large = 2**31 - 1  # float32 would round it
    a = ids([[1, large], [-large, 4]])
    node = compute(ops.get_rows(a, ids([1, 0])))
    assert data(node).tolist() == [[[[-large, 4], [1, large]]]]


def test_get_rows_without_rows() -> None:
    assert run(ops.get_rows(leaf(normal(4, 32), GGMLType.Q8_0), ids([]))).shape == (1, 1, 0, 32)
    assert run(ops.get_rows(leaf(np.zeros((4, 0))), ids([3]))).shape == (1, 1, 1, 0)


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1, -(2**31)])
def test_get_rows_refuses_indices_out_of_range(bad: int) -> None:
    node = ops.get_rows(leaf(normal(4, 8)), ids([0, bad, 1]))
    with pytest.raises(
        BackendError, match=f"get_rows .*: row {bad} must be at least 0 and below 4"
    ):
        compute(node)


def test_get_rows_refuses_rows_of_an_empty_tensor() -> None:
    with pytest.raises(BackendError, match="row 0 must be at least 0 and below 0"):
        compute(ops.get_rows(leaf(np.zeros((0, 8))), ids([0])))


@each_type(ENCODED)
def test_set_rows_encodes(type: GGMLType) -> None:
    a, b = leaf(normal(6, 512), type), leaf(normal(3, 512, seed=1))
    before = values_of(a)[0, 0]
    for id_type in (GGMLType.I64, GGMLType.I32):
        after = run(ops.set_rows(a, b, ids([4, 0, 5], id_type)))[0, 0]
        assert (after[[4, 0, 5]] == as_type(normal(3, 512, seed=1), type)[0, 0]).all()
        assert (after[[1, 2, 3]] == before[[1, 2, 3]]).all()


def test_set_rows_into_integers() -> None:
    a = ids([[1, 2], [3, 4]])
    assert run(ops.set_rows(a, leaf([[7.9, -7.9]]), ids([1])))[0, 0].tolist() == [[1, 2], [7, -7]]


def test_set_rows_repeats_ids_over_batches() -> None:
    b = normal(4, 6, 2, 3)
    rows = np.array([[[4, 1], [0, 3], [2, 4]], [[1, 0], [3, 2], [0, 1]]])  # (2, 3, 2)
    a = leaf(np.zeros((4, 6, 5, 3)))
    result = run(ops.set_rows(a, leaf(b), ids(rows, GGMLType.I64)))
    for j, i, m in np.ndindex(4, 6, 2):
        assert (result[j, i, rows[j % 2, i % 3, m]] == b[j, i, m]).all()
    assert np.count_nonzero(result) == b.size


def test_set_rows_writes_in_order_into_strided_rows() -> None:
    a = leaf(np.zeros((4, 8)))
    part = ops.view(a, (3, 4), nb=(4, 32), offset=8)
    b = ops.view(leaf(normal(3, 6)), (3, 3), nb=(4, 24), offset=12)
    run(ops.set_rows(part, b, ids([2, 0, 2])))
    expected = np.zeros((4, 8))
    expected[0, 2:5], expected[2, 2:5] = normal(3, 6)[1, 3:], normal(3, 6)[2, 3:]
    assert (values_of(a)[0, 0] == expected).all()


@pytest.mark.parametrize("bad", [-1, 4, 2**40])
def test_set_rows_refuses_indices_out_of_range_and_writes_nothing(bad: int) -> None:
    a = leaf(np.zeros((4, 8)))
    node = ops.set_rows(a, leaf(normal(3, 8)), ids([0, 1, bad], GGMLType.I64))
    with pytest.raises(
        BackendError, match=f"set_rows .*: row {bad} must be at least 0 and below 4"
    ):
        compute(node)
    assert not values_of(a).any()


def test_set_rows_without_rows() -> None:
    a = leaf(np.zeros((4, 0)))
    assert run(ops.set_rows(a, leaf(np.zeros((1, 0))), ids([3]))).shape == (1, 1, 4, 0)
    empty = leaf(np.zeros((0, 8)))
    with pytest.raises(BackendError, match="row 0 must be"):
        compute(ops.set_rows(empty, leaf(np.zeros((1, 8))), ids([0])))


@each_type(FLOATS)
def test_cast_between_floats(type: GGMLType) -> None:
    a = leaf(normal(2, 3, 4, 5), type)
    for to in FLOATS:
        node = ops.cast(ops.permute(a, (2, 0, 3, 1)), to)
        expected = as_type(values_of(a).transpose(1, 3, 0, 2), to)
        # (0, 1, 2, 3) of a become 2, 0, 3, 1
        assert node.ne == (4, 2, 5, 3)
        assert (run(node) == expected).all()


@each_type(QUANTIZED)
def test_cast_to_and_from_quantized(type: GGMLType) -> None:
    for source in FLOATS:
        a = leaf(normal(2, 1, 3, 256), source)
        node = ops.cast(ops.permute(a, (0, 3, 2, 1)), type)
        assert (run(node) == as_type(values_of(a).transpose(2, 1, 0, 3), type)).all()
    packed = leaf(normal(2, 1, 3, 256), type)
    turned = ops.permute(packed, (0, 2, 1, 3))
    assert (run(ops.cast(turned, GGMLType.F32)) == values_of(packed).transpose(0, 2, 1, 3)).all()


def test_cast_between_f32_and_i32() -> None:
    assert run(ops.cast(leaf([1.9, -1.9, 3.0]), GGMLType.I32)).ravel().tolist() == [1, -1, 3]
    assert run(ops.cast(ids([7, -8]), GGMLType.F32)).ravel().tolist() == [7, -8]


def test_cast_overflows_to_inf() -> None:
    assert run(ops.cast(leaf([1e6, -1e6]), GGMLType.F16)).ravel().tolist() == [np.inf, -np.inf]


def test_quantizing_infinite_and_tiny_numbers_does_not_warn() -> None:
    odd = leaf(np.array([[np.inf] * 256, [1e-45] * 256, [np.nan] * 256, [3e38] * 256]))
    for type in QUANTIZED:
        assert compute(ops.cast(odd, type)).type is type


@each_type(PLAIN)
def test_same_type_moves_bit_for_bit(type: GGMLType) -> None:
    a = Tensor(type, (5, 4, 3, 2))
    place(a)
    span = a.buffer[a.offset : a.offset + a.nbytes]
    span[...] = np.random.default_rng(0).integers(0, 256, a.nbytes, np.uint8)
    bytes_of = np.frombuffer(span.tobytes(), f"V{type.type_size}").reshape(2, 3, 4, 5)
    for build in (ops.cont, ops.dup):
        assert data(compute(build(a))).tobytes() == span.tobytes()
        turned = build(ops.permute(a, (1, 3, 0, 2)))
        assert data(compute(turned)).tobytes() == bytes_of.transpose(2, 0, 3, 1).tobytes()
    again = compute(ops.repeat(a, (10, 4, 3, 4)))
    assert data(again).tobytes() == np.tile(bytes_of, (2, 1, 1, 2)).tobytes()
    joined = compute(ops.concat(a, a, 2))
    assert data(joined).tobytes() == np.concatenate([bytes_of, bytes_of], 1).tobytes()


@each_type(t for t in GGMLType if t.is_quantized)
def test_quantized_copies_keep_bytes(type: GGMLType) -> None:
    n = type.block_size
    a = Tensor(type, (2 * n, 3, 2))
    place(a)
    rows = np.random.default_rng(0).integers(0, 256, (2, 3, 2 * type.type_size), np.uint8)
    data(a)[...] = rows
    assert data(compute(ops.dup(a))).tobytes() == rows.tobytes()
    assert data(compute(ops.cont(a, (6 * n, 2)))).tobytes() == rows.tobytes()
    assert data(compute(ops.cpy(a, leaf_like(a)))).tobytes() == rows.tobytes()
    turned = compute(ops.cont(ops.permute(a, (0, 2, 1, 3))))
    assert data(turned).tobytes() == rows.transpose(1, 0, 2).tobytes()


def leaf_like(t: Tensor) -> Tensor:
    copy = Tensor(t.type, t.ne)
    place(copy)
    return copy


def test_cpy_keeps_the_order_of_elements_when_shapes_differ() -> None:
    x = normal(4, 6)
    for type in (*FLOATS, GGMLType.F32):
        b = leaf(np.zeros((2, 3, 4)), type)
        run(ops.cpy(ops.transpose(leaf(x)), b))
        assert (values_of(b).ravel() == as_type(x.T.copy(), type).ravel()).all()


def test_cpy_into_a_strided_destination() -> None:
    b = leaf(np.zeros((6, 4)))
    run(ops.cpy(leaf(normal(4, 6)), ops.transpose(b)))
    assert (values_of(b)[0, 0] == normal(4, 6).T).all()
    part = leaf(np.zeros((4, 64)), GGMLType.Q8_0)
    run(ops.cpy(leaf(normal(4, 32)), ops.view(part, (32, 4), nb=(34, 68), offset=34)))
    assert (values_of(part)[0, 0, :, 32:] == as_type(normal(4, 32), GGMLType.Q8_0)[0, 0]).all()
    assert not values_of(part)[0, 0, :, :32].any()


def test_cpy_between_quantized_and_other_shapes() -> None:
    x = normal(2, 64)
    b = leaf(np.zeros((4, 32)), GGMLType.Q4_0)
    run(ops.cpy(leaf(x), b))
    assert (values_of(b) == as_type(x.reshape(4, 32), GGMLType.Q4_0)).all()
    c = leaf(np.zeros((1, 128)))
    assert (run(ops.cpy(b, c)).ravel() == values_of(b).ravel()).all()


def test_cpy_of_overlapping_memory() -> None:
    a = leaf(np.arange(10.0))
    run(ops.cpy(ops.view(a, (9,)), ops.view(a, (9,), offset=4)))
    assert values_of(a).ravel().tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8]
    square = leaf(normal(5, 5))
    run(ops.cpy(ops.transpose(square), square))
    assert (values_of(square)[0, 0] == normal(5, 5).T).all()


def test_cont_in_another_shape() -> None:
    a = leaf(normal(2, 3, 4))
    result = run(ops.cont(ops.transpose(a), (2, 12)))
    assert (result.ravel() == normal(2, 3, 4).transpose(0, 2, 1).ravel()).all()


@pytest.mark.parametrize("dim", range(4))
def test_concat(dim: int) -> None:
    shape = [2, 3, 4, 5]
    shape[3 - dim] = 1
    a, b = normal(2, 3, 4, 5), normal(*shape, seed=1)
    result = run(ops.concat(leaf(a), leaf(b), dim))
    a_part, b_part = np.split(result, [a.shape[3 - dim]], axis=3 - dim)
    assert (a_part == a).all()
    assert (b_part == b).all()


def test_concat_of_strided_and_empty_sources() -> None:
    a, b = normal(3, 4), normal(3, 2, seed=1)
    result = run(ops.concat(ops.transpose(leaf(a)), ops.transpose(leaf(b)), 1))
    assert (result[0, 0] == [*a.T, *b.T]).all()
    nothing = leaf(np.zeros((0, 4)))
    assert (run(ops.concat(nothing, leaf(a), 1))[0, 0] == a).all()
    assert run(ops.concat(nothing, nothing, 1)).shape == (1, 1, 0, 4)


@pytest.mark.parametrize("ne", [(5, 4, 3, 2), (10, 4, 9, 2), (5, 8, 3, 6), (0, 4, 3, 2)])
def test_repeat(ne: tuple[int, int, int, int]) -> None:
    x = normal(2, 3, 4, 5)
    result = run(ops.repeat(leaf(x), ne))
    assert result.shape == ne[::-1]
    for index in np.ndindex(result.shape):
        wrapped = tuple(i % n for i, n in zip(index, x.shape, strict=True))
        assert result[index] == x[wrapped]


def test_repeat_of_a_strided_and_an_empty_source() -> None:
    x = normal(2, 3)
    assert (run(ops.repeat(ops.transpose(leaf(x)), (4, 3)))[0, 0] == np.hstack([x.T, x.T])).all()
    assert run(ops.repeat(leaf(np.zeros((3, 0))), (5, 0))).shape == (1, 1, 0, 5)


def test_copies_of_empty_tensors() -> None:
    for type in (GGMLType.F32, GGMLType.Q8_0):
        empty = leaf(np.zeros((0, 32)), type)
        assert run(ops.dup(empty)).shape == (1, 1, 0, 32)
        assert run(ops.cont(empty, (64, 0))).shape == (1, 1, 0, 64)
        assert run(ops.cast(empty, GGMLType.F32)).shape == (1, 1, 0, 32)
    assert run(ops.cast(leaf(np.zeros((0, 32))), GGMLType.Q8_0)).shape == (1, 1, 0, 32)
    assert run(ops.cpy(leaf(np.zeros((0, 4))), leaf(np.zeros((3, 0))))).shape == (1, 1, 3, 0)
