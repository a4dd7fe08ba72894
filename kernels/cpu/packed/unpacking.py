"""Unpacks each type of packed weights: a step function for one record, a block of 16 rows.

A step adds the products of a record with blocks of columns to a tile's sums. Its maker takes
`multiply(sums, words, scales, columns)`, a function of `tiles.integer_products`, and the bytes of a
tile's block of 32 values. Tested by tests/kernels/test_cpu_packed.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from ....graph.types import GGMLType
from ...quants import values
from ..simd.bytes import (
    BYTES,
    bits_of,
    load_apart,
    load_bit_planes,
    nibbles,
    prefetch,
    unsigned,
    with_bits,
)
from ..simd.bytes import load_words as words_at
from ..simd.calls import inlined
from ..simd.ints import load_u8_i32x16, to_f32
from ..simd.lines import LINE, Line, Read, scaled_bytes
from ..simd.memory import load_e8m0x16, load_f16x16, load_i8x16, load_ue4m3x16
from ..simd.vectors import splat
from .formats import FORMATS

Step = Callable[[Any, int], Any]

STEPS: Final[dict[GGMLType, Step]] = {}

WORDS_BYTES: Final = 512  # bytes of 8 vectors
AHEAD: Final = 4096  # bytes between a load of weights and the bytes that it prefetches

Q4_0: Final = FORMATS[GGMLType.Q4_0].at
Q4_1: Final = FORMATS[GGMLType.Q4_1].at
Q5_0: Final = FORMATS[GGMLType.Q5_0].at
Q5_1: Final = FORMATS[GGMLType.Q5_1].at
Q8_0: Final = FORMATS[GGMLType.Q8_0].at
IQ4_NL: Final = FORMATS[GGMLType.IQ4_NL].at
IQ4_XS: Final = FORMATS[GGMLType.IQ4_XS].at
MXFP4: Final = FORMATS[GGMLType.MXFP4].at
NVFP4: Final = FORMATS[GGMLType.NVFP4].at
Q2_K: Final = FORMATS[GGMLType.Q2_K].at
Q3_K: Final = FORMATS[GGMLType.Q3_K].at
Q4_K: Final = FORMATS[GGMLType.Q4_K].at
Q5_K: Final = FORMATS[GGMLType.Q5_K].at
Q6_K: Final = FORMATS[GGMLType.Q6_K].at


def step(type: GGMLType) -> Callable[[Step], Step]:
    """Declare `function(multiply, size)` as the maker of a type's step."""

    def declare(function: Step) -> Step:
        STEPS[type] = function
        return function

    return declare


