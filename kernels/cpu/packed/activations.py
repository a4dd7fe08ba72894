"""Columns as tiles for products with packed weights, made once for all their readers.

For quantized weights, each 32 values of a column become int8 with their own scale, so that the
largest is 127 (as in ggml's Q8_0, but the scale is a float32). For float weights, columns are
float32. The division into tiles depends only on the number of columns.
Tested by tests/kernels/test_cpu_packed.py.
"""

from __future__ import annotations

from typing import Final

from ....graph.tensor import Tensor
from ...plan.calls import PreparedSource
from ..compiler.jit import kernel
from ..params import first_of, int_param, n_rows, nb, ne, prepared, row, work
from ..simd import types
from ..simd.bytes import interleave_rows, scaled_to_nearest, sum_lanes
from ..simd.calls import inlined
from ..simd.ints import max_abs, store_i32x16_u8
from ..simd.memory import (
    load_f32,
    load_f32_part,
    load_f32x16,
    load_i32,
    store_bf16x16,
    store_f32,
    store_i32,
)
from ..simd.vectors import LANES, splat
from ..table import SMALL, CpuCall
from .formats import Format
from .tiles import COLUMN_BYTES, COUNTED, QUANTIZED_WIDTHS, VALUES, WIDTHS, Kind

f32: Final = types.float32

LARGEST: Final = 127
SMALLEST: Final = 1e-30  # the smallest scale; the inverse of a smaller one may be infinite

# the most columns that a tile may lack
MISSING_FLOATS: Final = 1
MISSING_QUANTIZED: Final = QUANTIZED_WIDTHS[0] - 1 if COUNTED else 1

_interleave_words: Final = interleave_rows(4)


@inlined
def width_of(n, is_float):
    """The width of the next tile if `n` columns are left.

    It is the widest tile that lacks at most one column; a counted tile may lack more. Where wide
    tiles of floats do not prefetch, narrow ones come first: those read weights from memory at its
    speed, the wide ones then from a cache.
    """
    if COUNTED and is_float == 0:
        return QUANTIZED_WIDTHS[0] if n > 1 else 1
    if COUNTED and n > WIDTHS[0] and 0 < n % WIDTHS[0] < WIDTHS[0] - 1:
        n = n % WIDTHS[0]
    for width in WIDTHS:
        if n >= width - 1:
            return width
    return 1


@inlined
def filled(n, width, is_float):
    """The columns of a tile of this width if `n` columns are left.

    If one is missing, the last column is there twice. This takes less time than several narrow
    tiles.
    """
    return min(n, width) if COUNTED and is_float == 0 else width


def n_missing(form: Format) -> int:
    """The most columns that a tile may lack."""
    return MISSING_FLOATS if form.kind is None else MISSING_QUANTIZED


@inlined
def _quantize(x, column, words, offset):
    """Quantize 32 floats at `x` to a column of a tile's block."""
    v, w = load_f32x16(x), load_f32x16(x + 64)
    scale = max_abs(v, w) * f32(1.0 / LARGEST)
    inverse = splat(f32(1.0) / scale if scale > f32(SMALLEST) else f32(0.0))
    v, w = scaled_to_nearest(v, inverse), scaled_to_nearest(w, inverse)
    store_i32x16_u8(column, v)
    store_i32x16_u8(column + 16, w)
    at = column + VALUES
    store_f32(at, scale)
    if words == OF_32:
        store_i32(at + 4, -offset * sum_lanes(v + w))
    elif words == OF_16:
        store_i32(at + 4, -offset * sum_lanes(v))
        store_i32(at + 8, -offset * sum_lanes(w))
    elif words == MIN_OF_32:
        store_f32(at + 4, scale * f32(sum_lanes(v + w)))
    else:
        store_f32(at + 4, scale * f32(sum_lanes(v)))
        store_f32(at + 8, scale * f32(sum_lanes(w)))


# contents of the words of a column
OF_32: Final = Kind.OFFSET.value
MIN_OF_32: Final = Kind.MIN.value
OF_16: Final = Kind.OFFSET_16.value


# parameters of all kernels here
ALONE: Final = 0  # 1 if each column is a tile
N_EACH: Final = 1  # columns of a matrix; the next parameter is the size of their tiles
STRIDE: Final = 2


