"""Kernels of graph/ops/elementwise.py: arithmetic, activations and gated units, in float32.

Tested by tests/kernels/test_reference_elementwise.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from ...graph import Tensor
from ...graph.op import (
    ClampParams,
    FillParams,
    GluOp,
    GluParams,
    Op,
    ScaleParams,
    UnaryOp,
    UnaryParams,
)
from ...graph.tensor import params_of
from .arrays import Array, F32Array, NumpyKernel, check_index, float_kernel, read, store, tile

Function = Callable[[F32Array], F32Array]

_ERFC: Final = np.frompyfunc(math.erfc, 1, 1)  # NumPy has none


def _silu(x: F32Array) -> F32Array:
    y: F32Array = x / (1 + np.exp(-x))
    return y


def _gelu(x: F32Array) -> F32Array:
    y: F32Array = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))
    return y


def _gelu_quick(x: F32Array) -> F32Array:
    y: F32Array = x / (1 + np.exp(-1.702 * x))
    return y


def _gelu_erf(x: F32Array) -> F32Array:
    # x / 2 * (1 + erf(x / sqrt 2)), with no cancellation where erf nears -1
    y: F32Array = (0.5 * x * _ERFC(x.astype(np.float64) / -math.sqrt(2))).astype(np.float32)
    return y


def _relu(x: F32Array) -> F32Array:
    return np.where(x > 0, x, np.float32(0))


def _sigmoid(x: F32Array) -> F32Array:
    y: F32Array = np.reciprocal(1 + np.exp(-x))
    return y


def _softplus(x: F32Array) -> F32Array:
    y: F32Array = np.logaddexp(np.float32(0), x)
    return y


FUNCTIONS: Final[dict[UnaryOp, Function]] = {
    UnaryOp.SILU: _silu,
    UnaryOp.GELU: _gelu,
    UnaryOp.GELU_QUICK: _gelu_quick,
    UnaryOp.GELU_ERF: _gelu_erf,
    UnaryOp.RELU: _relu,
    UnaryOp.SIGMOID: _sigmoid,
    UnaryOp.TANH: np.tanh,
    UnaryOp.EXP: np.exp,
    UnaryOp.NEG: np.negative,
    UnaryOp.ABS: np.abs,
    UnaryOp.SOFTPLUS: _softplus,
}

GATES: Final[dict[GluOp, Function]] = {
    GluOp.REGLU: _relu,
    GluOp.GEGLU: _gelu,
    GluOp.SWIGLU: _silu,
    GluOp.GEGLU_ERF: _gelu_erf,
    GluOp.GEGLU_QUICK: _gelu_quick,
}


def _binary(f: Callable[[F32Array, F32Array], F32Array]) -> NumpyKernel:
    def compute(_: Tensor, a: F32Array, b: F32Array) -> F32Array:
        return f(a, tile(b, a.shape))

    return float_kernel(compute)


def _add_id(node: Tensor, dst: Array, srcs: Sequence[Array]) -> None:
    ids = srcs[2]
    check_index(node, "expert", ids, node.src[1].ne[1])
    biases = read(node, srcs, 1)[0, 0]
    store(node.type, dst, read(node, srcs, 0) + biases[ids[0, 0]])


def _map(f: Function) -> NumpyKernel:
    def compute(_: Tensor, x: F32Array) -> F32Array:
        return f(x)

    return float_kernel(compute)


def _scale(node: Tensor, x: F32Array) -> F32Array:
    p = params_of(node, ScaleParams)
    # as ggml: without a bias -0.0 stays -0.0
    return x * p.scale + p.bias if p.bias else x * p.scale


def _clamp(node: Tensor, x: F32Array) -> F32Array:
    p = params_of(node, ClampParams)
    return np.minimum(np.maximum(x, p.low), p.high)


def _fill(node: Tensor, x: F32Array) -> F32Array:
    return np.full_like(x, params_of(node, FillParams).value)


def _unary(node: Tensor, x: F32Array) -> F32Array:
    p = params_of(node, UnaryParams)
    return _xielu(x, *p.scalars) if p.op is UnaryOp.XIELU else FUNCTIONS[p.op](x)


def _xielu(x: F32Array, alpha_n: float, alpha_p: float, beta: float, eps: float) -> F32Array:
    low = (np.expm1(np.minimum(x, np.float32(eps))) - x) * alpha_n + beta * x
    return np.where(x > 0, (alpha_p * x + beta) * x, low)


def _glu(node: Tensor, a: F32Array, b: F32Array | None = None) -> F32Array:
    p = params_of(node, GluParams)
    if b is None:
        first, second = np.split(a, 2, axis=-1)
        a, b = (second, first) if p.swapped else (first, second)
    a = np.ascontiguousarray(a)  # halves are strided; this gives the same bits as whole rows
    return _swiglu_oai(p, a, b) if p.op is GluOp.SWIGLU_OAI else GATES[p.op](a) * b


def _swiglu_oai(p: GluParams, a: F32Array, b: F32Array) -> F32Array:
    g = np.minimum(a, np.float32(p.limit))
    y: F32Array = g / (1 + np.exp(-p.alpha * g)) * (np.clip(b, -p.limit, p.limit) + 1)
    return y


KERNELS: Final[dict[Op, NumpyKernel]] = {
    Op.ADD: _binary(np.add),
    Op.SUB: _binary(np.subtract),
    Op.MUL: _binary(np.multiply),
    Op.DIV: _binary(np.divide),
    Op.ADD_ID: _add_id,
    Op.SCALE: float_kernel(_scale),
    Op.SQR: _map(np.square),
    Op.SQRT: _map(np.sqrt),
    Op.LOG: _map(np.log),
    Op.CLAMP: float_kernel(_clamp),
    Op.FILL: float_kernel(_fill),
    Op.UNARY: float_kernel(_unary),
    Op.GLU: float_kernel(_glu),
}
