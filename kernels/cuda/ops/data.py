"""Rows by index (src/get_rows.cu), copies between types and layouts (src/copy.cu, src/convert.cu),
joins.

Copies within a type keep every bit. Conversions have the bits of `gguf.quants`.
Tested by tests/kernels/test_data.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Final

from ....graph.op import ConcatParams, Op
from ....graph.tensor import Tensor, params_of
from ....graph.types import GGMLType
from ...plan.node_params import run_length
from ..table import CudaCall, CudaKernel, CudaSource, implements
from . import quantized
from .elementwise import BLOCK, UNIT, grid_of, is_countable

PLAIN: Final = frozenset({GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.I32})
ENCODED: Final = frozenset(
    (GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q5_0, GGMLType.Q5_1, GGMLType.Q8_0, GGMLType.IQ4_NL)
)
DECODED: Final = ENCODED | frozenset(quantized.TYPES)
MAX_WORD: Final = 16  # bytes
MAX_ROW: Final = 2**25  # elements; the second dimension of a grid is limited

GET_ROWS: Final = CudaKernel(CudaSource.of("get_rows.cu"), "get_rows")
COPY: Final = CudaKernel(CudaSource.of("copy.cu"), "copy")
REPEAT: Final = CudaKernel(CudaSource.of("copy.cu"), "repeat")
CONVERT: Final = CudaKernel(CudaSource.of("convert.cu"), "convert")
QUANTIZE: Final = CudaKernel(CudaSource.of("convert.cu"), "quantize")


def is_readable(t: Tensor) -> bool:
    """True if elements can be read as floats."""
    return t.type in PLAIN or (t.type in DECODED and t.has_contiguous_rows)


def is_writable(type: GGMLType) -> bool:
    """True if floats can be converted to the type."""
    return type in PLAIN or type in ENCODED


# --- rows by index ---


def _can_get_rows(node: Tensor) -> bool:
    return is_readable(node.src[0]) and is_countable(node) and node.ne[0] <= MAX_ROW


@implements(Op.GET_ROWS, supports=_can_get_rows)
def get_rows(node: Tensor) -> Sequence[CudaCall]:
    type = node.src[0].type
    # integers are moved as floats with the same bits
    type = GGMLType.F32 if type is GGMLType.I32 else type
    grid = (node.n_rows, -(-node.ne[0] // (UNIT * BLOCK)), 1)
    return [CudaCall(GET_ROWS, grid, BLOCK, (int(type),))]


# --- copies ---


def _move(
    kernel: CudaKernel,
    node: Tensor,
    a: Tensor,
    rows: tuple[int, int],
    *,
    offset: int = 0,
    like: int = 0,
) -> CudaCall:
    """The call of a kernel of src/copy.cu. `rows`: bytes of a row of the node and of `a`."""
    in_lines = node.has_contiguous_rows and a.has_contiguous_rows
    size, run = a.type.type_size, gcd(*rows) if in_lines else 0
    moved = node if like == 0 else a
    total = moved.n_rows * moved.type.row_size(moved.ne[0])
    grid = grid_of(total // (gcd(run, MAX_WORD) or size))
    params = (size, run, *rows, total, offset, like)
    return CudaCall(kernel, grid, BLOCK, params, tensors=(node, a))


def _can_copy(node: Tensor) -> bool:
    a = node.src[0]
    if any(t.type.is_quantized and not t.has_contiguous_rows for t in (a, node)):
        return False
    if not is_countable(node):
        return False
    return a.type is node.type or (is_readable(a) and is_writable(node.type))


@implements(Op.CPY, Op.CONT, Op.DUP, supports=_can_copy)
def copy(node: Tensor) -> Sequence[CudaCall]:
    a, total = node.src[0], node.n_elements
    if a.type is node.type:
        return [_move(COPY, node, a, (_line(node), _line(a)))]
    rows = (run_length(node), run_length(a))
    params = (int(node.type), int(a.type), *rows, total)
    if node.type.is_quantized:
        return [CudaCall(QUANTIZE, grid_of(total), BLOCK, params)]
    step = UNIT if gcd(*rows) % UNIT == 0 else 1
    return [CudaCall(CONVERT, grid_of(total // step), BLOCK, (*params, step))]


def _line(t: Tensor) -> int:
    """Bytes of a row, or of the whole tensor if there are no gaps."""
    return t.type.row_size(run_length(t))


# --- joins ---


def _is_plain(node: Tensor) -> bool:
    return not node.type.is_quantized and is_countable(node)


@implements(Op.CONCAT, supports=_is_plain)
def concat(node: Tensor) -> Sequence[CudaCall]:
    dim, begin = params_of(node, ConcatParams).dim, 0
    calls: list[CudaCall] = []
    for a in node.src:
        row = a.type.row_size(a.ne[0])
        if not a.is_empty:
            calls.append(_move(COPY, node, a, (row, row), offset=begin * node.nb[dim], like=1))
        begin += a.ne[dim]
    return calls


@implements(Op.REPEAT, supports=_is_plain)
def repeat(node: Tensor) -> Sequence[CudaCall]:
    a = node.src[0]
    rows = (node.type.row_size(node.ne[0]), a.type.row_size(a.ne[0]))
    return [_move(REPEAT, node, a, rows)]
