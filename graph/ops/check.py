"""The checks of op builders: one error that names the op, the tensors' shapes and the rule."""

from __future__ import annotations

from ...base.errors import GraphError
from ..tensor import Tensor
from ..types import GGMLType

FLOATS = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)


def require(ok: bool, op: str, rule: str, *tensors: Tensor) -> None:
    """Raise unless `ok`.

    Raises:
        GraphError: `op: a[64, 32] F32 and b[48, 2] F32: rule`.
    """
    if not ok:
        raise GraphError(f"{op}: {' and '.join(repr(t) for t in tensors)}: {rule}")


def require_type(op: str, what: str, t: Tensor, *allowed: GGMLType) -> None:
    """Raise unless the type of `t` is one of `allowed`."""
    if t.type not in allowed:  # the text is only made if it is needed: graphs are built often
        names = " or ".join(a.name for a in allowed)
        require(False, op, f"{what} must be {names}, not {t.type.name}", t)


def require_float(op: str, what: str, t: Tensor) -> None:
    require_type(op, what, t, *FLOATS)


def is_matrix_type(type: GGMLType) -> bool:
    """True for the types of weight matrices: float and quantized types."""
    return type in FLOATS or type.is_quantized
