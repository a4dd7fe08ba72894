"""Element-wise ops of one operand (src/elementwise.cu) and of two (src/pairs.cu).

A thread computes units of four elements. Tensors of one shape without gaps are treated as one row,
so that threads need not compute row indices. Tested by tests/kernels/test_elementwise.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ....graph.op import GluParams, Op, UnaryParams
from ....graph.tensor import Tensor, params_of
from ...plan.calls import Number
from ...plan.node_params import diag_mask_of, glu_operands, glu_scalars, is_flat, scalars_of
from ..table import CudaCall, CudaKernel, CudaSource, Dim3, implements

MAX_ELEMENTS: Final = 2**31  # kernels count them in 32 bits
UNIT: Final = 4
BLOCK: Final = 256
MAX_BLOCKS: Final = 4096  # more than run at once; threads loop over units

MAPS: Final = CudaSource.of("elementwise.cu")
PAIRS: Final = CudaSource.of("pairs.cu")


def is_countable(*tensors: Tensor) -> bool:
    """True if kernels can count the elements of each tensor in 32 bits."""
    return all(t.n_elements < MAX_ELEMENTS for t in tensors)


def grid_of(n_threads: int) -> Dim3:
    """The blocks for `n_threads` threads. If they are too many, threads do the work of several."""
    return min(-(-n_threads // BLOCK), MAX_BLOCKS), 1, 1


def _supports(node: Tensor) -> bool:
    return is_countable(node)


def _grid(node: Tensor) -> Dim3:
    return grid_of(node.n_rows * -(-node.ne[0] // UNIT))


# --- one operand ---


def _map(name: str, node: Tensor, *scalars: Number) -> Sequence[CudaCall]:
    params = (is_flat(node, node.src[0]), int(node.type), *scalars)
    return [CudaCall(CudaKernel(MAPS, f"{name}_float"), _grid(node), BLOCK, params)]


@implements(Op.SCALE, Op.SQR, Op.SQRT, Op.LOG, Op.CLAMP, Op.FILL, supports=_supports)
def maps(node: Tensor) -> Sequence[CudaCall]:
    return _map(node.op.name.lower(), node, *scalars_of(node))


@implements(Op.UNARY, supports=_supports)
def unary(node: Tensor) -> Sequence[CudaCall]:
    return _map("unary", node, int(params_of(node, UnaryParams).op), *scalars_of(node))


@implements(Op.DIAG_MASK_INF, Op.DIAG_MASK_ZERO, supports=_supports)
def diag_mask(node: Tensor) -> Sequence[CudaCall]:
    [call] = _map("diag_mask", node, *diag_mask_of(node))
    # the mask depends on an element's place, so rows must not be merged
    return [call._replace(params=(0, *call.params[1:]))]


# --- two operands ---


def _pair(
    name: str,
    node: Tensor,
    second: int = 2,
    offsets: tuple[int, int] = (0, 0),
    gate: Sequence[Number] = (),
) -> Sequence[CudaCall]:
    """The call for operands in tensors 1 and `second`, `offsets` bytes from the begin of rows."""
    a, b = node.src[0], node.src[second - 1]
    flat = second == 2 and is_flat(node, a, b)
    params = (flat, int(node.type), int(b.type), second, *offsets, *gate)
    return [CudaCall(CudaKernel(PAIRS, f"{name}_float"), _grid(node), BLOCK, params)]


@implements(Op.ADD, Op.SUB, Op.MUL, Op.DIV, supports=_supports)
def pairs(node: Tensor) -> Sequence[CudaCall]:
    return _pair(node.op.name.lower(), node)


@implements(Op.ADD_ID, supports=_supports)
def add_id(node: Tensor) -> Sequence[CudaCall]:
    return _pair("add_id", node)


def gate_of(glu: Tensor) -> tuple[Number, ...]:
    """The parameters of a GLU in kernels: its gate, alpha and limit."""
    return int(params_of(glu, GluParams).op), *glu_scalars(glu)


@implements(Op.GLU, supports=_supports)
def glu(node: Tensor) -> Sequence[CudaCall]:
    return _pair("glu", node, *glu_operands(node), gate_of(node))
