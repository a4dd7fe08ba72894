"""The ways in which kernels call functions: inlined, or by an address known at run time.

Tested by tests/kernels/test_cpu_simd_vectors.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from ..compiler.deferred import Deferred, Inlined, numba_side
from . import types
from .vectors import pointer_to, vector_function

_I64 = ir.IntType(64)


def inlined(function: Callable[..., Any]) -> Any:
    """Declare a function that is inlined into kernels (a decorator).

    A division by zero gives inf or NaN, as in C. The function cannot raise.
    """
    return Inlined(function, lambda: numba_side().inlined(function))


def merged(function: Callable[..., Any]) -> Any:
    """Declare a large function with one call in one kernel; `inlined` would compile it twice."""
    return Inlined(function, lambda: numba_side().merged(function))


def external(name: str, result: Any, *args: Any) -> Any:
    """A function of C's library, with the types of its result and arguments."""
    return Deferred(lambda: numba_side().external(name, result, args))


def emit_call(b: Any, fn: Any, args: list[Any]) -> None:
    """Call the machine code at an address with int64s."""
    b.call(pointer_to(b, fn, ir.FunctionType(ir.VoidType(), [_I64] * len(args))), args)


# call the kernel at address `fn`: (fn, params, ith, nth)
call_kernel = vector_function(
    types.void, (types.int64,) * 4, lambda b, fn, *args: emit_call(b, fn, list(args))
)
