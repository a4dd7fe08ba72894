"""Tiles: 16 rows of packed weights times 1, 4, 8 or 16 columns, all sums in registers.

A column's sums are added in one order in tiles of any width, so its bits do not depend on other
columns. Columns are in tiles, too: for a block of 32 values, a tile of `width` columns has

    width * 32     int8 values, 32 for each column
    width          float32 scales d
    2 * width      words that depend on the weights' `Kind`: for the first and the last 16 values

Knows how products are added up, not how weights are packed. Tested by
tests/kernels/test_cpu_packed.py.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from llvmlite import ir
from numba import types

from ..compiler.isa import has_feature
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
from ..simd.ints import vector_function
from ..simd.vectors import f32x16, pointer_to

# of tiles, the widest full one first: as many sums as registers hold
WIDTHS: Final = (16, 8, 4, 1) if has_feature("avx512f") else (4, 1)
ROWS: Final = 16  # of a group of packed rows
VALUES: Final = 32  # of a block of a column
COLUMN_WORDS: Final = 3  # a scale and two words behind the values
COLUMN_BYTES: Final = VALUES + 4 * COLUMN_WORDS  # of a block of one column

_AT_ONCE: Final = 2  # independent sums of integers: each waits for its last addition


class Kind(Enum):
    """How values follow from unsigned bytes u: the scales of a step, the words of columns.

    OFFSET: d * (u - offset), columns have -offset * sum(q) as integers. MIN: d * u + m, columns
    have their d * sum(q) as floats. The others have a d, and a m, for 16 values each.
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
    """A function (sums, words, scales, address of the columns' block) -> sums, by 32 values.

    `small`: no byte of the words is above 127.
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
    """The data of a tile's columns, in all lanes."""

    def __init__(self, b: Any, address: Any, width: int) -> None:
        self._b = b
        self._address = address
        self._width = width

    def word(self, c: int, j: int) -> Any:
        """Values 4 * j ... of a column."""
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
    """Sums of products as integers: of all 32 values, or of 16 and 16."""
    half = len(weights) // 2
    zero = ir.Constant(ir.VectorType(ir.IntType(32), ROWS), None)
    sums = {c: [zero, zero] for c in columns}
    if not kind.has_min:
        for c in columns:
            sums[c][0] = tile.integer(c, 0)
            if kind.in_16:
                sums[c][1] = tile.integer(c, 1)
    # a single column has two sums of 32 values as well, or it would wait for its own additions
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
    """A column's sum of floats, with those of 32 more values."""
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
    """A function (sums, weights, weights, address of the columns' values) -> sums, by `n` <= 2
    values of `width` columns out of `stride`. The second one is added to the second sums."""
    sums = types.UniTuple(f32x16, 2 * width)

    def emit(b: Any, sums: Any, first: Any, second: Any, columns: Any) -> Any:
        result = unpack(b, sums)
        for i, weights in enumerate((first, second)[:n]):
            for c in range(width):
                value, at = spread_float(b, columns, 4 * (stride * i + c)), width * i + c
                result[at] = fma(b, weights, value, result[at])
        return pack(b, result)

    return vector_function(sums, (sums, f32x16, f32x16, types.int64), emit)


def add_halves(width: int) -> Any:
    """A function that adds the second half of `2 * width` vectors to the first."""

    def emit(b: Any, sums: Any) -> Any:
        vectors = unpack(b, sums)
        pairs = zip(vectors[:width], vectors[width:], strict=True)
        return pack(b, [b.fadd(x, y) for x, y in pairs])

    return vector_function(
        types.UniTuple(f32x16, width), (types.UniTuple(f32x16, 2 * width),), emit
    )


def store_sums(width: int) -> Any:
    """A procedure (sums, address of the results' addresses, offset, rows): the first of 16 rows.

    Result c of row r goes to 4 * r bytes behind `offset` of the c-th address.
    """
    sums, i64 = types.UniTuple(f32x16, width), ir.IntType(64)

    def emit(b: Any, sums: Any, results: Any, offset: Any, rows: Any) -> None:
        table = pointer_to(b, results, i64)
        places = [b.add(b.load(b.gep(table, [i64(c)])), offset) for c in range(width)]
        store_rows(b, unpack(b, sums), places, rows)

    return vector_function(types.void, (sums, types.int64, types.int64, types.int64), emit)
