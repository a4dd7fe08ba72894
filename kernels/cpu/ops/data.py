"""Kernels of graph/ops/data.py: rows by index, copies between types and layouts, joins.

Copies within a type keep every bit. Tested by tests/kernels/test_data.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Final

from ....graph.op import ConcatParams, Op
from ....graph.tensor import Tensor, params_of
from ....graph.types import GGMLType
from ...plan.calls import Param
from ...plan.node_params import run_length
from ..codecs.encode import ENCODERS
from ..codecs.rows import is_readable, move, read_row, row_bytes, row_reader
from ..compiler.jit import kernel
from ..params import data, fail, first_of, int_param, n_rows, nb, ne, row, row_at, work
from ..simd.calls import inlined
from ..simd.ints import call_at
from ..simd.memory import load_i32, load_i64
from ..table import SMALL, CpuCall, implements

PIECE: Final = 4096  # elements that are converted at a time; a multiple of every block size
SET_ROWS_PIECE: Final = (
    64  # elements of a row that a thread writes at least; a multiple of every written block size
)


def is_writable(type: GGMLType) -> bool:
    """True if floats can be converted to the type."""
    return type is GGMLType.F32 or type in ENCODERS


def encoder_of(type: GGMLType) -> tuple[Param, int]:
    """The encoder of a type (0 if it needs none) and the address of its table."""
    return (0, 0) if type is GGMLType.F32 else ENCODERS[type].params


FEW_ROWS: Final = 2**15  # elements


def _is_small(node: Tensor) -> bool:
    return node.n_elements < SMALL


# --- rows by index ---


def are_few_rows(node: Tensor) -> bool:
    """True if one thread takes less time for the rows than waking another one."""
    return node.n_elements < FEW_ROWS


@kernel
def get_rows(p, ith, nth):
    """Parameters: those of `read_row`."""
    n, m1, m2 = ne(p, 0, 0), ne(p, 2, 0), ne(p, 2, 1)
    rows = n_rows(p, 0)
    for r in range(first_of(rows, ith, nth), first_of(rows, ith + 1, nth)):
        i1, i2, i3 = r % m1, r // m1 % m2, r // (m1 * m2)
        index = load_i32(data(p, 2) + i1 * nb(p, 2, 0) + i2 * nb(p, 2, 1) + i3 * nb(p, 2, 2))
        if 0 <= index < ne(p, 1, 1):
            read_row(p, 0, row_at(p, 1, index, i2, i3), n, row(p, 0, r), work(p, ith))
        else:
            fail(p, index, ne(p, 1, 1))


def _can_get_rows(node: Tensor) -> bool:
    return is_readable(node.src[0])


@implements(Op.GET_ROWS, supports=_can_get_rows)
def _get_rows(node: Tensor) -> Sequence[CpuCall]:
    a = node.src[0]
    reader = row_reader(a)
    if a.type is GGMLType.I32:
        reader = (0, *reader[1:])  # copied as 4 bytes each, without a decoder
    work_size = 0 if a.has_contiguous_rows else row_bytes(a.ne[0])
    return [CpuCall(get_rows, reader, one_thread=are_few_rows(node), work=work_size)]


@kernel
def set_rows(p, ith, nth):
    """Parameters: encoder, its table, elements and bytes of a block, bytes of an index.

    Threads divide the elements of rows, not the rows. So if an index occurs twice, the later row
    remains, as in the reference.
    """
    encode, table, block_size, block_bytes = (
        int_param(p, 0),
        int_param(p, 1),
        int_param(p, 2),
        int_param(p, 3),
    )
    n, m1, m2 = ne(p, 1, 0), ne(p, 1, 1), ne(p, 1, 2)
    pieces = (n + SET_ROWS_PIECE - 1) // SET_ROWS_PIECE
    begin = first_of(pieces, ith, nth) * SET_ROWS_PIECE
    count = min(first_of(pieces, ith + 1, nth) * SET_ROWS_PIECE, n) - begin
    if count <= 0:
        return
    for r in range(n_rows(p, 1)):
        i1, i2, i3 = r % m1, r // m1 % m2, r // (m1 * m2)
        at = data(p, 2) + i1 * nb(p, 2, 0)
        at += i2 % ne(p, 2, 1) * nb(p, 2, 1) + i3 % ne(p, 2, 2) * nb(p, 2, 2)
        index = load_i64(at) if int_param(p, 4) == 8 else load_i32(at)
        if 0 <= index < ne(p, 0, 1):
            src = row_at(p, 1, i1, i2, i3) + 4 * begin
            dst = row_at(p, 0, index, i2, i3) + begin // block_size * block_bytes
            if encode != 0:
                call_at(encode, (src, dst, count, table))
            else:
                move(dst, 4, src, 4, count, 4)
        else:
            fail(p, index, ne(p, 0, 1))


@implements(Op.SET_ROWS, supports=lambda node: is_writable(node.type))
def _set_rows(node: Tensor) -> Sequence[CpuCall]:
    b, ids, _ = node.src
    params = (
        *encoder_of(node.type),
        node.type.block_size,
        node.type.type_size,
        ids.type.type_size,
    )
    return [CpuCall(set_rows, params, one_thread=_is_small(b))]


# --- copies ---


@inlined
def _element(p, i, e, block_size):
    """The address of element `e` of tensor `i`; elements are numbered over all dimensions."""
    n = ne(p, i, 0)
    return row(p, i, e // n) + e % n // block_size * nb(p, i, 0)


@kernel
def copy_elements(p, ith, nth):
    """Parameters: elements of a run, elements of a block, bytes of a block."""
    n, block_size, size = int_param(p, 0), int_param(p, 1), int_param(p, 2)
    pieces = (n + PIECE - 1) // PIECE
    total = ne(p, 0, 0) * n_rows(p, 0) // n * pieces
    for i in range(first_of(total, ith, nth), first_of(total, ith + 1, nth)):
        begin = i % pieces * PIECE
        count = min(PIECE, n - begin) // block_size
        src = _element(p, 1, i // pieces * n + begin, block_size)
        dst = _element(p, 0, i // pieces * n + begin, block_size)
        move(dst, nb(p, 0, 0), src, nb(p, 1, 0), count, size)


@kernel
def convert_elements(p, ith, nth):
    """Parameters: elements of a run, of a block of the source, and of a block of the node; the
    encoder and its table; bytes of the node's element if it has gaps (else 0); then those of
    `read_row`."""
    n, src_block, dst_block = int_param(p, 0), int_param(p, 1), int_param(p, 2)
    encode, table, gaps = int_param(p, 3), int_param(p, 4), int_param(p, 5)
    pieces = (n + PIECE - 1) // PIECE
    total = ne(p, 0, 0) * n_rows(p, 0) // n * pieces
    values = work(p, ith)
    temp = values + 4 * PIECE
    for i in range(first_of(total, ith, nth), first_of(total, ith + 1, nth)):
        begin = i % pieces * PIECE
        count = min(PIECE, n - begin)
        src = _element(p, 1, i // pieces * n + begin, src_block)
        dst = _element(p, 0, i // pieces * n + begin, dst_block)
        read_row(p, 6, src, count, values, temp)
        encoded = dst if gaps == 0 else temp
        if encode != 0:
            call_at(encode, (values, encoded, count, table))
        elif gaps == 0:
            move(dst, 4, values, 4, count, 4)
        else:
            encoded = values
        if gaps != 0:
            move(dst, nb(p, 0, 0), encoded, gaps, count, gaps)


def _run(node: Tensor) -> int:
    return gcd(run_length(node.src[0]), run_length(node))


def _can_copy(node: Tensor) -> bool:
    a = node.src[0]
    if node.is_empty:
        return True
    if any(t.type.is_quantized and not t.has_contiguous_rows for t in (a, node)):
        return False
    if a.type is node.type:
        return True
    whole = _run(node) % a.type.block_size == 0 == _run(node) % node.type.block_size
    return whole and is_readable(a) and is_writable(node.type)


@implements(Op.CPY, Op.CONT, Op.DUP, supports=_can_copy)
def _copy(node: Tensor) -> Sequence[CpuCall]:
    a, n, small = node.src[0], _run(node), _is_small(node)
    if a.type is node.type:
        params = (n, a.type.block_size, a.type.type_size)
        return [CpuCall(copy_elements, params, one_thread=small)]
    gaps = 0 if node.has_contiguous_rows else node.type.type_size
    blocks = (a.type.block_size, node.type.block_size)
    convert = (n, *blocks, *encoder_of(node.type), gaps, *row_reader(a))
    return [CpuCall(convert_elements, convert, one_thread=small, work=8 * PIECE)]


# --- joins ---


def _is_plain(node: Tensor) -> bool:
    return not node.type.is_quantized


@kernel
def concat(p, ith, nth):
    """Parameters: the dimension, bytes of an element."""
    dim, size = int_param(p, 0), int_param(p, 1)
    m1, m2 = ne(p, 0, 1), ne(p, 0, 2)
    rows = n_rows(p, 0)
    for r in range(first_of(rows, ith, nth), first_of(rows, ith + 1, nth)):
        i1, i2, i3 = r % m1, r // m1 % m2, r // (m1 * m2)
        index = 0 if dim == 0 else i1 if dim == 1 else i2 if dim == 2 else i3
        begin = 0  # begin of the source along dim
        for i in range(1, 3):
            src, out = row_at(p, i, i1, i2, i3), row(p, 0, r)
            if dim == 0:
                out += begin * size
            else:
                src -= begin * nb(p, i, dim)
            if dim == 0 or begin <= index < begin + ne(p, i, dim):
                move(out, size, src, nb(p, i, 0), ne(p, i, 0), size)
            begin += ne(p, i, dim)


@implements(Op.CONCAT, supports=_is_plain)
def _concat(node: Tensor) -> Sequence[CpuCall]:
    params = (params_of(node, ConcatParams).dim, node.type.type_size)
    return [CpuCall(concat, params, one_thread=_is_small(node))]


@kernel
def repeat(p, ith, nth):
    """Parameters: bytes of an element."""
    size, n, m1, m2 = int_param(p, 0), ne(p, 1, 0), ne(p, 0, 1), ne(p, 0, 2)
    rows = n_rows(p, 0)
    for r in range(first_of(rows, ith, nth), first_of(rows, ith + 1, nth)):
        i1, i2, i3 = r % m1, r // m1 % m2, r // (m1 * m2)
        src = row_at(p, 1, i1 % ne(p, 1, 1), i2 % ne(p, 1, 2), i3 % ne(p, 1, 3))
        out = row(p, 0, r)
        if n == 1:  # one element, repeated
            move(out, size, src, 0, ne(p, 0, 0), size)
        else:
            for i in range(0, ne(p, 0, 0), n):
                move(out + i * size, size, src, nb(p, 1, 0), n, size)


@implements(Op.REPEAT, supports=_is_plain)
def _repeat(node: Tensor) -> Sequence[CpuCall]:
    return [CpuCall(repeat, (node.type.type_size,), one_thread=_is_small(node))]
