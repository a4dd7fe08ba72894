"""Rows by index, copies, joins and repetitions of the CUDA kernels: bit for bit the reference's."""

from __future__ import annotations

import cuda_run
import numpy as np
import pytest
import reference_run
from cuda_check import FLOATS, assert_same
from cuda_grid import needs_compiler
from reference_run import each_type, ids, leaf, normal

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, Tensor, ops
from lamella.kernels.cuda.ops import elementwise
from lamella.kernels.cuda.ops.data import DECODED, ENCODED

pytestmark = needs_compiler

F32, F16, BF16, I32 = GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.I32
Q8_0 = GGMLType.Q8_0
PLAIN = [t for t in GGMLType if not t.is_quantized]
READ = [*FLOATS, *sorted(DECODED)]
WRITTEN = [*FLOATS, *sorted(ENCODED)]


def bits_of(values: list[int], type: GGMLType) -> Tensor:
    """A vector of bit patterns, among them those no arithmetic may change."""
    t = leaf(np.zeros(len(values)), type)
    reference_run.data(t).view(f"u{type.type_size}")[...] = values
    return t


# --- rows by index ---


@each_type(READ)
def test_get_rows_decodes(type: GGMLType) -> None:
    for shift in (0, 2):
        a = leaf(normal(7, 512), type, 0 if type is F32 else shift)
        assert_same(lambda a=a: ops.get_rows(a, ids([6, 0, 3, 3])))


@each_type((F32, BF16, Q8_0))
@pytest.mark.parametrize("n", [64, 2080])
def test_get_rows_in_batches(type: GGMLType, n: int) -> None:
    a = leaf(normal(3, 2, 5, n), type)
    rows = np.random.default_rng(0).integers(0, 5, (3, 2, 4))
    assert_same(lambda: ops.get_rows(a, ids(rows)))


@each_type((*FLOATS, I32))
def test_get_rows_of_strided_sources(type: GGMLType) -> None:
    columns = ops.transpose(leaf(normal(6, 8), type))
    gaps = ops.transpose(ops.view(ids([[5, 9], [0, 9], [2, 9]]), (1, 3), nb=(4, 8)))
    assert_same(lambda: ops.get_rows(columns, gaps))


def test_get_rows_keeps_integers_and_nan() -> None:
    large = 2**31 - 1  # float32 would round it
    assert_same(lambda: ops.get_rows(ids([[1, large], [-large, 4]]), ids([1, 0])))
    a = bits_of([0x7FA00001, 0xFFC00123, 0x7F800000, 0x80000000], F32)
    node = ops.get_rows(a, ids([0]))
    assert cuda_run.compute(node).tobytes() == reference_run.data(a).tobytes()


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1, -(2**31)])
def test_get_rows_refuses_indices_out_of_range(bad: int) -> None:
    node = ops.get_rows(leaf(normal(4, 8)), ids([0, bad, 1]))
    with pytest.raises(BackendError, match=f"index {bad} must be at least 0 and below 4"):
        cuda_run.compute(node)


@each_type(WRITTEN)
@pytest.mark.parametrize("index", [GGMLType.I64, I32], ids=lambda t: t.name)
def test_set_rows_encodes(type: GGMLType, index: GGMLType) -> None:
    def make() -> Tensor:
        b = normal(3, 96, seed=1)
        b[1, :32] = 0  # a block without scale
        b[2, 32:64] = np.repeat([-1.0, 1.0], 16)  # of the values furthest from 0 the first counts
        b[2, 64:] = np.r_[127, np.arange(-15, 16) + 0.5]  # halves are rounded away from 0
        return ops.set_rows(leaf(normal(6, 96), type), leaf(b), ids([4, 0, 5], index))

    assert_same(make)


@each_type((F32, Q8_0))
def test_set_rows_repeats_ids_over_batches(type: GGMLType) -> None:
    rows = np.array([[[4, 1], [0, 3], [2, 4]], [[1, 0], [3, 2], [0, 1]]])  # (2, 3, 2)
    b = leaf(normal(4, 6, 2, 32))
    assert_same(lambda: ops.set_rows(leaf(normal(4, 6, 5, 32), type), b, ids(rows, GGMLType.I64)))


