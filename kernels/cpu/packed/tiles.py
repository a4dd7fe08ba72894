"""Tiles: 16 rows of packed weights times a few columns.

The order of a column's sums is the same in tiles of any width, so its bits do not depend on other
columns. Columns are stored as tiles. A block of a tile has 32 values of each of its columns; those
of a column are

    32    int8 values
    1     float32 scale d
    2     words that depend on the weights' `Kind`: for the first and the last 16 values

With 32 registers of 64 bytes, all sums of 16, 8, 4 or 1 columns are in registers. Other processors
have too few. There a tile of quantized weights is **counted**: it has up to 16 columns and their
sums in memory, and a loop multiplies 8 rows of a block, in registers, with one column at a time.

Knows how products are summed, not how weights are packed.
Tested by tests/kernels/test_cpu_packed.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple

from llvmlite import ir

from ..compiler.isa import has_feature
from ..simd import types
from ..simd.bf16_dots import emit_dot2
from ..simd.byte_dots import REGISTER, SIGNED_ABOVE, Chain, emit_dots, emit_signed_dots
from ..simd.bytes import (
    fma,
    joined,
    pack,
    parts_of,
    spread_float,
    spread_word,
    store_rows,
    to_float,
    unpack,
    words,
)
from ..simd.lines import emit_pinned
from ..simd.vectors import counted_loop, f32x16, pointer_to, vector_function

COUNTED: Final = not has_feature("avx512f")  # tiles of quantized weights are counted
# widths of tiles, widest first; all sums are in registers
WIDTHS: Final = (6, 3, 1) if COUNTED else (16, 8, 4, 1)
# widths of tiles for quantized weights; a counted tile may have fewer columns than its width
QUANTIZED_WIDTHS: Final = (16, 1) if COUNTED else WIDTHS
MOST: Final = max(*WIDTHS, *QUANTIZED_WIDTHS)
ROWS: Final = 16  # rows of a group of packed rows
VALUES: Final = 32  # values of a block of a column
COLUMN_WORDS: Final = 3  # a scale and two words after the values
COLUMN_BYTES: Final = VALUES + 4 * COLUMN_WORDS  # bytes of a block of one column
SUM_BYTES: Final = 4 * ROWS  # bytes of a column's sums in memory

_AT_ONCE: Final = 2  # independent integer sums, because an addition waits for the one before it
_PART: Final = REGISTER // 4  # rows of a register
_I8, _I32, _I64 = (ir.IntType(n) for n in (8, 32, 64))

# the sums of a counted tile: their address, and the number of columns
counted_sums: Final = types.UniTuple(types.int64, 2)


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


def integer_products(kind: Kind, width: int, *, largest: int) -> Any:
    """A function (sums, words, scales, address of a block of columns) -> sums.

    It adds the products of 32 values. No byte of the words is above `largest`. The sums are a tuple
    of `width` vectors, or `counted_sums`.
    """
    assert largest <= SIGNED_ABOVE or not kind.has_min, "signed weights have an offset, 128"

    def emit(b: Any, sums: Any, words: Any, scales: Any, columns: Any) -> Any:
        parts = _parts(b, kind, largest, words, scales)
        result = [parts_of(b, sum, _PART) for sum in unpack(b, sums)]
        n = _AT_ONCE // 2 if kind.in_16 else _AT_ONCE
        for first in range(0, width, n):
            at_once = range(first, min(first + n, width))
            _add(b, parts, {c: _Column(b, columns, c) for c in at_once}, result)
        return pack(b, [joined(b, sum) for sum in result])

    def emit_counted(b: Any, sums: Any, words: Any, scales: Any, columns: Any) -> Any:
        address, count = unpack(b, sums)
        for i, unpinned in enumerate(_parts(b, kind, largest, words, scales)):
            part = unpinned._replace(  # else LLVM moves the unpacking into the loop, and spills
                words=[emit_pinned(b, w) for w in unpinned.words],
                scales=[emit_pinned(b, s) for s in unpinned.scales],
            )
            with counted_loop(b, count) as c:
                at = b.add(address, b.mul(c, _I64(SUM_BYTES)))
                place = pointer_to(b, b.add(at, _I64(4 * _PART * i)), part.scales[0].type)
                column = b.add(columns, b.mul(c, _I64(COLUMN_BYTES)))
                result = [[b.load(place)]]
                _add(b, [part], {0: _Column(b, column, 0)}, result)
                b.store(result[0][0], place)
        return sums

    tile = tile_type(width)
    args = tile, words, types.UniTuple(f32x16, kind.n_scales), types.int64
    return vector_function(tile, args, emit_counted if tile is counted_sums else emit)


def tile_type(width: int) -> Any:
    """The type of the sums of a tile for quantized weights."""
    return counted_sums if COUNTED and width > 1 else types.UniTuple(f32x16, width)


class _Part(NamedTuple):
    """32 values of the rows of a register: the words of each 4 values, and the rows' scales."""

    kind: Kind
    largest: int
    words: list[Any]
    scales: list[Any]

    @property
    def signed(self) -> bool:
        return self.largest > SIGNED_ABOVE


