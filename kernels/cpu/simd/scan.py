"""Vector functions of sampling: comparisons as bits of an int, exponentials rounded once.

They take `vectors.f32x16`. Knows no sampler.
Tested by tests/kernels/test_cpu_scan.py.
"""

from __future__ import annotations

import math
from typing import Any, Final

from llvmlite import ir

from . import types
from .ints import call
from .vectors import LANES, f32x16, vector_function

_I16, _I32, _I64, _F64 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.DoubleType()
_V_F32 = ir.VectorType(ir.FloatType(), LANES)
_V_F64, _V_I64 = ir.VectorType(_F64, LANES), ir.VectorType(_I64, LANES)

LOWEST_EXPONENT: Final = -104.0  # below, e**x is 0 as a float32
_LOG2_E: Final = 1.4426950408889634
# ln 2 in two parts (fdlibm's e_exp.c): an integer below 2**20 times the first part is exact
_LN2_HIGH: Final = 6.93147180369123816490e-01
_LN2_LOW: Final = 1.90821492927058770002e-10
_ROUNDER: Final = 1.5 * 2.0**52  # after adding it, the low bits are an integer
_ROUNDER_BITS: Final = 0x4338000000000000
_DEGREE: Final = 13  # degree of the polynomial


def _bits(b: Any, lanes: Any) -> Any:
    """A boolean vector as an int: bit i is lane i."""
    return b.zext(b.bitcast(lanes, _I16), _I64)


def _doubles(value: float) -> Any:
    return ir.Constant(_V_F64, [value] * LANES)


def _emit_exp(b: Any, v: Any) -> Any:
    """x = n ln 2 + r, |r| <= ln 2 / 2, and a Taylor polynomial with the precision of float64. Uses
    no fma, so that processors without it give the same bits."""
    low = ir.Constant(_V_F32, [LOWEST_EXPONENT] * LANES)
    below = b.fcmp_ordered("<", v, low)
    x = b.fpext(b.select(below, low, v), _V_F64)
    shifted = b.fadd(b.fmul(x, _doubles(_LOG2_E)), _doubles(_ROUNDER))
    n = b.fsub(shifted, _doubles(_ROUNDER))
    r = b.fsub(x, b.fmul(n, _doubles(_LN2_HIGH)))
    r = b.fsub(r, b.fmul(n, _doubles(_LN2_LOW)))
    p = _doubles(1.0 / math.factorial(_DEGREE))
    for i in reversed(range(_DEGREE)):
        p = b.fadd(b.fmul(p, r), _doubles(1.0 / math.factorial(i)))
    whole = b.sub(b.bitcast(shifted, _V_I64), _ints(_ROUNDER_BITS))
    exponent = b.shl(b.add(whole, _ints(1023)), _ints(52))
    value = b.fptrunc(b.fmul(p, b.bitcast(exponent, _V_F64)), _V_F32)
    return b.select(below, ir.Constant(_V_F32, None), value)


def _emit_keep(b: Any, x: Any, n: Any) -> Any:
    bits = b.bitcast(b.trunc(n, _I16), ir.VectorType(ir.IntType(1), LANES))
    return b.select(bits, x, ir.Constant(_V_F32, [-math.inf] * LANES))


def _ints(n: int) -> Any:
    return ir.Constant(_V_I64, [n] * LANES)


# bit i is the comparison of lane i; 0 for NaN
mask_ge = vector_function(
    types.int64, (f32x16, f32x16), lambda b, x, y: _bits(b, b.fcmp_ordered(">=", x, y))
)
# true if one operand is NaN
mask_nan = vector_function(
    types.int64, (f32x16, f32x16), lambda b, x, y: _bits(b, b.fcmp_unordered("uno", x, y))
)
# the lanes of x whose bit of n is set; -inf in the others
keep_lanes = vector_function(f32x16, (f32x16, types.int64), _emit_keep)
count_bits = vector_function(
    types.int64, (types.int64,), lambda b, n: call(b, "llvm.ctpop.i64", _I64, n)
)
# the index of the lowest set bit; undefined for 0
lowest_bit = vector_function(
    types.int64,
    (types.int64,),
    lambda b, n: call(b, "llvm.cttz.i64", _I64, n, ir.IntType(1)(1)),
)
f32_bits = vector_function(
    types.int64, (types.float32,), lambda b, x: b.sext(b.bitcast(x, _I32), _I64)
)
# e**x for x <= 0, computed in float64 and rounded once; x must not be NaN
exp_rounded = vector_function(f32x16, (f32x16,), _emit_exp)
