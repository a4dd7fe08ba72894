"""Kernels over arrays that also run as plain Python: declaration, calls, loads and stores.

    @array_kernel
    def vocab_count(text, n, out):
        put_i64(out, 0, n_spaces(text, n))

    @shared
    def n_spaces(text, n): ...

    vocab_count(text, len(text), out)    # NumPy arrays and ints

A compiled kernel gets addresses. With LAMELLA_NO_JIT the same function gets memoryviews. So it
reads and writes arrays only by the functions of this module, and its integers stay within int64.
Tested by tests/kernels/test_cpu_vocab_access.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ....base.settings import NO_JIT
from ..compiler.deferred import Inlined, numba_side
from ..compiler.jit import Kernel
from ..compiler.native import native
from ..simd.memory import (
    load_f32,
    load_f64,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    store_f32,
    store_f64,
    store_i32,
    store_i64,
    store_u8,
    store_u16,
)

Argument = npt.NDArray[Any] | int

VOCAB_KERNELS: Final[list[ArrayKernel]] = []
"""All kernels declared with `array_kernel`."""


class ArrayKernel(Kernel):
    """A kernel that Python calls with contiguous arrays and ints. It releases the interpreter lock.

    The first call compiles or loads it, and raises BackendError if that fails.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        super().__init__(function, function.__code__.co_argcount)
        self._native: Callable[..., None] | None = None

    def __call__(self, *args: Argument) -> None:
        if NO_JIT():
            self.function(*[a.data if isinstance(a, np.ndarray) else a for a in args])
            return
        if self._native is None:
            self._native = native(self)
        self._native(*[a.ctypes.data if isinstance(a, np.ndarray) else a for a in args])


def array_kernel(function: Callable[..., None]) -> ArrayKernel:
    """Declare a kernel of arrays and ints (a decorator)."""
    kernel = ArrayKernel(function)
    VOCAB_KERNELS.append(kernel)
    return kernel


def shared(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare a function that kernels of arrays call; it is inlined (a decorator)."""
    return Inlined(function, lambda: numba_side().inlined(function))


def _getter(load: Any, n_bytes: int) -> Any:
    def get(array, i):
        return array[i]

    def compiled(array, i):
        return load(array + n_bytes * i)

    return Inlined(get, lambda: numba_side().inlined(compiled))


def _putter(store: Any, n_bytes: int) -> Any:
    def put(array, i, value):
        array[i] = value

    def compiled(array, i, value):
        store(array + n_bytes * i, value)

    return Inlined(put, lambda: numba_side().inlined(compiled))


# an element of an array of this type
get_u8, put_u8 = _getter(load_u8, 1), _putter(store_u8, 1)
get_u16, put_u16 = _getter(load_u16, 2), _putter(store_u16, 2)
get_i32, put_i32 = _getter(load_i32, 4), _putter(store_i32, 4)
get_i64, put_i64 = _getter(load_i64, 8), _putter(store_i64, 8)
get_f32, put_f32 = _getter(load_f32, 4), _putter(store_f32, 4)
get_f64, put_f64 = _getter(load_f64, 8), _putter(store_f64, 8)
