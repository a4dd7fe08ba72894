"""Rows by index, copies, joins and repetitions: they have the reference's bits."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
import reference_run
from backends import CPU, CUDA, FLOATS, Backend, each_backend
from cuda_grid import needs_compiler
from reference_run import DECODED, each_type, ids, leaf, normal, values_of

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, Tensor, ops
from lamella.kernels.cpu.codecs.encode import ENCODERS
from lamella.kernels.cpu.ops.data import PIECE
from lamella.kernels.cpu.table import SMALL
from lamella.kernels.cuda.ops import data, elementwise

F32, F16, BF16, I32 = GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.I32
Q8_0 = GGMLType.Q8_0
PLAIN = [t for t in GGMLType if not t.is_quantized]
CUDA_READ = [*FLOATS, *sorted(data.DECODED)]
CUDA_WRITTEN = [*FLOATS, *sorted(data.ENCODED)]
CPU_WRITTEN = [F32, *ENCODERS]


def each_type_on(cpu: Iterable[GGMLType], cuda: Iterable[GGMLType]) -> pytest.MarkDecorator:
    """Parametrize `on` and `type` with the types of each backend."""
    on_cpu = [pytest.param(CPU, t, id=f"{t.name}-cpu") for t in cpu]
    on_cuda = [pytest.param(CUDA, t, id=f"{t.name}-cuda", marks=needs_compiler) for t in cuda]
    return pytest.mark.parametrize(("on", "type"), [*on_cpu, *on_cuda])


def bits_of(values: list[int], type: GGMLType) -> Tensor:
    """A vector of bit patterns; a copy must not change any."""
    t = leaf(np.zeros(len(values)), type)
    reference_run.data(t).view(f"u{type.type_size}")[...] = values
    return t


# --- rows by index ---


@each_type_on(DECODED, CUDA_READ)
def test_get_rows_decodes(on: Backend, type: GGMLType) -> None:
    for shift in (0, 2):
        a = leaf(normal(7, 512), type, 0 if type is F32 else shift)
        on.assert_same(lambda a=a: ops.get_rows(a, ids([6, 0, 3, 3])))


@each_backend
@each_type((F32, BF16, Q8_0))
@pytest.mark.parametrize("n", [64, 4096])
def test_get_rows_in_batches(on: Backend, type: GGMLType, n: int) -> None:
    a = leaf(normal(3, 2, 5, n), type)
    rows = np.random.default_rng(0).integers(0, 5, (3, 2, 4))
    on.assert_same(lambda: ops.get_rows(a, ids(rows)))


@each_backend
@each_type((*FLOATS, I32))
def test_get_rows_of_strided_sources(on: Backend, type: GGMLType) -> None:
    columns = ops.transpose(leaf(normal(6, 8), type))
    gaps = ops.transpose(ops.view(ids([[5, 9], [0, 9], [2, 9]]), (1, 3), nb=(4, 8)))
    on.assert_same(lambda: ops.get_rows(columns, gaps))


@each_backend
def test_get_rows_keeps_integers_and_nan(on: Backend) -> None:
    large = 2**31 - 1  # float32 would round it
    on.assert_same(lambda: ops.get_rows(ids([[1, large], [-large, 4]]), ids([1, 0])))
    a = bits_of([0x7FA00001, 0xFFC00123, 0x7F800000, 0x80000000], F32)
    node = ops.get_rows(a, ids([0]))
    assert on.computed(node) == reference_run.data(a).tobytes()


@each_backend
@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1, -(2**31)])
def test_get_rows_refuses_indices_out_of_range(on: Backend, bad: int) -> None:
    node = ops.get_rows(leaf(normal(4, 8)), ids([0, bad, 1]))
    with pytest.raises(BackendError, match=f"index {bad} must be at least 0 and below 4"):
        on.compute(node)


@each_type_on(CPU_WRITTEN, CUDA_WRITTEN)
@pytest.mark.parametrize("index", [GGMLType.I64, I32], ids=lambda t: t.name)
def test_set_rows_encodes(on: Backend, type: GGMLType, index: GGMLType) -> None:
    def make() -> Tensor:
        b = normal(3, 96, seed=1)
        b[1, :32] = 0  # a block whose scale is 0
        b[2, 32:64] = np.repeat([-1.0, 1.0], 16)  # the first of the values furthest from 0 counts
        b[2, 64:] = np.r_[127, np.arange(-15, 16) + 0.5]  # ties are rounded away from 0
        return ops.set_rows(leaf(normal(6, 96), type), leaf(b), ids([4, 0, 5], index))

    on.assert_same(make)


@each_type_on([t for t in CPU_WRITTEN if t is not I32], CUDA_WRITTEN)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_set_rows_of_special_numbers(on: Backend, type: GGMLType, bad: float) -> None:
    """A model's fault shows: a cache does not make it a number."""
    b = normal(4, 96, seed=1)
    b[range(3), [0, 39, 95]] = bad
    node, expected = (
        ops.set_rows(leaf(normal(4, 96), type), leaf(b), ids(range(4))) for _ in range(2)
    )
    on.compute(node)
    with np.errstate(invalid="ignore"):
        found = values_of(node)[0, 0]
        np.testing.assert_array_equal(found, reference_run.run(expected)[0, 0])
    is_bad = ~np.isfinite(found).all(axis=-1)
    hides = type is GGMLType.IQ4_NL and np.isnan(bad)  # as in ggml
    assert is_bad.tolist() == [not hides] * 3 + [False]


