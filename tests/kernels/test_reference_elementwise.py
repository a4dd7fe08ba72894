"""Arithmetic, activations and gated units of the reference kernels, compared with float64 loops."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from op_cases import EXPERTS
from reference_run import (
    ERROR,
    XIELU,
    F64Array,
    assert_close,
    compute,
    data,
    each_type,
    ids,
    leaf,
    normal,
    run,
    unary,
    values_of,
)

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, GluOp, Tensor, UnaryOp, ops
from lamella.graph.ops.check import FLOATS

Builder = Callable[[Tensor, Tensor], Tensor]

BINARY: dict[Builder, Callable[[float, float], float]] = {
    ops.add: lambda a, b: a + b,
    ops.sub: lambda a, b: a - b,
    ops.mul: lambda a, b: a * b,
    ops.div: lambda a, b: a / b,
}
each_binary = pytest.mark.parametrize("build", BINARY, ids=lambda build: build.__name__)


def elementwise(build: Builder, a: F64Array, b: F64Array) -> F64Array:
    """One element after the other, with b's indices wrapped around."""
    result = np.empty(a.shape)
    for index in np.ndindex(a.shape):
        wrapped = tuple(i % n for i, n in zip(index, b.shape, strict=True))
        result[index] = BINARY[build](float(a[index]), float(b[wrapped]))
    return result


@each_binary
@pytest.mark.parametrize(
    "b_shape", [(2, 3, 4, 6), (1, 1, 1, 6), (1, 1, 4, 1), (2, 1, 2, 3), (1, 3, 1, 2), (1, 1, 1, 1)]
)
def test_binary_repeats_b(build: Builder, b_shape: tuple[int, ...]) -> None:
    a, b = normal(2, 3, 4, 6), normal(*b_shape, seed=1)
    assert_close(run(build(leaf(a), leaf(b))), elementwise(build, a, b))


@each_binary
@each_type(FLOATS)
def test_binary_of_other_types(build: Builder, type: GGMLType) -> None:
    for b_type in FLOATS:
        a = leaf(normal(1, 1, 3, 8), type)
        b = leaf(normal(1, 1, 3, 8, seed=1), b_type)
        node = build(a, b)
        assert node.type is type
        assert_close(run(node), elementwise(build, values_of(a), values_of(b)), ERROR[type])


@each_binary
def test_binary_of_strided_sources(build: Builder) -> None:
    a, b = normal(1, 2, 3, 4), normal(2, 1, 3, 4, seed=1)
    node = build(ops.transpose(leaf(a)), ops.permute(leaf(b), (1, 0, 3, 2)))
    expected = elementwise(build, a.transpose(0, 1, 3, 2), b.transpose(1, 0, 3, 2))
    assert_close(run(node), expected)


@each_binary
def test_binary_of_empty_tensors(build: Builder) -> None:
    empty = leaf(np.zeros((2, 0, 4)))
    assert run(build(empty, leaf(np.zeros((0, 4))))).shape == (1, 2, 0, 4)


@each_type(FLOATS)
def test_a_row_chosen_for_each_row(type: GGMLType) -> None:
    a, b = leaf(normal(5, 2, 8), type), leaf(normal(4, 8, seed=1))
    chosen = ids(EXPERTS)
    expected = values_of(a)
    for token, used in np.ndindex(5, 2):
        expected[0, token, used] += values_of(b)[0, 0, EXPERTS[token, used]]
    assert_close(run(ops.add_id(a, b, chosen)), expected, ERROR[type])


@pytest.mark.parametrize("bad", [-1, 4])
def test_a_chosen_row_out_of_range(bad: int) -> None:
    node = ops.add_id(leaf(normal(1, 2, 8)), leaf(normal(4, 8)), ids([[0, bad]]))
    with pytest.raises(BackendError, match=f"add_id .*: expert {bad} must be at least 0 and below"):
        run(node)


def test_division_by_zero_is_inf_or_nan() -> None:
    zeros = leaf([0.0, 0.0, 0.0])
    assert_close(
        run(ops.div(leaf([1.0, -1.0, 0.0]), zeros))[0, 0, 0], np.array([np.inf, -np.inf, np.nan])
    )


