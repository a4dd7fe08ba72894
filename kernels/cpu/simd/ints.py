"""Vector functions of decoding: small integers in lanes, table lookups, sign bits.

`i32x16` has the lanes of `vectors.f32x16`. The second operand of `&`, `|`, `>>`, `<<`, `+`, `-` and
`*` is another vector, or an int for all lanes. `>>` shifts in zeros. Knows no block formats.
Tested by tests/kernels/test_cpu_decode.py.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Final

from llvmlite import ir

from ..compiler.deferred import Deferred, numba_side
from ..compiler.isa import has_feature
from . import types
from .calls import emit_call
from .halves import f16_to_f32
from .vectors import LANES, call_intrinsic, f32x16, pointer_to, vector_function

_I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
_F32 = ir.FloatType()
_V_I8, _V_I32 = ir.VectorType(_I8, LANES), ir.VectorType(_I32, LANES)
_V_F32 = ir.VectorType(_F32, LANES)
_COUNT: Final = ir.Constant(_V_I32, list(range(LANES)))
_HALVES: Final = [*range(LANES // 2), *range(LANES + LANES // 2, 2 * LANES)]

_HAS_PERMUTE: Final = has_feature("avx512f")

_address = types.int64
i32x16: Final = types.i32x16


def splat_int(b: Any, scalar: Any) -> Any:
    """The low 32 bits of an int64 in all lanes."""
    scalar = b.trunc(scalar, _I32)
    one = b.insert_element(ir.Constant(_V_I32, ir.Undefined), scalar, _I32(0))
    return b.shuffle_vector(one, ir.Constant(_V_I32, ir.Undefined), ir.Constant(_V_I32, None))


# Python's operators, for `numba_registers`
OPERATORS: Final = {
    operator.and_: lambda b, x, y: b.and_(x, y),
    operator.or_: lambda b, x, y: b.or_(x, y),
    operator.rshift: lambda b, x, y: b.lshr(x, y),
    operator.lshift: lambda b, x, y: b.shl(x, y),
    operator.add: lambda b, x, y: b.add(x, y),
    operator.sub: lambda b, x, y: b.sub(x, y),
    operator.mul: lambda b, x, y: b.mul(x, y),
}


def call(b: Any, name: str, result: Any, *args: Any) -> Any:
    """Call LLVM's intrinsic `name`."""
    return call_intrinsic(b, name, result, list(args))


def _load(b: Any, address: Any, type: Any) -> Any:
    return b.load(pointer_to(b, address, type), align=1)


