"""Products of packed weights with one column: a step function for one record of each type.

Decoding one sequence waits for memory, so a step reads a record's lines in ascending order and
once, if registers have room. The bits are those of tiles: integer sums are exact, and the floats
are computed as in `tiles.integer_products`. A step adds a record's products to a sum of 16 rows.
Tested by tests/kernels/test_cpu_packed.py and tests/kernels/test_cpu_lines.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from ....graph.types import GGMLType
from ...quants import values
from ..simd.calls import inlined
from ..simd.ints import to_f32
from ..simd.lines import LINE, SIGNED, Read, Unpack, Values, dots, keep, pinned, signed_entries
from ..simd.memory import load_e8m0x16, load_f16x16, load_f32, load_i8x16, load_ue4m3x16
from ..simd.vectors import fma, splat
from .tiles import COLUMN_BYTES, VALUES
from .unpacking import (
    E2M1,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    NVFP4,
    Q2_K,
    Q3_K,
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
    WORDS_BYTES,
    first_scales,
    iq4_xs_scale,
    last_scales,
    q2_k_scales,
    q3_k_first,
    q3_k_last,
)

SINGLE_STEPS: Final[dict[GGMLType, Any]] = {}

SCALE: Final = VALUES  # offsets in a block of a column: its scale, and its two words
WORD: Final = VALUES + 4
SECOND_WORD: Final = VALUES + 8


def _single(type: GGMLType) -> Callable[[Any], Any]:
    """Declare a type's step (a decorator)."""

    def declare(function: Any) -> Any:
        SINGLE_STEPS[type] = inlined(function)
        return function

    return declare


# --- sums, as `Kind` defines them ---


@inlined
def _add(sum, dot, scale, column):
    return pinned(fma(to_f32(dot), scale * splat(load_f32(column + SCALE)), sum))


@inlined
def _add_min(sum, dot, scale, low, column):
    return pinned(fma(low, splat(load_f32(column + WORD)), _add(sum, dot, scale, column)))


@inlined
def _add_16(sum, first, second, scale, second_scale, column):
    both = fma(to_f32(second), second_scale, to_f32(first) * scale)
    return pinned(fma(both, splat(load_f32(column + SCALE)), sum))


@inlined
def _add_min_16(sum, first, second, scales, column):
    sum = _add_16(sum, first, second, scales[0], scales[1], column)
    sum = fma(scales[2], splat(load_f32(column + WORD)), sum)
    return pinned(fma(scales[3], splat(load_f32(column + SECOND_WORD)), sum))


# --- blocks of 32 ---


def _nibbles(read: Read) -> Iterator[Values]:
    for j in range(4):
        line = read(LINE * j)
        yield 0, 4 * j, line.bits(0, 15)
        yield 0, 4 * (j + 4), line.bits(4, 15)


def _nibbles_and_bits(read: Read) -> Iterator[Values]:
    top = read(0)
    for j in range(4):
        line = read(LINE * (j + 1))
        yield 0, 4 * j, line.bits(0, 15) | top.bits(j - 4, 16)
        yield 0, 4 * (j + 4), line.bits(4, 15) | top.bits(j, 16)


def _looked_up(entries: list[int]) -> Unpack:
    def unpack(read: Read) -> Iterator[Values]:
        for j in range(4):
            line = read(LINE * j)
            yield 0, 4 * j, line.look_up(0, entries)
            yield 0, 4 * (j + 4), line.look_up(4, entries)

    return unpack


def _bytes(read: Read) -> Iterator[Values]:
    for j in range(8):
        yield 0, 4 * j, read(LINE * j).signed()


_q4_0_dot: Final = dots(1, 15, _nibbles, [WORD])
_q4_1_dot: Final = dots(1, 15, _nibbles)
_q5_0_dot: Final = dots(1, 31, _nibbles_and_bits, [WORD])
_q5_1_dot: Final = dots(1, 31, _nibbles_and_bits)
_q8_0_dot: Final = dots(1, SIGNED, _bytes, [WORD])
_iq4_nl_dot: Final = dots(1, SIGNED, _looked_up(signed_entries(values.IQ4_NL)), [WORD])
_mxfp4_dot: Final = dots(1, max(E2M1), _looked_up(E2M1), [WORD])


