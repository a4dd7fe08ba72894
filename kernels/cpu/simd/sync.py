"""Instructions for the synchronization of threads: atomic words, pauses, a clock.

Tested by tests/kernels/test_cpu_simd_sync.py.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from llvmlite import ir

from ..compiler.isa import ARM, X86, machine
from . import types
from .vectors import call_intrinsic, function_named, pointer_to, vector_function

# LLVM's names and arguments; ARM's `yield` is too short
_PAUSES: Final = {X86: ("llvm.x86.sse2.pause", ()), ARM: ("llvm.aarch64.isb", (15,))}
_MONOTONIC: Final = 6 if sys.platform == "darwin" else 1  # CLOCK_MONOTONIC of <time.h>
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_address = types.int64


def _emit_pause(b: Any) -> None:
    if machine() in _PAUSES:
        name, args = _PAUSES[machine()]
        call_intrinsic(b, name, ir.VoidType(), [_I32(n) for n in args])


def _emit_now(b: Any) -> Any:
    with b.goto_entry_block():  # once for all calls in a loop
        time = b.alloca(ir.ArrayType(_I64, 2))  # a timespec: seconds, nanoseconds
    kind = ir.FunctionType(_I32, [_I32, time.type])
    b.call(function_named(b, kind, "clock_gettime"), [_I32(_MONOTONIC), time])
    seconds, rest = (b.load(b.gep(time, [_I32(0), _I32(i)])) for i in range(2))
    return b.add(b.mul(seconds, _I64(1_000_000_000)), rest)


# wait for some ten cycles; for use between two reads of a word that another thread writes
pause = vector_function(types.void, (), _emit_pause)
# nanoseconds of a monotonic clock
now_ns = vector_function(types.int64, (), _emit_now)
# int64s at an address, sequentially consistent: add and return the old value, read, write
atomic_add = vector_function(
    types.int64,
    (_address, types.int64),
    lambda b, at, n: b.atomic_rmw("add", pointer_to(b, at, _I64), n, "seq_cst"),
)
atomic_load = vector_function(
    types.int64, (_address,), lambda b, at: b.load_atomic(pointer_to(b, at, _I64), "seq_cst", 8)
)
atomic_store = vector_function(
    types.void,
    (_address, types.int64),
    lambda b, at, n: b.store_atomic(n, pointer_to(b, at, _I64), "seq_cst", 8),
)
