"""The vectors of the CPU kernels, and their arithmetic, as LLVM's code.

`f32x16` is LLVM's `<16 x float>`, which LLVM maps to the registers of the processor. Its operations
are those of IEEE 754, in a fixed order, so a kernel gives the same bits on every processor (tested
with AVX-512, AVX2 and plain x86-64). Tested by tests/kernels/test_cpu_simd_vectors.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from llvmlite import ir

from ..compiler.deferred import Deferred, numba_side
from . import types

LANES: Final = 16
f32x16: Final = types.f32x16

_I32 = ir.IntType(32)
_F32 = ir.FloatType()
_V_F32 = ir.VectorType(_F32, LANES)
_V_I32 = ir.VectorType(_I32, LANES)


def vector_function(result: Any, args: tuple[Any, ...], emit: Callable[..., Any]) -> Any:
    """A function of up to 4 values of these types. `emit(builder, *values)` emits its code."""
    return Deferred(lambda: numba_side().vector_function(result, args, emit))


def function_named(b: Any, kind: Any, name: str) -> Any:
    """A function of LLVM's or of C's library, in the builder's module."""
    return b.module.globals.get(name) or ir.Function(b.module, kind, name)


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
    return b.call(function_named(b, ir.FunctionType(result, [a.type for a in args]), name), args)


def linked_number(b: Any, name: str) -> Any:
    """An int64 that linking sets: one of `compiler.objects.SYMBOLS`."""
    symbol = b.module.globals.get(name) or ir.GlobalVariable(b.module, ir.IntType(8), name)
    return b.ptrtoint(symbol, ir.IntType(64))


def lanes_of(type: Any, n: float) -> Any:
    """A vector with the constant `n` in all lanes."""
    return ir.Constant(type, [n] * LANES if isinstance(type, ir.VectorType) else n)


def pair_of(b: Any, first: Any, second: Any) -> Any:
    """Two vectors as the value of a Numba tuple."""
    pair = ir.Constant(ir.ArrayType(_V_F32, 2), ir.Undefined)
    return b.insert_value(b.insert_value(pair, first, 0), second, 1)


@contextmanager
def counted_loop(b: Any, n: Any) -> Iterator[Any]:
    """A loop around the code that is emitted within. Gives the index: 0 to n - 1; n is above 0."""
    before, body, after = b.block, b.append_basic_block(), b.append_basic_block()
    b.branch(body)
    b.position_at_end(body)
    index = b.phi(n.type)
    index.add_incoming(n.type(0), before)
    yield index
    following = b.add(index, n.type(1))
    index.add_incoming(following, b.block)
    b.cbranch(b.icmp_signed("<", following, n), body, after)
    b.position_at_end(after)


# --- arithmetic ---


def _emit_turned(b: Any, v: Any) -> Any:
    order = [i + 1 + LANES if i % 2 == 0 else i - 1 for i in range(LANES)]
    return b.shuffle_vector(v, b.fneg(v), ir.Constant(_V_I32, order))


def _binary(emit: Callable[[Any, Any, Any], Any]) -> Any:
    return vector_function(f32x16, (f32x16, f32x16), emit)


def _unary(intrinsic: str) -> Any:
    name = f"llvm.{intrinsic}.v16f32"
    return vector_function(f32x16, (f32x16,), lambda b, v: call_intrinsic(b, name, _V_F32, [v]))


def _reducer(combine: Callable[[Any, Any, Any], Any]) -> Any:
    def emit(b: Any, v: Any) -> Any:
        n = LANES
        while n > 1:  # combine halves, in one fixed tree
            n //= 2
            undefined = ir.Constant(v.type, ir.Undefined)
            low = ir.Constant(ir.VectorType(_I32, n), list(range(n)))
            high = ir.Constant(ir.VectorType(_I32, n), list(range(n, 2 * n)))
            v = combine(
                b, b.shuffle_vector(v, undefined, low), b.shuffle_vector(v, undefined, high)
            )
        return b.extract_element(v, _I32(0))

    return vector_function(types.float32, (f32x16,), emit)


# a number in all lanes
splat = vector_function(f32x16, (types.float32,), lambda b, x: splat_value(b, x, _V_F32))
# a vector of zeros
zero = vector_function(f32x16, (), lambda _: ir.Constant(_V_F32, None))
# the vector 0, 1, ..., 15
lane_numbers = vector_function(
    f32x16, (), lambda _: ir.Constant(_V_F32, [float(i) for i in range(LANES)])
)

add = _binary(lambda b, x, y: b.fadd(x, y))
sub = _binary(lambda b, x, y: b.fsub(x, y))
mul = _binary(lambda b, x, y: b.fmul(x, y))
div = _binary(lambda b, x, y: b.fdiv(x, y))
# as `x > y ? x : y`, so y if either is NaN; vmin likewise
vmax = _binary(lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))
vmin = _binary(lambda b, x, y: b.select(b.fcmp_ordered("<", x, y), x, y))
# x * y + z, rounded once
fma = vector_function(
    f32x16, (f32x16,) * 3, lambda b, *xyz: call_intrinsic(b, "llvm.fma.v16f32", _V_F32, list(xyz))
)
# `x < y ? v : w` in each lane
choose = vector_function(
    f32x16, (f32x16,) * 4, lambda b, x, y, v, w: b.select(b.fcmp_ordered("<", x, y), v, w)
)
# the first n lanes of v, then those of w
join = vector_function(
    f32x16, (f32x16, f32x16, types.int64), lambda b, v, w, n: b.select(first_lanes(b, n), v, w)
)
# replace each pair of adjacent lanes (x, y) by (-y, x)
turn_pairs = vector_function(f32x16, (f32x16,), _emit_turned)

hsum = _reducer(lambda b, x, y: b.fadd(x, y))
hmax = _reducer(lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))

vround = _unary("rint")  # ties to even
vsqrt = _unary("sqrt")
vabs = _unary("fabs")
