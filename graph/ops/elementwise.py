"""Builders of element-wise ops: arithmetic, activations and gated activations."""

from __future__ import annotations

from ..op import (
    ClampParams,
    FillParams,
    GluOp,
    GluParams,
    Op,
    OpParams,
    ScaleParams,
    UnaryOp,
    UnaryParams,
)
from ..tensor import Tensor, can_repeat, same_shape
from ..types import GGMLType
from .check import require, require_float, require_type


def add(a: Tensor, b: Tensor) -> Tensor:
    """a + b, with b repeated to the shape of a."""
    return _binary(Op.ADD, a, b)


def sub(a: Tensor, b: Tensor) -> Tensor:
    """a - b, with b repeated to the shape of a."""
    return _binary(Op.SUB, a, b)


def mul(a: Tensor, b: Tensor) -> Tensor:
    """a * b, with b repeated to the shape of a."""
    return _binary(Op.MUL, a, b)


def div(a: Tensor, b: Tensor) -> Tensor:
    """a / b, with b repeated to the shape of a."""
    return _binary(Op.DIV, a, b)


def add_id(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    """a + rows of b, one chosen for each row of a: the biases of experts.

    Args:
        a: [n, n_used, n_tokens].
        b: [n, n_expert].
        ids: I32 [n_used, n_tokens], the experts of each token.
    """
    require_float("add_id", "a", a)
    require_float("add_id", "b", b)
    require_type("add_id", "ids", ids, GGMLType.I32)
    flat = a.ne[3] == 1 and b.ne[2:] == ids.ne[2:] == (1, 1)
    require(flat, "add_id", "a must have at most three dimensions, b and ids two", a, b, ids)
    require(a.ne[0] == b.ne[0], "add_id", "ne[0] must be equal", a, b)
    require(ids.ne[:2] == a.ne[1:3], "add_id", "ids.ne[:2] must equal a.ne[1:3]", a, ids)
    return Tensor(a.type, a.ne, op=Op.ADD_ID, src=(a, b, ids))


def scale(a: Tensor, s: float, bias: float = 0.0) -> Tensor:
    """a * s + bias."""
    return _map(Op.SCALE, a, ScaleParams(float(s), float(bias)))


def sqr(a: Tensor) -> Tensor:
    """a squared."""
    return _map(Op.SQR, a)


def sqrt(a: Tensor) -> Tensor:
    """Square root of a."""
    return _map(Op.SQRT, a)


def log(a: Tensor) -> Tensor:
    """Natural logarithm of a."""
    return _map(Op.LOG, a)


def clamp(a: Tensor, low: float, high: float) -> Tensor:
    """a limited to [low, high]."""
    require(low <= high, "clamp", f"low {low} must not exceed high {high}", a)
    return _map(Op.CLAMP, a, ClampParams(float(low), float(high)))


def fill(a: Tensor, value: float) -> Tensor:
    """`value` in the shape of a."""
    return _map(Op.FILL, a, FillParams(float(value)))


def unary(a: Tensor, op: UnaryOp) -> Tensor:
    """The function `op` of each element.

    GELU is the tanh approximation, GELU_ERF the exact one, GELU_QUICK x * sigmoid(1.702 x)
    (arXiv 1606.08415); SILU is x * sigmoid(x) (arXiv 1702.03118); SOFTPLUS is log(1 + e**x).

    Raises:
        GraphError: a row has gaps; XIELU needs numbers, which `xielu` takes.
    """
    require(op is not UnaryOp.XIELU, "unary", "XIELU has parameters: use xielu", a)
    return _unary(a, UnaryParams(op))


def silu(a: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return unary(a, UnaryOp.SILU)


def gelu(a: Tensor) -> Tensor:
    """GELU, tanh approximation."""
    return unary(a, UnaryOp.GELU)


def gelu_erf(a: Tensor) -> Tensor:
    """GELU, exact."""
    return unary(a, UnaryOp.GELU_ERF)


def relu(a: Tensor) -> Tensor:
    """max(x, 0)."""
    return unary(a, UnaryOp.RELU)


def xielu(a: Tensor, alpha_n: float, alpha_p: float, beta: float, eps: float) -> Tensor:
    """xIELU (arXiv 2411.13010), as transformers' XIELUActivation and ggml_xielu compute it.

    alpha_p * x**2 + beta * x where x > 0, else (e**min(x, eps) - 1 - x) * alpha_n + beta * x.
    A model stores alphas before their softplus. Here, as in ggml's kernels, `alpha_p` is
    softplus(stored alpha_p) and `alpha_n` is beta + softplus(stored alpha_n). `eps` is below 0.
    """
    scalars = float(alpha_n), float(alpha_p), float(beta), float(eps)
    return _unary(a, UnaryParams(UnaryOp.XIELU, scalars))


def glu(
    a: Tensor,
    b: Tensor | None,
    op: GluOp,
    swapped: bool = False,
    alpha: float = 1.702,
    limit: float = 7.0,
) -> Tensor:
    """A gated linear unit (arXiv 2002.05202): f(a) * b, where f is the activation of `op`.

    Without b, the first half of each row of a is the gate and the second half the value; `swapped`
    reverses the two. `alpha` and `limit` are those of SWIGLU_OAI: see `swiglu_oai`.

    Raises:
        GraphError: b differs from a in shape or type; without b, a.ne[0] is odd; rows have gaps.
    """
    name = op.name.lower()
    require_float(name, "a", a)
    require(a.has_contiguous_rows, name, "rows must be contiguous", a)
    params = GluParams(op, swapped, float(alpha), float(limit))
    if b is None:
        require(a.ne[0] % 2 == 0, name, "ne[0] must be even: a row holds gate and value", a)
        ne = (a.ne[0] // 2, *a.ne[1:])
        return Tensor(a.type, ne, op=Op.GLU, params=params, src=(a,))
    require(same_shape(a, b) and a.type is b.type, name, "shapes and types must be equal", a, b)
    require(b.has_contiguous_rows, name, "rows must be contiguous", b)
    require(not swapped, name, "swapped needs a single source that holds both halves", a, b)
    return Tensor(a.type, a.ne, op=Op.GLU, params=params, src=(a, b))


def swiglu(a: Tensor, b: Tensor | None = None) -> Tensor:
    """silu(a) * b; without b, gate and value are the halves of a."""
    return glu(a, b, GluOp.SWIGLU)


def geglu(a: Tensor, b: Tensor | None = None) -> Tensor:
    """gelu(a) * b; without b, gate and value are the halves of a."""
    return glu(a, b, GluOp.GEGLU)


def reglu(a: Tensor, b: Tensor | None = None) -> Tensor:
    """relu(a) * b; without b, gate and value are the halves of a."""
    return glu(a, b, GluOp.REGLU)


def swiglu_oai(
    a: Tensor, b: Tensor | None = None, alpha: float = 1.702, limit: float = 7.0
) -> Tensor:
    """gpt-oss's gated unit: g * sigmoid(alpha * g) * (u + 1); without b, a holds both halves.

    g = min(a, limit), and u is b limited to [-limit, limit].
    """
    return glu(a, b, GluOp.SWIGLU_OAI, alpha=alpha, limit=limit)


def _binary(op: Op, a: Tensor, b: Tensor) -> Tensor:
    name = op.name.lower()
    require_float(name, "a", a)
    require_float(name, "b", b)
    require(can_repeat(b, a), name, "the shape of a must be whole repetitions of b", a, b)
    return Tensor(a.type, a.ne, op=op, src=(a, b))


def _unary(a: Tensor, params: UnaryParams) -> Tensor:
    name = params.op.name.lower()
    require(a.has_contiguous_rows, name, "rows must be contiguous", a)
    return _map(Op.UNARY, a, params, name)


def _map(op: Op, a: Tensor, params: OpParams = None, name: str = "") -> Tensor:
    require_float(name or op.name.lower(), "a", a)
    return Tensor(a.type, a.ne, op=op, params=params, src=(a,))
