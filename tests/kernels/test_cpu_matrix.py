"""Matrix products of the CPU kernels: right for every type and layout, with bits that do not depend
on the batch."""

from __future__ import annotations

from collections.abc import Callable

import cpu_run
import numpy as np
import pytest
import reference_run
from reference_run import (
    DECODED,
    Array,
    assert_close,
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
from lamella.kernels.cpu.kernel_set import KERNELS

each_layout = pytest.mark.parametrize("n_threads", [1, 2])


def assert_right(make: Callable[[], Tensor], n_threads: int = 1, error: float = 5e-6) -> None:
    """Check that the node of `make` has the reference's values."""
    expected = run(make())
    node = make()
    assert KERNELS.supports(node)
    cpu_run.compute(node, n_threads)
    assert_close(values_of(node), expected, error)


def columns_of(node: Tensor, n_threads: int = 1) -> Array:
    """The bits of the result's rows."""
    array = cpu_run.compute(node, n_threads)
    return array.reshape(-1, array.shape[-1]).copy().view(np.uint32)


@each_type(DECODED)
def test_weights_of_every_type(type: GGMLType) -> None:
    a = leaf(normal(21, 512), type)
    for m in (1, 6):
        b = leaf(normal(m, 512, seed=1))
        assert_right(lambda b=b: ops.mul_mat(a, b))  # type: ignore[misc]


@pytest.mark.parametrize("k", [1, 15, 16, 33, 64, 100, 257])
@pytest.mark.parametrize("type", FLOATS, ids=lambda t: t.name)
def test_rows_of_any_length(k: int, type: GGMLType) -> None:
    a, b = leaf(normal(7, k), type), leaf(normal(5, k, seed=1))
    assert_right(lambda: ops.mul_mat(a, b))


@pytest.mark.parametrize("type", [GGMLType.F32, GGMLType.F16, GGMLType.Q8_0], ids=lambda t: t.name)
@pytest.mark.parametrize("k", [32, 192, 224])
def test_bits_do_not_depend_on_the_batch(type: GGMLType, k: int) -> None:
    a, x = leaf(normal(37, k), type), normal(11, k, seed=1)
    whole = columns_of(ops.mul_mat(a, leaf(x)))
    for n_threads in (1, 2, 3):
        for part in ([0], [10], [1, 2], [7, 8, 9], [3, 2, 1, 0], [5, 5, 6, 1, 0], range(11)):
            bits = columns_of(ops.mul_mat(a, leaf(x[part])), n_threads)
            assert (bits == whole[part]).all(), (part, n_threads)


def test_bits_do_not_depend_on_threads_rows_or_places() -> None:
    x = normal(9, 300, seed=1)
    whole = columns_of(ops.mul_mat(leaf(normal(70, 300)), leaf(x)))
    for n_threads, shift in ((2, 0), (3, 4), (8, 36)):
        a = leaf(normal(70, 300), shift=shift)
        assert len(KERNELS.calls_of(ops.mul_mat(a, leaf(x)))) == 1
        assert (columns_of(ops.mul_mat(a, leaf(x, shift=8)), n_threads) == whole).all()
    few = leaf(normal(70, 300)[5:9])
    assert (columns_of(ops.mul_mat(few, leaf(x))) == whole[:, 5:9]).all()


def test_sums_of_minus_zero_do_not_depend_on_the_batch() -> None:
    a, x = leaf(-np.full((5, 64), 1e-30)), np.full((5, 64), 1e-30)
    whole = columns_of(ops.mul_mat(a, leaf(x)))
    assert (columns_of(ops.mul_mat(a, leaf(x[:1]))) == whole[:1]).all()


@each_type(FLOATS)
def test_columns_of_other_types(type: GGMLType) -> None:
    b = leaf(normal(3, 64, seed=1), type)
    for a_type in (*FLOATS, GGMLType.Q4_0):
        a = leaf(normal(5, 64), a_type)
        assert_right(lambda a=a: ops.mul_mat(a, b))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((1, 1, 1, 1), (1, 1, 1, 1)),
        ((1, 1, 4, 7), (1, 1, 1, 7)),
        ((1, 1, 4, 7), (2, 3, 5, 7)),
        ((1, 2, 4, 7), (3, 6, 5, 7)),
        ((2, 3, 4, 7), (4, 3, 5, 7)),
        ((2, 2, 1, 33), (4, 8, 2, 33)),
        ((2, 3, 67, 96), (4, 6, 3, 96)),
    ],
)
@each_layout
def test_batches(a_shape: tuple[int, ...], b_shape: tuple[int, ...], n_threads: int) -> None:
    for type in (GGMLType.F32, GGMLType.F16):
        a, b = leaf(normal(*a_shape), type), leaf(normal(*b_shape, seed=1))
        assert_right(lambda a=a, b=b: ops.mul_mat(a, b), n_threads)  # type: ignore[misc]


