"""Arithmetic, activations and gated units, compared with the reference and in ulps."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from backends import CUDA, FLOATS, Backend, Build, each_backend
from cuda_grid import needs_compiler
from op_cases import EXPERTS
from reference_run import XIELU, Array, each_type, ids, leaf, normal, unary, values_of

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, GluOp, Tensor, UnaryOp, ops
from lamella.kernels.cpu.ops.elementwise import PIECE
from lamella.kernels.cuda.ops import elementwise

each_binary = pytest.mark.parametrize("op", [ops.add, ops.sub, ops.mul, ops.div])
# rows of a part of a vector, of whole vectors, of slightly more; a row, or the whole tensor, larger
# than a piece or a block of threads
SHAPES = [(1,), (3,), (4,), (15,), (16,), (33,), (2, 1030), (2, PIECE + 40), (2, 3, 5, 77)]


@each_backend
@each_binary
@pytest.mark.parametrize(
    "b_shape",
    [(2, 3, 4, 6), (1, 1, 1, 6), (6,), (1, 1, 4, 1), (2, 1, 2, 3), (1, 3, 1, 2), (1, 1, 1, 1)],
    ids=str,
)
def test_the_second_operand_is_repeated(on: Backend, op: Build, b_shape: tuple[int, ...]) -> None:
    on.check(op, leaf(normal(2, 3, 4, 6)), leaf(normal(*b_shape, seed=1)))


@each_backend
@each_binary
def test_binary(on: Backend, op: Build) -> None:
    for shape in SHAPES:
        a, b = leaf(normal(*shape)), leaf(normal(*shape, seed=1))
        on.check(op, a, b)
        on.check(op, a, leaf(normal(shape[-1], seed=1)))
        on.check_in_place(op, a, b)


@each_backend
def test_a_row_is_repeated_across_pieces(on: Backend) -> None:
    on.check(ops.add, leaf(normal(2, 3 * 700)), leaf(normal(700, seed=1)))


@each_backend
@each_type(FLOATS)
def test_binary_of_other_types(on: Backend, type: GGMLType) -> None:
    for b_type in FLOATS:
        for n in (40, PIECE + 3):
            a = leaf(normal(3, n), type)
            for b_shape in ((3, n), (n,), (3, 1)):
                on.check(ops.mul, a, leaf(normal(*b_shape, seed=1), b_type))


@each_backend
@each_binary
@each_type(FLOATS)
def test_binary_of_strided_operands(on: Backend, op: Build, type: GGMLType) -> None:
    a, b = leaf(normal(2, 3, 4), type), leaf(normal(2, 1, 3, 4, seed=1), type)
    on.check(op, ops.transpose(a), ops.permute(b, (1, 0, 3, 2)))
    whole = leaf(normal(5, 60), type)
    part = ops.view(whole, (20, 5), nb=(type.type_size, whole.nb[1]), offset=8)
    on.check(op, part, part)


@each_backend
@each_type(FLOATS)
def test_a_row_chosen_for_each_row(on: Backend, type: GGMLType) -> None:
    for n in (7, PIECE + 40):
        a = leaf(normal(5, 2, n), type)
        for b_type in FLOATS:
            on.check(ops.add_id, a, leaf(normal(4, n, seed=1), b_type), ids(EXPERTS))
        turned = ops.permute(a, (0, 2, 1, 3)), ops.transpose(leaf(normal(n, 4, seed=1)))
        on.check(ops.add_id, *turned, ids(EXPERTS.T))
        on.check_in_place(ops.add_id, a, leaf(normal(4, n, seed=1)), ids(EXPERTS))
    # as many rows to choose from as rows: still not element by element
    b = leaf(normal(2, 7, seed=1), type)
    on.check(ops.add_id, leaf(normal(1, 2, 7), type), b, ops.transpose(ids([[1], [0]])))


@each_backend
@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1])
def test_a_chosen_row_out_of_range(on: Backend, bad: int) -> None:
    chosen = np.where(EXPERTS == 2, bad, EXPERTS)
    node = ops.add_id(leaf(normal(5, 2, 40)), leaf(normal(4, 40)), ids(chosen))
    with pytest.raises(BackendError, match=f"add_id.*: index {bad} must be at least 0 and below 4"):
        on.computed(node)


@each_backend
@each_type(FLOATS)
def test_rows_of_one_element_with_an_unused_stride(on: Backend, type: GGMLType) -> None:
    column = ops.transpose(leaf(normal(PIECE + 40), type))
    on.check(ops.add, column, column)
    on.check(ops.silu, column)


MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "scale": lambda a: ops.scale(a, 0.3),
    "scale with bias": lambda a: ops.scale(a, -2.5, 0.7),
    "sqr": ops.sqr,
    "sqrt": ops.sqrt,
    "log": ops.log,
    "clamp": lambda a: ops.clamp(a, -0.5, 0.75),
    "clamp below": lambda a: ops.clamp(a, -0.5, math.inf),
    "fill": lambda a: ops.fill(a, 1.5),
    **{op.name.lower(): lambda a, op=op: unary(a, op) for op in UnaryOp},  # type: ignore[misc]
}
each_map = pytest.mark.parametrize("name", MAPS)


@each_backend
@each_map
def test_maps(on: Backend, name: str) -> None:
    for shape in SHAPES:
        on.check(MAPS[name], leaf(3 * normal(*shape)))
    on.check_in_place(MAPS[name], leaf(3 * normal(4, 50)))


@each_backend
@each_map
@each_type(FLOATS)
def test_maps_of_other_types_and_layouts(on: Backend, name: str, type: GGMLType) -> None:
    a = leaf(3 * normal(2, 3, 40), type)
    on.check(MAPS[name], a)
    on.check(MAPS[name], ops.permute(a, (0, 2, 1, 3)))
    on.check_in_place(MAPS[name], a)
    if name.upper() not in UnaryOp.__members__:  # those need whole rows
        on.check(MAPS[name], ops.transpose(a))


@each_backend
@each_map
def test_maps_of_special_numbers(on: Backend, name: str) -> None:
    edges = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1e30, -1e30, 200.0, -200.0, 1e-40, -1e-40]
    on.check(MAPS[name], leaf(np.array(edges)))


@each_backend
def test_scale_keeps_negative_zero_without_bias(on: Backend) -> None:
    node = ops.scale(leaf(np.full(20, -0.0)), 2.0)
    on.computed(node)
    assert np.signbit(values_of(node)).all()


def ulps(on: Backend, op: UnaryOp, x: Array, exact: Callable[[float], float]) -> float:
    """The largest error in units in the last place, where results are normal numbers."""
    node = unary(leaf(x), op)
    on.computed(node)
    expected = np.array([exact(float(v)) for v in x.astype(np.float32)])
    unit = np.spacing(np.abs(expected).astype(np.float32).clip(1e-38)).astype(np.float64)
    return float((np.abs(values_of(node)[0, 0, 0] - expected) / unit).max())


@each_backend
def test_activations_are_precise_near_zero_too(on: Backend) -> None:
    x = np.linspace(-12, 12, 4001)
    assert ulps(on, UnaryOp.SIGMOID, x, lambda v: 1 / (1 + math.exp(-v))) < 4
    assert ulps(on, UnaryOp.SILU, x, lambda v: v / (1 + math.exp(-v))) < 4
    assert ulps(on, UnaryOp.TANH, x, math.tanh) < 2
    assert ulps(on, UnaryOp.EXP, x, math.exp) < 2
    assert ulps(on, UnaryOp.GELU_ERF, x, lambda v: v / 2 * math.erfc(-v / math.sqrt(2))) < 6
    assert ulps(on, UnaryOp.SOFTPLUS, x, softplus) < 4
    assert ulps(on, UnaryOp.XIELU, x[x > -0.5], xielu) < 8  # xIELU has a zero at about -1


def softplus(x: float) -> float:
    return max(x, 0) + math.log1p(math.exp(-abs(x)))


def xielu(x: float) -> float:
    alpha_n, alpha_p, beta, eps = XIELU
    if x > 0:
        return alpha_p * x * x + beta * x
    return (math.expm1(min(x, eps)) - x) * alpha_n + beta * x


@each_backend
@pytest.mark.parametrize("op", GluOp)
def test_glu(on: Backend, op: GluOp) -> None:
    for shape in ((3, 34), (2, 2 * PIECE + 6), (2, 3, 5, 10)):
        a = leaf(2 * normal(*shape))
        on.check(ops.glu, a, leaf(normal(*shape, seed=1)), op=op)
        on.check(ops.glu, a, b=None, op=op)
        on.check(ops.glu, a, b=None, op=op, swapped=True)


@each_backend
def test_the_limits_of_swiglu_oai(on: Backend) -> None:
    a, b = leaf(5 * normal(3, 40)), leaf(5 * normal(3, 40, seed=1))
    for alpha, limit in ((1.702, 7.0), (0.5, 2.5)):
        on.check(ops.swiglu_oai, a, b, alpha=alpha, limit=limit)


@each_backend
@each_type(FLOATS)
def test_glu_of_other_types_and_layouts(on: Backend, type: GGMLType) -> None:
    a, b = leaf(2 * normal(2, 3, 60), type), leaf(normal(2, 3, 60, seed=1), type)
    turned = ops.permute(a, (0, 2, 1, 3))
    halves = [
        ops.view(a, (20, 3), nb=(type.type_size, a.nb[1]), offset=at * type.type_size)
        for at in (10, 40)
    ]
    for op in (GluOp.SWIGLU, GluOp.REGLU):
        on.check(ops.glu, a, b, op=op)
        on.check(ops.glu, *halves, op=op)
        on.check(ops.glu, turned, b=None, op=op)
        on.check(ops.glu, turned, b=None, op=op, swapped=True)


@needs_compiler
def test_cuda_threads_compute_several_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elementwise, "MAX_BLOCKS", 2)
    CUDA.check(ops.add, leaf(normal(3, 2000)), leaf(normal(3, 2000, seed=1)))
    CUDA.check(ops.mul, leaf(normal(3, 2000)), leaf(normal(2000, seed=1)))
    CUDA.check(ops.silu, leaf(normal(3, 2000)))


def test_more_elements_than_cuda_kernels_can_count_are_not_supported() -> None:
    assert not CUDA.supports(ops.sqr(Tensor(GGMLType.F32, (2**16, 2**15))))
    assert CUDA.supports(ops.sqr(Tensor(GGMLType.F32, (2**16, 2**15 - 1))))
