"""Exponential, logarithm and hyperbolic tangent of vectors.

Tested by tests/kernels/test_cpu_simd_vectors.py.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir

from . import types
from .calls import inlined
from .vectors import (
    LANES,
    choose,
    f32x16,
    fma,
    lanes_of,
    pair_of,
    splat,
    vabs,
    vector_function,
    vmin,
    vround,
    vsqrt,
    zero,
)

_I32 = ir.IntType(32)
_F32 = ir.FloatType()
_V_F32 = ir.VectorType(_F32, LANES)
_V_I32 = ir.VectorType(_I32, LANES)


def _emit_exp2_of_int(b: Any, v: Any) -> Any:
    # the low bits of the sum are the integer, also for NaN, for which fptosi is undefined
    bits = b.bitcast(b.fadd(v, lanes_of(_V_F32, 1.5 * 2**23)), _V_I32)
    n = b.sub(bits, lanes_of(_V_I32, 0x4B400000))
    half = b.ashr(n, lanes_of(_V_I32, 1))
    bias, place = lanes_of(_V_I32, 127), lanes_of(_V_I32, 23)
    first = b.bitcast(b.shl(b.add(half, bias), place), _V_F32)
    second = b.bitcast(b.shl(b.add(b.sub(n, half), bias), place), _V_F32)
    return pair_of(b, first, second)


def _emit_mantissa_and_exponent(b: Any, v: Any) -> Any:
    bits, place = b.bitcast(v, _V_I32), lanes_of(_V_I32, 23)
    e = b.ashr(b.sub(bits, lanes_of(_V_I32, 0x3F3504F3)), place)
    m = b.bitcast(b.sub(bits, b.shl(e, place)), _V_F32)
    return pair_of(b, m, b.sitofp(e, _V_F32))


_two = types.UniTuple(f32x16, 2)
# 2**v for integers v in -252..254, as two factors, because 2**v may be subnormal
_exp2_of_int = vector_function(_two, (f32x16,), _emit_exp2_of_int)
# m and e of v = m * 2**e, with 1 / sqrt 2 <= m < sqrt 2. v must be normal and above 0
_mantissa_and_exponent = vector_function(_two, (f32x16,), _emit_mantissa_and_exponent)


@inlined
def _reduced(x):
    """n and e**r - 1 of x = n ln 2 + r, |r| <= ln 2 / 2: Cephes' expf."""
    n = vround(x * splat(1.44269504))
    r = fma(n, splat(-0.693359375), x)
    r = fma(n, splat(2.12194440e-4), r)
    p = splat(1.9875691500e-4)
    p = fma(p, r, splat(1.3981999507e-3))
    p = fma(p, r, splat(8.3334519073e-3))
    p = fma(p, r, splat(4.1665795894e-2))
    p = fma(p, r, splat(1.6666665459e-1))
    p = fma(p, r, splat(5.0000001201e-1))
    return n, fma(p * r, r, r)


@inlined
def vexp(x):
    """e**x of each lane, within 2 units in the last place; 0 below -104, inf above 89.

    NaN is NaN.
    """
    # no underflow on the way to a result of 0, because it is slow; NaN compares false and remains
    lowest = splat(-104.0)
    n, p = _reduced(choose(x, lowest, zero(), vmin(splat(89.0), x)))
    low, high = _exp2_of_int(n)
    return choose(x, lowest, zero(), (p + splat(1.0)) * low * high)


@inlined
def vexpm1(x):
    """e**x - 1 of each lane for x up to 80, precise near 0 too; NaN is NaN."""
    lowest = splat(-80.0)
    n, p = _reduced(choose(x, lowest, lowest, vmin(splat(80.0), x)))
    low, high = _exp2_of_int(n)
    power = low * high
    return fma(p, power, power - splat(1.0))


@inlined
def vlog1p(x):
    """log(1 + x) of each lane for x >= 0, precise near 0 too; NaN is NaN."""
    one = splat(1.0)
    sum = one + x
    # the factor corrects the rounding of the sum (Kahan)
    return choose(one, sum, vlog(sum) * (x / (sum - one)), x)


@inlined
def vlog(x):
    """Natural logarithm of each lane, within 2 units in the last place; -inf for 0, NaN below.

    For x = m 2**e, it is the polynomial of Cephes' logf for m, plus e ln 2.
    """
    tiny = splat(1.17549435e-38)  # the smallest normal number; smaller x are scaled up
    m, e = _mantissa_and_exponent(choose(x, tiny, x * splat(8388608.0), x))
    e = choose(x, tiny, e - splat(23.0), e)
    z = m - splat(1.0)
    p = fma(splat(7.0376836292e-2), z, splat(-1.1514610310e-1))
    p = fma(p, z, splat(1.1676998740e-1))
    p = fma(p, z, splat(-1.2420140846e-1))
    p = fma(p, z, splat(1.4249322787e-1))
    p = fma(p, z, splat(-1.6668057665e-1))
    p = fma(p, z, splat(2.0000714765e-1))
    p = fma(p, z, splat(-2.4999993993e-1))
    p = fma(p, z, splat(3.3333331174e-1))
    p = fma(e, splat(-2.12194440e-4), p * z * z * z)
    y = fma(e, splat(0.693359375), z + fma(splat(-0.5), z * z, p))
    y = choose(x, splat(math.inf), y, x)
    return choose(zero(), x, y, vsqrt(x) - splat(math.inf))


@inlined
def vtanh(x):
    """tanh of each lane: the polynomial of Cephes' tanhf near 0, else computed with `vexp`."""
    a = vabs(x)
    large = splat(1.0) - splat(2.0) / (vexp(a + a) + splat(1.0))
    z = x * x
    p = fma(splat(-5.70498872745e-3), z, splat(2.06390887954e-2))
    p = fma(p, z, splat(-5.37397155531e-2))
    p = fma(p, z, splat(1.33314422036e-1))
    p = fma(p, z, splat(-3.33332819422e-1))
    small = fma(p * z, x, x)
    signed = choose(x, zero(), large * splat(-1.0), large)
    return choose(a, splat(0.625), small, signed)