@each_type(FLOATS)
def test_columns_and_weights_in_other_layouts(type: GGMLType) -> None:
    a, b = leaf(normal(2, 7, 48), type), leaf(normal(2, 5, 48, seed=1), type)
    part = ops.view(a, (24, 7, 2), a.nb, 12 * a.nb[0])
    columns = ops.view(b, (24, 5, 2), b.nb, 24 * b.nb[0])
    assert_right(lambda: ops.mul_mat(part, columns))
    turned = ops.transpose(leaf(normal(2, 24, 5, seed=2), type))
    assert_right(lambda: ops.mul_mat(part, turned))
    heads = ops.permute(leaf(normal(5, 2, 24, seed=3), type), (0, 2, 1, 3))
    assert_right(lambda: ops.mul_mat(part, heads))


@each_type(FLOATS)
def test_weights_whose_rows_have_gaps(type: GGMLType) -> None:
    a = leaf(normal(3, 6, 4), type)
    gaps = ops.permute(a, (2, 0, 1, 3))  # [6, 3, 4]: the rows have gaps between them
    assert not gaps.has_contiguous_rows and not gaps.is_transposed
    assert_right(lambda: ops.mul_mat(gaps, leaf(normal(4, 5, 6, seed=1))))


def test_rows_of_one_cache_set() -> None:
    # rows of 4096 bytes are first copied to other strides; the bits stay equal
    a, x = normal(9, 1024), normal(6, 1024, seed=1)
    whole = columns_of(ops.mul_mat(leaf(a), leaf(x)))
    apart = ops.view(leaf(np.pad(a, ((0, 0), (0, 4)))), (1024, 9), nb=(4, 4112))
    assert (columns_of(ops.mul_mat(apart, leaf(x[:1]))) == whole[:1]).all()
    assert (columns_of(ops.mul_mat(apart, leaf(x))) == whole).all()


# --- experts ---


def test_experts_share_memory_for_all_pairs() -> None:
    node = ops.mul_mat_id(leaf(normal(5, 8, 32)), leaf(normal(7, 1, 32)), ids(np.zeros((7, 2))))
    [call] = KERNELS.calls_of(node)
    assert [made.size for made in call.prepared] == [4 * (5 + 1 + 14)]


@each_type([t for t in DECODED if t in (*FLOATS, GGMLType.Q4_0, GGMLType.Q6_K, GGMLType.IQ2_XS)])
@each_layout
def test_experts(type: GGMLType, n_threads: int) -> None:
    chosen = ids(np.random.default_rng(0).integers(0, 6, (23, 3)))
    a = leaf(normal(6, 35, 256), type)
    for x in (1, 3):
        b = leaf(normal(23, x, 256, seed=1))
        assert_right(lambda b=b: ops.mul_mat_id(a, b, chosen), n_threads)  # type: ignore[misc]


def test_experts_of_one_token_and_of_strided_ids() -> None:
    a, all_ids = leaf(normal(8, 20, 40)), ids([[7, 0, 3, 3], [1, 2, 4, 7]])
    some = ops.view(all_ids, (2, 2), nb=(4, 16), offset=4)
    assert_right(lambda: ops.mul_mat_id(a, leaf(normal(2, 1, 40, seed=1)), some))
    one = ops.view(all_ids, (4, 1), nb=(4, 16))
    assert_right(lambda: ops.mul_mat_id(a, leaf(normal(1, 4, 40, seed=1)), one))


def test_experts_give_the_same_bits_for_a_token_alone() -> None:
    a, x = leaf(normal(4, 33, 128), GGMLType.Q4_0), normal(9, 1, 128, seed=1)
    chosen = np.random.default_rng(0).integers(0, 4, (9, 2))
    whole = columns_of(ops.mul_mat_id(a, leaf(x), ids(chosen)), 2)
    for t in range(9):
        alone = columns_of(ops.mul_mat_id(a, leaf(x[..., t : t + 1, :, :]), ids(chosen[t : t + 1])))
        assert (alone == whole[2 * t : 2 * t + 2]).all()


@each_type((GGMLType.F16, GGMLType.BF16))
def test_experts_with_columns_of_other_types(type: GGMLType) -> None:
    a, chosen = leaf(normal(3, 9, 32), GGMLType.Q8_0), ids([[0, 2], [1, 2], [1, 0]])
    b = leaf(normal(3, 2, 32, seed=1), type)
    assert_right(lambda: ops.mul_mat_id(a, b, chosen))


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1, -(2**31)])
def test_experts_out_of_range_are_refused(bad: int) -> None:
    a, b = leaf(normal(4, 8, 32)), leaf(normal(3, 1, 32))
    node = ops.mul_mat_id(a, b, ids([[0, 1], [2, bad], [3, 1]]))
    with pytest.raises(BackendError, match=f"index {bad} must be at least 0 and below 4"):
        cpu_run.compute(node)
    # the next run is right again
    good = ops.mul_mat_id(a, b, ids([[0, 1], [2, 0], [3, 1]]))
    expected = reference_run.run(ops.mul_mat_id(a, b, ids([[0, 1], [2, 0], [3, 1]])))
    cpu_run.compute(good)
    assert_close(values_of(good), expected)