@_single(GGMLType.Q4_0)
def _q4_0(sum, p, column):
    scale = load_f16x16(p + Q4_0.d)
    return _add(sum, _q4_0_dot(p + Q4_0.qs, column)[0], scale, column)


@_single(GGMLType.Q4_1)
def _q4_1(sum, p, column):
    scale, low = load_f16x16(p + Q4_1.d), load_f16x16(p + Q4_1.m)
    return _add_min(sum, _q4_1_dot(p + Q4_1.qs, column)[0], scale, low, column)


@_single(GGMLType.Q5_0)
def _q5_0(sum, p, column):
    scale = load_f16x16(p + Q5_0.d)
    return _add(sum, _q5_0_dot(p + Q5_0.qh, column)[0], scale, column)


@_single(GGMLType.Q5_1)
def _q5_1(sum, p, column):
    scale, low = load_f16x16(p + Q5_1.d), load_f16x16(p + Q5_1.m)
    return _add_min(sum, _q5_1_dot(p + Q5_1.qh, column)[0], scale, low, column)


@_single(GGMLType.Q8_0)
def _q8_0(sum, p, column):
    scale = load_f16x16(p + Q8_0.d)
    return _add(sum, _q8_0_dot(p + Q8_0.qs, column)[0], scale, column)


@_single(GGMLType.IQ4_NL)
def _iq4_nl(sum, p, column):
    scale = load_f16x16(p + IQ4_NL.d)
    return _add(sum, _iq4_nl_dot(p + IQ4_NL.qs, column)[0], scale, column)


@_single(GGMLType.IQ4_XS)
def _iq4_xs(sum, p, column):
    d, qs = load_f16x16(p + IQ4_XS.d), p + IQ4_XS.qs
    for i in range(8):
        dot = _iq4_nl_dot(qs, column)
        sum = _add(sum, dot[0], iq4_xs_scale(p, i, d), column)
        qs += 4 * LINE
        column += COLUMN_BYTES
    return sum


@_single(GGMLType.MXFP4)
def _mxfp4(sum, p, column):
    scale = load_e8m0x16(p + MXFP4.e)
    return _add(sum, _mxfp4_dot(p + MXFP4.qs, column)[0], scale, column)


# --- blocks of 64 ---


def _nvfp4_unpack(read: Read) -> Iterator[Values]:
    """32 values: in each half, 2 lines have the low and high 4 bits of 8 values each."""
    for half in range(2):
        for j in range(2):
            line = read(LINE * (2 * half + j))
            yield half, 16 * half + 4 * j, line.look_up(0, E2M1)
            yield half, 16 * half + 4 * (j + 2), line.look_up(4, E2M1)


_nvfp4_dots: Final = dots(2, max(E2M1), _nvfp4_unpack, [WORD, SECOND_WORD])


