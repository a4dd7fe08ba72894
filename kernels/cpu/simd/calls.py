"""The ways in which kernels call functions: inlined, or by an address known at run time.

Tested by tests/kernels/test_cpu_simd_vectors.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from .vectors import Codegen, pointer_to

_I64 = ir.IntType(64)


def inlined(function: Callable[..., Any]) -> Any:
    """Declare a function that is inlined into kernels (a decorator).

    A division by zero gives inf or NaN, as in C. The function cannot raise.
    """
    compiled = njit(
        error_model="numpy", forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True
    )(function)
    template = compiled.get_call_template
    # Numba would compile it again for each constant argument; inlining propagates constants
    compiled.get_call_template = lambda args, kws: template(tuple(map(types.unliteral, args)), kws)
    return compiled


def merged(function: Callable[..., Any]) -> Any:
    """Declare a large function with one call in one kernel; `inlined` would compile it twice."""
    return njit(error_model="numpy", inline="always")(function)


@intrinsic
def call_kernel(_typing: Any, fn: Any, params: Any, ith: Any, nth: Any) -> tuple[Any, Codegen]:
    """Call the kernel at address `fn`."""

    def codegen(ctx: Any, b: Any, _sig: Any, args: Any) -> Any:
        signature = ir.FunctionType(ir.VoidType(), [_I64] * 3)
        b.call(pointer_to(b, args[0], signature), args[1:])
        return ctx.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen
