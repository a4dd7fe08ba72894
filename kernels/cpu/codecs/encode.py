"""Encoding: rows of float32 to any writable type, with the bits of `gguf.quants`, or of
`quants.iq4_nl`.

The counterpart of `decode`: `ENCODERS` has a kernel `(src, dst, n, table)` for each type except
F32; only that of IQ4_NL uses the table. Tested by tests/kernels/test_cpu_encode.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import isnan
from typing import Final

from ....graph.types import GGMLType
from ...quants import values as tables
from ...quants.iq4_nl import SMALLEST
from ..compiler.jit import Kernel
from ..simd.calls import inlined
from ..simd.ints import (
    clamp,
    lane_mask,
    max_abs,
    round_away,
    store_i32x16_u8,
    store_u32,
    to_i32,
    truncated,
)
from ..simd.memory import (
    load_f32,
    load_f32_part,
    load_f32x16,
    load_u8,
    store_bf16_part,
    store_bf16x16,
    store_f16,
    store_f16_part,
    store_f16x16,
    store_i32,
    store_u8,
)
from ..simd.vectors import LANES, splat
from .decode import (
    CODEC_ARGS,
    IQ4_NL,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Codec,
    Function,
    Table,
    f32,
    floats,
)

ENCODERS: Final[dict[GGMLType, Codec]] = {}


def _declare(type: GGMLType, function: Function, table: Table | None = None) -> None:
    function.__name__ = f"encode_{type.name.lower()}"
    ENCODERS[type] = Codec(Kernel(function, CODEC_ARGS), table and cache(table))


def encoder(type: GGMLType, table: Table | None = None) -> Callable[[Function], Function]:
    """Declare `function(values, block, table)` as the encoder of one block of a type."""

    def declare(function: Function) -> Function:
        encode_block = inlined(function)
        block_size, block_bytes = type.block_size, type.type_size

        def encode_row(src, dst, n, table):
            for i in range(n // block_size):
                encode_block(src + 4 * block_size * i, dst + block_bytes * i, table)

        _declare(type, encode_row, table)
        return function

    return declare


def _encode_f16(src, dst, n, table):
    whole = n - n % LANES
    for i in range(0, whole, LANES):
        store_f16x16(dst + 2 * i, load_f32x16(src + 4 * i))
    if whole < n:
        rest = load_f32_part(src + 4 * whole, n - whole)
        store_f16_part(dst + 2 * whole, rest, n - whole)


def _encode_bf16(src, dst, n, table):
    whole = n - n % LANES
    for i in range(0, whole, LANES):
        store_bf16x16(dst + 2 * i, load_f32x16(src + 4 * i))
    if whole < n:
        rest = load_f32_part(src + 4 * whole, n - whole)
        store_bf16_part(dst + 2 * whole, rest, n - whole)


def _encode_i32(src, dst, n, table):
    for i in range(n):
        store_i32(dst + 4 * i, truncated(load_f32(src + 4 * i)))


_declare(GGMLType.F16, _encode_f16)
_declare(GGMLType.BF16, _encode_bf16)
_declare(GGMLType.I32, _encode_i32)


@inlined
def _inverse(d):
    return f32(0) if d == 0 else f32(1) / d


@encoder(GGMLType.Q8_0)
def _q8_0(values, block, table):
    low, high = load_f32x16(values), load_f32x16(values + 64)
    d = max_abs(low, high) / f32(127)
    inverse = splat(_inverse(d))
    store_f16(block + Q8_0.d, d)
    store_i32x16_u8(block + Q8_0.qs, round_away(low * inverse))
    store_i32x16_u8(block + Q8_0.qs + 16, round_away(high * inverse))


@inlined
def _furthest(values):
    """The value furthest from 0, with its sign; the first such value. NaN if there is one."""
    best = load_f32(values)
    largest = abs(best)
    for i in range(1, 32):
        x = load_f32(values + 4 * i)
        if abs(x) > largest or isnan(x):
            best, largest = x, abs(x)
    return best


@inlined
def _furthest_number(values):
    """The first value that is furthest from 0, with its sign; NaN is never it."""
    best = f32(0)
    for i in range(32):
        x = load_f32(values + 4 * i)
        if abs(x) > abs(best):
            best = x
    return best


@inlined
def _range(values):
    """The smallest value and the largest. NaN if there is one."""
    low = high = load_f32(values)
    for i in range(1, 32):
        x = load_f32(values + 4 * i)
        if x < low or isnan(x):
            low = x
        if x > high or isnan(x):
            high = x
    return low, high


@inlined
def _quantize(values, factor, offset, largest):
    """16 values as integers 0..largest: value * factor + offset, truncated."""
    return clamp(to_i32(load_f32x16(values) * factor + splat(offset)), largest)


@inlined
def _store_high_bits(at, low, high):
    """Store the fifth bits of 32 values as one word."""
    store_u32(at, lane_mask(low >> 4) | lane_mask(high >> 4) << 16)


@encoder(GGMLType.Q4_0)
def _q4_0(values, block, table):
    d = _furthest(values) / f32(-8)
    factor = splat(_inverse(d))
    low = _quantize(values, factor, f32(8.5), 15)
    high = _quantize(values + 64, factor, f32(8.5), 15)
    store_f16(block + Q4_0.d, d)
    store_i32x16_u8(block + Q4_0.qs, low | high << 4)


@encoder(GGMLType.Q5_0)
def _q5_0(values, block, table):
    d = _furthest(values) / f32(-16)
    factor = splat(_inverse(d))
    low = _quantize(values, factor, f32(16.5), 31)
    high = _quantize(values + 64, factor, f32(16.5), 31)
    store_f16(block + Q5_0.d, d)
    _store_high_bits(block + Q5_0.qh, low, high)
    store_i32x16_u8(block + Q5_0.qs, low & 15 | high << 4)


@inlined
def _quantize_from(values, least, factor, largest):
    """16 values as integers 0..largest: (value - least) * factor, to nearest, ties up."""
    distance = load_f32x16(values) - splat(least)
    return clamp(to_i32(distance * factor + splat(f32(0.5))), largest)


@encoder(GGMLType.Q4_1)
def _q4_1(values, block, table):
    least, most = _range(values)
    d = (most - least) / f32(15)
    factor = splat(_inverse(d))
    low = _quantize_from(values, least, factor, 15)
    high = _quantize_from(values + 64, least, factor, 15)
    store_f16(block + Q4_1.d, d)
    store_f16(block + Q4_1.m, least)
    store_i32x16_u8(block + Q4_1.qs, low | high << 4)


@encoder(GGMLType.Q5_1)
def _q5_1(values, block, table):
    least, most = _range(values)
    d = (most - least) / f32(31)
    factor = splat(_inverse(d))
    low = _quantize_from(values, least, factor, 31)
    high = _quantize_from(values + 64, least, factor, 31)
    store_f16(block + Q5_1.d, d)
    store_f16(block + Q5_1.m, least)
    _store_high_bits(block + Q5_1.qh, low, high)
    store_i32x16_u8(block + Q5_1.qs, low & 15 | high << 4)


@inlined
def _nearest(x, levels):
    """The number of the level nearest to x; of two, the higher. NaN gets the last one."""
    low = 0
    for step in (8, 4, 2, 1):
        if not x < load_f32(levels + 4 * (low + step)):
            low += step
    if low == 15:
        return low
    return low if x - load_f32(levels + 4 * low) < load_f32(levels + 4 * low + 4) - x else low + 1


@encoder(GGMLType.IQ4_NL, floats(tables.IQ4_NL))
def _iq4_nl(values, block, table):
    furthest = _furthest_number(values)
    # the products and sums of `quants.iq4_nl`, in its order
    inverse = f32(1) / (furthest / load_f32(table))
    sum_x, sum_square = f32(0), f32(0)
    is_zero = abs(furthest) < f32(SMALLEST)
    for i in range(32):
        x = load_f32(values + 4 * i)
        number = 0 if is_zero else _nearest(x * inverse, table)
        level = load_f32(table + 4 * number)
        sum_x += x * x * level * x
        sum_square += x * x * level * level
        at = block + IQ4_NL.qs + i % 16
        store_u8(at, number if i < 16 else load_u8(at) | number << 4)
    d = f32(0)
    if not is_zero and sum_square > 0:
        d = sum_x / sum_square
    store_f16(block + IQ4_NL.d, d)
