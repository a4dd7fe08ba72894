"""Decoders of the IQ types: an index selects 4 or 8 values of a grid.

The grids are those of the `gguf` package. See `decode`.
Tested by tests/kernels/test_cpu_decode.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from ....graph.types import GGMLType
from ...quants.values import IQ4_NL, N_SIGNS, Bytes, grid, signs
from ..simd.calls import inlined
from ..simd.ints import (
    f16_of_bits,
    flip_signs,
    load_i8_2x8,
    load_i8_4x4,
    load_u8_i32x16,
    lookup,
    low_high,
    to_f32,
)
from ..simd.memory import load_f16, load_u8, load_u16, load_u32, store_f32x16
from ..simd.vectors import splat
from .decode import decoder, f32, floats, offsets

IQ1_S: Final = offsets(GGMLType.IQ1_S)
IQ1_M: Final = offsets(GGMLType.IQ1_M)
IQ2_XXS: Final = offsets(GGMLType.IQ2_XXS)
IQ2_XS: Final = offsets(GGMLType.IQ2_XS)
IQ2_S: Final = offsets(GGMLType.IQ2_S)
IQ3_XXS: Final = offsets(GGMLType.IQ3_XXS)
IQ3_S: Final = offsets(GGMLType.IQ3_S)
IQ4_XS: Final = offsets(GGMLType.IQ4_XS)


def _table(type: GGMLType) -> Callable[[], Bytes]:
    """The signs, then the grid of a type, with a byte for each value."""
    return lambda: np.concatenate([signs(), grid(type.name).ravel()])


@inlined
def _grid_8(table, i, j):
    """Rows i and j of a grid with 8 values in a row."""
    grid = table + N_SIGNS
    return to_f32(load_i8_2x8(grid + 8 * i, grid + 8 * j))


@inlined
def _grid_4(table, i, j, k, m):
    """Rows i, j, k and m of a grid with 4 values in a row."""
    grid = table + N_SIGNS
    return to_f32(load_i8_4x4(grid + 4 * i, grid + 4 * j, grid + 4 * k, grid + 4 * m))


@inlined
def _signs(table, i, j):
    """The sign bits of 16 values: of 8 from the 7 bits `i`, and of 8 from `j`."""
    return load_u8(table + (i & 127)) | load_u8(table + (j & 127)) << 8


@inlined
def _nibble(at, i):
    """The i-th group of 4 bits; the low 4 bits of a byte come first."""
    return load_u8(at + i // 2) >> i % 2 * 4 & 15


@inlined
def _store(out, grid, factor, signs):
    store_f32x16(out, flip_signs(grid * splat(factor), signs))


@decoder(GGMLType.IQ2_XXS, _table(GGMLType.IQ2_XXS))
def _iq2_xxs(block, out, table):
    d = load_f16(block + IQ2_XXS.d)
    for j in range(8):  # 32 values each
        at = block + IQ2_XXS.qs + 8 * j
        word = load_u32(at + 4)
        factor = d * (f32(0.5) + f32(word >> 28)) * f32(0.25)
        for i in range(2):
            grid = _grid_8(table, load_u8(at + 2 * i), load_u8(at + 2 * i + 1))
            signs = _signs(table, word >> 14 * i, word >> 14 * i + 7)
            _store(out + 128 * j + 64 * i, grid, factor, signs)


@decoder(GGMLType.IQ2_XS, _table(GGMLType.IQ2_XS))
def _iq2_xs(block, out, table):
    d = load_f16(block + IQ2_XS.d)
    for i in range(16):  # 16 values each
        a, b = load_u16(block + IQ2_XS.qs + 4 * i), load_u16(block + IQ2_XS.qs + 4 * i + 2)
        factor = d * (f32(0.5) + f32(_nibble(block + IQ2_XS.scales, i))) * f32(0.25)
        grid = _grid_8(table, a & 511, b & 511)
        _store(out + 64 * i, grid, factor, _signs(table, a >> 9, b >> 9))


@decoder(GGMLType.IQ2_S, _table(GGMLType.IQ2_S))
def _iq2_s(block, out, table):
    d = load_f16(block + IQ2_S.d)
    for i in range(16):
        high = _nibble(block + IQ2_S.qh, i)
        a = load_u8(block + IQ2_S.qs + 2 * i) | (high & 3) << 8
        b = load_u8(block + IQ2_S.qs + 2 * i + 1) | high >> 2 << 8
        factor = d * (f32(0.5) + f32(_nibble(block + IQ2_S.scales, i))) * f32(0.25)
        signs = load_u16(block + IQ2_S.signs + 2 * i)
        _store(out + 64 * i, _grid_8(table, a, b), factor, signs)


@decoder(GGMLType.IQ3_XXS, _table(GGMLType.IQ3_XXS))
def _iq3_xxs(block, out, table):
    d = load_f16(block + IQ3_XXS.d)
    for j in range(8):
        word = load_u32(block + IQ3_XXS.signs + 4 * j)
        factor = d * (f32(0.5) + f32(word >> 28)) * f32(0.5)
        for i in range(2):
            at = block + IQ3_XXS.qs + 8 * j + 4 * i
            a, b, c, e = load_u8(at), load_u8(at + 1), load_u8(at + 2), load_u8(at + 3)
            signs = _signs(table, word >> 14 * i, word >> 14 * i + 7)
            _store(out + 128 * j + 64 * i, _grid_4(table, a, b, c, e), factor, signs)


@decoder(GGMLType.IQ3_S, _table(GGMLType.IQ3_S))
def _iq3_s(block, out, table):
    d = load_f16(block + IQ3_S.d)
    for i in range(16):
        at, high = block + IQ3_S.qs + 4 * i, _nibble(block + IQ3_S.qh, i)
        a = load_u8(at) | (high & 1) << 8
        b = load_u8(at + 1) | (high >> 1 & 1) << 8
        c = load_u8(at + 2) | (high >> 2 & 1) << 8
        e = load_u8(at + 3) | high >> 3 << 8
        factor = d * f32(1 + 2 * _nibble(block + IQ3_S.scales, i // 2))
        signs = load_u16(block + IQ3_S.signs + 2 * i)
        _store(out + 64 * i, _grid_4(table, a, b, c, e), factor, signs)


@inlined
def _delta(bit):
    return splat(f32(-0.125) if bit else f32(0.125))


@decoder(GGMLType.IQ1_S, _table(GGMLType.IQ1_S))
def _iq1_s(block, out, table):
    d = load_f16(block + IQ1_S.d)
    for j in range(8):
        high = load_u16(block + IQ1_S.qh + 2 * j)
        factor = splat(d * f32(2 * (high >> 12 & 7) + 1))
        for i in range(2):
            at = block + IQ1_S.qs + 4 * j + 2 * i
            a = load_u8(at) | (high >> 6 * i & 7) << 8
            b = load_u8(at + 1) | (high >> 6 * i + 3 & 7) << 8
            value = _grid_8(table, a, b) + _delta(high >> 15)
            store_f32x16(out + 128 * j + 64 * i, value * factor)


@decoder(GGMLType.IQ1_M, _table(GGMLType.IQ1_S))
def _iq1_m(block, out, table):
    scales, bits = block + IQ1_M.scales, 0
    for i in range(4):
        bits |= load_u16(scales + 2 * i) >> 12 << 4 * i
    d = f16_of_bits(bits)
    for i in range(16):
        scale = load_u16(scales + i // 4 * 2) >> i % 4 * 3 & 7
        high = load_u8(block + IQ1_M.qh + i)
        a = load_u8(block + IQ1_M.qs + 2 * i) | (high & 7) << 8
        b = load_u8(block + IQ1_M.qs + 2 * i + 1) | (high >> 4 & 7) << 8
        delta = low_high(_delta(high >> 3 & 1), _delta(high >> 7))
        factor = splat(d * f32(2 * scale + 1))
        store_f32x16(out + 64 * i, (_grid_8(table, a, b) + delta) * factor)


@decoder(GGMLType.IQ4_XS, floats(IQ4_NL))
def _iq4_xs(block, out, table):
    d, high = load_f16(block + IQ4_XS.d), load_u16(block + IQ4_XS.scales_h)
    for j in range(8):
        scale = _nibble(block + IQ4_XS.scales_l, j) | (high >> 2 * j & 3) << 4
        factor = splat(d * f32(scale - 32))
        q = load_u8_i32x16(block + IQ4_XS.qs + 16 * j)
        store_f32x16(out + 128 * j, lookup(table, q & 15) * factor)
        store_f32x16(out + 128 * j + 64, lookup(table, q >> 4) * factor)
