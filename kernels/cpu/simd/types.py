"""The types of values in kernels: Numba's numbers and tuples, and the vectors of the CPU kernels.

They have Numba's names, but importing them does not import Numba.
Tested by tests/kernels/test_cpu_simd_vectors.py.
"""

from __future__ import annotations

from typing import Any, Final

from ..compiler.deferred import Deferred, numba_side


class Type(Deferred):
    """A type of Numba's. In a kernel, a number's type converts to it: `types.float32(1)`."""


def _number(name: str) -> Type:
    return Type(lambda: getattr(numba_side().types, name))


def _register(name: str) -> Type:
    def make() -> Any:
        from . import numba_registers  # noqa: PLC0415 - imports Numba

        return getattr(numba_registers, name)

    return Type(make)


def UniTuple(type: Any, n: int) -> Type:  # noqa: N802 - Numba's name
    """A tuple of `n` values of a type."""
    return Type(lambda: numba_side().types.UniTuple(type.real, n))


void: Final = _number("void")
int32: Final = _number("int32")
int64: Final = _number("int64")
float32: Final = _number("float32")
float64: Final = _number("float64")

f32x16: Final = _register("f32x16")  # 16 floats
i32x16: Final = _register("i32x16")  # 16 integers of 32 bits
i8x64: Final = _register("i8x64")  # 64 bytes