@kernel
def quantize_columns(p, ith, nth):
    """Tiles of int8 from tensor 2's rows.

    Parameters: those of all kernels here; the weights' kind and offset. Threads divide the blocks
    of each column, even if there are many columns.
    """
    alone, n = int_param(p, ALONE), int_param(p, N_EACH)
    words, offset = int_param(p, 3), int_param(p, 4)
    n_blocks = ne(p, 2, 0) // VALUES
    begin, end = first_of(n_blocks, ith, nth), first_of(n_blocks, ith + 1, nth)
    for matrix in range(n_rows(p, 2) // n):
        tile, c, first = prepared(p, 0) + matrix * int_param(p, STRIDE), 0, matrix * n
        while c < n:
            width = 1 if alone != 0 else width_of(n - c, 0)
            for i in range(filled(n - c, width, 0)):
                x = row(p, 2, first + min(c + i, n - 1))
                for block in range(begin, end):
                    column = tile + COLUMN_BYTES * (width * block + i)
                    _quantize(x + 4 * VALUES * block, column, words, offset)
            tile += COLUMN_BYTES * width * n_blocks
            c += width


@kernel
def tile_columns(p, ith, nth):
    """Tiles of floats from tensor 2's rows."""
    alone, n, k = int_param(p, ALONE), int_param(p, N_EACH), ne(p, 2, 0)
    begin, end = first_of(k, ith, nth), first_of(k, ith + 1, nth)
    for matrix in range(n_rows(p, 2) // n):
        tile, c, at = prepared(p, 0) + matrix * int_param(p, STRIDE), 0, matrix * n
        while c < n:
            width, first = 1 if alone != 0 else width_of(n - c, 1), begin
            if width == LANES and c + LANES <= n and ne(p, 2, 1) == n:
                x = row(p, 2, at + c)
                while first + 4 <= end:  # 4 values of all 16 columns
                    _interleave_words(x + 4 * first, nb(p, 2, 1), tile + 4 * width * first)
                    first += 4
            for i in range(width):
                x = row(p, 2, at + min(c + i, n - 1))
                for j in range(first, end):
                    store_f32(tile + 4 * (width * j + i), load_f32(x + 4 * j))
            tile += 4 * width * k
            c += width


@kernel
def tile_pairs(p, ith, nth):
    """Tiles of pairs of BF16 from tensor 2's rows."""
    alone, n, k = int_param(p, ALONE), int_param(p, N_EACH), ne(p, 2, 0)
    begin, end = first_of(k // 2, ith, nth), first_of(k // 2, ith + 1, nth)
    rounded = work(p, ith)
    for matrix in range(n_rows(p, 2) // n):
        tile, c, at = prepared(p, 0) + matrix * int_param(p, STRIDE), 0, matrix * n
        while c < n:
            width = 1 if alone != 0 else width_of(n - c, 1)
            for first in range(begin, end, LANES // 2):
                count, to = min(LANES // 2, end - first), tile + 4 * width * first
                for i in range(width):
                    x = row(p, 2, at + min(c + i, n - 1)) + 8 * first
                    store_bf16x16(rounded + 2 * LANES * i, load_f32_part(x, 2 * count))
                if width == LANES and count == LANES // 2:
                    _interleave_words(rounded, 2 * LANES, to)
                    _interleave_words(rounded + LANES, 2 * LANES, to + 16 * width)
                else:
                    for i in range(width):
                        for j in range(count):
                            word = load_i32(rounded + 2 * LANES * i + 4 * j)
                            store_i32(to + 4 * (width * j + i), word)
            tile += 4 * width * (k // 2)
            c += width


def column_bytes(form: Format, k: int) -> int:
    """The bytes of a column of `k` values in its tile."""
    if form.kind is None:
        return 2 * k if form.in_pairs(k) else 4 * k
    return k // VALUES * COLUMN_BYTES


def prepared_columns(
    form: Format, x: Tensor, n_matrices: int = 1, *, alone: bool = False
) -> PreparedSource[CpuCall]:
    """The rows of `x`, a node's second source, as tiles for weights of this format.

    Each of `n_matrices` has its own rows, in order. `alone`: each column
    is a tile, for kernels that choose the columns of their tiles.
    """
    small, n_each = x.n_elements < SMALL, max(1, x.n_rows // n_matrices)
    stride = (n_each + (0 if alone else n_missing(form))) * column_bytes(form, x.ne[0])
    params: tuple[int, ...] = (alone, n_each, stride)
    if form.in_pairs(x.ne[0]):
        made = CpuCall(tile_pairs, params, small, work=2 * LANES * WIDTHS[0])
    elif form.kind is None:
        made = CpuCall(tile_columns, params, one_thread=small)
    else:
        params = (*params, form.kind.value, form.offset)
        made = CpuCall(quantize_columns, params, one_thread=small)
    return PreparedSource(x, (made.kernel, made.params), n_matrices * stride, [made])
