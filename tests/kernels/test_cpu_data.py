"""Rows by index, copies, joins and repetitions of the CPU kernels: bit for bit the reference's."""

from __future__ import annotations

from collections.abc import Callable

import cpu_run
import numpy as np
import pytest
import reference_run
from reference_run import DECODED, each_type, ids, leaf, normal

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, Tensor, ops
from lamella.graph.ops.check import FLOATS
from lamella.kernels.cpu.codecs.encode import ENCODERS
from lamella.kernels.cpu.ops.data import PIECE
from lamella.kernels.cpu.table import OPS, SMALL

PLAIN = [t for t in GGMLType if not t.is_quantized]
WRITTEN = [GGMLType.F32, *ENCODERS]
ENCODED_FLOATS = [t for t in WRITTEN if t is not GGMLType.I32]


def assert_same(make: Callable[[], Tensor], n_threads: int = 1) -> None:
    """The node that `make` builds has the reference's bits."""
    node = make()
    assert OPS.supports(node)
    assert cpu_run.compute(node, n_threads).tobytes() == reference_run.bits(make())


def bits_of(values: list[int], type: GGMLType) -> Tensor:
    """A vector of bit patterns, among them those no arithmetic may change."""
    t = leaf(np.zeros(len(values)), type)
    reference_run.data(t).view(f"u{type.type_size}")[...] = values
    return t


# --- rows by index ---


@each_type(DECODED)
def test_get_rows_decodes(type: GGMLType) -> None:
    a = leaf(normal(7, 512), type)
    assert_same(lambda: ops.get_rows(a, ids([6, 0, 3, 3])))


@each_type((GGMLType.F32, GGMLType.BF16, GGMLType.Q8_0))
@pytest.mark.parametrize("n", [64, 4096])
def test_get_rows_in_batches(type: GGMLType, n: int) -> None:
    a = leaf(normal(3, 2, 5, n), type)
    rows = np.random.default_rng(0).integers(0, 5, (3, 2, 4))
    for n_threads in (1, 3):
        assert_same(lambda: ops.get_rows(a, ids(rows)), n_threads)


@each_type((*FLOATS, GGMLType.I32))
def test_get_rows_of_strided_sources(type: GGMLType) -> None:
    columns = ops.transpose(leaf(normal(6, 8), type))
    gaps = ops.transpose(ops.view(ids([[5, 9], [0, 9], [2, 9]]), (1, 3), nb=(4, 8)))
    assert_same(lambda: ops.get_rows(columns, gaps))


def test_get_rows_keeps_integers() -> None:
    large = 2**31 - 1  # float32 would round it
    assert_same(lambda: ops.get_rows(ids([[1, large], [-large, 4]]), ids([1, 0])))


def test_get_rows_keeps_nan() -> None:
    a = bits_of([0x7FA00001, 0xFFC00123, 0x7F800000, 0x80000000], GGMLType.F32)
    node = ops.get_rows(a, ids([0]))
    assert cpu_run.compute(node).tobytes() == reference_run.data(a).tobytes()


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1, -(2**31)])
def test_get_rows_refuses_indices_out_of_range(bad: int) -> None:
    node = ops.get_rows(leaf(normal(4, 8)), ids([0, bad, 1]))
    with pytest.raises(BackendError, match=f"index {bad} must be at least 0 and below 4"):
        cpu_run.compute(node)


@each_type(WRITTEN)
@pytest.mark.parametrize("index", [GGMLType.I64, GGMLType.I32], ids=lambda t: t.name)
def test_set_rows_encodes(type: GGMLType, index: GGMLType) -> None:
    def make() -> Tensor:
        a, b = leaf(normal(6, 96), type), leaf(normal(3, 96, seed=1))
        return ops.set_rows(a, b, ids([4, 0, 5], index))

    assert_same(make)


