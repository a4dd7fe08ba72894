"""The vector type of the CPU kernels, and its arithmetic, for Numba.

`f32x16` is LLVM's `<16 x float>`, which LLVM maps to the registers of the processor. Its operations
are those of IEEE 754, in a fixed order, so a kernel gives the same bits on every processor (tested
with AVX-512, AVX2 and plain x86-64). Tested by tests/kernels/test_cpu_simd_vectors.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

LANES: Final = 16

_I32 = ir.IntType(32)
_F32 = ir.FloatType()
_V_F32 = ir.VectorType(_F32, LANES)
_V_I32 = ir.VectorType(_I32, LANES)

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


def pointer_to(b: Any, address: Any, type: Any) -> Any:
    """An address as LLVM's pointer to `type`.

    Numba compiles a helper before it inlines its IR elsewhere. By then LLVM may have changed
    `base + i` to "i as a pointer, plus base". If i becomes the constant 0, LLVM treats this as an
    access through null and removes it, unless the function allows null.
    """
    # not by the method: llvmlite's list of attributes lacks this one
    set.add(b.function.attributes, "null_pointer_is_valid")
    return b.inttoptr(address, type.as_pointer())


def splat_value(b: Any, scalar: Any, type: Any) -> Any:
    one = b.insert_element(ir.Constant(type, ir.Undefined), scalar, _I32(0))
    return b.shuffle_vector(one, ir.Constant(type, ir.Undefined), lanes_of(_V_I32, 0))


def first_lanes(b: Any, n: Any) -> Any:
    """A mask of the lanes below `n`."""
    lanes = ir.Constant(_V_I32, list(range(LANES)))
    return b.icmp_signed("<", lanes, splat_value(b, b.trunc(n, _I32), _V_I32))


def call_intrinsic(b: Any, name: str, result: Any, args: list[Any]) -> Any:
    fn = ir.FunctionType(result, [a.type for a in args])
    return b.call(cgutils.get_or_insert_function(b.module, fn, name), args)


def lanes_of(type: Any, n: float) -> Any:
    """A vector with the constant `n` in all lanes."""
    return ir.Constant(type, [n] * LANES if isinstance(type, ir.VectorType) else n)


def pair_of(b: Any, first: Any, second: Any) -> Any:
    """Two vectors as the value of a Numba tuple."""
    pair = ir.Constant(ir.ArrayType(_V_F32, 2), ir.Undefined)
    return b.insert_value(b.insert_value(pair, first, 0), second, 1)


# --- arithmetic ---


@intrinsic
def splat(_typing: Any, x: Any) -> tuple[Any, Codegen]:
    """A vector with `x` in all lanes."""

    def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        return splat_value(b, args[0], _V_F32)

    return f32x16(types.float32), codegen


@intrinsic
def zero(_typing: Any) -> tuple[Any, Codegen]:
    """A vector of zeros."""

    def codegen(_ctx: Any, _b: Any, _sig: Any, _args: Any) -> Any:
        return ir.Constant(_V_F32, None)

    return f32x16(), codegen


@intrinsic
def lane_numbers(_typing: Any) -> tuple[Any, Codegen]:
    """The vector 0, 1, ..., 15."""

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
# as `x > y ? x : y`, so y if either is NaN; vmin likewise
vmax = _binary(lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))
vmin = _binary(lambda b, x, y: b.select(b.fcmp_ordered("<", x, y), x, y))


@intrinsic
def fma(_typing: Any, x: Any, y: Any, z: Any) -> tuple[Any, Codegen]:
    """x * y + z, rounded once."""

    def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        return call_intrinsic(b, "llvm.fma.v16f32", _V_F32, list(args))

    return f32x16(f32x16, f32x16, f32x16), codegen


@intrinsic
def choose(_typing: Any, x: Any, y: Any, v: Any, w: Any) -> tuple[Any, Codegen]:
    """`x < y ? v : w` in each lane."""

    def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        x, y, v, w = args
        return b.select(b.fcmp_ordered("<", x, y), v, w)

    return f32x16(*[f32x16] * 4), codegen


@intrinsic
def join(_typing: Any, v: Any, w: Any, n: Any) -> tuple[Any, Codegen]:
    """The first `n` lanes of `v`, then those of `w`."""

    def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        return b.select(first_lanes(b, args[2]), args[0], args[1])

    return f32x16(f32x16, f32x16, types.int64), codegen


@intrinsic
def turn_pairs(_typing: Any, v: Any) -> tuple[Any, Codegen]:
    """Replace each pair of adjacent lanes (x, y) by (-y, x)."""

    def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        order = [i + 1 + LANES if i % 2 == 0 else i - 1 for i in range(LANES)]
        return b.shuffle_vector(args[0], b.fneg(args[0]), ir.Constant(_V_I32, order))

    return f32x16(f32x16), codegen


def _reducer(combine: Callable[[Any, Any, Any], Any]) -> Any:
    @intrinsic
    def reduce(_typing: Any, v: Any) -> tuple[Any, Codegen]:
        def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
            v, n = args[0], LANES
            while n > 1:  # add halves, in one fixed tree
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


def _unary(intrinsic_name: str) -> Any:
    @intrinsic
    def apply(_typing: Any, v: Any) -> tuple[Any, Codegen]:
        def codegen(_ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
            return call_intrinsic(b, f"llvm.{intrinsic_name}.v16f32", _V_F32, list(args))

        return f32x16(f32x16), codegen

    return apply


vround = _unary("rint")  # ties to even
vsqrt = _unary("sqrt")
vabs = _unary("fabs")
