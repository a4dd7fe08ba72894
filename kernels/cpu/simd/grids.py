"""Weights of 16 rows looked up in a grid: an index selects the bytes of 4 or 8 values of a row.

The result is `bytes.words`: 32 values of 16 rows. Indices are in memory, as entries are loaded one
by one: gathers are not faster on most processors. Some look up many in registers (grid_tables.py).
Signs are bits, those of 8 values in a byte.
Knows no block formats. Tested by tests/kernels/test_cpu_simd_grids.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from . import types
from .bytes import BYTES, WORDS, pack, parts_of, unpack, words
from .grid_tables import HAS_TABLES, look_up
from .ints import i32x16
from .vectors import pointer_to, vector_function

ROWS: Final = 16
WORD: Final = 4  # bytes of a row's indices, and values of a word
VALUES: Final = WORD * WORDS

_I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
_V_I8, _V_I32 = ir.VectorType(_I8, 64), ir.VectorType(_I32, ROWS)

# the order in which rows are loaded: then a shuffle within 16 bytes separates their halves
_PAIRED: Final = (0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15)


class Layout(Enum):
    """The indices of 16 rows in memory. There are 4 bytes for each row, 64 bytes later the next 4.

    BYTES: of a byte each. PAIRS: of 2 bytes each. WIDE: as `wide_indices` stores them.
    """

    BYTES = 1
    PAIRS = 2
    WIDE = 3


def grid(values: Callable[[], npt.ArrayLike], layout: Layout) -> Any:
    """A function (address of indices) -> words, of 32 values of each row.

    `values()` [n, 4 or 8] are bytes: of at most 16 levels, or 4 levels in entries of 8.
    """
    size = _I8 if layout is Layout.BYTES else _I16

    def emit(b: Any, address: Any) -> Any:
        table = np.asarray(values())
        entry = table.shape[1]
        assert entry in (WORD, 2 * WORD), f"{entry} values of an index"
        if HAS_TABLES:
            return pack(b, [*look_up(b, table, _index_vectors(b, address, layout, entry))])
        data = table.astype(np.uint8).tobytes()
        kind, found = ir.IntType(8 * entry), []
        entries = b.bitcast(_constant(b, data), kind.as_pointer())
        for i in range(VALUES // entry):
            rows = []
            for r in range(ROWS):
                place = b.add(address, _I64(_place(layout, r, i)))
                index = b.load(pointer_to(b, place, size), align=1)
                rows.append(b.load(b.gep(entries, [b.zext(index, _I64)]), align=1))
            found += [_gathered(b, rows)] if entry == WORD else _halves(b, rows)
        return pack(b, [b.bitcast(v, _V_I8) for v in found])

    return vector_function(words, (types.int64,), emit)


def _index_vectors(b: Any, address: Any, layout: Layout, entry: int) -> Iterator[tuple[Any, Any]]:
    """The low bytes of 4 indices of each row, and the bits above."""
    at = pointer_to(b, address, _V_I8)
    n = 2 * WORD // entry if layout is Layout.BYTES else 2 * (2 * WORD // entry)
    found = [b.load(b.gep(at, [_I64(i)]), align=1) for i in range(n)]
    if layout is Layout.BYTES:
        yield from ((v, None) for v in found)
        return
    pairs = zip(found[::2], found[1::2], strict=True)
    if layout is Layout.WIDE:
        yield from pairs
        return
    for first, second in pairs:
        # of each row: two indices of the first vector, and two of the second
        low = [BYTES * (i % 4 // 2) + i // 4 * 4 + 2 * (i % 2) for i in range(BYTES)]
        high = [i + 1 for i in low]
        lanes = [ir.Constant(ir.VectorType(_I32, BYTES), each) for each in (low, high)]
        yield b.shuffle_vector(first, second, lanes[0]), b.shuffle_vector(first, second, lanes[1])


def _place(layout: Layout, r: int, i: int) -> int:
    """The place of index `i` of row `r`."""
    if layout is Layout.BYTES:
        return i // 4 * 64 + WORD * r + i % 4
    if layout is Layout.PAIRS:
        return i // 2 * 64 + WORD * r + 2 * (i % 2)
    # as the bytes of each 4 rows are interleaved: first of rows 0, 1, 4 and 5, then of 2, 3, 6, 7
    lane = 64 * (r // 8) + 32 * (r % 4 // 2) + 16 * (r % 8 // 4) + 8 * (r % 2)
    return i // 4 * 128 + lane + 2 * (i % 4)


def _constant(b: Any, data: bytes) -> Any:
    value = ir.Constant(ir.ArrayType(_I8, len(data)), bytearray(data))
    table = ir.GlobalVariable(b.module, value.type, b.module.get_unique_name("grid"))
    table.linkage, table.global_constant, table.initializer = "internal", True, value
    table.align = 64
    return table


def _gathered(b: Any, rows: list[Any]) -> Any:
    kind = ir.VectorType(rows[0].type, len(rows))
    vector = ir.Constant(kind, ir.Undefined)
    for i, row in enumerate(rows):
        vector = b.insert_element(vector, row, _I32(i))
    return vector


def _halves(b: Any, rows: list[Any]) -> list[Any]:
    """The first and the last 4 bytes of each of 16 numbers of 8 bytes."""
    kind = ir.VectorType(_I32, ROWS // 2)
    parts = [
        b.bitcast(_gathered(b, [rows[r] for r in _PAIRED[i : i + 4]]), kind)
        for i in range(0, ROWS, 4)
    ]
    result = []
    for half in (0, 1):
        # of 2 times 4 rows in turns
        lanes = [half + 8 * (i // 2 % 2) + 4 * (i // 4) + 2 * (i % 2) for i in range(8)]
        index = ir.Constant(kind, lanes)
        low, high = (b.shuffle_vector(parts[i], parts[i + 1], index) for i in (0, 2))
        result.append(b.shuffle_vector(low, high, ir.Constant(_V_I32, list(range(ROWS)))))
    return result


def signed_grid(offset: int) -> Any:
    """A function (words, signs) -> words: values with signs, plus an offset.

    Bit i of byte j of a row's signs is that of value 8 * j + i.
    """

    def emit(b: Any, values: Any, signs: Any) -> Any:
        signs, found = b.bitcast(signs, _V_I8), []
        for j, v in enumerate(unpack(b, values)):
            bits = ir.Constant(_V_I8, [1 << (i % WORD + WORD * (j % 2)) for i in range(64)])
            here = b.icmp_signed("==", b.and_(_spread_byte(b, signs, j // 2), bits), bits)
            zero = ir.Constant(_V_I8, [offset] * 64)
            found.append(b.select(here, b.sub(zero, v), b.add(v, zero)))
        return pack(b, found)

    return vector_function(words, (words, i32x16), emit)


def _spread_byte(b: Any, v: Any, i: int) -> Any:
    """Byte `i` of each row, in all 4 bytes of the row."""
    lanes = [lane // WORD * WORD + i for lane in range(64)]
    return b.shuffle_vector(v, v, ir.Constant(ir.VectorType(_I32, 64), lanes))


def _emit_wide_indices(b: Any, *pairs: Any) -> Any:
    if HAS_TABLES:
        return _emit_in_memory(b, *pairs)
    bytes32 = ir.VectorType(_I8, 32)
    slot = _memory(b, ir.ArrayType(bytes32, 2 * len(pairs)))
    order = [i // 2 + 32 * (i % 2) for i in range(64)]
    lanes = [order[16 * lane : 16 * lane + 16] for lane in range(4)]
    # the halves of 16 bytes, as instructions interleave them
    halves = [ir.Constant(ir.VectorType(_I32, 32), lanes[i] + lanes[i + 2]) for i in (0, 1)]
    place = 0
    for low, high in zip(pairs[::2], pairs[1::2], strict=True):
        parts = (parts_of(b, b.bitcast(v, _V_I8), 32) for v in (low, high))
        for x, y in zip(*parts, strict=True):
            for half in halves:
                b.store(b.shuffle_vector(x, y, half), b.gep(slot, [_I32(0), _I32(place)]))
                place += 1
    return _seen(b, slot)


def _emit_in_memory(b: Any, *vectors: Any) -> Any:
    slot = _memory(b, ir.ArrayType(_V_I32, len(vectors)))
    for i, v in enumerate(vectors):
        b.store(v, b.gep(slot, [_I32(0), _I32(i)]))
    return b.ptrtoint(slot, _I64) if HAS_TABLES else _seen(b, slot)


def _memory(b: Any, type: Any) -> Any:
    """Memory on the stack, reserved when the function begins."""
    with b.goto_entry_block():
        return b.alloca(type)


def _seen(b: Any, slot: Any) -> Any:
    """The address of memory that LLVM must write: else it would take each index from a vector."""
    kind = ir.FunctionType(ir.VoidType(), [slot.type])
    b.asm(kind, "", "r,~{memory}", [slot], side_effect=True)
    return b.ptrtoint(slot, _I64)


def _emit_even_signs(b: Any, v: Any) -> Any:
    def both(n: int, mask: int) -> Any:
        return b.and_(b.shl(v, _all(n)), _all(mask))

    signs = b.and_(v, _all(127))
    for i in range(1, 4):
        signs = b.or_(signs, both(i, 127 << 8 * i))
    parity = signs
    for shift in (4, 2, 1):
        parity = b.xor(parity, b.lshr(parity, _all(shift)))
    return b.or_(signs, b.shl(b.and_(parity, _all(0x01010101)), _all(7)))


def _all(n: int) -> Any:
    return ir.Constant(_V_I32, [n] * ROWS)


# pairs of indices, in memory
in_memory = vector_function(types.int64, (i32x16,) * 2, _emit_in_memory)
# indices of 2 bytes, in memory: the low bytes of 4 indices, and their high bytes; or of 8 indices
wide_indices = vector_function(types.int64, (i32x16,) * 2, _emit_wide_indices)
wide_indices_2 = vector_function(types.int64, (i32x16,) * 4, _emit_wide_indices)
# four times 7 bits, lowest first, as bytes with an eighth bit that makes their number even
even_signs = vector_function(i32x16, (i32x16,), _emit_even_signs)


def _emit_less_bytes(b: Any, values: Any, bytes: Any) -> Any:
    bytes, found = b.bitcast(bytes, _V_I8), []
    for j, v in enumerate(unpack(b, values)):
        found.append(b.sub(v, _spread_byte(b, bytes, j // 2)))
    return pack(b, found)


# values minus bytes: byte i of a row is for its values from 8 * i on
less_bytes = vector_function(words, (words, i32x16), _emit_less_bytes)
