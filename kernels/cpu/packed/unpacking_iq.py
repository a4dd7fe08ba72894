"""Unpacks types of 1 to 3 bits: indices of grids with signs or shifts, and ternary digits.

As `unpacking.py`, which has the other types. Tested by tests/kernels/test_cpu_packed.py.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ....graph.types import GGMLType
from ...quants import values
from ..simd import types
from ..simd.bytes import bits_of, load_words
from ..simd.calls import inlined
from ..simd.grids import (
    Layout,
    even_signs,
    grid,
    in_memory,
    less_bytes,
    signed_grid,
    wide_indices,
    wide_indices_2,
)
from ..simd.ints import f16_of_lanes, load_i32x16, load_u8_i32x16, load_u16_i32x16, to_f32
from ..simd.memory import load_f16x16
from ..simd.ternary import (
    first_digits,
    load_fractions,
    load_fractions_twice,
    load_last_fractions,
    times_3,
)
from ..simd.vectors import splat
from .formats import FORMATS
from .unpacking import WORDS_BYTES, step

f32: Final = types.float32

VECTOR: Final = 64  # bytes of the words of 4 values of 16 rows

IQ1_S: Final = FORMATS[GGMLType.IQ1_S].at
IQ1_M: Final = FORMATS[GGMLType.IQ1_M].at
IQ2_XXS: Final = FORMATS[GGMLType.IQ2_XXS].at
IQ2_XS: Final = FORMATS[GGMLType.IQ2_XS].at
IQ2_S: Final = FORMATS[GGMLType.IQ2_S].at
IQ3_XXS: Final = FORMATS[GGMLType.IQ3_XXS].at
IQ3_S: Final = FORMATS[GGMLType.IQ3_S].at
TQ1_0: Final = FORMATS[GGMLType.TQ1_0].at
TQ2_0: Final = FORMATS[GGMLType.TQ2_0].at


def _grid_of(
    type: GGMLType, layout: Layout = Layout.WIDE, *, factor: int = 1, plus: int = 0
) -> Any:
    """A grid of a type's values, times a factor, plus a number."""

    def made() -> npt.NDArray[np.int64]:
        return values.grid(type.name).astype(np.int64) * factor + plus

    return grid(made, layout)


def _signed(type: GGMLType) -> Any:
    return signed_grid(FORMATS[type].offset)


@inlined
def _odd(v, factor):
    """2 * v + 1 as floats, times a factor."""
    return to_f32((v << 1) + 1) * factor


# --- grids with signs ---

_iq2_xxs_grid: Final = _grid_of(GGMLType.IQ2_XXS, Layout.BYTES)
_iq2_xs_grid: Final = _grid_of(GGMLType.IQ2_XS, Layout.PAIRS)
_iq2_s_grid: Final = _grid_of(GGMLType.IQ2_S)
_iq3_xxs_grid: Final = _grid_of(GGMLType.IQ3_XXS, Layout.BYTES)
_iq3_s_grid: Final = _grid_of(GGMLType.IQ3_S)
_signed_2: Final = _signed(GGMLType.IQ2_S)
_signed_3_xxs: Final = _signed(GGMLType.IQ3_XXS)
_signed_3_s: Final = _signed(GGMLType.IQ3_S)


@step(GGMLType.IQ2_XXS)
def _iq2_xxs(multiply, size):
    @inlined
    def run(sums, p, columns):
        d, at = load_f16x16(p + IQ2_XXS.d) * splat(f32(1 / 8)), p + IQ2_XXS.qs
        for _ in range(8):
            signs = load_i32x16(at + VECTOR)
            words = _signed_2(_iq2_xxs_grid(at), even_signs(signs))
            sums = multiply(sums, words, (_odd(signs >> 28, d),), columns)
            columns += size
            at += 2 * VECTOR
        return sums

    return run


@inlined
def _scales_of_16(at, d):
    """Scales of 4 bits of a block's halves."""
    v = load_u8_i32x16(at)
    return _odd(v & 15, d), _odd(v >> 4, d)


@step(GGMLType.IQ2_XS)
def _iq2_xs(multiply, size):
    @inlined
    def run(sums, p, columns):
        d = load_f16x16(p + IQ2_XS.d) * splat(f32(1 / 8))
        for j in range(8):
            at = p + IQ2_XS.qs + 2 * VECTOR * j
            v, w = load_i32x16(at), load_i32x16(at + VECTOR)
            # in each half of both, 9 bits of index and 7 of signs
            indices = in_memory(v & 0x01FF01FF, w & 0x01FF01FF)
            signs = v >> 9 & 0x7F | v >> 18 & 0x3F80 | w << 5 & 0x1FC000 | w >> 4 & 0xFE00000
            words = _signed_2(_iq2_xs_grid(indices), even_signs(signs))
            sums = multiply(sums, words, _scales_of_16(p + IQ2_XS.scales + 16 * j, d), columns)
            columns += size
        return sums

    return run


@step(GGMLType.IQ2_S)
def _iq2_s(multiply, size):
    @inlined
    def run(sums, p, columns):
        d = load_f16x16(p + IQ2_S.d) * splat(f32(1 / 8))
        for j in range(8):
            v, high = load_i32x16(p + IQ2_S.qs + VECTOR * j), load_u8_i32x16(p + IQ2_S.qh + 16 * j)
            high = (high | high << 12) & 0x000F000F
            high = (high | high << 6) & 0x03030303
            words = _iq2_s_grid(wide_indices(v, high))
            words = _signed_2(words, load_i32x16(p + IQ2_S.signs + VECTOR * j))
            sums = multiply(sums, words, _scales_of_16(p + IQ2_S.scales + 16 * j, d), columns)
            columns += size
        return sums

    return run


