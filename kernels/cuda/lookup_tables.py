"""The header tables.cuh: the values of indices of quantized types, from `kernels/quants/values.py`.

Tested by tests/kernels/test_cuda_compile.py and test_cuda_quantized.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final

import numpy as np

from ..quants.values import IQ4_NL, grid

NAME: Final = "tables.cuh"

# grids, and a number to add to their values
GRIDS: Final = {"IQ2_XXS": 0, "IQ2_XS": 0, "IQ2_S": 0, "IQ3_XXS": 0, "IQ3_S": 0, "IQ1_S": 1}


@cache
def header() -> str:
    """The text of the header."""
    return "\n".join(("#pragma once", '#include "device.cuh"', *_levels(), *_grids(), ""))


def _levels() -> Iterator[str]:
    words = np.array(IQ4_NL, np.int8).view("<u4")
    for i, word in enumerate(words):
        yield f"constexpr u32 IQ4_LEVELS_{4 * i} = {word:#010x};"


def _grids() -> Iterator[str]:
    """A table for each grid, of integers that hold 4 or 8 values, the first in the lowest byte."""
    for name, plus in GRIDS.items():
        rows = (grid(name) + np.int8(plus)).astype(np.int8)
        n = rows.shape[1]
        numbers = ", ".join(f"{row:#x}" for row in rows.view(f"<u{n}").ravel())
        yield f"LOOKUP_TABLE u{8 * n} GRID_{name}[{len(rows)}] = {{{numbers}}};"
