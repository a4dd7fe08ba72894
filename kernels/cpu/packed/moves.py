"""Moves bytes between rows in the layout of files and packed rows.

Tested by tests/kernels/test_cpu_packed_formats.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

from ....graph.op import Op
from ....graph.tensor import Tensor
from ....graph.types import GGMLType
from ...plan.calls import Param
from ..codecs.rows import row_reader
from ..compiler.jit import Kernel, kernel
from ..ops.data import are_few_rows
from ..params import data, fail, first_of, int_param, n_rows, nb, ne, row, work
from ..simd.bytes import bits_to_bytes, interleave_rows
from ..simd.calls import inlined
from ..simd.ints import call_at
from ..simd.memory import (
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    store_i32,
    store_u8,
    store_u16,
)
from ..table import CpuCall, implements_packed
from .formats import BITS, BYTE, FORMATS, HALF, RUN_BYTES, WORD, Runs, format_of
from .tiles import ROWS


@inlined
def _load(at, unit):
    if unit == HALF:
        return load_u16(at)
    return load_u8(at) if unit == BYTE else load_u32(at)


@inlined
def _store(at, unit, value):
    if unit == HALF:
        store_u16(at, value)
    elif unit == BYTE:
        store_u8(at, value)
    else:
        store_i32(at, value)


@inlined
def _bytes_to_bits(x):
    """Move bit j of byte b to bit 4 * j + b."""
    y = 0
    for j in range(8):
        four = x >> j & 0x01010101
        y |= ((four * 0x10204080) >> 28 & 15) << 4 * j
    return y


_interleave_bytes: Final = interleave_rows(BYTE)
_interleave_halves: Final = interleave_rows(HALF)
_interleave_words: Final = interleave_rows(WORD)


@inlined
def _interleave(src, stride, dst, unit):
    if unit == BYTE:
        _interleave_bytes(src, stride, dst)
    elif unit == HALF:
        _interleave_halves(src, stride, dst)
    else:
        _interleave_words(src, stride, dst)


@inlined
def _pack_field(src, stride, n_rows, dst, n, unit):
    """Pack `n` bytes of each of 16 rows. Only `n_rows` exist; the others are zeros."""
    done, size = 0, min(unit, WORD)
    while unit != BITS and n_rows >= ROWS and done + RUN_BYTES <= n:
        _interleave(src + done, stride, dst + ROWS * done, unit)
        done += RUN_BYTES
    while done < n:
        for r in range(ROWS):
            value = _load(src + done + r * stride, unit) if r < n_rows else 0
            _store(dst + ROWS * done + size * r, unit, value)
        done += size
    if unit == BITS:
        bits_to_bytes(dst)


def pack_rows(n_blocks, block_bytes, fields, n_fields, src, n_rows, dst, begin, end):
    """Pack groups `begin` to `end` of 16 rows from `src` to `dst`."""
    stride = n_blocks * block_bytes
    for group in range(begin, end):
        first, rows = src + ROWS * group * stride, n_rows - ROWS * group
        out = dst + ROWS * group * stride
        for block in range(n_blocks):
            for i in range(n_fields):
                offset, n = load_i64(fields + 24 * i), load_i64(fields + 24 * i + 8)
                at = first + block * block_bytes + offset
                _pack_field(at, stride, rows, out, n, load_i64(fields + 24 * i + 16))
                out += ROWS * n


@inlined
def _unpack(n_blocks, block_bytes, fields, n_fields, packed, r, dst):
    for block in range(n_blocks):
        at = packed + ROWS * block_bytes * block
        for i in range(n_fields):
            to = dst + block_bytes * block + load_i64(fields + 24 * i)
            n, unit = load_i64(fields + 24 * i + 8), load_i64(fields + 24 * i + 16)
            size = min(unit, WORD)
            for j in range(0, n, size):
                value = _load(at + ROWS * j + size * r, unit)
                _store(to + j, unit, _bytes_to_bits(value) if unit == BITS else value)
            at += ROWS * n


def unpack_rows(n_blocks, block_bytes, fields, n_fields, packed, n_rows, dst):
    """Unpack the first `n_rows` rows to the layout of files."""
    size = n_blocks * block_bytes
    for r in range(n_rows):
        group = packed + ROWS * size * (r // ROWS)
        _unpack(n_blocks, block_bytes, fields, n_fields, group, r % ROWS, dst + size * r)


PACK_ROWS: Final = Kernel(pack_rows, 9)
UNPACK_ROWS: Final = Kernel(unpack_rows, 7)


# --- rows by index ---


@kernel
def get_rows_packed(p, ith, nth):
    """Parameters: `Runs.args`, then the decoder and its table, as in `codecs.rows.row_reader`."""
    n, m1, m2 = ne(p, 0, 0), ne(p, 2, 0), ne(p, 2, 1)
    n_blocks, block_bytes, decode = int_param(p, 0), int_param(p, 1), int_param(p, 4)
    group_bytes, rows = ROWS * block_bytes * n_blocks, n_rows(p, 0)
    for r in range(first_of(rows, ith, nth), first_of(rows, ith + 1, nth)):
        i1, i2, i3 = r % m1, r // m1 % m2, r // (m1 * m2)
        index = load_i32(data(p, 2) + i1 * nb(p, 2, 0) + i2 * nb(p, 2, 1) + i3 * nb(p, 2, 2))
        if index < 0 or index >= ne(p, 1, 1):
            fail(p, index, ne(p, 1, 1))
            continue
        group, out, temp = data(p, 1) + index // ROWS * group_bytes, row(p, 0, r), work(p, ith)
        to = out if decode == 0 else temp
        fields, n_fields = int_param(p, 2), int_param(p, 3)
        _unpack(n_blocks, block_bytes, fields, n_fields, group, index % ROWS, to)
        if decode != 0:
            call_at(decode, (temp, out, n, int_param(p, 5)))


def _can_get_rows(node: Tensor) -> bool:
    a = node.src[0]
    return format_of(a) is not None and a.ne[2] == a.ne[3] == 1 and node.type is GGMLType.F32


@implements_packed(Op.GET_ROWS, supports=_can_get_rows)
def _get_rows(node: Tensor) -> Sequence[CpuCall]:
    a = node.src[0]
    runs = _runs(a.type, a.ne[0])
    decode, table, _, _ = row_reader(a)
    params: list[Param] = [*runs.args, decode, table]
    few = are_few_rows(node)
    return [CpuCall(get_rows_packed, params, one_thread=few, work=a.type.row_size(a.ne[0]))]


@cache
def _runs(type: GGMLType, n_values: int) -> Runs:
    """A format's runs. Cached, because kernels read their memory."""
    return FORMATS[type].runs(n_values)
