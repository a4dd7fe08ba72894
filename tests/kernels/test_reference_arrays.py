"""array_of, conversions and supports_op of the reference kernels."""

from __future__ import annotations

import numpy as np
import pytest
from reference_run import DECODED, ENCODED, compute, data, each_type, ids, leaf, normal, values_of

from lamella.alloc import array_of
from lamella.base.errors import BackendError
from lamella.graph import GGMLType, Op, Tensor, ops
from lamella.graph.op import VIEW_OPS
from lamella.graph.ops.check import FLOATS
from lamella.kernels.reference import KERNELS, supports_op
from lamella.kernels.reference.arrays import check_index, dot, from_f32, tile, to_f32

# types that gguf 0.19 cannot read or write
UNREADABLE = {"Q8_1", "Q8_K", "Q1_0", "I8", "I16", "I32", "I64", "F64"}
WRITABLE = {
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"),
    "IQ4_NL",  # by kernels.quants
}


def test_types_that_can_be_read_and_written() -> None:
    assert {t.name for t in DECODED} == {t.name for t in GGMLType} - UNREADABLE
    assert {t.name for t in ENCODED} == WRITABLE


@each_type(t for t in GGMLType if not t.is_quantized)
def test_array_of_plain_type(type: GGMLType) -> None:
    t = Tensor(type, (5, 4, 3, 2))
    t.offset = 3  # unaligned
    memory = np.zeros(t.nbytes + 7, np.uint8)
    array = array_of(t, memory)
    assert array.shape == (2, 3, 4, 5)
    assert array.strides == t.nb[::-1]
    assert array.itemsize == type.type_size
    assert array.dtype.kind == {"F": "f", "I": "i", "B": "u"}[type.name[0]]
    array[...] = 1
    assert not memory[:3].any()
    assert not memory[3 + t.nbytes :].any()
    assert (array == 1).all()


@each_type(t for t in GGMLType if t.is_quantized)
def test_array_of_quantized_type_is_rows_of_blocks(type: GGMLType) -> None:
    t = Tensor(type, (2 * type.block_size, 4, 3))
    memory = np.arange(t.nbytes).astype(np.uint8)
    array = array_of(t, memory)
    assert array.shape == (1, 3, 4, 2 * type.type_size)
    assert array.dtype == np.uint8
    assert array.tobytes() == memory.tobytes()


def test_array_of_views_shares_memory() -> None:
    a = leaf(normal(3, 4, 8))
    transposed = compute(ops.transpose(a))
    assert (data(transposed) == data(a).transpose(0, 1, 3, 2)).all()
    part = compute(ops.view(a, (2, 3), nb=(4, 32), offset=40))
    data(part)[...] = 7
    assert (data(a)[0, 0, 1:4, 2:4] == 7).all()
    assert (data(a) == 7).sum() == 6


def test_array_of_part_of_a_quantized_tensor() -> None:
    a = leaf(normal(6, 64), GGMLType.Q8_0)
    part = compute(ops.view(a, (32, 2), nb=(34, 3 * 68), offset=68 + 34))
    assert data(part).shape == (1, 1, 2, 34)
    assert (values_of(part)[0, 0] == values_of(a)[0, 0, 1::3, 32:]).all()


@pytest.mark.parametrize("shape", [(0,), (0, 4), (32, 0), (32, 2, 0, 3)])
@each_type((GGMLType.F32, GGMLType.BF16, GGMLType.Q4_0))
def test_empty_arrays(type: GGMLType, shape: tuple[int, ...]) -> None:
    t = Tensor(type, shape)
    array = array_of(t, np.zeros(0, np.uint8))
    assert array.size == 0
    decoded = to_f32(type, array)
    assert decoded.shape == t.ne[::-1]
    encoded = from_f32(type, decoded)
    assert encoded.shape == array.shape
    assert encoded.dtype == array.dtype


@each_type(DECODED)
def test_to_f32_makes_a_contiguous_copy(type: GGMLType) -> None:
    t = leaf(normal(2, 3, 4, 256), type)
    permuted = compute(ops.permute(t, (0, 3, 1, 2)))
    for source, expected in ((t, values_of(t)), (permuted, values_of(t).transpose(2, 0, 1, 3))):
        array = to_f32(type, data(source))
        assert array.dtype == np.float32
        assert array.flags.c_contiguous
        assert not np.shares_memory(array, t.buffer)
        assert (array == expected).all()


def test_bf16_rounds_to_nearest_even() -> None:
    # bits of float32 -> upper half; ties at 0x8000 go to the even one
    cases = {
        0x3F80_0000: 0x3F80,
        0x3F80_7FFF: 0x3F80,
        0x3F80_8000: 0x3F80,
        0x3F80_8001: 0x3F81,
        0x3F81_8000: 0x3F82,
        0xBF81_8000: 0xBF82,
        0x7F7F_FFFF: 0x7F80,
        0x7F80_0000: 0x7F80,
        0x7F80_0001: 0x7FC0,
    }
    x = np.array(list(cases), np.uint32).view(np.float32)
    assert from_f32(GGMLType.BF16, x).tolist() == list(cases.values())


def test_f16_rounds_to_nearest_even_and_i32_towards_zero() -> None:
    ties = np.array([1 + 2**-11, 1 + 3 * 2**-11, -1 - 2**-11], np.float32)
    expected = [1, 1 + 2 * 2**-10, -1]
    assert from_f32(GGMLType.F16, ties).tolist() == expected
    floats = np.array([1.9, -1.9, 0.5, 2**30], np.float32)
    assert from_f32(GGMLType.I32, floats).tolist() == [1, -1, 0, 2**30]


def test_check_index_names_op_node_index_and_limit() -> None:
    node = ops.get_rows(leaf(normal(4, 8)), ids([0])).named("rows")
    check_index(node, "row", np.array([0, 3]), 4)
    check_index(node, "row", np.array([], np.int32), 0)
    for bad in (-1, 4):
        message = rf"get_rows rows\[8\] F32: row {bad} must be at least 0 and below 4"
        with pytest.raises(BackendError, match=message):
            check_index(node, "row", np.array([1, bad]), 4)


def test_tile_copies() -> None:
    x = np.arange(6).reshape(2, 3)
    assert tile(x, (4, 3)).tolist() == [[0, 1, 2], [3, 4, 5]] * 2
    assert not np.shares_memory(tile(x, (2, 3)), x)
    assert tile(x[:0], (0, 9)).shape == (0, 9)


def test_dot_does_not_depend_on_layout_or_neighbors() -> None:
    a = normal(1003, 7).astype(np.float32)
    b = normal(1003, seed=1).astype(np.float32)
    # the transposed rows are strided, and NumPy's products keep that order
    together = dot(a.T, b)
    alone = [dot(np.ascontiguousarray(row), b[::1]) for row in a.T]
    assert together.tolist() == [float(x) for x in alone]


def test_every_op_with_a_builder_has_a_kernel() -> None:
    assert set(KERNELS) == set(Op) - VIEW_OPS - {Op.NONE}


def test_supports_leafs_and_views() -> None:
    a = leaf(normal(4, 8))
    for t in (a, ops.view(a, (2, 2)), ops.reshape(a, (4, 8)), ops.transpose(a)):
        assert supports_op(t)
    assert supports_op(ops.permute(a, (1, 0, 2, 3)))
    assert supports_op(Tensor(GGMLType.Q8_K, (256,)))


def test_ops_without_kernel_are_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(KERNELS, Op.SQR)
    assert not supports_op(ops.sqr(leaf(normal(8))))


@each_type(t for t in GGMLType if t.is_quantized or t in FLOATS)
def test_supports_weights_that_can_be_read(type: GGMLType) -> None:
    readable = type.name not in UNREADABLE
    a, x = Tensor(type, (256, 4)), Tensor(GGMLType.F32, (256, 2))
    assert supports_op(ops.mul_mat(a, x)) == readable
    some = Tensor(GGMLType.I32, (1, 2))
    experts, rows = Tensor(type, (256, 4, 3)), Tensor(GGMLType.F32, (256, 1, 2))
    assert supports_op(ops.mul_mat_id(experts, rows, some)) == readable
    row_ids = Tensor(GGMLType.I32, (2,))
    assert supports_op(ops.get_rows(a, row_ids)) == readable
    assert supports_op(ops.dup(a))


@each_type(t for t in GGMLType if t.is_quantized)
def test_supports_conversions_that_gguf_has(type: GGMLType) -> None:
    x, b = Tensor(GGMLType.F32, (256, 4)), Tensor(type, (256, 4))
    row_ids = Tensor(GGMLType.I64, (4,))
    assert supports_op(ops.cpy(x, b)) == (type.name in WRITABLE)
    assert supports_op(ops.cast(x, type)) == (type.name in WRITABLE)
    assert supports_op(ops.set_rows(b, x, row_ids)) == (type.name in WRITABLE)
    assert supports_op(ops.cpy(b, x)) == (type.name not in UNREADABLE)
    assert supports_op(ops.cpy(b, b))


def test_supports_float_and_integer_conversions() -> None:
    floats = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)
    pairs = [(a, b) for a in floats for b in floats]
    pairs += [(GGMLType.F32, GGMLType.I32), (GGMLType.I32, GGMLType.F32)]
    pairs += [(t, t) for t in GGMLType]
    for a, b in pairs:
        assert supports_op(ops.cast(Tensor(a, (256, 4)), b)), (a.name, b.name)


def test_quantized_rows_with_gaps_are_not_supported() -> None:
    a = Tensor(GGMLType.Q8_0, (256, 4))
    gaps = Tensor(GGMLType.Q8_0, (64, 4), nb=(68, 272, 1088, 1088), view_src=a)
    assert not supports_op(ops.mul_mat(gaps, Tensor(GGMLType.F32, (64, 1))))
