"""The vector vocabulary of the CPU kernels: loads, stores, arithmetic and conversions for Numba.

Addresses are int64. `f32x16` is LLVM's `<16 x float>`, which LLVM maps to the registers of the
processor. All are IEEE 754's operations, in a fixed order, so a kernel gives the same bits on
every processor: tested with AVX-512, AVX2 and plain x86-64. Names say the type in memory first:
`load_f16x16` reads halves and returns floats. A new vector instruction goes into this package,
nowhere else: here, or to `ints` if it works on integers in lanes.
Tested by tests/kernels/test_cpu_simd_vectors.py.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from ..compiler.objects import converts_halves

LANES: Final = 16

_I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
_F16, _F32, _F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
_V_F32 = ir.VectorType(_F32, LANES)
_V_F16 = ir.VectorType(_F16, LANES)
_V_I32 = ir.VectorType(_I32, LANES)
_V_I16 = ir.VectorType(_I16, LANES)
_V_I8 = ir.VectorType(_I8, LANES)

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


def pointer_to(b: Any, address: Any, type: Any) -> Any:
    """An address as LLVM's pointer to `type`.

    Numba compiles a helper before it inlines the helper's IR elsewhere. LLVM has then turned
    `base + i` into "i as a pointer, plus base". If i becomes the constant 0, LLVM takes the access
    for one through null and drops it, unless the function allows null.
    """
    # not through the method: llvmlite's list of attributes lacks this one
    set.add(b.function.attributes, "null_pointer_is_valid")
    return b.inttoptr(address, type.as_pointer())


def _splat(b: Any, scalar: Any, type: Any) -> Any:
    one = b.insert_element(ir.Constant(type, ir.Undefined), scalar, _I32(0))
    return b.shuffle_vector(one, ir.Constant(type, ir.Undefined), _same(_V_I32, 0))


def _mask(b: Any, n: Any) -> Any:
    """True for the lanes below `n`."""
    lanes = ir.Constant(_V_I32, list(range(LANES)))
    return b.icmp_signed("<", lanes, _splat(b, b.trunc(n, _I32), _V_I32))


def _call(b: Any, name: str, result: Any, args: list[Any]) -> Any:
    fn = ir.FunctionType(result, [a.type for a in args])
    return b.call(cgutils.get_or_insert_function(b.module, fn, name), args)


def _same(type: Any, n: float) -> Any:
    """The constant `n`, in all lanes of a vector."""
    return ir.Constant(type, [n] * LANES if isinstance(type, ir.VectorType) else n)


# --- scalars ---


def _loader(memory: Any, result: Any, convert: Callable[[Any, Any], Any] | None = None) -> Any:
    @intrinsic
    def load(_typing: Any, address: Any) -> tuple[Any, Codegen]:
        def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
            value = b.load(pointer_to(b, args[0], memory), align=1)
            return convert(b, value) if convert else value

        return result(_address), codegen

    return load


def _storer(memory: Any, type: Any, convert: Callable[[Any, Any], Any] | None = None) -> Any:
    @intrinsic
    def store(_typing: Any, address: Any, value: Any) -> tuple[Any, Codegen]:
        def codegen(ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
            value = convert(b, args[1]) if convert else args[1]
            b.store(value, pointer_to(b, args[0], memory), align=1)
            return ctx.get_dummy_value()

        return types.void(_address, type), codegen

    return store


def _kinds(value: Any) -> tuple[Any, Any, Any, Any]:
    """int16, int32, float16 and float32 with as many lanes as `value`, or as scalars."""
    vector = isinstance(value.type, ir.VectorType)
    return (_V_I16, _V_I32, _V_F16, _V_F32) if vector else (_I16, _I32, _F16, _F32)


def _bf16_to_f32(b: Any, bits: Any) -> Any:
    _, i32, _, f32 = _kinds(bits)
    return b.bitcast(b.shl(b.zext(bits, i32), _same(i32, 16)), f32)


def _f32_to_bf16(b: Any, value: Any) -> Any:
    """Rounded to nearest, ties to even; NaN stays NaN (ggml-impl.h, ggml_compute_fp32_to_bf16)."""
    i16, i32, _, _ = _kinds(value)
    bits = b.bitcast(value, i32)
    high = b.lshr(bits, _same(i32, 16))
    odd = b.and_(high, _same(i32, 1))
    rounded = b.lshr(b.add(b.add(bits, odd), _same(i32, 0x7FFF)), _same(i32, 16))
    nan = b.fcmp_unordered("uno", value, value)
    return b.trunc(b.select(nan, b.or_(high, _same(i32, 64)), rounded), i16)


def f16_to_f32(b: Any, bits: Any) -> Any:
    """Halves, given as int16, as floats; NaN stays NaN and becomes quiet.

    Without an instruction for it: as the FP16 library (ggml-impl.h, ggml_compute_fp16_to_fp32).
    """
    _, i32, f16, f32 = _kinds(bits)
    if converts_halves():
        return b.fpext(b.bitcast(bits, f16), f32)
    placed = b.shl(b.zext(bits, i32), _same(i32, 16))
    unsigned = b.shl(placed, _same(i32, 1))
    # the exponent begins at 224, so that infinity's becomes infinity's
    scaled = b.bitcast(b.add(b.lshr(unsigned, _same(i32, 4)), _same(i32, 224 << 23)), f32)
    normal = b.fmul(scaled, _same(f32, 2.0**-112))
    # below the normal range digits become the last ones of 0.5 + x
    digits = b.bitcast(b.or_(b.lshr(unsigned, _same(i32, 17)), _same(i32, 126 << 23)), f32)
    below = b.fsub(digits, _same(f32, 0.5))
    size = b.select(b.icmp_unsigned("<", unsigned, _same(i32, 1 << 27)), below, normal)
    return b.bitcast(b.or_(b.and_(placed, _same(i32, 1 << 31)), b.bitcast(size, i32)), f32)


def _f32_to_f16(b: Any, value: Any) -> Any:
    """Floats as halves in int16, rounded to nearest, ties to even; NaN stays NaN.

    Without an instruction for it: as the FP16 library (ggml-impl.h, ggml_compute_fp32_to_fp16);
    NaN keeps its first digits, as with the instructions.
    """
    i16, i32, f16, f32 = _kinds(value)
    if converts_halves():
        return b.bitcast(b.fptrunc(value, f16), i16)
    bits = b.bitcast(value, i32)
    unsigned = b.shl(bits, _same(i32, 1))
    size = b.bitcast(b.lshr(unsigned, _same(i32, 1)), f32)
    # four times the value, and infinite where a half would be
    base = b.fmul(b.fmul(size, _same(f32, 2.0**112)), _same(f32, 2.0**-110))
    exponent, least = b.and_(unsigned, _same(i32, 0xFF << 24)), _same(i32, 0x71 << 24)
    exponent = b.select(b.icmp_unsigned("<", exponent, least), least, exponent)
    # a number so large that adding it rounds to the digits that a half has
    rounder = b.add(b.lshr(exponent, _same(i32, 1)), _same(i32, 0x0780 << 16))
    sum = b.bitcast(b.fadd(base, b.bitcast(rounder, f32)), i32)
    number = b.and_(b.lshr(sum, _same(i32, 13)), _same(i32, 0x7C00))
    number = b.add(number, b.and_(sum, _same(i32, 0xFFF)))
    digits = b.and_(b.lshr(bits, _same(i32, 13)), _same(i32, 0x3FF))
    nan = b.icmp_unsigned(">", unsigned, _same(i32, 0xFF << 24))
    half = b.select(nan, b.or_(digits, _same(i32, 0x7E00)), number)
    sign = b.and_(b.lshr(bits, _same(i32, 16)), _same(i32, 0x8000))
    return b.trunc(b.or_(sign, half), i16)


load_i8 = _loader(_I8, types.int64, lambda b, v: b.sext(v, _I64))
load_u8 = _loader(_I8, types.int64, lambda b, v: b.zext(v, _I64))
load_u16 = _loader(_I16, types.int64, lambda b, v: b.zext(v, _I64))
load_i32 = _loader(_I32, types.int64, lambda b, v: b.sext(v, _I64))
load_u32 = _loader(_I32, types.int64, lambda b, v: b.zext(v, _I64))
load_i64 = _loader(_I64, types.int64)
load_f16 = _loader(_I16, types.float32, f16_to_f32)
load_bf16 = _loader(_I16, types.float32, _bf16_to_f32)
load_f32 = _loader(_F32, types.float32)
load_f64 = _loader(_F64, types.float64)

store_u8 = _storer(_I8, types.int64, lambda b, v: b.trunc(v, _I8))
store_u16 = _storer(_I16, types.int64, lambda b, v: b.trunc(v, _I16))
store_i32 = _storer(_I32, types.int64, lambda b, v: b.trunc(v, _I32))
store_i64 = _storer(_I64, types.int64)
store_f16 = _storer(_I16, types.float32, _f32_to_f16)
store_bf16 = _storer(_I16, types.float32, _f32_to_bf16)
store_f32 = _storer(_F32, types.float32)
store_f64 = _storer(_F64, types.float64)


# --- vectors: memory ---

load_f32x16 = _loader(_V_F32, f32x16)
load_f16x16 = _loader(_V_I16, f32x16, f16_to_f32)
load_bf16x16 = _loader(_V_I16, f32x16, _bf16_to_f32)
load_i8x16 = _loader(_V_I8, f32x16, lambda b, v: b.sitofp(b.sext(v, _V_I32), _V_F32))
store_f32x16 = _storer(_V_F32, f32x16)
store_f16x16 = _storer(_V_I16, f32x16, _f32_to_f16)
store_bf16x16 = _storer(_V_I16, f32x16, _f32_to_bf16)


def _part_loader(memory: Any, name: str, convert: Callable[[Any, Any], Any] | None = None) -> Any:
    @intrinsic
    def load_part(_typing: Any, address: Any, n: Any) -> tuple[Any, Codegen]:
        def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
            at = pointer_to(b, args[0], memory)
            # masks are slow on processors without them, and only the last vector needs one
            with b.if_else(b.icmp_signed(">=", args[1], _I64(LANES))) as (all_lanes, some_lanes):
                with all_lanes:
                    whole, whole_block = b.load(at, align=1), b.block
                with some_lanes:
                    rest = [at, _I32(1), _mask(b, args[1]), ir.Constant(memory, None)]
                    part = _call(b, f"llvm.masked.load.{name}.p0", memory, rest)
                    part_block = b.block
            value = b.phi(memory)
            value.add_incoming(whole, whole_block)
            value.add_incoming(part, part_block)
            return convert(b, value) if convert else value

        return f32x16(_address, types.int64), codegen

    return load_part


def _part_storer(memory: Any, name: str, convert: Callable[[Any, Any], Any] | None = None) -> Any:
    @intrinsic
    def store_part(_typing: Any, address: Any, v: Any, n: Any) -> tuple[Any, Codegen]:
        def codegen(ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
            value = convert(b, args[1]) if convert else args[1]
            at = pointer_to(b, args[0], memory)
            with b.if_else(b.icmp_signed(">=", args[2], _I64(LANES))) as (all_lanes, some_lanes):
                with all_lanes:
                    b.store(value, at, align=1)
                with some_lanes:
                    arguments = [value, at, _I32(1), _mask(b, args[2])]
                    _call(b, f"llvm.masked.store.{name}.p0", ir.VoidType(), arguments)
            return ctx.get_dummy_value()

        return types.void(_address, f32x16, types.int64), codegen

    return store_part


# the first `n` elements (any n; 16 or more: all lanes), 0 in the other lanes
load_f32_part = _part_loader(_V_F32, "v16f32")
load_f16_part = _part_loader(_V_I16, "v16i16", f16_to_f32)
load_bf16_part = _part_loader(_V_I16, "v16i16", _bf16_to_f32)
load_i8_part = _part_loader(_V_I8, "v16i8", lambda b, v: b.sitofp(b.sext(v, _V_I32), _V_F32))
# store the first `n` lanes
store_f32_part = _part_storer(_V_F32, "v16f32")
store_f16_part = _part_storer(_V_I16, "v16i16", _f32_to_f16)
store_bf16_part = _part_storer(_V_I16, "v16i16", _f32_to_bf16)


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


@intrinsic
def lane_numbers(_typing: Any) -> tuple[Any, Codegen]:
    """0, 1, ... 15."""

    def codegen(_ctx: Any, _b: Any, _sig: Any, _args: Any) -> Any:
        return ir.Constant(_V_F32, [float(i) for i in range(LANES)])

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
def choose(_typing: Any, x: Any, y: Any, v: Any, w: Any) -> tuple[Any, Codegen]:
    """Lane by lane `x < y ? v : w`."""

    def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        x, y, v, w = args
        return b.select(b.fcmp_ordered("<", x, y), v, w)

    return f32x16(*[f32x16] * 4), codegen


@intrinsic
def join(_typing: Any, v: Any, w: Any, n: Any) -> tuple[Any, Codegen]:
    """The first `n` lanes of `v`, then those of `w`."""

    def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        return b.select(_mask(b, args[2]), args[0], args[1])

    return f32x16(f32x16, f32x16, types.int64), codegen


@intrinsic
def turn_pairs(_typing: Any, v: Any) -> tuple[Any, Codegen]:
    """Each pair of neighbours (x, y) as (-y, x)."""

    def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        order = [i + 1 + LANES if i % 2 == 0 else i - 1 for i in range(LANES)]
        return b.shuffle_vector(args[0], b.fneg(args[0]), ir.Constant(_V_I32, order))

    return f32x16(f32x16), codegen


def _reducer(combine: Callable[[Any, Any, Any], Any]) -> Any:
    @intrinsic
    def reduce(_typing: Any, v: Any) -> tuple[Any, Codegen]:
        def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
            v, n = args[0], LANES
            while n > 1:  # adds halves: one fixed tree
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
        # the last bits of the sum are the integer, also for NaN, where fptosi is undefined
        bits = b.bitcast(b.fadd(args[0], _same(_V_F32, 1.5 * 2**23)), _V_I32)
        n = b.sub(bits, _same(_V_I32, 0x4B400000))
        half = b.ashr(n, _same(_V_I32, 1))
        bias, place = _same(_V_I32, 127), _same(_V_I32, 23)
        first = b.bitcast(b.shl(b.add(half, bias), place), _V_F32)
        second = b.bitcast(b.shl(b.add(b.sub(n, half), bias), place), _V_F32)
        return _pair(b, first, second)

    return types.UniTuple(f32x16, 2)(f32x16), codegen


def _pair(b: Any, first: Any, second: Any) -> Any:
    """Two vectors as the value of a Numba tuple."""
    pair = ir.Constant(ir.ArrayType(_V_F32, 2), ir.Undefined)
    return b.insert_value(b.insert_value(pair, first, 0), second, 1)


def _unary(intrinsic_name: str) -> Any:
    @intrinsic
    def apply(_typing: Any, v: Any) -> tuple[Any, Codegen]:
        def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
            return _call(b, f"llvm.{intrinsic_name}.v16f32", _V_F32, list(args))

        return f32x16(f32x16), codegen

    return apply


vround = _unary("rint")  # halves to even
vsqrt = _unary("sqrt")
vabs = _unary("fabs")


@intrinsic
def _mantissa_and_exponent(_typing: Any, v: Any) -> tuple[Any, Codegen]:
    """m and e of v = m * 2**e, 1 / sqrt 2 <= m < sqrt 2, of normal numbers above 0."""

    def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        bits, place = b.bitcast(args[0], _V_I32), _same(_V_I32, 23)
        e = b.ashr(b.sub(bits, _same(_V_I32, 0x3F3504F3)), place)
        m = b.bitcast(b.sub(bits, b.shl(e, place)), _V_F32)
        return _pair(b, m, b.sitofp(e, _V_F32))

    return types.UniTuple(f32x16, 2)(f32x16), codegen


def inlined(function: Callable[..., Any]) -> Any:
    """Declare a function that is inlined into kernels (as a decorator).

    A division by zero in it is inf or NaN as in C. Nothing in it can raise.
    """
    compiled = njit(
        error_model="numpy", forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True
    )(function)
    template = compiled.get_call_template
    # Numba would compile it again for each constant argument; inlining propagates constants
    compiled.get_call_template = lambda args, kws: template(tuple(map(types.unliteral, args)), kws)
    return compiled


def merged(function: Callable[..., Any]) -> Any:
    """Declare a large function that one kernel calls once: with `inlined` it is compiled twice."""
    return njit(error_model="numpy", inline="always")(function)


@inlined
def vexp(x):
    """e**x of each lane, within 2 units in the last place; 0 below -104, inf above 89, NaN is NaN.

    Range reduction and polynomial as in Cephes' expf: x = n ln 2 + r, |r| <= ln 2 / 2.
    """
    # results of 0 must not underflow on the way, which is slow; NaN compares false and stays
    lowest = splat(-104.0)
    clipped = choose(x, lowest, zero(), vmin(splat(89.0), x))
    n = vround(clipped * splat(1.44269504))
    r = fma(n, splat(-0.693359375), clipped)
    r = fma(n, splat(2.12194440e-4), r)
    p = splat(1.9875691500e-4)
    p = fma(p, r, splat(1.3981999507e-3))
    p = fma(p, r, splat(8.3334519073e-3))
    p = fma(p, r, splat(4.1665795894e-2))
    p = fma(p, r, splat(1.6666665459e-1))
    p = fma(p, r, splat(5.0000001201e-1))
    p = fma(p * r, r, r) + splat(1.0)
    low, high = _exp2_of_int(n)
    return choose(x, lowest, zero(), p * low * high)


@inlined
def vlog(x):
    """Natural logarithm of each lane, within 2 units in the last place; -inf of 0, NaN below.

    Of x = m 2**e, the polynomial of Cephes' logf for m, and e ln 2.
    """
    tiny = splat(1.17549435e-38)  # the smallest normal number; below it x is scaled up
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
    """tanh of each lane: near 0 the polynomial of Cephes' tanhf, else by `vexp`."""
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


