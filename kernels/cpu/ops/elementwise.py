"""Element-wise kernels of one or two tensors: arithmetic here, and the makers of activations.py.

A kernel works on pieces: rows, or equal parts of tensors without gaps. Elements that are not F32 or
have gaps go through the thread's scratch memory as floats. An element's bits depend only on its
operands. Tested by tests/kernels/test_elementwise.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ....graph.op import Op
from ....graph.tensor import Tensor
from ....graph.types import GGMLType
from ...plan.node_params import is_flat, scalars_of
from ..compiler.jit import Kernel
from ..params import data, fail, first_of, float_param, int_param, n_rows, nb, ne, row_at, work
from ..simd.calls import inlined
from ..simd.functions import vlog
from ..simd.memory import (
    load_bf16,
    load_f16,
    load_f32,
    load_f32_part,
    load_i32,
    store_bf16,
    store_f16,
    store_f32,
    store_f32_part,
)
from ..simd.vectors import LANES, splat, vmax, vmin, vsqrt
from ..table import SMALL, CpuCall, implements

PIECE: Final = 1024  # most elements that are computed at once

# parameters of these kernels
FLAT: Final = 0  # 1: no gaps and one shape, so that pieces need not be rows
LAYOUT: Final = 1  # three words: the layouts of the node, the first and the second operand
SECOND: Final = 4  # number of the second operand's tensor
OFFSET: Final = 5  # two words: offsets in bytes of the first and second operand in their rows
SCALARS: Final = 7  # four words: the op's parameters

# layouts of elements
DIRECT, F32, F16, BF16 = range(4)  # DIRECT: F32 without gaps
_LAYOUTS: Final = {GGMLType.F32: F32, GGMLType.F16: F16, GGMLType.BF16: BF16}


# --- pieces ---


@inlined
def n_pieces(p):
    """Pieces of the node."""
    if int_param(p, FLAT) == 0:
        return n_rows(p, 0)
    return (ne(p, 0, 0) * n_rows(p, 0) + PIECE - 1) // PIECE


@inlined
def piece_size(p, r):
    """The number of elements of piece `r`. If it is a row, there may be more than PIECE."""
    if int_param(p, FLAT) == 0:
        return ne(p, 0, 0)
    return min(PIECE, ne(p, 0, 0) * n_rows(p, 0) - PIECE * r)


@inlined
def piece(p, i, r):
    """The address of piece `r` in tensor `i`, which repeats to the shape of the node."""
    if int_param(p, FLAT) != 0:
        return data(p, i) + nb(p, i, 0) * PIECE * r
    n1, i1, i2, i3 = ne(p, 0, 1), r, 0, 0
    if r >= n1:
        n2 = ne(p, 0, 2)
        i1, i2, i3 = r % n1, r // n1 % n2, r // (n1 * n2)
    return row_at(
        p, i, _wrapped(i1, ne(p, i, 1)), _wrapped(i2, ne(p, i, 2)), _wrapped(i3, ne(p, i, 3))
    )


@inlined
def _wrapped(i, n):
    return i if i < n else i % n


@inlined
def fetch(p, operand, i, x, start, n, scratch):
    """The address of `n` floats: elements from `start` on of the piece of tensor `i` at `x`.

    They are used in place or copied to `scratch`. Elements of a shorter row repeat.
    """
    layout, stride, row_size = int_param(p, LAYOUT + operand), nb(p, i, 0), ne(p, i, 0)
    if layout == DIRECT:
        return x + 4 * start
    # a flat piece may span rows; they then have the length of the node's rows
    k = start if int_param(p, FLAT) != 0 else start % row_size
    for j in range(n):
        at = x + stride * k
        value = load_f32(at) if layout == F32 else load_f16(at) if layout == F16 else load_bf16(at)
        store_f32(scratch + 4 * j, value)
        k += 1
        if k == row_size and int_param(p, FLAT) == 0:
            k = 0
    return scratch


@inlined
def target(p, out, start, scratch):
    """The address to which the node's elements from `start` on are written as floats."""
    return out + 4 * start if int_param(p, LAYOUT) == DIRECT else scratch


@inlined
def finish(p, out, start, n, scratch):
    """Convert `n` elements from `target` to their place in the node."""
    layout, stride = int_param(p, LAYOUT), nb(p, 0, 0)
    if layout == DIRECT:
        return
    for j in range(n):
        at, value = out + stride * (start + j), load_f32(scratch + 4 * j)
        if layout == F32:
            store_f32(at, value)
        elif layout == F16:
            store_f16(at, value)
        else:
            store_bf16(at, value)


# --- families of kernels ---


@inlined
def _scalars(p):
    """The op's parameters, each in all lanes of a vector."""
    return (
        splat(float_param(p, SCALARS)),
        splat(float_param(p, SCALARS + 1)),
        splat(float_param(p, SCALARS + 2)),
        splat(float_param(p, SCALARS + 3)),
    )


def map_kernel(name: str, f: Callable[..., Any]) -> Kernel:
    """A kernel of one operand: f(x, s) of vectors; s are the op's four parameters."""

    def run(p, ith, nth):
        scratch = work(p, ith)
        scalars = _scalars(p)
        pieces = n_pieces(p)
        for r in range(first_of(pieces, ith, nth), first_of(pieces, ith + 1, nth)):
            x, out, size = piece(p, 1, r), piece(p, 0, r), piece_size(p, r)
            for start in range(0, size, PIECE):
                n = min(PIECE, size - start)
                xs = fetch(p, 1, 1, x, start, n, scratch)
                to = target(p, out, start, scratch)
                for i in range(0, n, LANES):
                    v = f(load_f32_part(xs + 4 * i, n - i), scalars)
                    store_f32_part(to + 4 * i, v, n - i)
                finish(p, out, start, n, scratch)

    run.__name__ = name
    return Kernel(run)


