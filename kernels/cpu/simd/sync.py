"""Instructions for the synchronization of threads: atomic words, pauses, a clock.

Tested by tests/kernels/test_cpu_simd_sync.py.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..compiler.isa import ARM, X86, machine
from .vectors import Codegen, pointer_to

# LLVM's names and arguments; ARM's `yield` is too short
_PAUSES: Final = {X86: ("llvm.x86.sse2.pause", ()), ARM: ("llvm.aarch64.isb", (15,))}
_MONOTONIC: Final = 6 if sys.platform == "darwin" else 1  # CLOCK_MONOTONIC of <time.h>
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_address = types.int64


@intrinsic
def pause(_typing: Any) -> tuple[Any, Codegen]:
    """Wait for some ten cycles. For use between two reads of a word that another thread writes."""

    def codegen(ctx: Any, b: Any, _sig: Any, _args: Any) -> Any:
        if machine() in _PAUSES:
            name, args = _PAUSES[machine()]
            kind = ir.FunctionType(ir.VoidType(), [_I32] * len(args))
            function = cgutils.get_or_insert_function(b.module, kind, name)
            b.call(function, [_I32(n) for n in args])
        return ctx.get_dummy_value()

    return types.void(), codegen


@intrinsic
def now_ns(_typing: Any) -> tuple[Any, Codegen]:
    """Nanoseconds of a monotonic clock."""

    def codegen(_ctx: Any, b: Any, _sig: Any, _args: Any) -> Any:
        time = cgutils.alloca_once(b, ir.ArrayType(_I64, 2))  # a timespec: seconds, nanoseconds
        kind = ir.FunctionType(_I32, [_I32, time.type])
        read = cgutils.get_or_insert_function(b.module, kind, "clock_gettime")
        b.call(read, [_I32(_MONOTONIC), time])
        seconds, rest = (b.load(b.gep(time, [_I32(0), _I32(i)])) for i in range(2))
        return b.add(b.mul(seconds, _I64(1_000_000_000)), rest)

    return types.int64(), codegen


@intrinsic
def atomic_add(_typing: Any, address: Any, n: Any) -> tuple[Any, Codegen]:
    """Add to an int64, sequentially consistent. Return the old value."""

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
