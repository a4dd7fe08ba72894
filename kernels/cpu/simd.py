"""The vector vocabulary of the CPU kernels: loads, stores, arithmetic and conversions for Numba.

Addresses are int64. `f32x16` is LLVM's `<16 x float>`, which LLVM maps to whatever the processor
has, so the same kernel gives the same bits on every one. Names say the type in memory first:
`load_f16x16` reads halves and gives floats. Any new vector instruction goes here, nowhere else.
Tested by tests/kernels/test_cpu_simd.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

LANES: Final = 16

_I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
_F16, _F32, _F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
_V_F32 = ir.VectorType(_F32, LANES)
_V_F16 = ir.VectorType(_F16, LANES)
_V_I32 = ir.VectorType(_I32, LANES)
_V_I16 = ir.VectorType(_I16, LANES)
_V_I8 = ir.VectorType(_I8, LANES)
_V_I1 = ir.VectorType(ir.IntType(1), LANES)

Codegen = Callable[[Any, Any, Any, Any], Any]


class Vector(types.Type):
    """A vector of floats, as a Numba type."""

    def __init__(self) -> None:
        super().__init__(name="f32x16")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _V_F32)


f32x16 = Vector()
_address = types.int64


def _pointer(b: Any, address: Any, type: Any) -> Any:
    return b.inttoptr(address, type.as_pointer())


def _splat(b: Any, scalar: Any, type: Any) -> Any:
    one = b.insert_element(ir.Constant(type, ir.Undefined), scalar, _I32(0))
    zeros = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
    return b.shuffle_vector(one, ir.Constant(type, ir.Undefined), zeros)


def _mask(b: Any, n: Any) -> Any:
    """True for the lanes below `n`."""
    lanes = ir.Constant(_V_I32, list(range(LANES)))
    return b.icmp_signed("<", lanes, _splat(b, b.trunc(n, _I32), _V_I32))


def _call(b: Any, name: str, result: Any, args: list[Any]) -> Any:
    fn = ir.FunctionType(result, [a.type for a in args])
    return b.call(cgutils.get_or_insert_function(b.module, fn, name), args)


def _const(value: float) -> Any:
    return ir.Constant(_V_F32, [value] * LANES)


# --- scalars ---


def _loader(memory: Any, result: Any, convert: Callable[[Any, Any], Any] | None = None) -> Any:
    @intrinsic
    def load(_typing: Any, address: Any) -> tuple[Any, Codegen]:
        def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
            value = b.load(_pointer(b, args[0], memory), align=1)
            return convert(b, value) if convert else value

        return result(_address), codegen

    return load


def _storer(memory: Any, type: Any, convert: Callable[[Any, Any], Any] | None = None) -> Any:
    @intrinsic
    def store(_typing: Any, address: Any, value: Any) -> tuple[Any, Codegen]:
        def codegen(ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
            value = convert(b, args[1]) if convert else args[1]
            b.store(value, _pointer(b, args[0], memory), align=1)
            return ctx.get_dummy_value()

        return types.void(_address, type), codegen

    return store


def _bf16_to_f32(b: Any, bits: Any) -> Any:
    wide, to = (_V_I32, _V_F32) if isinstance(bits.type, ir.VectorType) else (_I32, _F32)
    shift = ir.Constant(wide, [16] * LANES) if wide is _V_I32 else _I32(16)
    return b.bitcast(b.shl(b.zext(bits, wide), shift), to)


def _f32_to_bf16(b: Any, value: Any) -> Any:
    """Rounded to nearest, ties to even; NaN stays NaN (ggml-impl.h, ggml_compute_fp32_to_bf16)."""
    vector = isinstance(value.type, ir.VectorType)
    wide, narrow = (_V_I32, _V_I16) if vector else (_I32, _I16)

    def const(n: int) -> Any:
        return ir.Constant(wide, [n] * LANES) if vector else _I32(n)

    bits = b.bitcast(value, wide)
    odd = b.and_(b.lshr(bits, const(16)), const(1))
    rounded = b.lshr(b.add(b.add(bits, odd), const(0x7FFF)), const(16))
    quiet = b.or_(b.lshr(bits, const(16)), const(64))
    nan = b.fcmp_unordered("uno", value, value)
    return b.trunc(b.select(nan, quiet, rounded), narrow)


load_i8 = _loader(_I8, types.int64, lambda b, v: b.sext(v, _I64))
load_u8 = _loader(_I8, types.int64, lambda b, v: b.zext(v, _I64))
load_i16 = _loader(_I16, types.int64, lambda b, v: b.sext(v, _I64))
load_u16 = _loader(_I16, types.int64, lambda b, v: b.zext(v, _I64))
load_i32 = _loader(_I32, types.int64, lambda b, v: b.sext(v, _I64))
load_u32 = _loader(_I32, types.int64, lambda b, v: b.zext(v, _I64))
load_i64 = _loader(_I64, types.int64)
load_f16 = _loader(_F16, types.float32, lambda b, v: b.fpext(v, _F32))
load_bf16 = _loader(_I16, types.float32, _bf16_to_f32)
load_f32 = _loader(_F32, types.float32)
load_f64 = _loader(_F64, types.float64)

store_u8 = _storer(_I8, types.int64, lambda b, v: b.trunc(v, _I8))
store_u16 = _storer(_I16, types.int64, lambda b, v: b.trunc(v, _I16))
store_i32 = _storer(_I32, types.int64, lambda b, v: b.trunc(v, _I32))
store_i64 = _storer(_I64, types.int64)
store_f16 = _storer(_F16, types.float32, lambda b, v: b.fptrunc(v, _F16))
store_bf16 = _storer(_I16, types.float32, _f32_to_bf16)
store_f32 = _storer(_F32, types.float32)


# --- vectors: memory ---

load_f32x16 = _loader(_V_F32, f32x16)
load_f16x16 = _loader(_V_F16, f32x16, lambda b, v: b.fpext(v, _V_F32))
load_bf16x16 = _loader(_V_I16, f32x16, _bf16_to_f32)
load_i8x16 = _loader(_V_I8, f32x16, lambda b, v: b.sitofp(b.sext(v, _V_I32), _V_F32))
load_u8x16 = _loader(_V_I8, f32x16, lambda b, v: b.uitofp(b.zext(v, _V_I32), _V_F32))
store_f32x16 = _storer(_V_F32, f32x16)
store_f16x16 = _storer(_V_F16, f32x16, lambda b, v: b.fptrunc(v, _V_F16))
store_bf16x16 = _storer(_V_I16, f32x16, _f32_to_bf16)


@intrinsic
def load_f32_part(_typing: Any, address: Any, n: Any) -> tuple[Any, Codegen]:
    """The first `n` floats (any n; 16 or more: all lanes), 0 in the other lanes."""

    def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        pointer = _pointer(b, args[0], _V_F32)
        zero = ir.Constant(_V_F32, None)
        arguments = [pointer, _I32(1), _mask(b, args[1]), zero]
        return _call(b, "llvm.masked.load.v16f32.p0", _V_F32, arguments)

    return f32x16(_address, types.int64), codegen


@intrinsic
def store_f32_part(_typing: Any, address: Any, v: Any, n: Any) -> tuple[Any, Codegen]:
    """Store the first `n` lanes."""

    def codegen(ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        pointer = _pointer(b, args[0], _V_F32)
        arguments = [args[1], pointer, _I32(1), _mask(b, args[2])]
        _call(b, "llvm.masked.store.v16f32.p0", ir.VoidType(), arguments)
        return ctx.get_dummy_value()

    return types.void(_address, f32x16, types.int64), codegen


# --- vectors: arithmetic ---


@intrinsic
def splat(_typing: Any, x: Any) -> tuple[Any, Codegen]:
    """All lanes `x`."""

    def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        return _splat(b, args[0], _V_F32)

    return f32x16(types.float32), codegen


@intrinsic
def zero(_typing: Any) -> tuple[Any, Codegen]:
    """All lanes 0."""

    def codegen(_ctx: Any, _b: Any, _sig: Any, _args: Any) -> Any:
        return ir.Constant(_V_F32, None)

    return f32x16(), codegen


def _binary(emit: Callable[[Any, Any, Any], Any]) -> Any:
    @intrinsic
    def apply(_typing: Any, x: Any, y: Any) -> tuple[Any, Codegen]:
        def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
            return emit(b, args[0], args[1])

        return f32x16(f32x16, f32x16), codegen

    return apply


def _operator(symbol: Any, function: Any) -> Any:
    @overload(symbol, inline="always")
    def apply(x, y):
        if x is f32x16 and y is f32x16:
            return lambda x, y: function(x, y)  # noqa: PLW0108 - Numba compiles this one
        return None

    return function


add = _operator(operator.add, _binary(lambda b, x, y: b.fadd(x, y)))
sub = _operator(operator.sub, _binary(lambda b, x, y: b.fsub(x, y)))
mul = _operator(operator.mul, _binary(lambda b, x, y: b.fmul(x, y)))
div = _operator(operator.truediv, _binary(lambda b, x, y: b.fdiv(x, y)))
# y where x is NaN or not above y: as `x > y ? x : y`
vmax = _binary(lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))
vmin = _binary(lambda b, x, y: b.select(b.fcmp_ordered("<", x, y), x, y))


@intrinsic
def fma(_typing: Any, x: Any, y: Any, z: Any) -> tuple[Any, Codegen]:
    """x * y + z, rounded once."""

    def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        return _call(b, "llvm.fma.v16f32", _V_F32, list(args))

    return f32x16(f32x16, f32x16, f32x16), codegen


@intrinsic
def keep_below(_typing: Any, v: Any, n: Any, other: Any) -> tuple[Any, Codegen]:
    """The first `n` lanes of `v`, `other` in the rest."""

    def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        return b.select(_mask(b, args[1]), args[0], _splat(b, args[2], _V_F32))

    return f32x16(f32x16, types.int64, types.float32), codegen


def _reducer(combine: Callable[[Any, Any, Any], Any]) -> Any:
    @intrinsic
    def reduce(_typing: Any, v: Any) -> tuple[Any, Codegen]:
        def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
            v, n = args[0], LANES
            while n > 1:  # halves onto each other: one fixed tree
                n //= 2
                undefined = ir.Constant(v.type, ir.Undefined)
                low = ir.Constant(ir.VectorType(_I32, n), list(range(n)))
                high = ir.Constant(ir.VectorType(_I32, n), list(range(n, 2 * n)))
                v = combine(
                    b, b.shuffle_vector(v, undefined, low), b.shuffle_vector(v, undefined, high)
                )
            return b.extract_element(v, _I32(0))

        return types.float32(f32x16), codegen

    return reduce


hsum = _reducer(lambda b, x, y: b.fadd(x, y))
hmax = _reducer(lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))


@intrinsic
def _exp2_of_int(_typing: Any, v: Any) -> tuple[Any, Codegen]:
    """2**v for whole v in -252..254, as two factors: a half may be below the normal range."""

    def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        n = b.fptosi(args[0], _V_I32)
        half = b.ashr(n, ir.Constant(_V_I32, [1] * LANES))
        bias, place = ir.Constant(_V_I32, [127] * LANES), ir.Constant(_V_I32, [23] * LANES)
        first = b.bitcast(b.shl(b.add(half, bias), place), _V_F32)
        second = b.bitcast(b.shl(b.add(b.sub(n, half), bias), place), _V_F32)
        return _pair(b, first, second)

    return types.UniTuple(f32x16, 2)(f32x16), codegen


def _pair(b: Any, first: Any, second: Any) -> Any:
    """Two vectors as the value of a Numba tuple."""
    pair = ir.Constant(ir.ArrayType(_V_F32, 2), ir.Undefined)
    return b.insert_value(b.insert_value(pair, first, 0), second, 1)


@intrinsic
def _round(_typing: Any, v: Any) -> tuple[Any, Codegen]:
    def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        return _call(b, "llvm.rint.v16f32", _V_F32, list(args))

    return f32x16(f32x16), codegen


@intrinsic
def vsqrt(_typing: Any, v: Any) -> tuple[Any, Codegen]:
    """Square root of each lane."""

    def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        return _call(b, "llvm.sqrt.v16f32", _V_F32, list(args))

    return f32x16(f32x16), codegen


# error_model: a division by zero is inf or NaN as in C, and nothing can raise
inlined: Final = njit(error_model="numpy")


@inlined
def vexp(x):
    """e**x of each lane, within 2 units in the last place; 0 below -104, inf above 89, NaN is NaN.

    Range reduction and polynomial as in Cephes' expf: x = n ln 2 + r, |r| <= ln 2 / 2.
    """
    # NaN compares false and stays in x's place
    clipped = vmin(splat(types.float32(89.0)), vmax(splat(types.float32(-105.0)), x))
    n = _round(clipped * splat(types.float32(1.44269504)))
    r = fma(n, splat(types.float32(-0.693359375)), clipped)
    r = fma(n, splat(types.float32(2.12194440e-4)), r)
    p = splat(types.float32(1.9875691500e-4))
    p = fma(p, r, splat(types.float32(1.3981999507e-3)))
    p = fma(p, r, splat(types.float32(8.3334519073e-3)))
    p = fma(p, r, splat(types.float32(4.1665795894e-2)))
    p = fma(p, r, splat(types.float32(1.6666665459e-1)))
    p = fma(p, r, splat(types.float32(5.0000001201e-1)))
    p = fma(p * r, r, r) + splat(types.float32(1.0))
    low, high = _exp2_of_int(n)
    return p * low * high


# --- between threads ---


@intrinsic
def atomic_add(_typing: Any, address: Any, n: Any) -> tuple[Any, Codegen]:
    """Add to an int64, sequentially consistent; gives what was there before."""

    def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        return b.atomic_rmw("add", _pointer(b, args[0], _I64), args[1], "seq_cst")

    return types.int64(_address, types.int64), codegen


@intrinsic
def atomic_load(_typing: Any, address: Any) -> tuple[Any, Codegen]:
    """Read an int64, sequentially consistent."""

    def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        return b.load_atomic(_pointer(b, args[0], _I64), "seq_cst", 8)

    return types.int64(_address), codegen


@intrinsic
def atomic_store(_typing: Any, address: Any, n: Any) -> tuple[Any, Codegen]:
    """Write an int64, sequentially consistent."""

    def codegen(ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        b.store_atomic(args[1], _pointer(b, args[0], _I64), "seq_cst", 8)
        return ctx.get_dummy_value()

    return types.void(_address, types.int64), codegen


@intrinsic
def call_kernel(_typing: Any, fn: Any, params: Any, ith: Any, nth: Any) -> tuple[Any, Codegen]:
    """Call the kernel at address `fn`."""

    def codegen(ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        signature = ir.FunctionType(ir.VoidType(), [_I64] * 3)
        b.call(_pointer(b, args[0], signature), args[1:])
        return ctx.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen
