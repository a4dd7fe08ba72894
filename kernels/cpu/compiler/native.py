"""Kernels as functions that Python calls. Tested by tests/kernels/test_cpu_native.py."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from .jit import Kernel


def native(kernel: Kernel) -> Callable[..., None]:
    """A kernel, loaded, as a function of its ints; it lets go of the interpreter.

    Raises:
        BackendError: it cannot be compiled, or not loaded.
    """
    n_args = kernel.function.__code__.co_argcount
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * n_args)(kernel.address)