def _gathered(b: Any, addresses: tuple[Any, ...]) -> Any:
    """A vector of bytes from several addresses, the same number from each."""
    part = ir.IntType(8 * LANES // len(addresses))
    parts = ir.Constant(ir.VectorType(part, len(addresses)), ir.Undefined)
    for i, address in enumerate(addresses):
        parts = b.insert_element(parts, _load(b, address, part), _I32(i))
    return b.bitcast(parts, _V_I8)


def _emit_splat_f16(b: Any, address: Any) -> Any:
    undefined = ir.Constant(ir.VectorType(_I16, LANES), ir.Undefined)
    one = b.insert_element(undefined, _load(b, address, _I16), _I32(0))
    return f16_to_f32(b, b.shuffle_vector(one, undefined, ir.Constant(_V_I32, None)))


def _emit_lookup(b: Any, table: Any, index: Any) -> Any:
    if _HAS_PERMUTE:
        return call(b, "llvm.x86.avx512.permvar.sf.512", _V_F32, _load(b, table, _V_F32), index)
    result = ir.Constant(_V_F32, ir.Undefined)
    for lane in range(LANES):
        offset = b.zext(b.shl(b.extract_element(index, _I32(lane)), _I32(2)), _I64)
        value = _load(b, b.add(table, offset), _F32)
        result = b.insert_element(result, value, _I32(lane))
    return result


def looked_up_bytes(entries: Sequence[int]) -> Any:
    """A function that looks up lanes of 0..15 in a table of 16 bytes, as floats."""
    table = ir.Constant(_V_I8, [int(entry) for entry in entries])

    def emit(b: Any, index: Any) -> Any:
        narrow = b.trunc(index, _V_I8)
        if has_feature("ssse3"):
            found = call(b, "llvm.x86.ssse3.pshuf.b.128", _V_I8, table, narrow)
        elif has_feature("neon"):
            found = call(b, "llvm.aarch64.neon.tbl1.v16i8", _V_I8, table, narrow)
        else:
            found = ir.Constant(_V_I8, None)
            for i, entry in enumerate(entries):
                here = b.icmp_signed("==", narrow, ir.Constant(_V_I8, [i] * LANES))
                found = b.select(here, ir.Constant(_V_I8, [int(entry)] * LANES), found)
        return b.sitofp(b.sext(found, _V_I32), _V_F32)

    return vector_function(f32x16, (i32x16,), emit)


def _emit_flip(b: Any, v: Any, bits: Any) -> Any:
    to_top = ir.Constant(_V_I32, list(range(31, 31 - LANES, -1)))
    top = b.and_(b.shl(splat_int(b, bits), to_top), ir.Constant(_V_I32, [-(2**31)] * LANES))
    return b.bitcast(b.xor(b.bitcast(v, _V_I32), top), _V_F32)


def _floats(value: float) -> Any:
    return ir.Constant(_V_F32, [value] * LANES)


def _emit_store_u8(b: Any, address: Any, v: Any) -> Any:
    b.store(b.trunc(v, _V_I8), pointer_to(b, address, _V_I8), align=1)


def _emit_lane_mask(b: Any, v: Any) -> Any:
    shifted = b.shl(b.and_(v, ir.Constant(_V_I32, [1] * LANES)), _COUNT)
    return b.zext(call(b, "llvm.vector.reduce.or.v16i32", _I32, shifted), _I64)


def _emit_clamp(b: Any, v: Any, largest: Any) -> Any:
    low = call(b, "llvm.smax.v16i32", _V_I32, v, ir.Constant(_V_I32, None))
    return call(b, "llvm.smin.v16i32", _V_I32, low, splat_int(b, largest))


def _emit_to_i32(b: Any, v: Any) -> Any:
    return call(b, "llvm.fptosi.sat.v16i32.v16f32", _V_I32, v)


def _emit_truncated(b: Any, x: Any) -> Any:
    return b.sext(call(b, "llvm.fptosi.sat.i32.f32", _I32, x), _I64)


def _emit_round_away(b: Any, v: Any) -> Any:
    # as in gguf.quants.np_roundf: infinity becomes NaN, then 0
    size = call(b, "llvm.fabs.v16f32", _V_F32, v)
    whole = call(b, "llvm.floor.v16f32", _V_F32, size)
    doubled = b.fmul(_floats(2.0), b.fsub(size, whole))
    rounded = b.fadd(whole, call(b, "llvm.floor.v16f32", _V_F32, doubled))
    return _emit_to_i32(b, call(b, "llvm.copysign.v16f32", _V_F32, rounded, v))


def _emit_max_abs(b: Any, x: Any, y: Any) -> Any:
    # without their sign, floats compare like integers, and NaN is above infinity
    sizes = [
        b.and_(b.bitcast(v, _V_I32), ir.Constant(_V_I32, [0x7FFFFFFF] * LANES)) for v in (x, y)
    ]
    larger = call(b, "llvm.smax.v16i32", _V_I32, *sizes)
    return b.bitcast(call(b, "llvm.vector.reduce.smax.v16i32", _I32, larger), _F32)


def _emit_copy(b: Any, dst: Any, src: Any, n: Any) -> Any:
    at = (pointer_to(b, dst, _I8), pointer_to(b, src, _I8))
    call(b, "llvm.memcpy.p0.p0.i64", ir.VoidType(), *at, n, ir.IntType(1)(0))


# 16 contiguous numbers
load_u8_i32x16 = vector_function(
    i32x16, (_address,), lambda b, at: b.zext(_load(b, at, _V_I8), _V_I32)
)
load_i32x16 = vector_function(i32x16, (_address,), lambda b, at: _load(b, at, _V_I32))
load_u16_i32x16 = vector_function(
    i32x16, (_address,), lambda b, at: b.zext(_load(b, at, ir.VectorType(_I16, LANES)), _V_I32)
)
store_i32x16_u8 = vector_function(types.void, (_address, i32x16), _emit_store_u8)
store_u32 = vector_function(
    types.void,
    (_address, types.int64),
    lambda b, at, n: b.store(b.trunc(n, _I32), pointer_to(b, at, _I32), align=1),
)
# a float16 in all lanes; converted after the splat, so that it depends on no other register
splat_f16 = vector_function(f32x16, (_address,), _emit_splat_f16)
# 8 bytes from each of two addresses; 4 bytes from each of four
load_i8_2x8 = vector_function(
    i32x16, (_address,) * 2, lambda b, *at: b.sext(_gathered(b, at), _V_I32)
)
load_i8_4x4 = vector_function(
    i32x16, (_address,) * 4, lambda b, *at: b.sext(_gathered(b, at), _V_I32)
)
# bits of an int as lanes: lane i is bit i
lane_bits = vector_function(
    i32x16,
    (types.int64,),
    lambda b, n: b.and_(b.lshr(splat_int(b, n), _COUNT), ir.Constant(_V_I32, [1] * LANES)),
)
# lanes as bits of an int: bit i is bit 0 of lane i
lane_mask = vector_function(types.int64, (i32x16,), _emit_lane_mask)
# clamp to 0 and a largest value
clamp = vector_function(i32x16, (i32x16, types.int64), _emit_clamp)
to_f32 = vector_function(f32x16, (i32x16,), lambda b, v: b.sitofp(v, _V_F32))
# rounded towards 0; saturates; NaN becomes 0
to_i32 = vector_function(i32x16, (f32x16,), _emit_to_i32)
truncated = vector_function(types.int64, (types.float32,), _emit_truncated)
# rounded to nearest, ties away from 0
round_away = vector_function(i32x16, (f32x16,), _emit_round_away)
# the largest absolute value of 32 floats; NaN if one is NaN
max_abs = vector_function(types.float32, (f32x16, f32x16), _emit_max_abs)
# look up floats in a table of 16
lookup = vector_function(f32x16, (_address, i32x16), _emit_lookup)
# lanes 0..7 of two vectors
low_high = vector_function(
    f32x16,
    (f32x16, f32x16),
    lambda b, x, y: b.shuffle_vector(x, y, ir.Constant(_V_I32, _HALVES)),
)
# change the sign of lanes whose bit is set
flip_signs = vector_function(f32x16, (f32x16, types.int64), _emit_flip)
# the low 16 bits of lanes as float16
f16_of_lanes = vector_function(
    f32x16,
    (i32x16,),
    lambda b, v: f16_to_f32(b, b.trunc(v, ir.VectorType(_I16, LANES))),
)
f32_of_bits = vector_function(
    types.float32, (types.int64,), lambda b, n: b.bitcast(b.trunc(n, _I32), _F32)
)
f16_of_bits = vector_function(
    types.float32,
    (types.int64,),
    lambda b, n: f16_to_f32(b, b.trunc(n, _I16)),
)
copy_bytes = vector_function(types.void, (_address, _address, types.int64), _emit_copy)
# call the machine code at an address with a tuple of ints: (address, ints)
call_at = Deferred(lambda: numba_side().call_at(emit_call))