_fetch_words: Final = prefetch(WORDS_BYTES)
_fetch_half: Final = prefetch(WORDS_BYTES // 2)
_nibbles_at: Final = nibbles()


@inlined
def load_words(p):
    """Load 8 vectors. Prefetch later bytes into the first cache."""
    _fetch_words(p + AHEAD)
    return words_at(p)


@inlined
def load_nibbles(p):
    """Load 4 vectors. Return 8: the low 4 bits of each byte, then the high 4 bits."""
    _fetch_half(p + AHEAD)
    return _nibbles_at(p)


# --- blocks of 32 ---


@step(GGMLType.Q4_0)
def _q4_0(multiply, size):
    @inlined
    def run(sums, p, columns):
        return multiply(sums, load_nibbles(p + Q4_0.qs), (load_f16x16(p + Q4_0.d),), columns)

    return run


@step(GGMLType.Q4_1)
def _q4_1(multiply, size):
    @inlined
    def run(sums, p, columns):
        scales = load_f16x16(p + Q4_1.d), load_f16x16(p + Q4_1.m)
        return multiply(sums, load_nibbles(p + Q4_1.qs), scales, columns)

    return run


@step(GGMLType.Q5_0)
def _q5_0(multiply, size):
    @inlined
    def run(sums, p, columns):
        words = with_bits(load_nibbles(p + Q5_0.qs), load_bit_planes(p + Q5_0.qh), 4)
        return multiply(sums, words, (load_f16x16(p + Q5_0.d),), columns)

    return run


@step(GGMLType.Q5_1)
def _q5_1(multiply, size):
    @inlined
    def run(sums, p, columns):
        words = with_bits(load_nibbles(p + Q5_1.qs), load_bit_planes(p + Q5_1.qh), 4)
        scales = load_f16x16(p + Q5_1.d), load_f16x16(p + Q5_1.m)
        return multiply(sums, words, scales, columns)

    return run


@step(GGMLType.Q8_0)
def _q8_0(multiply, size):
    @inlined
    def run(sums, p, columns):
        words = unsigned(load_words(p + Q8_0.qs))
        return multiply(sums, words, (load_f16x16(p + Q8_0.d),), columns)

    return run


_iq4_nl_values: Final = nibbles([int(v) + 128 - 256 * (v >= 0) for v in values.IQ4_NL])


@step(GGMLType.IQ4_NL)
def _iq4_nl(multiply, size):
    @inlined
    def run(sums, p, columns):
        _fetch_half(p + IQ4_NL.qs + AHEAD)
        words = _iq4_nl_values(p + IQ4_NL.qs)
        return multiply(sums, words, (load_f16x16(p + IQ4_NL.d),), columns)

    return run


@inlined
def iq4_xs_scale(p, i, d):
    """Scale `i` of the record at `p`."""
    low = load_u8_i32x16(p + IQ4_XS.scales_l + 16 * (i >> 1)) >> (i & 1) * 4 & 15
    high = load_u8_i32x16(p + IQ4_XS.scales_h + 16 * (i >> 2)) >> (i & 3) * 2 & 3
    return to_f32((low | high << 4) - 32) * d


@step(GGMLType.IQ4_XS)
def _iq4_xs(multiply, size):
    @inlined
    def run(sums, p, columns):
        d = load_f16x16(p + IQ4_XS.d)
        for i in range(8):
            qs = p + IQ4_XS.qs + WORDS_BYTES // 2 * i
            _fetch_half(qs + AHEAD)
            sums = multiply(sums, _iq4_nl_values(qs), (iq4_xs_scale(p, i, d),), columns)
            columns += size
        return sums

    return run


E2M1: Final = [v + FORMATS[GGMLType.MXFP4].offset for v in values.E2M1]
_mxfp4_values: Final = nibbles(E2M1)
_nvfp4_values: Final = nibbles(E2M1, run=2)


@step(GGMLType.MXFP4)
def _mxfp4(multiply, size):
    @inlined
    def run(sums, p, columns):
        _fetch_half(p + MXFP4.qs + AHEAD)
        words = _mxfp4_values(p + MXFP4.qs)
        return multiply(sums, words, (load_e8m0x16(p + MXFP4.e),), columns)

    return run


# --- blocks of 64 ---


@step(GGMLType.NVFP4)
def _nvfp4(multiply, size):
    @inlined
    def run(sums, p, columns):
        for i in range(2):
            at, scale = p + NVFP4.qs + WORDS_BYTES // 2 * i, p + NVFP4.d + 32 * i
            _fetch_half(at + AHEAD)
            words = _nvfp4_values(at)
            scales = load_ue4m3x16(scale), load_ue4m3x16(scale + 16)
            sums = multiply(sums, words, scales, columns)
            columns += size
        return sums

    return run


# --- blocks of 256: quantized scales of 6 or 4 bits ---


# Scale and min j of Q4_K and Q5_K, for j < 4, and those of 4 + j. The packed bytes of 16 rows begin
# at `scales`. There are two functions, not a branch on j: LLVM would move the columns' loads before
# the branch, away from their use.


@inlined
def first_scales(scales, j, d, m):
    scale = load_u8_i32x16(scales + 16 * j) & 63
    low = load_u8_i32x16(scales + 16 * (j + 4)) & 63
    return to_f32(scale) * d, to_f32(low) * m


@inlined
def last_scales(scales, j, d, m):
    here = load_u8_i32x16(scales + 16 * (j + 8))
    scale = here & 15 | (load_u8_i32x16(scales + 16 * j) >> 6) << 4
    low = here >> 4 | (load_u8_i32x16(scales + 16 * (j + 4)) >> 6) << 4
    return to_f32(scale) * d, to_f32(low) * m


@step(GGMLType.Q4_K)
def _q4_k(multiply, size):
    @inlined
    def run(sums, p, columns):
        d, m = load_f16x16(p + Q4_K.d), splat(-1.0) * load_f16x16(p + Q4_K.dmin)
        qs, scales = p + Q4_K.qs, p + Q4_K.scales
        for i in range(2):
            words, j = load_words(qs + WORDS_BYTES * i), 2 * i
            sums = multiply(sums, bits_of(words, 0, 15), first_scales(scales, j, d, m), columns)
            columns += size
            j += 1
            sums = multiply(sums, bits_of(words, 4, 15), first_scales(scales, j, d, m), columns)
            columns += size
        for i in range(2):
            words, j = load_words(qs + WORDS_BYTES * (i + 2)), 2 * i
            sums = multiply(sums, bits_of(words, 0, 15), last_scales(scales, j, d, m), columns)
            columns += size
            j += 1
            sums = multiply(sums, bits_of(words, 4, 15), last_scales(scales, j, d, m), columns)
            columns += size
        return sums

    return run


@inlined
def _q5_k_words(p, i):
    """32 values of a record, from 32 * i on."""
    low = bits_of(load_words(p + Q5_K.qs + WORDS_BYTES * (i >> 1)), (i & 1) * 4, 15)
    return with_bits(low, bits_of(load_words(p + Q5_K.qh), i, 1), 4)


@step(GGMLType.Q5_K)
def _q5_k(multiply, size):
    @inlined
    def run(sums, p, columns):
        d, m = load_f16x16(p + Q5_K.d), splat(-1.0) * load_f16x16(p + Q5_K.dmin)
        scales = p + Q5_K.scales
        for i in range(4):
            words = _q5_k_words(p, i)
            sums = multiply(sums, words, first_scales(scales, i, d, m), columns)
            columns += size
        for i in range(4):
            words = _q5_k_words(p, i + 4)
            sums = multiply(sums, words, last_scales(scales, i, d, m), columns)
            columns += size
        return sums

    return run


# the 8 vectors of words lie in two places, as products of one column read them
_q6_k_words: Final = load_apart(12 * BYTES)
_q3_k_words: Final = load_apart(8 * BYTES)
_fetch_quarter: Final = prefetch(WORDS_BYTES // 2)


@inlined
def _q6_k_scales(scale, d):
    return load_i8x16(scale) * d, load_i8x16(scale + 16) * d


@step(GGMLType.Q6_K)
def _q6_k(multiply, size):
    @inlined
    def run(sums, p, columns):
        d = load_f16x16(p + Q6_K.d)
        for i in range(8):  # 4 for each half of 128 values
            q, part = p + Q6_K.qh + 24 * BYTES * (i >> 2), i & 3
            low = q + BYTES * (4 + 4 * (part & 1))
            _fetch_quarter(low + AHEAD)
            _fetch_quarter(low + 12 * BYTES + AHEAD)
            words = bits_of(_q6_k_words(low), (part >> 1) * 4, 15)
            words = with_bits(words, bits_of(_q6_k_words(q), 2 * part, 3), 4)
            sums = multiply(sums, words, _q6_k_scales(p + Q6_K.scales + 32 * i, d), columns)
            columns += size
        return sums

    return run


def _q3_k_scales(half: int) -> Any:
    """A function (address of a record's packed scales, d) -> scales of a half, of 16 rows each."""

    def unpack(read: Read) -> Iterator[Line]:
        for i in range(2):  # 4 scales each
            high = read(2 * LINE).bits(2 * (2 * half + i) - 4, 0x30)
            yield (read(LINE * i).bits(4 * half, 15) | high).minus(32)

    return scaled_bytes(2, unpack)


q3_k_first, q3_k_last = _q3_k_scales(0), _q3_k_scales(1)


@step(GGMLType.Q3_K)
def _q3_k(multiply, size):
    @inlined
    def run(sums, p, columns):
        d, q = load_f16x16(p + Q3_K.d), p + Q3_K.hmask
        scales = q3_k_first(p + Q3_K.scales, d)
        for i in range(4):
            _fetch_words(q + WORDS_BYTES * (i & 1) + AHEAD)
            low = bits_of(_q3_k_words(q + 4 * BYTES), i * 2, 3)
            words = with_bits(low, bits_of(_q3_k_words(q), i, 1), 2)
            sums = multiply(sums, words, (scales[2 * i], scales[2 * i + 1]), columns)
            columns += size
        scales = q3_k_last(p + Q3_K.scales, d)
        for i in range(4):
            low = bits_of(load_words(q + 16 * BYTES), i * 2, 3)
            words = with_bits(low, bits_of(_q3_k_words(q), i + 4, 1), 2)
            sums = multiply(sums, words, (scales[2 * i], scales[2 * i + 1]), columns)
            columns += size
        return sums

    return run


@inlined
def q2_k_scales(at, d, m):
    """The scales of a block's halves, then their minimums, of 16 rows."""
    first, second = load_u8_i32x16(at), load_u8_i32x16(at + 16)
    return (
        to_f32(first & 15) * d,
        to_f32(second & 15) * d,
        to_f32(first >> 4) * m,
        to_f32(second >> 4) * m,
    )


@step(GGMLType.Q2_K)
def _q2_k(multiply, size):
    @inlined
    def run(sums, p, columns):
        d, m = load_f16x16(p + Q2_K.d), splat(-1.0) * load_f16x16(p + Q2_K.dmin)
        for i in range(8):
            words = bits_of(load_words(p + Q2_K.qs + WORDS_BYTES * (i >> 2)), (i & 3) * 2, 3)
            scales = q2_k_scales(p + Q2_K.scales + 32 * i, d, m)
            sums = multiply(sums, words, scales, columns)
            columns += size
        return sums

    return run
