"""Activations and gated units: UNARY and GLU, in vectors of floats.

Exponentials are functions.vexp, so an element's bits depend only on its own value. elementwise.py
handles the layout of operands. Tested by tests/kernels/test_elementwise.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from ....graph.op import GluOp, GluParams, Op, UnaryOp, UnaryParams
from ....graph.tensor import Tensor, params_of
from ...plan.node_params import glu_operands, glu_scalars, scalars_of
from ..simd.calls import inlined
from ..simd.functions import vexp, vexpm1, vlog1p, vtanh
from ..simd.vectors import choose, fma, splat, vabs, vmax, vmin, zero
from ..table import CpuCall, implements
from .elementwise import map_call, map_kernel, pair_call, pair_kernel

GELU: Final = -2 * math.sqrt(2 / math.pi)


@inlined
def sigmoid(x):
    """1 / (1 + e**-x)."""
    return splat(1.0) / (splat(1.0) + vexp(x * splat(-1.0)))


@inlined
def silu(x):
    """x * sigmoid(x)."""
    return x / (splat(1.0) + vexp(x * splat(-1.0)))


@inlined
def gelu(x):
    """x / 2 * (1 + tanh(y)), y = sqrt(2 / pi) (x + 0.044715 x**3), as x * sigmoid(2 y)."""
    return x / (splat(1.0) + vexp(splat(GELU) * x * fma(splat(0.044715) * x, x, splat(1.0))))


@inlined
def gelu_quick(x):
    """x * sigmoid(1.702 x)."""
    return x / (splat(1.0) + vexp(x * splat(-1.702)))


@inlined
def gelu_erf(x):
    """x / 2 * erfc(-x / sqrt 2), within a few units in the last place, near 0 too.

    With z = |x| / sqrt 2 and t = 1 / (1 + z / 2): erfc(z) = t e**(p(t) - z * z). p is a Chebyshev
    fit for z < 15, with an error of at most 7e-8. Above 15, erfc is 0 in float32.
    """
    a = vmin(splat(21.0), vabs(x))
    t = splat(1.0) / fma(splat(0.5 * math.sqrt(0.5)), a, splat(1.0))
    p = fma(splat(0.167381003), t, splat(-0.801325262))
    p = fma(p, t, splat(1.43554544))
    p = fma(p, t, splat(-1.06009936))
    p = fma(p, t, splat(0.213782743))
    p = fma(p, t, splat(-0.150773004))
    p = fma(p, t, splat(0.0846820921))
    p = fma(p, t, splat(0.376550198))
    p = fma(p, t, splat(0.999756813))
    p = fma(p, t, splat(-1.26550055))
    # z * z = a * a / 2 with all its digits: the exponential would magnify a rounding error
    square = a * a
    rest = fma(a, a, square * splat(-1.0))
    erfc = t * vexp(square * splat(-0.5)) * vexp(fma(rest, splat(-0.5), p))
    return splat(0.5) * x * choose(x, zero(), erfc, splat(2.0) - erfc)


@inlined
def relu(x):
    """max(x, 0); 0 for NaN."""
    return vmax(x, zero())


@inlined
def softplus(x):
    """log(1 + e**x), as max(x, 0) + log(1 + e**-|x|)."""
    return vmax(x, zero()) + vlog1p(vexp(vabs(x) * splat(-1.0)))


@inlined
def xielu(x, scalars):
    """See `ops.xielu`."""
    alpha_n, alpha_p, beta, eps = scalars
    low = (vexpm1(vmin(eps, x)) - x) * alpha_n + beta * x
    return choose(zero(), x, (alpha_p * x + beta) * x, low)


@inlined
def swiglu_oai(x, y, scalars):
    """See `ops.swiglu_oai`."""
    alpha, limit = scalars[0], scalars[1]
    gate = vmin(limit, x)
    value = vmin(limit, vmax(limit * splat(-1.0), y))
    return gate / (splat(1.0) + vexp(alpha * splat(-1.0) * gate)) * (value + splat(1.0))


UNARY_FUNCTIONS: Final = {  # of the operand, and the op's parameters as vectors
    UnaryOp.SILU: inlined(lambda x, s: silu(x)),
    UnaryOp.GELU: inlined(lambda x, s: gelu(x)),
    UnaryOp.GELU_QUICK: inlined(lambda x, s: gelu_quick(x)),
    UnaryOp.GELU_ERF: inlined(lambda x, s: gelu_erf(x)),
    UnaryOp.RELU: inlined(lambda x, s: relu(x)),
    UnaryOp.SIGMOID: inlined(lambda x, s: sigmoid(x)),
    UnaryOp.TANH: inlined(lambda x, s: vtanh(x)),
    UnaryOp.EXP: inlined(lambda x, s: vexp(x)),
    UnaryOp.NEG: inlined(lambda x, s: x * splat(-1.0)),
    UnaryOp.ABS: inlined(lambda x, s: vabs(x)),
    UnaryOp.SOFTPLUS: inlined(lambda x, s: softplus(x)),
    UnaryOp.XIELU: xielu,
}
UNARY: Final = {op: map_kernel(f"{op.name.lower()}_float", f) for op, f in UNARY_FUNCTIONS.items()}

GATED: Final = {  # functions of the gate, the other operand, and the op's parameters as vectors
    GluOp.REGLU: inlined(lambda x, y, s: relu(x) * y),
    GluOp.GEGLU: inlined(lambda x, y, s: gelu(x) * y),
    GluOp.SWIGLU: inlined(lambda x, y, s: silu(x) * y),
    GluOp.GEGLU_ERF: inlined(lambda x, y, s: gelu_erf(x) * y),
    GluOp.GEGLU_QUICK: inlined(lambda x, y, s: gelu_quick(x) * y),
    GluOp.SWIGLU_OAI: swiglu_oai,
}
GLU: Final = {op: pair_kernel(f"{op.name.lower()}_float", f) for op, f in GATED.items()}


@implements(Op.UNARY)
def unary(node: Tensor) -> Sequence[CpuCall]:
    return [map_call(UNARY[params_of(node, UnaryParams).op], node, scalars_of(node))]


@implements(Op.GLU)
def glu(node: Tensor) -> Sequence[CpuCall]:
    kernel = GLU[params_of(node, GluParams).op]
    return [pair_call(kernel, node, *glu_operands(node), glu_scalars(node))]
