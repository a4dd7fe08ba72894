"""Conversions between float32 and the 16-bit types F16 and BF16, and from scales of 8 bits, as LLVM
IR.

Does not access memory; `memory` does. Tested by tests/kernels/test_cpu_simd_vectors.py.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ..compiler.isa import converts_halves
from .vectors import LANES, lanes_of

_I16, _I32 = (ir.IntType(n) for n in (16, 32))
_F16, _F32 = ir.HalfType(), ir.FloatType()
_V_F32 = ir.VectorType(_F32, LANES)
_V_F16 = ir.VectorType(_F16, LANES)
_V_I32 = ir.VectorType(_I32, LANES)
_V_I16 = ir.VectorType(_I16, LANES)


def _kinds(value: Any) -> tuple[Any, Any, Any, Any]:
    """int16, int32, float16 and float32 with as many lanes as `value`, or as scalars."""
    vector = isinstance(value.type, ir.VectorType)
    return (_V_I16, _V_I32, _V_F16, _V_F32) if vector else (_I16, _I32, _F16, _F32)


def bf16_to_f32(b: Any, bits: Any) -> Any:
    _, i32, _, f32 = _kinds(bits)
    return b.bitcast(b.shl(b.zext(bits, i32), lanes_of(i32, 16)), f32)


def f32_to_bf16(b: Any, value: Any) -> Any:
    """To nearest, ties to even; NaN remains NaN (ggml-impl.h, ggml_compute_fp32_to_bf16)."""
    i16, i32, _, _ = _kinds(value)
    bits = b.bitcast(value, i32)
    high = b.lshr(bits, lanes_of(i32, 16))
    odd = b.and_(high, lanes_of(i32, 1))
    rounded = b.lshr(b.add(b.add(bits, odd), lanes_of(i32, 0x7FFF)), lanes_of(i32, 16))
    nan = b.fcmp_unordered("uno", value, value)
    return b.trunc(b.select(nan, b.or_(high, lanes_of(i32, 64)), rounded), i16)


def f16_to_f32(b: Any, bits: Any) -> Any:
    """F16 as int16 to float32; NaN becomes a quiet NaN.

    If there is no instruction: as in the FP16 library (ggml-impl.h, ggml_compute_fp16_to_fp32).
    """
    _, i32, f16, f32 = _kinds(bits)
    if converts_halves():
        return b.fpext(b.bitcast(bits, f16), f32)
    placed = b.shl(b.zext(bits, i32), lanes_of(i32, 16))
    unsigned = b.shl(placed, lanes_of(i32, 1))
    # 31 + 224 = 255: infinity remains infinity; the product corrects all other exponents
    scaled = b.bitcast(b.add(b.lshr(unsigned, lanes_of(i32, 4)), lanes_of(i32, 224 << 23)), f32)
    normal = b.fmul(scaled, lanes_of(f32, 2.0**-112))
    # subnormal: the digits are the lowest bits of 0.5 + x
    digits = b.bitcast(b.or_(b.lshr(unsigned, lanes_of(i32, 17)), lanes_of(i32, 126 << 23)), f32)
    below = b.fsub(digits, lanes_of(f32, 0.5))
    size = b.select(b.icmp_unsigned("<", unsigned, lanes_of(i32, 1 << 27)), below, normal)
    return b.bitcast(b.or_(b.and_(placed, lanes_of(i32, 1 << 31)), b.bitcast(size, i32)), f32)


def half_of_e8m0(b: Any, bits: Any) -> Any:
    """2**(e - 128) of 16 bytes e; subnormal for e < 2 (ggml-impl.h, ggml_e8m0_to_fp32_half)."""
    e = b.zext(bits, _V_I32)
    normal = b.shl(b.sub(e, lanes_of(_V_I32, 1)), lanes_of(_V_I32, 23))
    subnormal = b.shl(b.add(e, lanes_of(_V_I32, 1)), lanes_of(_V_I32, 21))  # larger only if e < 2
    larger = b.icmp_signed(">", normal, subnormal)
    return b.bitcast(b.select(larger, normal, subnormal), _V_F32)


def half_of_ue4m3(b: Any, bits: Any) -> Any:
    """Half of 16 floats of 4 bits of exponent and 3 of mantissa; NaN is 0 (ggml-impl.h,
    ggml_ue4m3_to_fp32)."""
    nan = b.icmp_unsigned("==", bits, lanes_of(bits.type, 0x7F))
    number = b.and_(b.select(nan, lanes_of(bits.type, 0), bits), lanes_of(bits.type, 0x7F))
    # F16 has these bits with an exponent that is 8 more
    f16 = b.shl(b.zext(number, _V_I16), lanes_of(_V_I16, 7))
    return b.fmul(f16_to_f32(b, f16), lanes_of(_V_F32, 2.0**7))


def f32_to_f16(b: Any, value: Any) -> Any:
    """float32 to F16 as int16, to nearest, ties to even; NaN remains NaN.

    If there is no instruction: as in the FP16 library (ggml-impl.h, ggml_compute_fp32_to_fp16), but
    NaN keeps its high bits, as with the instructions.
    """
    i16, i32, f16, f32 = _kinds(value)
    if converts_halves():
        return b.bitcast(b.fptrunc(value, f16), i16)
    bits = b.bitcast(value, i32)
    unsigned = b.shl(bits, lanes_of(i32, 1))
    size = b.bitcast(b.lshr(unsigned, lanes_of(i32, 1)), f32)
    # four times the value; infinite if F16 would be infinite
    base = b.fmul(b.fmul(size, lanes_of(f32, 2.0**112)), lanes_of(f32, 2.0**-110))
    exponent, least = b.and_(unsigned, lanes_of(i32, 0xFF << 24)), lanes_of(i32, 0x71 << 24)
    exponent = b.select(b.icmp_unsigned("<", exponent, least), least, exponent)
    # adding a number this large rounds to the precision of F16
    rounder = b.add(b.lshr(exponent, lanes_of(i32, 1)), lanes_of(i32, 0x0780 << 16))
    sum = b.bitcast(b.fadd(base, b.bitcast(rounder, f32)), i32)
    number = b.and_(b.lshr(sum, lanes_of(i32, 13)), lanes_of(i32, 0x7C00))
    number = b.add(number, b.and_(sum, lanes_of(i32, 0xFFF)))
    digits = b.and_(b.lshr(bits, lanes_of(i32, 13)), lanes_of(i32, 0x3FF))
    nan = b.icmp_unsigned(">", unsigned, lanes_of(i32, 0xFF << 24))
    half = b.select(nan, b.or_(digits, lanes_of(i32, 0x7E00)), number)
    sign = b.and_(b.lshr(bits, lanes_of(i32, 16)), lanes_of(i32, 0x8000))
    return b.trunc(b.or_(sign, half), i16)