def test_set_rows_writes_as_if_in_order_into_strided_rows() -> None:
    n = 515

    def make() -> Tensor:
        part = ops.view(leaf(np.zeros((4, 2 * n))), (n, 4), nb=(4, 8 * n), offset=8)
        b = ops.view(leaf(normal(9, n + 3)), (n, 9), nb=(4, 4 * n + 12), offset=12)
        return ops.set_rows(part, b, ids([2, 0, 2, 1, 1, 0, 2, 2, 0]))

    assert_same(make)


def test_set_rows_with_the_same_index_far_behind() -> None:
    m = 600  # more indices than a block has threads
    where = np.arange(m) % 599
    assert_same(lambda: ops.set_rows(leaf(np.zeros((m, 4))), leaf(normal(m, 4)), ids(where)))


@pytest.mark.parametrize("bad", [-1, 4, 2**40, -(2**63)])
def test_set_rows_refuses_indices_out_of_range(bad: int) -> None:
    node = ops.set_rows(leaf(normal(4, 8)), leaf(normal(2, 8)), ids([0, bad], GGMLType.I64))
    with pytest.raises(BackendError, match=f"index {bad} must be at least 0 and below 4"):
        cuda_run.compute(node)


# --- copies ---


@each_type(FLOATS)
@pytest.mark.parametrize("to", WRITTEN, ids=lambda t: t.name)
def test_cast_between_types(type: GGMLType, to: GGMLType) -> None:
    x = leaf(normal(3, 96), type)
    assert_same(lambda: ops.cast(x, to))
    parts = ops.view(leaf(normal(5, 100), type), (64, 5), nb=(x.nb[0], 100 * x.nb[0]))
    assert_same(lambda: ops.cast(parts, to))
    assert_same(lambda: ops.cast(ops.transpose(leaf(normal(96, 5), type)), to))


@each_type(sorted(DECODED))
def test_cast_to_f32(type: GGMLType) -> None:
    x = leaf(normal(3, 512), type)
    assert_same(lambda: ops.cast(x, F32))


def test_cast_to_and_from_integers() -> None:
    assert_same(lambda: ops.cast(ids([[7, -3, 2**24 + 1, -(2**31)]]), F32))
    assert_same(lambda: ops.cast(leaf([[7.9, -7.9, 0.5, -0.5, 2e9]]), I32))


def test_cast_of_special_numbers() -> None:
    numbers = [np.inf, -np.inf, 0.0, -0.0, 65519.0, 65520.0, 1e-8, 3.4e38, 1.00390625]
    for to in (F16, BF16):
        assert_same(lambda to=to: ops.cast(leaf(numbers), to))
        node = ops.cast(leaf([np.nan] * 5), to)  # with bits of its own
        cuda_run.compute(node)
        assert np.isnan(reference_run.values_of(node)).all()


@each_type(PLAIN)
def test_cont_of_any_layout(type: GGMLType) -> None:
    a = leaf(np.round(100 * normal(3, 4, 5, 8)), type)
    size = type.type_size
    assert_same(lambda: ops.dup(a))
    assert_same(lambda: ops.cont(ops.transpose(a)))
    for axes in ((0, 2, 1, 3), (2, 0, 1, 3), (3, 2, 1, 0), (1, 0, 3, 2)):
        assert_same(lambda axes=axes: ops.cont(ops.permute(a, axes)))
    for n in (4, 3):
        part = ops.view(a, (n, 3, 2), nb=(size, 2 * 8 * size, 40 * size), offset=size * (n - 3))
        assert_same(lambda part=part: ops.cont(part))
        assert_same(lambda part=part, n=n: ops.cont(part, (3 * n, 2)))
        assert_same(lambda part=part, n=n: ops.cont(ops.transpose(part), (n, 6)))


