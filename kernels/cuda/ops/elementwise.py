"""Arithmetic, element by element: ops of one operand (src/elementwise.cu) and two (src/pairs.cu).

A thread computes units of four elements. Tensors without gaps and of one shape are taken as one
row, so that units need not be sought. Tested by tests/kernels/test_cuda_elementwise.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from ....graph.op import (
    ClampParams,
    DiagMaskParams,
    FillParams,
    GluParams,
    Op,
    ScaleParams,
    UnaryParams,
)
from ....graph.tensor import Tensor
from ..params import Param
from ..table import Call, Dim3, Kernel, Source, implements

MAX_ELEMENTS: Final = 2**31  # kernels count them in 32 bits
UNIT: Final = 4
BLOCK: Final = 256
MAX_BLOCKS: Final = 4096  # more than run at once; each thread goes on to the next unit

MAPS: Final = Source.of("elementwise.cu")
PAIRS: Final = Source.of("pairs.cu")


def is_countable(*tensors: Tensor) -> bool:
    """Whether no tensor has more elements than kernels can count."""
    return all(t.n_elements < MAX_ELEMENTS for t in tensors)


def grid_of(n_threads: int) -> Dim3:
    """Blocks for so many threads, each of which may do the work of several."""
    return min(-(-n_threads // BLOCK), MAX_BLOCKS), 1, 1


def _supports(node: Tensor) -> bool:
    return is_countable(node)


def _is_flat(node: Tensor, *operands: Tensor) -> bool:
    # where rows have one element, is_contiguous does not look at nb[0], which kernels count with
    return all(
        t.is_contiguous and t.ne == node.ne and t.nb[0] == t.type.type_size
        for t in (node, *operands)
    )


def _grid(node: Tensor) -> Dim3:
    return grid_of(node.n_rows * -(-node.ne[0] // UNIT))


# --- one operand ---


def _map(name: str, node: Tensor, *scalars: Param) -> Sequence[Call]:
    params = (_is_flat(node, node.src[0]), int(node.type), *scalars)
    return [Call(Kernel(MAPS, f"{name}_float"), _grid(node), BLOCK, params)]


@implements(Op.SCALE, Op.SQR, Op.SQRT, Op.LOG, Op.CLAMP, Op.FILL, supports=_supports)
def maps(node: Tensor) -> Sequence[Call]:
    return _map(node.op.name.lower(), node, *_scalars(node))


def _scalars(node: Tensor) -> tuple[float, ...]:
    match node.params:
        case ScaleParams(scale, bias):
            return scale, bias or -0.0  # which changes nothing, where 0.0 makes 0.0 of -0.0
        case ClampParams(low, high):
            return low, high
        case FillParams(value):
            return (value,)
        case _:
            return ()


@implements(Op.UNARY, supports=_supports)
def unary(node: Tensor) -> Sequence[Call]:
    assert isinstance(node.params, UnaryParams), f"{node!r}: {node.params}"
    return _map("unary", node, int(node.params.op))


@implements(Op.DIAG_MASK_INF, Op.DIAG_MASK_ZERO, supports=_supports)
def diag_mask(node: Tensor) -> Sequence[Call]:
    assert isinstance(node.params, DiagMaskParams), f"{node!r}: {node.params}"
    value = -math.inf if node.op is Op.DIAG_MASK_INF else 0.0
    [call] = _map("diag_mask", node, node.params.n_past, value)
    # an element's place matters: rows must be rows
    return [call._replace(params=(0, *call.params[1:]))]


# --- two operands ---


def _pair(
    name: str, node: Tensor, second: int = 2, offsets: tuple[int, int] = (0, 0), gate: int = 0
) -> Sequence[Call]:
    """Operands are source 1 and `second`, `offsets` bytes inside their rows."""
    a, b = node.src[0], node.src[second - 1]
    flat = second == 2 and _is_flat(node, a, b)
    params = (flat, int(node.type), int(b.type), second, *offsets, gate)
    return [Call(Kernel(PAIRS, f"{name}_float"), _grid(node), BLOCK, params)]


@implements(Op.ADD, Op.SUB, Op.MUL, Op.DIV, supports=_supports)
def pairs(node: Tensor) -> Sequence[Call]:
    return _pair(node.op.name.lower(), node)


@implements(Op.GLU, supports=_supports)
def glu(node: Tensor) -> Sequence[Call]:
    assert isinstance(node.params, GluParams), f"{node!r}: {node.params}"
    gate = int(node.params.op)
    if len(node.src) == 2:
        return _pair("glu", node, gate=gate)
    first, second = 0, node.ne[0] * node.src[0].nb[0]
    offsets = (second, first) if node.params.swapped else (first, second)
    return _pair("glu", node, 1, offsets, gate)