@each_backend
@each_type((F32, Q8_0))
def test_set_rows_repeats_ids_over_batches(on: Backend, type: GGMLType) -> None:
    rows = np.array([[[4, 1], [0, 3], [2, 4]], [[1, 0], [3, 2], [0, 1]]])  # (2, 3, 2)
    b = leaf(normal(4, 6, 2, 32))
    on.assert_same(
        lambda: ops.set_rows(leaf(normal(4, 6, 5, 32), type), b, ids(rows, GGMLType.I64))
    )


@each_backend
@pytest.mark.parametrize("n", [515, SMALL // 8])
def test_set_rows_writes_as_if_in_order_into_strided_rows(on: Backend, n: int) -> None:
    def make() -> Tensor:
        part = ops.view(leaf(np.zeros((4, 2 * n))), (n, 4), nb=(4, 8 * n), offset=8)
        b = ops.view(leaf(normal(9, n + 3)), (n, 9), nb=(4, 4 * n + 12), offset=12)
        return ops.set_rows(part, b, ids([2, 0, 2, 1, 1, 0, 2, 2, 0]))

    on.assert_same(make)


@each_backend
def test_set_rows_with_the_same_index_far_apart(on: Backend) -> None:
    m = 600  # more indices than a block has threads
    where = np.arange(m) % 599
    on.assert_same(lambda: ops.set_rows(leaf(np.zeros((m, 4))), leaf(normal(m, 4)), ids(where)))


@each_backend
@pytest.mark.parametrize("bad", [-1, 4, 2**40, -(2**63)])
def test_set_rows_refuses_indices_out_of_range(on: Backend, bad: int) -> None:
    node = ops.set_rows(leaf(normal(4, 8)), leaf(normal(2, 8)), ids([0, bad], GGMLType.I64))
    with pytest.raises(BackendError, match=f"index {bad} must be at least 0 and below 4"):
        on.compute(node)


# --- copies ---


@each_type_on([t for t in CPU_WRITTEN if t is not I32], CUDA_WRITTEN)
def test_cast_between_types(on: Backend, type: GGMLType) -> None:
    for source in FLOATS:
        x = leaf(normal(3, 96), source)
        on.assert_same(lambda x=x: ops.cast(x, type))
        whole = leaf(normal(5, 100), source)
        parts = ops.view(whole, (64, 5), nb=(x.nb[0], 100 * x.nb[0]))
        on.assert_same(lambda parts=parts: ops.cast(parts, type))
        columns = ops.transpose(leaf(normal(96, 5), source))
        on.assert_same(lambda columns=columns: ops.cast(columns, type))


@each_type_on(DECODED, sorted(data.DECODED))
def test_cast_to_f32(on: Backend, type: GGMLType) -> None:
    x = leaf(normal(3, 512), type)
    on.assert_same(lambda: ops.cast(x, F32))


@each_backend
def test_cast_to_and_from_integers(on: Backend) -> None:
    on.assert_same(lambda: ops.cast(ids([[7, -3, 2**24 + 1, -(2**31)]]), F32))
    on.assert_same(lambda: ops.cast(leaf([[7.9, -7.9, 0.5, -0.5, 2e9]]), I32))


@each_backend
@each_type((F16, Q8_0))
def test_cast_of_more_than_a_piece(on: Backend, type: GGMLType) -> None:
    for shape in ((3 * PIECE + 32,), (5, PIECE + 96), (SMALL // 32, 96)):
        x = leaf(normal(*shape))
        on.assert_same(lambda x=x: ops.cast(x, type))


@each_backend
@each_type((F16, BF16))
def test_cast_of_special_numbers(on: Backend, type: GGMLType) -> None:
    numbers = [np.inf, -np.inf, 0.0, -0.0, 65519.0, 65520.0, 1e-8, 3.4e38, 1.00390625]
    on.assert_same(lambda: ops.cast(leaf(numbers), type))
    node = ops.cast(leaf([np.nan] * 5), type)  # a GPU's NaN has other bits
    if on is CPU:
        on.assert_same(lambda: ops.cast(leaf([np.nan] * 5), type))
    on.compute(node)
    assert np.isnan(reference_run.values_of(node)).all()


@each_backend
@each_type(PLAIN)
def test_cont_of_any_layout(on: Backend, type: GGMLType) -> None:
    a = leaf(np.round(100 * normal(3, 4, 5, 8)), type)
    size = type.type_size
    on.assert_same(lambda: ops.dup(a))
    on.assert_same(lambda: ops.cont(ops.transpose(a)))
    for axes in ((0, 2, 1, 3), (2, 0, 1, 3), (3, 2, 1, 0), (1, 0, 3, 2)):
        on.assert_same(lambda axes=axes: ops.cont(ops.permute(a, axes)))
    for n in (4, 3):
        part = ops.view(a, (n, 3, 2), nb=(size, 2 * 8 * size, 40 * size), offset=size * (n - 3))
        on.assert_same(lambda part=part: ops.cont(part))
        on.assert_same(lambda part=part, n=n: ops.cont(part, (3 * n, 2)))
        on.assert_same(lambda part=part, n=n: ops.cont(ops.transpose(part), (n, 6)))


@each_backend
@each_type((Q8_0, GGMLType.Q4_0, GGMLType.Q6_K, GGMLType.IQ2_XS))
def test_cont_of_blocks(on: Backend, type: GGMLType) -> None:
    n = 2 * type.block_size
    a = leaf(normal(3, 4, n), type)
    on.assert_same(lambda: ops.cont(ops.permute(a, (0, 2, 1, 3))))
    on.assert_same(lambda: ops.cont(ops.permute(a, (0, 2, 1, 3)), (2 * n, 6)))
    half = ops.view(a, (n // 2, 4, 3), nb=a.nb, offset=type.type_size)
    on.assert_same(lambda: ops.cont(half))


@each_backend
def test_large_copies(on: Backend) -> None:
    """Copies that several threads share."""
    a, halves = leaf(normal(70, 300)), leaf(normal(70, 300), F16)
    on.assert_same(lambda: ops.dup(a))
    on.assert_same(lambda: ops.cont(ops.transpose(a)))
    on.assert_same(lambda: ops.cast(ops.transpose(a), F16))
    for to in (F32, BF16):
        turned = leaf(np.zeros((70, 300)), to)
        on.assert_same(lambda to=to: ops.cast(ops.transpose(halves), to))
        on.assert_same(lambda turned=turned: ops.cpy(ops.transpose(halves), ops.transpose(turned)))


@each_backend
@each_type(FLOATS)
def test_cpy_into_any_layout(on: Backend, type: GGMLType) -> None:
    def rows_of(to: GGMLType) -> Tensor:
        return ops.view(leaf(np.zeros(200), to), (16, 3), nb=(to.type_size, 20 * to.type_size))

    a = leaf(normal(6, 8), type)
    for to in FLOATS:
        on.assert_same(lambda to=to: ops.cpy(a, ops.transpose(leaf(np.zeros((8, 6)), to))))
        on.assert_same(lambda to=to: ops.cpy(ops.transpose(a), rows_of(to)))


@each_backend
def test_cpy_of_blocks_into_other_rows(on: Backend) -> None:
    a = leaf(normal(3, 64), Q8_0)
    on.assert_same(lambda: ops.cpy(a, leaf(np.zeros((6, 32)))))
    on.assert_same(lambda: ops.cpy(leaf(normal(4, 96)), leaf(np.zeros((12, 32)), Q8_0)))


@each_backend
def test_cpy_of_blocks_into_rows_that_end_inside_a_block(on: Backend) -> None:
    a, parts = leaf(normal(3, 64), Q8_0), ops.view(leaf(np.zeros(300)), (16, 12), nb=(4, 80))
    if on is CUDA:
        on.assert_same(lambda: ops.cpy(a, parts))
    else:  # a block would be split between two rows
        assert not on.supports(ops.cpy(a, parts))


@each_backend
@each_type(FLOATS)
def test_columns_with_an_unused_inner_stride(on: Backend, type: GGMLType) -> None:
    column = ops.transpose(leaf(normal(40), type))
    for to in FLOATS:
        on.assert_same(lambda to=to: ops.cast(column, to))
    on.assert_same(lambda: ops.concat(column, column, 0))
    on.assert_same(lambda: ops.repeat(column, (3, 40)))


# --- joins ---


@each_backend
@each_type(PLAIN)
def test_concat(on: Backend, type: GGMLType) -> None:
    for dim in range(4):
        for n in (5, 8):
            shape = [2, 3, 4, n]
            other = [n + 1 if 3 - i == dim else n for i, n in enumerate(shape)]
            a, b = (
                leaf(np.round(normal(*shape)), type),
                leaf(np.round(normal(*other, seed=1)), type),
            )
            on.assert_same(lambda a=a, b=b, dim=dim: ops.concat(a, b, dim))
            turned_a, turned_b = (ops.permute(t, (1, 0, 2, 3)) for t in (a, b))
            axis = (1, 0, 2, 3)[dim]
            on.assert_same(lambda a=turned_a, b=turned_b, axis=axis: ops.concat(a, b, axis))


@each_backend
def test_concat_off_the_alignment(on: Backend) -> None:
    on.assert_same(lambda: ops.concat(leaf(normal(3)), leaf(normal(8)), 0))


@each_backend
def test_concat_with_an_empty_tensor(on: Backend) -> None:
    a, nothing = leaf(normal(3, 8)), leaf(np.zeros((0, 8)))
    on.assert_same(lambda: ops.concat(nothing, a, 1))
    on.assert_same(lambda: ops.concat(a, nothing, 1))


@each_backend
@each_type((F32, GGMLType.I8, GGMLType.I64))
def test_repeat(on: Backend, type: GGMLType) -> None:
    a = leaf(np.round(normal(2, 1, 3, 4)), type)
    on.assert_same(lambda: ops.repeat(a, (8, 3, 5, 4)))
    on.assert_same(lambda: ops.repeat(ops.transpose(a), (3, 8, 1, 2)))
    one = leaf([[3.0], [-2.0]], type)
    on.assert_same(lambda: ops.repeat(one, (7, 4)))


@each_backend
def test_large_joins(on: Backend) -> None:
    a, b = leaf(normal(130, 100)), leaf(normal(130, 50, seed=1))
    on.assert_same(lambda: ops.concat(a, b, 0))
    on.assert_same(lambda: ops.repeat(a, (200, 260)))


@needs_compiler
def test_cuda_threads_copy_several_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elementwise, "MAX_BLOCKS", 2)
    a = leaf(normal(40, 70))
    CUDA.assert_same(lambda: ops.dup(a))
    CUDA.assert_same(lambda: ops.cont(ops.transpose(a)))
    for to in (F16, Q8_0):
        CUDA.assert_same(lambda to=to: ops.cast(leaf(normal(40, 64)), to))
    CUDA.assert_same(lambda: ops.concat(a, a, 0))
    CUDA.assert_same(lambda: ops.repeat(a, (140, 80)))


def test_impossible_conversions_are_not_supported() -> None:
    x, q8_k = leaf(normal(2, 256)), Tensor(GGMLType.Q8_K, (256, 2))
    for on, not_written in ((CPU, GGMLType.IQ2_XS), (CUDA, GGMLType.Q4_K)):
        for node in (
            ops.cpy(x, Tensor(not_written, (256, 2))),
            ops.set_rows(Tensor(not_written, (256, 2)), x, ids([0, 1])),
            ops.set_rows(q8_k, x, ids([0, 1])),
            ops.get_rows(q8_k, ids([0])),
            ops.cast(q8_k, F32),
        ):
            assert not on.supports(node), f"{node} on {on}"