@step(GGMLType.IQ3_XXS)
def _iq3_xxs(multiply, size):
    @inlined
    def run(sums, p, columns):
        d = load_f16x16(p + IQ3_XXS.d) * splat(f32(1 / 4))
        for j in range(8):
            signs = load_i32x16(p + IQ3_XXS.signs + VECTOR * j)
            words = _iq3_xxs_grid(p + IQ3_XXS.qs + 2 * VECTOR * j)
            words = _signed_3_xxs(words, even_signs(signs))
            sums = multiply(sums, words, (_odd(signs >> 28, d),), columns)
            columns += size
        return sums

    return run


@inlined
def _bits_to_bytes(v):
    """The low 4 bits, each as a byte."""
    v = (v | v << 14) & 0x00030003
    return (v | v << 7) & 0x01010101


@step(GGMLType.IQ3_S)
def _iq3_s(multiply, size):
    @inlined
    def run(sums, p, columns):
        d = load_f16x16(p + IQ3_S.d)
        for j in range(8):
            at, high = p + IQ3_S.qs + 2 * VECTOR * j, load_u8_i32x16(p + IQ3_S.qh + 16 * j)
            v, w = load_i32x16(at), load_i32x16(at + VECTOR)
            indices = wide_indices_2(v, _bits_to_bytes(high), w, _bits_to_bytes(high >> 4))
            signs = load_i32x16(p + IQ3_S.signs + VECTOR * j)
            scale = load_u8_i32x16(p + IQ3_S.scales + 16 * (j >> 1)) >> (j & 1) * 4 & 15
            words = _signed_3_s(_iq3_s_grid(indices), signs)
            sums = multiply(sums, words, (_odd(scale, d),), columns)
            columns += size
        return sums

    return run


# --- grids with shifts of 1/8 ---

_iq1_s_grid: Final = _grid_of(GGMLType.IQ1_S, plus=1)
# 8 times the values, plus a shift of 1 and the offset
_iq1_m_grid: Final = _grid_of(GGMLType.IQ1_S, factor=8, plus=1 + FORMATS[GGMLType.IQ1_M].offset)


@step(GGMLType.IQ1_S)
def _iq1_s(multiply, size):
    """The shift is the same for 32 values, so it is a part of their minimum."""

    @inlined
    def run(sums, p, columns):
        d = load_f16x16(p + IQ1_S.d)
        for j in range(8):
            v, high = load_i32x16(p + IQ1_S.qs + VECTOR * j), load_u16_i32x16(p + IQ1_S.qh + 32 * j)
            top = (high | high << 10) & 0x003F003F
            top = (top | top << 5) & 0x07070707
            scale = _odd(high >> 12 & 7, d)
            # minus 1, plus or minus the shift
            low = scale * (splat(f32(-7 / 8)) - to_f32(high >> 15) * splat(f32(1 / 4)))
            words = _iq1_s_grid(wide_indices(v, top))
            sums = multiply(sums, words, (scale, low), columns)
            columns += size
        return sums

    return run


@inlined
def _iq1_m_scale(scales):
    """The scale of the whole block: 4 bits are the highest of each field of scales."""
    v = load_u16_i32x16(scales) >> 12
    for i in range(1, 4):
        v = v | load_u16_i32x16(scales + 32 * i) >> 12 << 4 * i
    return f16_of_lanes(v)


@step(GGMLType.IQ1_M)
def _iq1_m(multiply, size):
    @inlined
    def run(sums, p, columns):
        d = _iq1_m_scale(p + IQ1_M.scales) * splat(f32(1 / 8))
        for j in range(8):
            v, at = load_i32x16(p + IQ1_M.qs + VECTOR * j), p + IQ1_M.qh + 32 * j
            high = load_u8_i32x16(at) | load_u8_i32x16(at + 16) << 16
            words = _iq1_m_grid(wide_indices(v, (high | high << 4) & 0x07070707))
            down = high >> 2 & 0x00020002 | (high & 0x00800080) << 2
            words = less_bytes(words, down)
            scale = load_u16_i32x16(p + IQ1_M.scales + 32 * (j >> 1)) >> (j & 1) * 6
            scales = _odd(scale & 7, d), _odd(scale >> 3 & 7, d)
            sums = multiply(sums, words, scales, columns)
            columns += size
        return sums

    return run


# --- ternary digits ---


@step(GGMLType.TQ1_0)
def _tq1_0(multiply, size):
    @inlined
    def run(sums, p, columns):
        scales = (load_f16x16(p + TQ1_0.d),)
        words = load_fractions(p + TQ1_0.qs)  # 32 bytes of each row: 5 digits of each
        for _i in range(5):
            sums = multiply(sums, first_digits(words), scales, columns)
            words = times_3(words)
            columns += size
        quads = p + TQ1_0.qs + WORDS_BYTES  # 16 bytes: two digits of each make a block
        words = load_fractions_twice(quads)
        for _i in range(2):
            sums = multiply(sums, first_digits(words), scales, columns)
            words = times_3(times_3(words))
            columns += size
        words = load_last_fractions(quads, p + TQ1_0.qh)
        return multiply(sums, first_digits(words), scales, columns)

    return run


@step(GGMLType.TQ2_0)
def _tq2_0(multiply, size):
    @inlined
    def run(sums, p, columns):
        scales = (load_f16x16(p + TQ2_0.d),)
        for i in range(8):
            words = bits_of(load_words(p + TQ2_0.qs + WORDS_BYTES * (i >> 2)), (i & 3) * 2, 3)
            sums = multiply(sums, words, scales, columns)
            columns += size
        return sums

    return run
