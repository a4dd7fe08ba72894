"""The values that indices of quantized types stand for: lookup tables.

They are those of the `gguf` package, which is slow to import: only the grids of the IQ types are
read from it, when they are needed. Tested by tests/kernels/test_quants_values.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.int8]

IQ4_NL: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1: Final = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the values
N_SIGNS: Final = 128


def ue4m3() -> npt.NDArray[np.float32]:
    """Half the value of each byte as an unsigned float of 4 bits exponent and 3 bits mantissa."""
    bits = np.arange(256)
    exponent, mantissa = bits >> 3 & 15, bits & 7
    values = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    values[[0, 127]] = 0
    return (values / 2).astype(np.float32)


@cache
def signs() -> Bytes:
    """The signs of the IQ types: `N_SIGNS` bytes of sign bits.

    The eighth sign makes the number of negative signs even, so 7 bits select a byte.
    """
    return np.frombuffer(_grid_of("IQ2_XXS").ksigns, np.int8)


@cache
def grid(name: str) -> Bytes:
    """The grid of the IQ type with this name: a row of 4 or 8 values for each index."""
    kind = _grid_of(name)
    kind.init_grid()
    values: Bytes = kind.grid.astype(np.int8)
    return values.reshape(-1, values.shape[-1])


def _grid_of(name: str) -> Any:
    from gguf import quants  # noqa: PLC0415 - slow to import

    return getattr(quants, name)
