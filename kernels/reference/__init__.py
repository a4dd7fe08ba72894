"""reference: every op in NumPy, slow and simple. Tests compare all other kernels with it.

`KERNELS[op](node, dst, srcs)` computes a node into `dst`, from the arrays of its sources
(`alloc.array_of`). A row's bits do not depend on other rows or on its place in memory. Knows
nothing of buffers, backends or graphs.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...graph import GGMLType, Op, Tensor
from ...graph.op import VIEW_OPS
from . import attention, data, elementwise, matrix, recurrent, rows, sparse
from .arrays import NumpyKernel, can_dequantize, can_quantize

# inf and NaN are valid results (a mask is -inf): no warnings
_QUIET: Final = np.errstate(all="ignore")

KERNELS: Final[dict[Op, NumpyKernel]] = {
    op: _QUIET(kernel)
    for family in (elementwise, rows, matrix, attention, sparse, recurrent, data)
    for op, kernel in family.KERNELS.items()
}


def supports_op(node: Tensor) -> bool:
    """True if there is a kernel for the node's op and types, or nothing to compute."""
    if node.op is Op.NONE or node.op in VIEW_OPS:
        return True
    if node.op not in KERNELS or not all(_has_whole_rows(t) for t in (node, *node.src)):
        return False
    if node.op in (Op.MUL_MAT, Op.MUL_MAT_ID):
        return can_dequantize(node.src[0].type)
    if node.op in (Op.GET_ROWS, Op.SET_ROWS, Op.CPY):
        return _can_convert(node.src[0].type, node.type)
    return True


def _can_convert(type: GGMLType, to: GGMLType) -> bool:
    if type is to or {type, to} == {GGMLType.I32, GGMLType.F32}:
        return True
    return can_dequantize(type) and can_quantize(to)


def _has_whole_rows(t: Tensor) -> bool:
    return not t.type.is_quantized or t.has_contiguous_rows


__all__ = ["KERNELS", "NumpyKernel", "supports_op"]