def test_overflow_is_inf() -> None:
    for type, large in ((GGMLType.F32, 3e38), (GGMLType.F16, 6e4), (GGMLType.BF16, 3e38)):
        a = leaf([large, -large], type)
        assert run(ops.add(a, a)).tolist() == [[[[math.inf, -math.inf]]]]


MAPS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[float], float]]] = {
    "scale": (lambda a: ops.scale(a, 0.3), lambda x: x * 0.3),
    "scale with bias": (lambda a: ops.scale(a, -2.5, 0.7), lambda x: x * -2.5 + 0.7),
    "sqr": (ops.sqr, lambda x: x**2),
    "clamp": (lambda a: ops.clamp(a, -0.5, 0.75), lambda x: sorted((-0.5, x, 0.75))[1]),
    "clamp below": (lambda a: ops.clamp(a, -0.5, math.inf), lambda x: max(x, -0.5)),
    "fill": (lambda a: ops.fill(a, 1.5), lambda _: 1.5),
}


@pytest.mark.parametrize("name", MAPS)
@each_type(FLOATS)
def test_maps(name: str, type: GGMLType) -> None:
    build, f = MAPS[name]
    a = leaf(normal(2, 1, 3, 9), type)
    expected = np.vectorize(f, otypes=[float])(values_of(a))
    assert_close(run(build(a)), expected, ERROR[type])
    turned = compute(ops.transpose(a))
    assert_close(run(build(turned)), expected.transpose(0, 1, 3, 2), ERROR[type])
    assert run(build(leaf(np.zeros((0, 3)), type))).shape == (1, 1, 0, 3)


def test_scale_keeps_negative_zero_without_bias() -> None:
    assert np.signbit(run(ops.scale(leaf([-0.0]), 2.0))).all()


def test_sqrt_and_log() -> None:
    x = np.array([0.25, 2.0, 1e-30, 1e30])
    assert_close(run(ops.sqrt(leaf(x)))[0, 0, 0], np.array([math.sqrt(v) for v in x]))
    assert_close(run(ops.log(leaf(x)))[0, 0, 0], np.array([math.log(v) for v in x]))
    edge = leaf([0.0, -1.0, math.inf])
    assert_close(run(ops.sqrt(edge))[0, 0, 0], np.array([0.0, math.nan, math.inf]))
    assert_close(run(ops.log(edge))[0, 0, 0], np.array([-math.inf, math.nan, math.inf]))


def phi(x: float) -> float:
    """The normal distribution; GELU is x * phi(x)."""
    return (1 + math.erf(x / math.sqrt(2))) / 2


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def gelu_tanh(x: float) -> float:
    # 1 + tanh(y) = 2 sigmoid(2 y)
    return x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def xielu(x: float, alpha_n: float, alpha_p: float, beta: float, eps: float) -> float:
    if x > 0:
        return alpha_p * x * x + beta * x
    return (math.expm1(min(x, eps)) - x) * alpha_n + beta * x


UNARY: dict[UnaryOp, Callable[[float], float]] = {
    UnaryOp.SILU: lambda x: x * sigmoid(x),
    UnaryOp.GELU: gelu_tanh,
    UnaryOp.GELU_QUICK: lambda x: x * sigmoid(1.702 * x),
    UnaryOp.GELU_ERF: lambda x: x * phi(x),
    UnaryOp.RELU: lambda x: x if x > 0 else 0.0,
    UnaryOp.SIGMOID: sigmoid,
    UnaryOp.TANH: math.tanh,
    UnaryOp.EXP: math.exp,
    UnaryOp.NEG: lambda x: -x,
    UnaryOp.ABS: abs,
    UnaryOp.SOFTPLUS: lambda x: math.log1p(math.exp(x)),
    UnaryOp.XIELU: lambda x: xielu(x, *XIELU),
}


@pytest.mark.parametrize("op", UnaryOp)
@each_type(FLOATS)
def test_unary(op: UnaryOp, type: GGMLType) -> None:
    a = leaf(3 * normal(2, 3, 2, 33), type)
    expected = np.vectorize(UNARY[op])(values_of(a))
    assert_close(run(unary(a, op)), expected, ERROR[type])
    # rows must be contiguous, but may have gaps between them
    turned = ops.permute(a, (0, 3, 1, 2))
    assert_close(run(unary(turned, op)), expected.transpose(2, 0, 1, 3), ERROR[type])
    assert run(unary(leaf(np.zeros((0, 3)), type), op)).shape == (1, 1, 0, 3)


