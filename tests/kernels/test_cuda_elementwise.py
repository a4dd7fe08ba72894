"""Arithmetic, activations and gated units of the CUDA kernels, against the reference, in ulps."""

from __future__ import annotations

import math
from collections.abc import Callable

import cuda_run
import numpy as np
import pytest
from cuda_check import FLOATS, Build, check, check_in_place, computed
from cuda_grid import needs_compiler
from op_cases import EXPERTS
from reference_run import Array, each_type, ids, leaf, normal, values_of

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, GluOp, Tensor, UnaryOp, ops
from lamella.kernels.cuda.ops import elementwise

pytestmark = needs_compiler

each_binary = pytest.mark.parametrize("op", [ops.add, ops.sub, ops.mul, ops.div])
# less than a unit, units, a bit more; more than a block
SHAPES = [(1,), (3,), (4,), (33,), (2, 1030), (2, 3, 5, 77)]


@each_binary
@pytest.mark.parametrize(
    "b_shape",
    [(2, 3, 4, 6), (1, 1, 1, 6), (6,), (1, 1, 4, 1), (2, 1, 2, 3), (1, 3, 1, 2), (1, 1, 1, 1)],
    ids=str,
)
def test_the_second_operand_is_repeated(op: Build, b_shape: tuple[int, ...]) -> None:
    check(op, leaf(normal(2, 3, 4, 6)), leaf(normal(*b_shape, seed=1)))


@each_binary
def test_binary(op: Build) -> None:
    for shape in SHAPES:
        a, b = leaf(normal(*shape)), leaf(normal(*shape, seed=1))
        check(op, a, b)
        check(op, a, leaf(normal(shape[-1], seed=1)))
        check_in_place(op, a, b)


def test_threads_go_on_to_further_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elementwise, "MAX_BLOCKS", 2)
    check(ops.add, leaf(normal(3, 2000)), leaf(normal(3, 2000, seed=1)))
    check(ops.mul, leaf(normal(3, 2000)), leaf(normal(2000, seed=1)))
    check(ops.silu, leaf(normal(3, 2000)))


@each_type(FLOATS)
def test_binary_of_other_types(type: GGMLType) -> None:
    for b_type in FLOATS:
        for n in (40, 1027):
            a = leaf(normal(3, n), type)
            for b_shape in ((3, n), (n,), (3, 1)):
                check(ops.mul, a, leaf(normal(*b_shape, seed=1), b_type))


@each_binary
@each_type(FLOATS)
def test_binary_of_strided_operands(op: Build, type: GGMLType) -> None:
    a, b = leaf(normal(2, 3, 4), type), leaf(normal(2, 1, 3, 4, seed=1), type)
    check(op, ops.transpose(a), ops.permute(b, (1, 0, 3, 2)))
    whole = leaf(normal(5, 60), type)
    part = ops.view(whole, (20, 5), nb=(type.type_size, whole.nb[1]), offset=8)
    check(op, part, part)


@each_type(FLOATS)
def test_a_row_chosen_for_each_row(type: GGMLType) -> None:
    for n in (7, 1027):
        a = leaf(normal(5, 2, n), type)
        for b_type in FLOATS:
            check(ops.add_id, a, leaf(normal(4, n, seed=1), b_type), ids(EXPERTS))
        turned = ops.permute(a, (0, 2, 1, 3)), ops.transpose(leaf(normal(n, 4, seed=1)))
        check(ops.add_id, *turned, ids(EXPERTS.T))
        check_in_place(ops.add_id, a, leaf(normal(4, n, seed=1)), ids(EXPERTS))
    # as many chosen rows as rows: still not element by element
    b = leaf(normal(2, 7, seed=1), type)
    check(ops.add_id, leaf(normal(1, 2, 7), type), b, ops.transpose(ids([[1], [0]])))


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1])
def test_a_chosen_row_that_is_not_there(bad: int) -> None:
    chosen = np.where(EXPERTS == 2, bad, EXPERTS)
    node = ops.add_id(leaf(normal(5, 2, 40)), leaf(normal(4, 40)), ids(chosen))
    with pytest.raises(BackendError, match=f"add_id.*: index {bad} must be at least 0 and below 4"):
        computed(node)


@each_type(FLOATS)
def test_the_stride_inside_rows_of_one_element_means_nothing(type: GGMLType) -> None:
    column = ops.transpose(leaf(normal(1064), type))
    check(ops.add, column, column)
    check(ops.silu, column)


MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "scale": lambda a: ops.scale(a, 0.3),
    "scale with bias": lambda a: ops.scale(a, -2.5, 0.7),
    "sqr": ops.sqr,
    "sqrt": ops.sqrt,
    "log": ops.log,
    "clamp": lambda a: ops.clamp(a, -0.5, 0.75),
    "clamp below": lambda a: ops.clamp(a, -0.5, math.inf),
    "fill": lambda a: ops.fill(a, 1.5),
    **{op.name.lower(): lambda a, op=op: ops.unary(a, op) for op in UnaryOp},  # type: ignore[misc]
}
each_map = pytest.mark.parametrize("name", MAPS)


@each_map
def test_maps(name: str) -> None:
    for shape in SHAPES:
        check(MAPS[name], leaf(3 * normal(*shape)))
    check_in_place(MAPS[name], leaf(3 * normal(4, 50)))


@each_map
@each_type(FLOATS)
def test_maps_of_other_types_and_layouts(name: str, type: GGMLType) -> None:
    a = leaf(3 * normal(2, 3, 40), type)
    check(MAPS[name], a)
    check(MAPS[name], ops.permute(a, (0, 2, 1, 3)))
    check_in_place(MAPS[name], a)
    if name.upper() not in UnaryOp.__members__:  # those need whole rows
        check(MAPS[name], ops.transpose(a))


@each_map
def test_maps_of_what_is_no_common_number(name: str) -> None:
    edges = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1e30, -1e30, 200.0, -200.0, 1e-40, -1e-40]
    check(MAPS[name], leaf(np.array(edges)))


def test_scale_keeps_negative_zero_without_bias() -> None:
    node = ops.scale(leaf(np.full(20, -0.0)), 2.0)
    computed(node)
    assert np.signbit(values_of(node)).all()


@pytest.mark.parametrize("mask", [ops.diag_mask_inf, ops.diag_mask_zero])
@pytest.mark.parametrize("n_past", [0, 3, 20, 100])
def test_diagonal_masks(mask: Build, n_past: int) -> None:
    x = leaf(normal(2, 3, 7, 37))
    check(mask, x, n_past=n_past, error=0)
    check_in_place(mask, x, n_past=n_past)


def ulps(op: UnaryOp, x: Array, exact: Callable[[float], float]) -> float:
    """The largest error in units in the last place, where results are normal numbers."""
    node = ops.unary(leaf(x), op)
    computed(node)
    expected = np.array([exact(float(v)) for v in x.astype(np.float32)])
    unit = np.spacing(np.abs(expected).astype(np.float32).clip(1e-38)).astype(np.float64)
    return float((np.abs(values_of(node)[0, 0, 0] - expected) / unit).max())


def test_activations_are_precise_also_where_they_are_near_zero() -> None:
    x = np.linspace(-12, 12, 4001)
    assert ulps(UnaryOp.SIGMOID, x, lambda v: 1 / (1 + math.exp(-v))) < 4
    assert ulps(UnaryOp.SILU, x, lambda v: v / (1 + math.exp(-v))) < 4
    assert ulps(UnaryOp.GELU_ERF, x, lambda v: v / 2 * math.erfc(-v / math.sqrt(2))) < 6


@pytest.mark.parametrize("op", GluOp)
def test_glu(op: GluOp) -> None:
    for shape in ((3, 34), (2, 2054), (2, 3, 5, 10)):
        a = leaf(2 * normal(*shape))
        check(ops.glu, a, leaf(normal(*shape, seed=1)), op=op)
        check(ops.glu, a, b=None, op=op)
        check(ops.glu, a, b=None, op=op, swapped=True)


@each_type(FLOATS)
def test_glu_of_other_types_and_layouts(type: GGMLType) -> None:
    a, b = leaf(2 * normal(2, 3, 60), type), leaf(normal(2, 3, 60, seed=1), type)
    turned = ops.permute(a, (0, 2, 1, 3))
    halves = [
        ops.view(a, (20, 3), nb=(type.type_size, a.nb[1]), offset=at * type.type_size)
        for at in (10, 40)
    ]
    for op in (GluOp.SWIGLU, GluOp.REGLU):
        check(ops.glu, a, b, op=op)
        check(ops.glu, *halves, op=op)
        check(ops.glu, turned, b=None, op=op)
        check(ops.glu, turned, b=None, op=op, swapped=True)


def test_more_elements_than_kernels_can_count_are_not_supported() -> None:
    assert not cuda_run.supports(ops.sqr(Tensor(GGMLType.F32, (2**16, 2**15))))
    assert cuda_run.supports(ops.sqr(Tensor(GGMLType.F32, (2**16, 2**15 - 1))))