@each_type((GGMLType.F32, GGMLType.Q8_0))
def test_set_rows_repeats_ids_over_batches(type: GGMLType) -> None:
    rows = np.array([[[4, 1], [0, 3], [2, 4]], [[1, 0], [3, 2], [0, 1]]])  # (2, 3, 2)
    b = leaf(normal(4, 6, 2, 32))
    assert_same(lambda: ops.set_rows(leaf(normal(4, 6, 5, 32), type), b, ids(rows, GGMLType.I64)))


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_set_rows_writes_in_order_into_strided_rows(n_threads: int) -> None:
    n = SMALL // 8

    def make() -> Tensor:
        part = ops.view(leaf(np.zeros((4, 2 * n))), (n, 4), nb=(4, 8 * n), offset=8)
        b = ops.view(leaf(normal(9, n + 3)), (n, 9), nb=(4, 4 * n + 12), offset=12)
        return ops.set_rows(part, b, ids([2, 0, 2, 1, 1, 0, 2, 2, 0]))

    assert_same(make, n_threads)


@pytest.mark.parametrize("bad", [-1, 4, 2**40, -(2**63)])
def test_set_rows_refuses_indices_out_of_range(bad: int) -> None:
    b = leaf(normal(2, 8))
    node = ops.set_rows(leaf(normal(4, 8)), b, ids([0, bad], GGMLType.I64))
    with pytest.raises(BackendError, match=f"index {bad} must be at least 0 and below 4"):
        cpu_run.compute(node)


# --- copies ---


@each_type(FLOATS)
@pytest.mark.parametrize("to", ENCODED_FLOATS, ids=lambda t: t.name)
def test_cast_between_types(type: GGMLType, to: GGMLType) -> None:
    x = leaf(normal(3, 96), type)
    assert_same(lambda: ops.cast(x, to))
    parts = ops.view(leaf(normal(5, 100), type), (64, 5), nb=(x.nb[0], 100 * x.nb[0]))
    assert_same(lambda: ops.cast(parts, to))


@each_type(DECODED)
def test_cast_to_f32(type: GGMLType) -> None:
    x = leaf(normal(3, 512), type)
    assert_same(lambda: ops.cast(x, GGMLType.F32))


def test_cast_to_and_from_integers() -> None:
    assert_same(lambda: ops.cast(ids([[7, -3, 2**24 + 1, -(2**31)]]), GGMLType.F32))
    assert_same(lambda: ops.cast(leaf([[7.9, -7.9, 0.5, -0.5, 2e9]]), GGMLType.I32))