def _parts(b: Any, kind: Kind, largest: int, words: Any, scales: Any) -> list[_Part]:
    vectors = unpack(b, words)
    if largest > SIGNED_ABOVE:
        vectors = [b.xor(v, ir.Constant(v.type, [-128] * v.type.count)) for v in vectors]
    words_of = zip(*(parts_of(b, v, REGISTER) for v in vectors), strict=True)
    scales_of = zip(*(parts_of(b, v, _PART) for v in unpack(b, scales)), strict=True)
    pairs = zip(words_of, scales_of, strict=True)
    return [_Part(kind, largest, list(w), list(s)) for w, s in pairs]


class _Column:
    """Loads data of a tile's column `c` into all lanes of a vector."""

    def __init__(self, b: Any, address: Any, c: int) -> None:
        self._b = b
        self._address = address
        self._at = COLUMN_BYTES * c

    def word(self, j: int) -> Any:
        """The 4 values from 4 * j on."""
        b = self._b
        if has_feature("dotprod"):  # the instruction takes one of 4 lanes as an operand
            four = pointer_to(
                b, b.add(self._address, _I64(self._at + j // 4 * 16)), ir.VectorType(_I32, 4)
            )
            loaded = b.load(four, align=1)
            lane = ir.Constant(ir.VectorType(_I32, _PART), [j % 4] * _PART)
            word = b.shuffle_vector(loaded, loaded, lane)
        else:
            word = spread_word(b, self._address, self._at + 4 * j, _PART)
        return b.bitcast(word, ir.VectorType(_I8, REGISTER))

    def scale(self) -> Any:
        return spread_float(self._b, self._address, self._at + VALUES, _PART)

    def integer(self, half: int) -> Any:
        return spread_word(self._b, self._address, self._at + VALUES + 4 + 4 * half, _PART)

    def float(self, half: int) -> Any:
        return spread_float(self._b, self._address, self._at + VALUES + 4 + 4 * half, _PART)


def _add(b: Any, parts: list[_Part], columns: dict[int, _Column], sums: list[list[Any]]) -> None:
    """Add the products of 32 values to the sums of columns and parts."""
    dots = _dots(b, parts, columns)
    for c, column in columns.items():
        for i, part in enumerate(parts):
            sums[c][i] = _scaled(b, part, sums[c][i], dots[c, i], column)


def _dots(
    b: Any, parts: list[_Part], columns: dict[int, _Column]
) -> dict[tuple[int, int], list[Any]]:
    """The sums of products as integers, of each column and part: one of all 32 values, or two of
    16 values each."""
    kind, n = parts[0].kind, len(parts[0].words)
    order: list[Sequence[int]] = [range(n // 2), range(n // 2, n)]
    # a single column has two sums, so that additions do not wait for each other; without AVX-512 it
    # has another part
    if not kind.in_16 and (len(columns) > 1 or COUNTED):
        order = [[j for pair in zip(*order, strict=True) for j in pair]]
    keys = [(half, i, c) for half in range(len(order)) for i in range(len(parts)) for c in columns]
    chains = []
    for half, i, c in keys:
        start = _start(b, parts[i], columns[c], half)
        weights = [parts[i].words[j] for j in order[half]]
        chains.append(Chain(start, weights, partial(_word, columns[c], order[half])))
    if parts[0].signed:
        found = emit_signed_dots(b, chains)
    else:
        found = emit_dots(b, chains, parts[0].largest)
    sums = dict(zip(keys, found, strict=True))
    result = {}
    for _, i, c in keys:
        halves = [sums[half, i, c] for half in range(len(order))]
        result[c, i] = halves if kind.in_16 or len(halves) == 1 else [b.add(*halves)]
    return result


def _word(column: _Column, order: Sequence[int], i: int) -> Any:
    return column.word(order[i])


def _start(b: Any, part: _Part, column: _Column, half: int) -> Any:
    """What a sum of products starts with. Signed weights have no offset."""
    if part.kind.has_min or part.signed or (half == 1 and not part.kind.in_16):
        return ir.Constant(ir.VectorType(_I32, _PART), None)
    return column.integer(half)


def _scaled(b: Any, part: _Part, sum: Any, dots: list[Any], column: _Column) -> Any:
    """A column's float sum plus the products of 32 more values."""
    scales = part.scales
    if part.kind.in_16:
        first = b.fmul(to_float(b, dots[0]), scales[0])
        both = fma(b, to_float(b, dots[1]), scales[1], first)
        sum = fma(b, both, column.scale(), sum)
    else:
        sum = fma(b, to_float(b, dots[0]), b.fmul(scales[0], column.scale()), sum)
    if part.kind is Kind.MIN:
        sum = fma(b, scales[1], column.float(0), sum)
    elif part.kind is Kind.MIN_16:
        for half in (0, 1):
            sum = fma(b, scales[2 + half], column.float(half), sum)
    return sum


def add_float(b: Any, sum: Any, weights: Any, columns: Any, offset: int) -> Any:
    """A sum plus the products of weights and the float at `columns + offset`."""
    return fma(b, weights, spread_float(b, columns, offset), sum)


def add_pair(b: Any, sum: Any, weights: Any, columns: Any, offset: int) -> Any:
    """A sum plus the products of pairs of BF16 and the pair at `columns + offset`."""
    return emit_dot2(b, sum, weights, spread_word(b, columns, offset))


def float_products(width: int, n: int, add: Any) -> Any:
    """A function (sums, weights, weights, address of the columns' values) -> sums.

    It adds the products of `n` values, 1 or 2, for `width` columns, with `add`. Products of the
    second value are added to the second half of the sums.
    """
    sums = types.UniTuple(f32x16, 2 * width)

    def emit(b: Any, sums: Any, first: Any, second: Any, columns: Any) -> Any:
        result = unpack(b, sums)
        for i, weights in enumerate((first, second)[:n]):
            for at in range(width * i, width * (i + 1)):
                result[at] = add(b, result[at], weights, columns, 4 * at)
        return pack(b, result)

    return vector_function(sums, (sums, f32x16, f32x16, types.int64), emit)


def group_products(n: int, width: int, add: Any) -> Any:
    """A function (sums, weights of `n` groups, address of the columns' values) -> sums.

    It adds the products of one value for `width` columns, with `add`. A group's sums follow those
    of the one before.
    """
    sums = types.UniTuple(f32x16, n * width)

    def emit(b: Any, sums: Any, weights: Any, columns: Any) -> Any:
        result, groups = unpack(b, sums), unpack(b, weights)
        for c in range(width):
            for i, w in enumerate(groups):
                at = width * i + c
                result[at] = add(b, result[at], w, columns, 4 * c)
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
