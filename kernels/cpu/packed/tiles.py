"""Tiles: 16 rows of packed weights times 1, 4, 8 or 16 columns, all sums in registers.

The order of a column's sums is the same in tiles of any width, so its bits do not depend on other
columns. Columns are stored as tiles. For each block of 32 values, a tile of `width` columns has

    width * 32     int8 values, 32 for each column
    width          float32 scales d
    2 * width      words that depend on the weights' `Kind`: for the first and the last 16 values

Knows how products are summed, not how weights are packed.
Tested by tests/kernels/test_cpu_packed.py.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from llvmlite import ir

from ..compiler.isa import has_feature
from ..simd import types
from ..simd.bytes import (
    emit_dot4,
    emit_dot4_small,
    fma,
    pack,
    spread_float,
    spread_word,
    store_rows,
    to_float,
    unpack,
    words,
)
from ..simd.vectors import f32x16, pointer_to, vector_function

# widths of tiles, widest first; the sums of the widest fill the registers
WIDTHS: Final = (16, 8, 4, 1) if has_feature("avx512f") else (4, 1)
ROWS: Final = 16  # rows of a group of packed rows
VALUES: Final = 32  # values of a block of a column
COLUMN_WORDS: Final = 3  # a scale and two words after the values
COLUMN_BYTES: Final = VALUES + 4 * COLUMN_WORDS  # bytes of a block of one column

_AT_ONCE: Final = 2  # independent integer sums, because an addition waits for the one before it


class Kind(Enum):
    """The formula of values from unsigned bytes u, and the words that columns need for it.

    OFFSET: d * (u - offset); a column has -offset * sum(q) as an integer. MIN: d * u + m; a column
    has d * sum(q) as a float. OFFSET_16, MIN_16: the same, with scales for 16 values each.
    """

    OFFSET = 1
    MIN = 2
    OFFSET_16 = 3
    MIN_16 = 4

    @property
    def n_scales(self) -> int:
        return {Kind.OFFSET: 1, Kind.MIN: 2, Kind.OFFSET_16: 2, Kind.MIN_16: 4}[self]

    @property
    def has_min(self) -> bool:
        return self in (Kind.MIN, Kind.MIN_16)

    @property
    def in_16(self) -> bool:
        return self in (Kind.OFFSET_16, Kind.MIN_16)


def integer_products(kind: Kind, width: int, *, small: bool) -> Any:
    """A function (sums, words, scales, address of a block of columns) -> sums.

    It adds the products of 32 values. `small`: no byte of the words is above 127.
    """
    dot4 = emit_dot4_small if small else emit_dot4
    sums, scales = types.UniTuple(f32x16, width), types.UniTuple(f32x16, kind.n_scales)

    def emit(b: Any, sums: Any, words: Any, scales: Any, columns: Any) -> Any:
        tile = _Columns(b, columns, width)
        result, weights, factors = unpack(b, sums), unpack(b, words), unpack(b, scales)
        n = _AT_ONCE // 2 if kind.in_16 else _AT_ONCE
        for first in range(0, width, n):
            at_once = range(first, min(first + n, width))
            dots = _dots(b, kind, dot4, weights, tile, at_once)
            for c in at_once:
                result[c] = _add(b, kind, result[c], dots[c], factors, tile, c)
        return pack(b, result)

    return vector_function(sums, (sums, words, scales, types.int64), emit)


class _Columns:
    """Loads data of a tile's columns into all lanes of a vector."""

    def __init__(self, b: Any, address: Any, width: int) -> None:
        self._b = b
        self._address = address
        self._width = width

    def word(self, c: int, j: int) -> Any:
        """The 4 values of column `c` from 4 * j on."""
        word = spread_word(self._b, self._address, VALUES * c + 4 * j)
        return self._b.bitcast(word, ir.VectorType(ir.IntType(8), 64))

    def scale(self, c: int) -> Any:
        return spread_float(self._b, self._address, VALUES * self._width + 4 * c)

    def integer(self, c: int, half: int) -> Any:
        return spread_word(self._b, self._address, self._at(c, half))

    def float(self, c: int, half: int) -> Any:
        return spread_float(self._b, self._address, self._at(c, half))

    def _at(self, c: int, half: int) -> int:
        return (VALUES + 4 + 4 * half) * self._width + 4 * c


