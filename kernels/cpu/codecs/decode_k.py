"""Decoders of blocks of 256 values with packed scales: the K types and the ternary ones.

See `decode`. Tested by tests/kernels/test_cpu_decode.py.
"""

from __future__ import annotations

from typing import Final

from ....graph.types import GGMLType
from ..simd.calls import inlined
from ..simd.ints import load_u8_i32x16, to_f32
from ..simd.memory import load_f16, load_i8, load_u8, store_f32, store_f32x16
from ..simd.vectors import splat
from .decode import decoder, f32, offsets

Q2_K: Final = offsets(GGMLType.Q2_K)
Q3_K: Final = offsets(GGMLType.Q3_K)
Q4_K: Final = offsets(GGMLType.Q4_K)
Q5_K: Final = offsets(GGMLType.Q5_K)
Q6_K: Final = offsets(GGMLType.Q6_K)
TQ1_0: Final = offsets(GGMLType.TQ1_0)
TQ2_0: Final = offsets(GGMLType.TQ2_0)


@decoder(GGMLType.Q2_K)
def _q2_k(block, out, table):
    d, dmin = load_f16(block + Q2_K.d), load_f16(block + Q2_K.dmin)
    for i in range(16):  # 16 values each
        scale = load_u8(block + Q2_K.scales + i)
        q = load_u8_i32x16(block + Q2_K.qs + i // 8 * 32 + i % 2 * 16) >> i // 2 % 4 * 2
        low = splat(dmin * f32(scale >> 4))
        store_f32x16(out + 64 * i, to_f32(q & 3) * splat(d * f32(scale & 15)) - low)


@decoder(GGMLType.Q3_K)
def _q3_k(block, out, table):
    d, scales = load_f16(block + Q3_K.d), block + Q3_K.scales
    for i in range(16):
        low = load_u8(scales + i % 8) >> i // 8 * 4 & 15
        high = load_u8(scales + 8 + i % 4) >> i // 4 * 2 & 3
        q = load_u8_i32x16(block + Q3_K.qs + i // 8 * 32 + i % 2 * 16) >> i // 2 % 4 * 2
        mask = load_u8_i32x16(block + Q3_K.hmask + i % 2 * 16) >> i // 2
        value = to_f32((q & 3 | (mask & 1) << 2) - 4)
        store_f32x16(out + 64 * i, value * splat(d * f32((low | high << 4) - 32)))


@inlined
def _scale_and_min(scales, j):
    """The 6-bit scale and min of 32 values of Q4_K and Q5_K."""
    if j < 4:
        return load_u8(scales + j) & 63, load_u8(scales + 4 + j) & 63
    both = load_u8(scales + 4 + j)
    scale = both & 15 | load_u8(scales + j - 4) >> 6 << 4
    return scale, both >> 4 | load_u8(scales + j) >> 6 << 4


@decoder(GGMLType.Q4_K)
def _q4_k(block, out, table):
    d, dmin = load_f16(block + Q4_K.d), load_f16(block + Q4_K.dmin)
    for j in range(8):  # 32 values each
        scale, low = _scale_and_min(block + Q4_K.scales, j)
        factor, offset = splat(d * f32(scale)), splat(dmin * f32(low))
        for i in range(2):
            q = load_u8_i32x16(block + Q4_K.qs + j // 2 * 32 + 16 * i) >> j % 2 * 4
            store_f32x16(out + 128 * j + 64 * i, to_f32(q & 15) * factor - offset)


@decoder(GGMLType.Q5_K)
def _q5_k(block, out, table):
    d, dmin = load_f16(block + Q5_K.d), load_f16(block + Q5_K.dmin)
    for j in range(8):
        scale, low = _scale_and_min(block + Q5_K.scales, j)
        factor, offset = splat(d * f32(scale)), splat(dmin * f32(low))
        for i in range(2):
            q = load_u8_i32x16(block + Q5_K.qs + j // 2 * 32 + 16 * i) >> j % 2 * 4
            high = load_u8_i32x16(block + Q5_K.qh + 16 * i) >> j
            value = to_f32(q & 15 | (high & 1) << 4)
            store_f32x16(out + 128 * j + 64 * i, value * factor - offset)


@decoder(GGMLType.Q6_K)
def _q6_k(block, out, table):
    d = load_f16(block + Q6_K.d)
    for i in range(16):
        half, place = i // 8, i % 8
        low = load_u8_i32x16(block + Q6_K.ql + 64 * half + place % 4 * 16) >> place // 4 * 4
        high = load_u8_i32x16(block + Q6_K.qh + 32 * half + place % 2 * 16) >> place // 2 * 2
        factor = splat(d * f32(load_i8(block + Q6_K.scales + i)))
        store_f32x16(out + 64 * i, to_f32((low & 15 | (high & 3) << 4) - 32) * factor)


@decoder(GGMLType.TQ2_0)
def _tq2_0(block, out, table):
    d = splat(load_f16(block + TQ2_0.d))
    for i in range(16):
        q = load_u8_i32x16(block + TQ2_0.qs + i // 8 * 32 + i % 2 * 16) >> i // 2 % 4 * 2
        store_f32x16(out + 64 * i, to_f32((q & 3) - 1) * d)


@inlined
def _digit(q, power):
    """Digit n, minus 1, of the fraction q / 256 in base 3; `power` is 3 ** n."""
    return ((q * power & 255) * 3 >> 8) - 1


@decoder(GGMLType.TQ1_0)
def _tq1_0(block, out, table):
    d = load_f16(block + TQ1_0.d)
    power = 1
    for digit in range(5):
        for i in range(2):
            q = load_u8_i32x16(block + TQ1_0.qs + 16 * i)
            store_f32x16(out + 128 * digit + 64 * i, to_f32(_digit(q, power)) * splat(d))
        q = load_u8_i32x16(block + TQ1_0.qs + 32)
        store_f32x16(out + 640 + 64 * digit, to_f32(_digit(q, power)) * splat(d))
        power *= 3
    power = 1
    for digit in range(4):
        for i in range(4):
            value = _digit(load_u8(block + TQ1_0.qh + i), power)
            store_f32(out + 960 + 16 * digit + 4 * i, d * f32(value))
        power *= 3
