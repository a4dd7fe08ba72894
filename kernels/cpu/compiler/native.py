"""Kernels as functions that Python calls. Tested by tests/kernels/test_cpu_native.py."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from .jit import Kernel


def native(kernel: Kernel) -> Callable[..., None]:
    """A loaded kernel as a function of its ints. A call releases the interpreter lock.

    Raises:
        BackendError: it cannot be compiled or loaded.
    """
    return native_at(kernel.address, kernel.function.__code__.co_argcount)


def native_at(address: int, n_args: int) -> Callable[..., None]:
    """Loaded machine code as a function of its ints, like `native`."""
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * n_args)(address)