def _dots(
    b: Any, kind: Kind, dot4: Any, weights: list[Any], tile: _Columns, columns: range
) -> dict[int, list[Any]]:
    """The sums of products as integers: one of all 32 values, or two of 16 values each."""
    half = len(weights) // 2
    zero = ir.Constant(ir.VectorType(ir.IntType(32), ROWS), None)
    sums = {c: [zero, zero] for c in columns}
    if not kind.has_min:
        for c in columns:
            sums[c][0] = tile.integer(c, 0)
            if kind.in_16:
                sums[c][1] = tile.integer(c, 1)
    # also a single column has two sums, so that additions do not wait for each other
    in_two = kind.in_16 or len(columns) == 1
    for j in range(half):
        for part in (0, 1):
            for c in columns:
                word, to = tile.word(c, j + half * part), part if in_two else 0
                sums[c][to] = dot4(b, sums[c][to], weights[j + half * part], word)
    if kind.in_16:
        return sums
    return {c: [b.add(*sums[c]) if in_two else sums[c][0]] for c in columns}


def _add(
    b: Any, kind: Kind, sum: Any, dots: list[Any], scales: list[Any], tile: _Columns, c: int
) -> Any:
    """A column's float sum plus the products of 32 more values."""
    if kind.in_16:
        first = b.fmul(to_float(b, dots[0]), scales[0])
        both = fma(b, to_float(b, dots[1]), scales[1], first)
        sum = fma(b, both, tile.scale(c), sum)
    else:
        sum = fma(b, to_float(b, dots[0]), b.fmul(scales[0], tile.scale(c)), sum)
    if kind is Kind.MIN:
        sum = fma(b, scales[1], tile.float(c, 0), sum)
    elif kind is Kind.MIN_16:
        for half in (0, 1):
            sum = fma(b, scales[2 + half], tile.float(c, half), sum)
    return sum


def float_products(width: int, stride: int, n: int) -> Any:
    """A function (sums, weights, weights, address of the columns' values) -> sums.

    It adds the products of `n` values, 1 or 2, for `width` of the `stride` columns. Products of the
    second value are added to the second half of the sums.
    """
    sums = types.UniTuple(f32x16, 2 * width)

    def emit(b: Any, sums: Any, first: Any, second: Any, columns: Any) -> Any:
        result = unpack(b, sums)
        for i, weights in enumerate((first, second)[:n]):
            for c in range(width):
                value, at = spread_float(b, columns, 4 * (stride * i + c)), width * i + c
                result[at] = fma(b, weights, value, result[at])
        return pack(b, result)

    return vector_function(sums, (sums, f32x16, f32x16, types.int64), emit)


def group_products(n: int, width: int) -> Any:
    """A function (sums, weights of `n` groups, address of the columns' values) -> sums.

    It adds the products of one value for `width` columns. A group's sums follow those of the one
    before.
    """
    sums = types.UniTuple(f32x16, n * width)

    def emit(b: Any, sums: Any, weights: Any, columns: Any) -> Any:
        result, groups = unpack(b, sums), unpack(b, weights)
        for c in range(width):
            value = spread_float(b, columns, 4 * c)
            for i, w in enumerate(groups):
                at = width * i + c
                result[at] = fma(b, w, value, result[at])
        return pack(b, result)

    return vector_function(sums, (sums, types.UniTuple(f32x16, n), types.int64), emit)


def add_tiles(n: int) -> Any:
    """A function that adds `n` vectors to `n` others."""
    tile = types.UniTuple(f32x16, n)

    def emit(b: Any, sums: Any, others: Any) -> Any:
        pairs = zip(unpack(b, sums), unpack(b, others), strict=True)
        return pack(b, [b.fadd(x, y) for x, y in pairs])

    return vector_function(tile, (tile, tile), emit)


def store_sums(width: int) -> Any:
    """A procedure (sums, address of the results' addresses, offset, rows).

    It stores the results of the first `rows` of 16 rows: those of column c go to `offset` bytes
    after the c-th address, 4 bytes for each row.
    """
    sums, i64 = types.UniTuple(f32x16, width), ir.IntType(64)

    def emit(b: Any, sums: Any, results: Any, offset: Any, rows: Any) -> None:
        table = pointer_to(b, results, i64)
        places = [b.add(b.load(b.gep(table, [i64(c)])), offset) for c in range(width)]
        store_rows(b, unpack(b, sums), places, rows)

    return vector_function(types.void, (sums, types.int64, types.int64, types.int64), emit)