@pytest.mark.parametrize("to", [GGMLType.F16, GGMLType.Q8_0], ids=lambda t: t.name)
@pytest.mark.parametrize("n_threads", [1, 3])
def test_cast_of_more_than_a_piece(to: GGMLType, n_threads: int) -> None:
    for shape in ((3 * PIECE + 32,), (5, PIECE + 96), (SMALL // 32, 96)):
        x = leaf(normal(*shape))
        assert_same(lambda x=x: ops.cast(x, to), n_threads)  # type: ignore[misc]


def test_cast_of_special_numbers() -> None:
    numbers = [np.nan, np.inf, -np.inf, 0.0, -0.0, 65519.0, 65520.0, 1e-8, 3.4e38, 1.00390625]
    for to in (GGMLType.F16, GGMLType.BF16):
        assert_same(lambda to=to: ops.cast(leaf(numbers), to))  # type: ignore[misc]


@each_type(PLAIN)
def test_cont_of_any_layout(type: GGMLType) -> None:
    a = leaf(np.round(100 * normal(3, 4, 5, 6)), type)
    size = type.type_size
    assert_same(lambda: ops.dup(a))
    assert_same(lambda: ops.cont(ops.transpose(a)))
    for axes in ((0, 2, 1, 3), (2, 0, 1, 3), (3, 2, 1, 0), (1, 0, 3, 2)):
        assert_same(lambda axes=axes: ops.cont(ops.permute(a, axes)))  # type: ignore[misc]
    part = ops.view(a, (4, 3, 2), nb=(size, 2 * 6 * size, 30 * size), offset=size)
    assert_same(lambda: ops.cont(part))
    assert_same(lambda: ops.cont(part, (12, 2)))
    assert_same(lambda: ops.cont(ops.transpose(part), (8, 3)))


@each_type((GGMLType.Q8_0, GGMLType.Q4_0))
def test_cont_of_blocks(type: GGMLType) -> None:
    a = leaf(normal(3, 4, 64), type)
    assert_same(lambda: ops.cont(ops.permute(a, (0, 2, 1, 3))))
    assert_same(lambda: ops.cont(ops.permute(a, (0, 2, 1, 3)), (128, 6)))
    half = ops.view(a, (32, 4, 3), nb=a.nb, offset=a.type.type_size)
    assert_same(lambda: ops.cont(half))


@pytest.mark.parametrize("n_threads", [2, 3])
def test_large_copies_by_several_threads(n_threads: int) -> None:
    a = leaf(normal(70, 300))
    assert_same(lambda: ops.dup(a), n_threads)
    assert_same(lambda: ops.cont(ops.transpose(a)), n_threads)
    assert_same(lambda: ops.cast(ops.transpose(a), GGMLType.F16), n_threads)
    halves = leaf(normal(70, 300), GGMLType.F16)
    for to in (GGMLType.F32, GGMLType.BF16):
        turned = leaf(np.zeros((70, 300)), to)
        assert_same(lambda to=to: ops.cast(ops.transpose(halves), to), n_threads)  # type: ignore[misc]
        assert_same(
            lambda turned=turned: ops.cpy(ops.transpose(halves), ops.transpose(turned)),  # type: ignore[misc]
            n_threads,
        )


@each_type((GGMLType.F32, GGMLType.F16, GGMLType.BF16))
def test_cpy_into_any_layout(type: GGMLType) -> None:
    a = leaf(normal(6, 8), type)
    for to in FLOATS:
        assert_same(lambda to=to: ops.cpy(a, ops.transpose(leaf(np.zeros((8, 6)), to))))  # type: ignore[misc]
        assert_same(
            lambda to=to: ops.cpy(  # type: ignore[misc]
                ops.transpose(a), ops.view(leaf(np.zeros(200), to), (16, 3), nb=_nb(to, 20))
            )
        )


def _nb(type: GGMLType, n: int) -> tuple[int, int]:
    return type.type_size, n * type.type_size


def test_cpy_of_blocks_into_other_rows() -> None:
    a = leaf(normal(3, 64), GGMLType.Q8_0)
    assert_same(lambda: ops.cpy(a, leaf(np.zeros((6, 32)))))
    assert_same(lambda: ops.cpy(leaf(normal(4, 96)), leaf(np.zeros((12, 32)), GGMLType.Q8_0)))
    # a block would have to be written in two strides
    node = ops.cpy(a, ops.view(leaf(np.zeros(300)), (16, 12), nb=(4, 80)))
    assert not OPS.supports(node)


# --- joins ---


@each_type(PLAIN)
@pytest.mark.parametrize("dim", range(4))
def test_concat(type: GGMLType, dim: int) -> None:
    shape = [2, 3, 4, 5]
    other = [n + 1 if 3 - i == dim else n for i, n in enumerate(shape)]
    a, b = leaf(np.round(normal(*shape)), type), leaf(np.round(normal(*other, seed=1)), type)
    assert_same(lambda: ops.concat(a, b, dim))
    swapped = (1, 0, 2, 3)
    axis = swapped[dim]
    assert_same(lambda: ops.concat(ops.permute(a, swapped), ops.permute(b, swapped), axis))


@each_type((GGMLType.F32, GGMLType.I8, GGMLType.I64))
def test_repeat(type: GGMLType) -> None:
    a = leaf(np.round(normal(2, 1, 3, 4)), type)
    assert_same(lambda: ops.repeat(a, (8, 3, 5, 4)))
    assert_same(lambda: ops.repeat(ops.transpose(a), (3, 8, 1, 2)))
    one = leaf([[3.0], [-2.0]], type)
    assert_same(lambda: ops.repeat(one, (7, 4)))


def test_joins_by_several_threads() -> None:
    a, b = leaf(normal(130, 100)), leaf(normal(130, 50, seed=1))
    assert_same(lambda: ops.concat(a, b, 0), 3)
    assert_same(lambda: ops.repeat(a, (200, 260)), 3)


def test_what_cannot_be_converted_is_not_supported() -> None:
    iq = leaf(normal(2, 256), GGMLType.IQ2_XS)
    x = leaf(normal(2, 256))
    q8_k = Tensor(GGMLType.Q8_K, (256, 2))
    for node in (
        ops.cpy(x, iq),
        ops.get_rows(q8_k, ids([0])),
        ops.set_rows(q8_k, x, ids([0, 1])),
    ):
        assert not OPS.supports(node)