def test_unary_far_from_zero() -> None:
    far = leaf([-1e30, -200.0, 200.0, 1e30])
    to_the_right = [0, 0, 200, 1e30]
    for op in (UnaryOp.SILU, UnaryOp.GELU, UnaryOp.GELU_QUICK, UnaryOp.GELU_ERF, UnaryOp.RELU):
        np.testing.assert_allclose(run(ops.unary(far, op))[0, 0, 0], to_the_right, rtol=1e-6)
    np.testing.assert_allclose(
        run(ops.unary(far, UnaryOp.SOFTPLUS))[0, 0, 0], to_the_right, atol=1e-38
    )
    assert run(ops.unary(far, UnaryOp.SIGMOID)).ravel().tolist() == [0, 0, 1, 1]
    assert run(ops.unary(far, UnaryOp.TANH)).ravel().tolist() == [-1, -1, 1, 1]
    assert run(ops.unary(far, UnaryOp.EXP)).ravel().tolist() == [0, 0, math.inf, math.inf]


def test_gelu_approximations_are_near_the_exact_one() -> None:
    x = leaf(np.linspace(-6, 6, 97))
    exact = run(ops.unary(x, UnaryOp.GELU_ERF))
    assert np.abs(run(ops.gelu(x)) - exact).max() < 5e-4
    assert np.abs(run(ops.unary(x, UnaryOp.GELU_QUICK)) - exact).max() < 0.021


GATES = {
    GluOp.REGLU: UnaryOp.RELU,
    GluOp.GEGLU: UnaryOp.GELU,
    GluOp.SWIGLU: UnaryOp.SILU,
    GluOp.GEGLU_ERF: UnaryOp.GELU_ERF,
    GluOp.GEGLU_QUICK: UnaryOp.GELU_QUICK,
}


def swiglu_oai(gate: F64Array, up: F64Array, alpha: float, limit: float) -> F64Array:
    g = np.minimum(gate, limit)
    result: F64Array = (np.clip(up, -limit, limit) + 1) * g / (1 + np.exp(-alpha * g))
    return result


@each_type(FLOATS)
def test_swiglu_oai(type: GGMLType) -> None:
    a, b = leaf(6 * normal(2, 1, 3, 10), type), leaf(6 * normal(2, 1, 3, 10, seed=1), type)
    gate, up = values_of(a), values_of(b)
    assert_close(run(ops.swiglu_oai(a, b)), swiglu_oai(gate, up, 1.702, 7), ERROR[type])
    expected = swiglu_oai(gate[..., :5], gate[..., 5:], 0.5, 2.5)
    assert_close(run(ops.swiglu_oai(a, alpha=0.5, limit=2.5)), expected, ERROR[type])


@pytest.mark.parametrize("op", GATES)
@each_type(FLOATS)
def test_glu(op: GluOp, type: GGMLType) -> None:
    a, b = leaf(normal(2, 1, 3, 10), type), leaf(normal(2, 1, 3, 10, seed=1), type)
    gate = np.vectorize(UNARY[GATES[op]])
    assert_close(run(ops.glu(a, b, op)), gate(values_of(a)) * values_of(b), ERROR[type])
    first, second = values_of(a)[..., :5], values_of(a)[..., 5:]
    assert_close(run(ops.glu(a, None, op)), gate(first) * second, ERROR[type])
    assert_close(run(ops.glu(a, None, op, swapped=True)), gate(second) * first, ERROR[type])


def test_glu_of_halves_of_a_tensor_equals_glu_of_the_tensor() -> None:
    a = leaf(normal(3, 10))
    gate = ops.view(a, (5, 3), nb=(4, 40))
    value = ops.view(a, (5, 3), nb=(4, 40), offset=20)
    split, whole = compute(ops.swiglu(gate, value)), compute(ops.swiglu(a))
    assert data(split).tobytes() == data(whole).tobytes()
    assert run(ops.swiglu(leaf(np.zeros((0, 4))))).shape == (1, 1, 0, 2)
    assert run(ops.swiglu(leaf(np.zeros((4, 0))))).shape == (1, 1, 4, 0)