@each_type((Q8_0, GGMLType.Q4_0, GGMLType.Q6_K, GGMLType.IQ2_XS))
def test_cont_of_blocks(type: GGMLType) -> None:
    n = 2 * type.block_size
    a = leaf(normal(3, 4, n), type)
    assert_same(lambda: ops.cont(ops.permute(a, (0, 2, 1, 3))))
    assert_same(lambda: ops.cont(ops.permute(a, (0, 2, 1, 3)), (2 * n, 6)))
    half = ops.view(a, (n // 2, 4, 3), nb=a.nb, offset=type.type_size)
    assert_same(lambda: ops.cont(half))


def test_threads_go_on_to_further_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elementwise, "MAX_BLOCKS", 2)
    a = leaf(normal(40, 70))
    assert_same(lambda: ops.dup(a))
    assert_same(lambda: ops.cont(ops.transpose(a)))
    for to in (F16, Q8_0):
        assert_same(lambda to=to: ops.cast(leaf(normal(40, 64)), to))
    assert_same(lambda: ops.concat(a, a, 0))
    assert_same(lambda: ops.repeat(a, (140, 80)))


@each_type(FLOATS)
def test_cpy_into_any_layout(type: GGMLType) -> None:
    def rows_of(to: GGMLType) -> Tensor:
        return ops.view(leaf(np.zeros(200), to), (16, 3), nb=(to.type_size, 20 * to.type_size))

    a = leaf(normal(6, 8), type)
    for to in FLOATS:
        assert_same(lambda to=to: ops.cpy(a, ops.transpose(leaf(np.zeros((8, 6)), to))))
        assert_same(lambda to=to: ops.cpy(ops.transpose(a), rows_of(to)))


def test_cpy_of_blocks_into_other_rows() -> None:
    a = leaf(normal(3, 64), Q8_0)
    assert_same(lambda: ops.cpy(a, leaf(np.zeros((6, 32)))))
    assert_same(lambda: ops.cpy(leaf(normal(4, 96)), leaf(np.zeros((12, 32)), Q8_0)))
    parts = ops.view(leaf(np.zeros(300)), (16, 12), nb=(4, 80))
    assert_same(lambda: ops.cpy(a, parts))


@each_type(FLOATS)
def test_columns_whose_inner_stride_means_nothing(type: GGMLType) -> None:
    column = ops.transpose(leaf(normal(40), type))
    for to in FLOATS:
        assert_same(lambda to=to: ops.cast(column, to))
    assert_same(lambda: ops.concat(column, column, 0))
    assert_same(lambda: ops.repeat(column, (3, 40)))


# --- joins ---


@each_type(PLAIN)
@pytest.mark.parametrize("dim", range(4))
def test_concat(type: GGMLType, dim: int) -> None:
    for n in (5, 8):
        shape = [2, 3, 4, n]
        other = [n + 1 if 3 - i == dim else n for i, n in enumerate(shape)]
        a, b = leaf(np.round(normal(*shape)), type), leaf(np.round(normal(*other, seed=1)), type)
        assert_same(lambda a=a, b=b: ops.concat(a, b, dim))
        turned_a, turned_b = (ops.permute(t, (1, 0, 2, 3)) for t in (a, b))
        axis = (1, 0, 2, 3)[dim]
        assert_same(lambda a=turned_a, b=turned_b, axis=axis: ops.concat(a, b, axis))


def test_concat_off_the_alignment() -> None:
    assert_same(lambda: ops.concat(leaf(normal(3)), leaf(normal(8)), 0))


def test_concat_with_nothing() -> None:
    a, nothing = leaf(normal(3, 8)), leaf(np.zeros((0, 8)))
    assert_same(lambda: ops.concat(nothing, a, 1))
    assert_same(lambda: ops.concat(a, nothing, 1))


@each_type((F32, GGMLType.I8, GGMLType.I64))
def test_repeat(type: GGMLType) -> None:
    a = leaf(np.round(normal(2, 1, 3, 4)), type)
    assert_same(lambda: ops.repeat(a, (8, 3, 5, 4)))
    assert_same(lambda: ops.repeat(ops.transpose(a), (3, 8, 1, 2)))
    one = leaf([[3.0], [-2.0]], type)
    assert_same(lambda: ops.repeat(one, (7, 4)))


def test_what_cannot_be_converted_is_not_supported() -> None:
    x, q4_k = leaf(normal(2, 256)), Tensor(GGMLType.Q4_K, (256, 2))
    for node in (
        ops.cpy(x, q4_k),
        ops.set_rows(q4_k, x, ids([0, 1])),
        ops.get_rows(Tensor(GGMLType.Q8_K, (256, 2)), ids([0])),
        ops.cast(Tensor(GGMLType.Q8_K, (256, 2)), F32),
    ):
        assert not cuda_run.supports(node)