def pair_kernel(
    name: str, f: Callable[..., Any], second_piece: Callable[..., Any] = piece
) -> Kernel:
    """A kernel of two operands: f(x, y, s) of vectors; s are the op's four parameters.

    `second_piece(p, i, r)` is the address of piece `r` in the second operand, tensor `i`. If it is
    0, the piece is skipped.
    """

    def run(p, ith, nth):
        scratch = work(p, ith)
        more = scratch + 4 * PIECE
        second, scalars = int_param(p, SECOND), _scalars(p)
        pieces = n_pieces(p)
        for r in range(first_of(pieces, ith, nth), first_of(pieces, ith + 1, nth)):
            x, y = piece(p, 1, r) + int_param(p, OFFSET), second_piece(p, second, r)
            if y == 0:
                continue
            y += int_param(p, OFFSET + 1)
            out, size = piece(p, 0, r), piece_size(p, r)
            for start in range(0, size, PIECE):
                n = min(PIECE, size - start)
                xs = fetch(p, 1, 1, x, start, n, scratch)
                ys = fetch(p, 2, second, y, start, n, more)
                to = target(p, out, start, scratch)
                for i in range(0, n, LANES):
                    a, b = load_f32_part(xs + 4 * i, n - i), load_f32_part(ys + 4 * i, n - i)
                    store_f32_part(to + 4 * i, f(a, b, scalars), n - i)
                finish(p, out, start, n, scratch)

    run.__name__ = name
    return Kernel(run)


def map_call(kernel: Kernel, node: Tensor, scalars: Sequence[float]) -> CpuCall:
    """The call of a `map_kernel`."""
    layouts = (_layout(node), _layout(node.src[0]), DIRECT)
    params = (is_flat(node, node.src[0]), *layouts, 0, 0, 0, *scalars)
    return _call(kernel, node, params)


def pair_call(
    kernel: Kernel,
    node: Tensor,
    second: int = 2,
    offsets: tuple[int, int] = (0, 0),
    scalars: Sequence[float] = (),
) -> CpuCall:
    """The call of a `pair_kernel` for operands in tensors 1 and `second`, at `offsets` in bytes."""
    a, b = node.src[0], node.src[second - 1]
    layouts = (_layout(node), _layout(a), _layout(b, node.ne[0] if second == 2 else b.ne[0]))
    flat = second == 2 and is_flat(node, a, b)
    return _call(kernel, node, (flat, *layouts, second, *offsets, *scalars))


def _call(kernel: Kernel, node: Tensor, params: Sequence[int | float]) -> CpuCall:
    return CpuCall(kernel, params, one_thread=node.n_elements < SMALL, work=2 * 4 * PIECE)


def _layout(t: Tensor, n: int | None = None) -> int:
    """The layout of a tensor's elements. Rows that are not `n` long repeat."""
    direct = t.type is GGMLType.F32 and t.has_contiguous_rows and n in (None, t.ne[0])
    return DIRECT if direct else _LAYOUTS[t.type]


# --- ops of two operands ---

PAIRS: Final = {
    Op.ADD: pair_kernel("add_float", inlined(lambda x, y, s: x + y)),
    Op.SUB: pair_kernel("sub_float", inlined(lambda x, y, s: x - y)),
    Op.MUL: pair_kernel("mul_float", inlined(lambda x, y, s: x * y)),
    Op.DIV: pair_kernel("div_float", inlined(lambda x, y, s: x / y)),
}


@implements(*PAIRS)
def pair(node: Tensor) -> Sequence[CpuCall]:
    return [pair_call(PAIRS[node.op], node)]


@inlined
def _chosen_row(p, i, r):
    """The address of the row of tensor `i` that tensor 3 selects for row `r` of the node."""
    n1 = ne(p, 0, 1)
    index = load_i32(data(p, 3) + r % n1 * nb(p, 3, 0) + r // n1 * nb(p, 3, 1))
    if 0 <= index < ne(p, i, 1):
        return data(p, i) + index * nb(p, i, 1)
    fail(p, index, ne(p, i, 1))
    return 0


ADD_ID: Final = pair_kernel("add_id_float", inlined(lambda x, y, s: x + y), _chosen_row)


@implements(Op.ADD_ID)
def add_id(node: Tensor) -> Sequence[CpuCall]:
    call = pair_call(ADD_ID, node)
    return [call._replace(params=(0, *call.params[1:]))]  # not FLAT: rows must not be merged


# --- ops of one operand ---


MAPS: Final = {
    Op.SCALE: map_kernel("scale_float", inlined(lambda x, s: x * s[0] + s[1])),
    Op.SQR: map_kernel("sqr_float", inlined(lambda x, s: x * x)),
    Op.SQRT: map_kernel("sqrt_float", inlined(lambda x, s: vsqrt(x))),
    Op.LOG: map_kernel("log_float", inlined(lambda x, s: vlog(x))),
    # NaN compares false and stays
    Op.CLAMP: map_kernel("clamp_float", inlined(lambda x, s: vmin(s[1], vmax(s[0], x)))),
    Op.FILL: map_kernel("fill_float", inlined(lambda x, s: s[0])),
}


@implements(*MAPS)
def maps(node: Tensor) -> Sequence[CpuCall]:
    return [map_call(MAPS[node.op], node, scalars_of(node))]