@_single(GGMLType.NVFP4)
def _nvfp4(sum, p, column):
    for i in range(2):
        scale = p + NVFP4.d + 32 * i
        first, second = load_ue4m3x16(scale), load_ue4m3x16(scale + 16)
        dot = _nvfp4_dots(p + NVFP4.qs + WORDS_BYTES // 2 * i, column)
        sum = _add_16(sum, dot[0], dot[1], first, second, column)
        column += COLUMN_BYTES
    return sum


# --- blocks of 256 ---


def _two_blocks(read: Read) -> Iterator[Values]:
    for j in range(8):
        line = read(LINE * j)
        yield 0, 4 * j, line.bits(0, 15)
        yield 1, COLUMN_BYTES + 4 * j, line.bits(4, 15)


_q4_k_dots: Final = dots(2, 15, _two_blocks)


@inlined
def _add_two(sum, dot, scales, next_scales, column):
    sum = _add_min(sum, dot[0], scales[0], scales[1], column)
    return _add_min(sum, dot[1], next_scales[0], next_scales[1], column + COLUMN_BYTES)


@_single(GGMLType.Q4_K)
def _q4_k(sum, p, column):
    d, m = load_f16x16(p + Q4_K.d), splat(-1.0) * load_f16x16(p + Q4_K.dmin)
    qs, at = p + Q4_K.qs, p + Q4_K.scales
    for i in range(2):
        dot = _q4_k_dots(qs, column)
        scales, next_scales = first_scales(at, 2 * i, d, m), first_scales(at, 2 * i + 1, d, m)
        sum = _add_two(sum, dot, scales, next_scales, column)
        qs += WORDS_BYTES
        column += 2 * COLUMN_BYTES
    for i in range(2):
        dot = _q4_k_dots(qs, column)
        scales, next_scales = last_scales(at, 2 * i, d, m), last_scales(at, 2 * i + 1, d, m)
        sum = _add_two(sum, dot, scales, next_scales, column)
        qs += WORDS_BYTES
        column += 2 * COLUMN_BYTES
    return sum


def _q5_k_unpack(read: Read) -> Iterator[Values]:
    tops = keep(read, range(Q5_K.qh, Q5_K.qh + WORDS_BYTES, LINE))
    for i in range(4):
        for j in range(8):
            top = tops(Q5_K.qh + LINE * j)
            line, at = read(Q5_K.qs + WORDS_BYTES * i + LINE * j), 2 * COLUMN_BYTES * i + 4 * j
            yield 2 * i, at, line.bits(0, 15) | top.bits(2 * i - 4, 16)
            yield 2 * i + 1, at + COLUMN_BYTES, line.bits(4, 15) | top.bits(2 * i - 3, 16)


_q5_k_dots: Final = dots(8, 31, _q5_k_unpack)


@_single(GGMLType.Q5_K)
def _q5_k(sum, p, column):
    d, m = load_f16x16(p + Q5_K.d), splat(-1.0) * load_f16x16(p + Q5_K.dmin)
    at, dot = p + Q5_K.scales, _q5_k_dots(p, column)
    for i in range(4):
        scales = first_scales(at, i, d, m)
        sum = _add_min(sum, dot[i], scales[0], scales[1], column)
        column += COLUMN_BYTES
    for i in range(4):
        scales = last_scales(at, i, d, m)
        sum = _add_min(sum, dot[i + 4], scales[0], scales[1], column)
        column += COLUMN_BYTES
    return sum


def _q6_k_unpack(part: int) -> Unpack:
    """A half of 4 blocks: 4 lines of high bits, then 8 of low ones."""

    def unpack(read: Read) -> Iterator[Values]:
        tops = keep(read, range(0, 4 * LINE, LINE))
        for block in range(2):
            for j in range(4):
                top = tops(LINE * j)
                line, at = read(LINE * (4 + 4 * block + j)), 16 * part + 4 * j
                first, second = COLUMN_BYTES * block, COLUMN_BYTES * (block + 2)
                yield block, first + at, line.bits(0, 15) | top.bits(2 * block - 4, 0x30)
                yield block + 2, second + at, line.bits(4, 15) | top.bits(2 * block, 0x30)

    return unpack


_q6_k_first, _q6_k_second = (
    dots(4, 63, _q6_k_unpack(part), [COLUMN_BYTES * i + WORD + 4 * part for i in range(4)])
    for part in range(2)
)


@_single(GGMLType.Q6_K)
def _q6_k(sum, p, column):
    d, scales, q = load_f16x16(p + Q6_K.d), p + Q6_K.scales, p + Q6_K.qh
    for _ in range(2):
        a, b, c, e = _q6_k_first(q, column)
        first = (
            to_f32(a) * (load_i8x16(scales) * d),
            to_f32(b) * (load_i8x16(scales + 32) * d),
            to_f32(c) * (load_i8x16(scales + 64) * d),
            to_f32(e) * (load_i8x16(scales + 96) * d),
        )
        dot = _q6_k_second(q + 12 * LINE, column)
        for i in range(4):
            scale = load_i8x16(scales + 32 * i + 16) * d
            both = fma(to_f32(dot[i]), scale, first[i])
            sum = fma(both, splat(load_f32(column + SCALE)), sum)
            column += COLUMN_BYTES
        scales += 128
        q += 24 * LINE
    return sum


_Q3_K_LINES: Final = ((4, 12), (16, 20))  # of the low bits: the first, for each half and part


def _q3_k_dots(half: int, first: int, n: int, part: int) -> Any:
    """Products of values 16 * part ... of `n` blocks of a half, from block `first` on."""

    def unpack(read: Read) -> Iterator[Values]:
        masks = keep(read, range(8 * LINE * part, (8 * part + 4) * LINE, LINE))
        for j in range(4):
            mask = masks(LINE * (8 * part + j))
            line = read(LINE * (_Q3_K_LINES[half][part] + j))
            for i in range(first, first + n):
                at = COLUMN_BYTES * (i - first) + 16 * part + 4 * j
                yield i - first, at, line.bits(2 * i, 3) | mask.bits(4 * half + i - 2, 4)

    return dots(n, 7, unpack, [COLUMN_BYTES * i + WORD + 4 * part for i in range(n)])


def _q3_k_blocks(half: int, first: int, n: int) -> Any:
    """A function (sum, lines of a record, scales of a half, column) -> sum and its `n` blocks."""
    low, high = (_q3_k_dots(half, first, n, part) for part in range(2))

    @inlined
    def run(sum, q, scales, column):
        a, b = low(q, column), high(q, column)
        for i in range(n):
            j = 2 * (first + i)
            sum = _add_16(sum, a[i], b[i], scales[j], scales[j + 1], column)
            column += COLUMN_BYTES
        return sum

    return run


# two blocks at once, as 16 registers have no room for more
_q3_k_0, _q3_k_1, _q3_k_2, _q3_k_3 = (
    _q3_k_blocks(half, first, 2) for half in range(2) for first in (0, 2)
)


@_single(GGMLType.Q3_K)
def _q3_k(sum, p, column):
    d, q, size = load_f16x16(p + Q3_K.d), p + Q3_K.hmask, 2 * COLUMN_BYTES
    scales = q3_k_first(p + Q3_K.scales, d)
    sum = _q3_k_0(sum, q, scales, column)
    sum = _q3_k_1(sum, q, scales, column + size)
    scales = q3_k_last(p + Q3_K.scales, d)
    sum = _q3_k_2(sum, q, scales, column + 2 * size)
    return _q3_k_3(sum, q, scales, column + 3 * size)


def _q2_k_unpack(part: int) -> Unpack:
    def unpack(read: Read) -> Iterator[Values]:
        for j in range(4):
            line = read(LINE * j)
            for i in range(4):
                yield i, COLUMN_BYTES * i + 16 * part + 4 * j, line.bits(2 * i, 3)

    return unpack


_q2_k_first, _q2_k_second = (dots(4, 3, _q2_k_unpack(part)) for part in range(2))


@_single(GGMLType.Q2_K)
def _q2_k(sum, p, column):
    d, m = load_f16x16(p + Q2_K.d), splat(-1.0) * load_f16x16(p + Q2_K.dmin)
    qs, scales = p + Q2_K.qs, p + Q2_K.scales
    for _ in range(2):
        first, second = _q2_k_first(qs, column), _q2_k_second(qs + 4 * LINE, column)
        for i in range(4):
            sum = _add_min_16(sum, first[i], second[i], q2_k_scales(scales, d, m), column)
            scales += 32
            column += COLUMN_BYTES
        qs += 8 * LINE
    return sum
