"""Grids looked up in vectors, on processors with AVX-512 VBMI: 64 indices at once.

An entry has 4 or 8 values of few levels. The numbers of its levels fill two bytes, so a grid is two
tables of bytes. An instruction looks up 64 bytes in 128 bytes of a table; further bits of indices
select among the results. Knows no block formats, nor where indices are stored: that is grids.py.
Tested by tests/kernels/test_cpu_simd_grids.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from ..compiler.isa import has_feature
from .bytes import BYTES
from .ints import call

HAS_TABLES: Final = has_feature("avx512vbmi")
WORD: Final = 4  # indices of a row in a vector, and values of a row in a word
TABLE: Final = 2 * BYTES  # bytes that an instruction looks up
TABLE_BITS: Final = 7  # of an index into these

_I1, _I8 = ir.IntType(1), ir.IntType(8)
_V_I8 = ir.VectorType(_I8, BYTES)

Array = npt.NDArray[Any]


def look_up(b: Any, grid: Array, indices: Iterable[tuple[Any, Any]]) -> Iterator[Any]:
    """Vectors of 4 values of each of 16 rows, while code is emitted.

    `grid` [n, 4 or 8] are bytes. Each of `indices` is a vector of the low bytes of 4 indices of
    each row, and one of the bits above, or None if a byte is enough.
    """
    levels, numbers = np.unique(grid, return_inverse=True)
    n, size = grid.shape
    n_bits = 16 // size  # of a number
    assert len(levels) <= 1 << n_bits, f"a grid of {size} values has {len(levels)} levels"
    places = n_bits * np.arange(size // 2)
    tables = (numbers.reshape(n, 2, size // 2) << places).sum(-1).T
    # lookups have 6 bits; of these, the ones above a number are others' and must not matter
    values = ir.Constant(_V_I8, np.resize(np.resize(levels, 1 << n_bits), BYTES).tolist())
    for low, high in indices:
        found = [_bytes_of(b, table, low, high) for table in tables]
        for i in range(WORD):
            for number in _numbers(b, found, n_bits, i):
                yield call(b, "llvm.x86.avx512.permvar.qi.512", _V_I8, values, number)


def _bytes_of(b: Any, table: Array, low: Any, high: Any) -> Any:
    """The bytes of a table at 64 indices."""
    found = [
        call(
            b,
            "llvm.x86.avx512.vpermi2var.qi.512",
            _V_I8,
            _bytes(table[i : i + BYTES]),
            low,
            _bytes(table[i + BYTES : i + TABLE]),
        )
        for i in range(0, len(table), TABLE)
    ]
    bit = TABLE_BITS
    while len(found) > 1:
        source = low if bit < 8 else high
        is_set = b.icmp_signed(
            "!=", b.and_(source, _bytes([1 << bit % 8] * BYTES)), _bytes([0] * BYTES)
        )
        pairs = zip(found[::2], found[1::2], strict=True)
        found = [b.select(is_set, second, first) for first, second in pairs]
        bit += 1
    return found[0]


def _numbers(b: Any, found: list[Any], n_bits: int, i: int) -> Iterator[Any]:
    """Vectors of the numbers of each 4 values of index `i`, in the low bits of their bytes."""
    n_in_byte = 8 // n_bits
    shifts = [
        # of the two rows in 8 bytes
        32 * (lane // WORD % 2) + 8 * i + n_bits * (lane % n_in_byte)
        for lane in range(BYTES)
    ]
    name = "llvm.x86.avx512.pmultishift.qb.512"
    moved = [call(b, name, _V_I8, _bytes(shifts), plane) for plane in found]
    if n_in_byte == WORD:
        yield from moved
    else:
        is_first = ir.Constant(
            ir.VectorType(_I1, BYTES), [int(lane % WORD < n_in_byte) for lane in range(BYTES)]
        )
        yield b.select(is_first, *moved)


def _bytes(values: Any) -> Any:
    return ir.Constant(_V_I8, [int(v) for v in values])
