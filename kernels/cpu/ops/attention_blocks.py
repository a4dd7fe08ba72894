"""Quantized keys and values: blocks of 32 elements as floats, with the bits of `gguf.quants`.

A type has `load(block)`, the elements as two vectors, and `value(block, i)`, a single element, for
heads that do not begin at a half of a block. Knows no rows.
Tested by tests/kernels/test_cpu_attention.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ....graph.types import GGMLType
from ...quants import values
from ..codecs.decode import IQ4_NL, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, f32
from ..simd.calls import inlined
from ..simd.ints import lane_bits, load_u8_i32x16, looked_up_bytes, splat_f16, to_f32
from ..simd.memory import load_f16, load_i8, load_i8x16, load_u8, load_u32
from .attention_layout import HALF


class BlockLoads(NamedTuple):
    """Functions that read a block of a type."""

    load: Callable[..., Any]
    value: Callable[..., Any]


@inlined
def _nibble(qs, i):
    """Element `i` of 32: the low nibbles of 16 bytes, then the high ones."""
    return load_u8(qs + i % HALF) >> i // HALF * 4 & 15


@inlined
def _fifth_bit(qh, i):
    """The fifth bit of element `i`, in its place."""
    return (load_u32(qh) >> i & 1) << 4


@inlined
def _load_q8_0(block):
    d = splat_f16(block + Q8_0.d)
    return load_i8x16(block + Q8_0.qs) * d, load_i8x16(block + Q8_0.qs + HALF) * d


@inlined
def _value_q8_0(block, i):
    return f32(load_i8(block + Q8_0.qs + i)) * load_f16(block + Q8_0.d)


@inlined
def _load_q4_0(block):
    d, q = splat_f16(block + Q4_0.d), load_u8_i32x16(block + Q4_0.qs)
    return to_f32((q & 15) - 8) * d, to_f32((q >> 4) - 8) * d


@inlined
def _value_q4_0(block, i):
    return f32(_nibble(block + Q4_0.qs, i) - 8) * load_f16(block + Q4_0.d)


@inlined
def _load_q4_1(block):
    d, m = splat_f16(block + Q4_1.d), splat_f16(block + Q4_1.m)
    q = load_u8_i32x16(block + Q4_1.qs)
    return to_f32(q & 15) * d + m, to_f32(q >> 4) * d + m


@inlined
def _value_q4_1(block, i):
    q = f32(_nibble(block + Q4_1.qs, i))
    return q * load_f16(block + Q4_1.d) + load_f16(block + Q4_1.m)


@inlined
def _load_q5_0(block):
    d, q = splat_f16(block + Q5_0.d), load_u8_i32x16(block + Q5_0.qs)
    high = load_u32(block + Q5_0.qh)
    low = to_f32((q & 15 | lane_bits(high) << 4) - 16) * d
    return low, to_f32((q >> 4 | lane_bits(high >> HALF) << 4) - 16) * d


@inlined
def _value_q5_0(block, i):
    q = _nibble(block + Q5_0.qs, i) | _fifth_bit(block + Q5_0.qh, i)
    return f32(q - 16) * load_f16(block + Q5_0.d)


@inlined
def _load_q5_1(block):
    d, m = splat_f16(block + Q5_1.d), splat_f16(block + Q5_1.m)
    q, high = load_u8_i32x16(block + Q5_1.qs), load_u32(block + Q5_1.qh)
    low = to_f32(q & 15 | lane_bits(high) << 4) * d + m
    return low, to_f32(q >> 4 | lane_bits(high >> HALF) << 4) * d + m


@inlined
def _value_q5_1(block, i):
    q = f32(_nibble(block + Q5_1.qs, i) | _fifth_bit(block + Q5_1.qh, i))
    return q * load_f16(block + Q5_1.d) + load_f16(block + Q5_1.m)


_iq4_nl_floats = looked_up_bytes(values.IQ4_NL)


@inlined
def _load_iq4_nl(block):
    d, q = splat_f16(block + IQ4_NL.d), load_u8_i32x16(block + IQ4_NL.qs)
    return _iq4_nl_floats(q & 15) * d, _iq4_nl_floats(q >> 4) * d


_IQ4_NL_VALUES: Final = values.IQ4_NL


@inlined
def _value_iq4_nl(block, i):
    return f32(_IQ4_NL_VALUES[_nibble(block + IQ4_NL.qs, i)]) * load_f16(block + IQ4_NL.d)


BLOCK_LOADS: Final = {
    GGMLType.Q8_0: BlockLoads(_load_q8_0, _value_q8_0),
    GGMLType.Q4_0: BlockLoads(_load_q4_0, _value_q4_0),
    GGMLType.Q4_1: BlockLoads(_load_q4_1, _value_q4_1),
    GGMLType.IQ4_NL: BlockLoads(_load_iq4_nl, _value_iq4_nl),
    GGMLType.Q5_0: BlockLoads(_load_q5_0, _value_q5_0),
    GGMLType.Q5_1: BlockLoads(_load_q5_1, _value_q5_1),
}