# --- between threads ---


@intrinsic
def atomic_add(_typing: Any, address: Any, n: Any) -> tuple[Any, Codegen]:
    """Add to an int64, sequentially consistent. Return the value before."""

    def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        return b.atomic_rmw("add", pointer_to(b, args[0], _I64), args[1], "seq_cst")

    return types.int64(_address, types.int64), codegen


@intrinsic
def atomic_load(_typing: Any, address: Any) -> tuple[Any, Codegen]:
    """Read an int64, sequentially consistent."""

    def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        return b.load_atomic(pointer_to(b, args[0], _I64), "seq_cst", 8)

    return types.int64(_address), codegen


@intrinsic
def atomic_store(_typing: Any, address: Any, n: Any) -> tuple[Any, Codegen]:
    """Write an int64, sequentially consistent."""

    def codegen(ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        b.store_atomic(args[1], pointer_to(b, args[0], _I64), "seq_cst", 8)
        return ctx.get_dummy_value()

    return types.void(_address, types.int64), codegen


@intrinsic
def call_kernel(_typing: Any, fn: Any, params: Any, ith: Any, nth: Any) -> tuple[Any, Codegen]:
    """Call the kernel at address `fn`."""

    def codegen(ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        signature = ir.FunctionType(ir.VoidType(), [_I64] * 3)
        b.call(pointer_to(b, args[0], signature), args[1:])
        return ctx.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen
