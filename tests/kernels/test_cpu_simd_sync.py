"""Waits: a pause has no effect, and the clock is the system's."""

from __future__ import annotations

import ctypes
import time

import numpy as np

from lamella.kernels.cpu.compiler.numba_compile import compile_object
from lamella.kernels.cpu.compiler.objects import load_objects
from lamella.kernels.cpu.simd.memory import store_i64
from lamella.kernels.cpu.simd.sync import now_ns, pause

# mypy: disable-error-code="no-untyped-def, no-untyped-call"


def tell_time(p, n):
    """Write `n` clock readings, each after a pause."""
    for i in range(n):
        pause()
        store_i64(p + 8 * i, now_ns())


def test_pauses_and_the_clock() -> None:
    native = load_objects({"test_time": compile_object(tell_time, "test_time", 2)})["test_time"]
    times = np.zeros(1000, np.int64)
    before = time.monotonic_ns()
    ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(native)(times.ctypes.data, times.size)
    after = time.monotonic_ns()
    assert before <= times[0]
    assert times[-1] <= after
    assert (np.diff(times) >= 0).all()
