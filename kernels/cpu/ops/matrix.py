"""Kernels of matrix products: weights are decoded to float32, all arithmetic is float32.

Threads divide the rows of weights. Each element is one `dots.dot`, so its bits depend only on its
two rows. Float32 weights are used in place. Others are decoded a few rows at a time, once for all
columns, into memory that stays in the cache.
Tested by tests/kernels/test_cpu_matrix.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ....graph.op import Op
from ....graph.tensor import Tensor
from ...plan.calls import PreparedSource
from ..codecs.dots import DOT_TILES, TILE, dot
from ..codecs.rows import is_plain, is_readable, read_row, row_bytes, row_reader
from ..compiler.jit import Kernel, kernel
from ..params import (
    data,
    fail,
    first_of,
    int_param,
    n_rows,
    nb,
    ne,
    prepared,
    row,
    row_at,
    work,
)
from ..simd.calls import inlined
from ..simd.ints import call_at
from ..simd.memory import load_i32, store_f32, store_i32
from ..table import SMALL, CpuCall, implements

GROUP_BYTES: Final = 1 << 18  # most bytes of decoded weights, to fit in the second cache
GROUP_MAX: Final = 32  # most rows of a group, so that there are groups for every thread
ALIAS: Final = 4096  # rows at multiples of this compete for the same lines of the first cache
# multiplications below which a second thread costs more than it gains (SMALL counts elements)
SMALL_WORK: Final = 1 << 16

# parameters of all kernels here; from READER on those of `read_row` for the weights
IN_PLACE: Final = 0  # 1: the weights are used in place
GROUP: Final = 1  # rows of weights that are decoded at a time
ROW_BYTES: Final = 2  # bytes of a row of floats in scratch memory
COLUMNS: Final = 3  # number of the prepared source with the columns; -1: used in place
DOTS: Final = 4  # address of `dot_tiles`
READER: Final = 5


# --- columns of other types and layouts ---


@kernel
def pack_columns(p, ith, nth):
    """Prepare columns as float32 rows without gaps. Parameters: bytes of a row, then those of
    `read_row`."""
    size, rows, to = int_param(p, 0), n_rows(p, 2), prepared(p, 0)
    for r in range(first_of(rows, ith, nth), first_of(rows, ith + 1, nth)):
        read_row(p, 1, row(p, 2, r), ne(p, 2, 0), to + r * size, work(p, ith))


@inlined
def _columns(p):
    """The address of the first column, and the strides of dimensions 1, 2 and 3."""
    which = int_param(p, COLUMNS)
    if which < 0:
        return data(p, 2), nb(p, 2, 1), nb(p, 2, 2), nb(p, 2, 3)
    size = int_param(p, ROW_BYTES)
    return prepared(p, which), size, size * ne(p, 2, 1), size * ne(p, 2, 1) * ne(p, 2, 2)


# --- rows of weights ---


@inlined
def _decode_rows(p, a, n, k, ith):
    """Return the address and stride of `n` rows of weights from `a` on, as floats."""
    if int_param(p, IN_PLACE) != 0:
        return a, nb(p, 1, 1)
    size = int_param(p, ROW_BYTES)
    temp = work(p, ith)
    for r in range(n):
        read_row(p, READER, a + r * nb(p, 1, 1), k, temp + (r + 1) * size, temp)
    return temp + size, size


@inlined
def _multiply(a, stride, n, k, b, out):
    """Multiply `n` rows with one column."""
    for r in range(n):
        store_f32(out + 4 * r, dot(a + r * stride, b, k))


@kernel
def mul_mat(p, ith, nth):
    """Rows of weights [k, n, x, y] times columns [k, m, i, j]: [n, m, i, j], x dividing i, y j.

    Threads divide groups of rows of all x * y matrices, each with every column of its batches.
    """
    k, n, m = ne(p, 1, 0), ne(p, 1, 1), ne(p, 2, 1)
    n2, n3 = ne(p, 1, 2), ne(p, 1, 3)
    repeat_2, repeat_3 = ne(p, 2, 2) // n2, ne(p, 2, 3) // n3
    b, s1, s2, s3 = _columns(p)
    step = int_param(p, GROUP)
    groups = (n + step - 1) // step
    total = groups * n2 * n3
    for g in range(first_of(total, ith, nth), first_of(total, ith + 1, nth)):
        first, x, y = g % groups * step, g // groups % n2, g // (groups * n2)
        count = min(step, n - first)
        a, stride = _decode_rows(p, row_at(p, 1, first, x, y), count, k, ith)
        for j in range(y * repeat_3, (y + 1) * repeat_3):
            for i in range(x * repeat_2, (x + 1) * repeat_2):
                columns, out = b + i * s2 + j * s3, row_at(p, 0, 0, i, j) + 4 * first
                _multiply_columns(p, a, stride, count, k, columns, s1, out, nb(p, 0, 1), m)


@inlined
def _multiply_columns(p, a, stride, n, k, b, b_stride, out, out_stride, m):
    """Multiply `n` rows with `m` columns."""
    whole = m - m % TILE
    for c in range(0, whole, TILE):
        b0, o0 = b + c * b_stride, out + c * out_stride
        b1, o1 = b0 + b_stride, o0 + out_stride
        b2, o2 = b1 + b_stride, o1 + out_stride
        b3, o3 = b2 + b_stride, o2 + out_stride
        call_at(int_param(p, DOTS), (a, stride, n, k, b0, b1, b2, b3, o0, o1, o2, o3))
    for c in range(whole, m):
        _multiply(a, stride, n, k, b + c * b_stride, out + c * out_stride)


# --- experts ---


@kernel
def group_by_expert(p, ith, nth):
    """Prepare ids: the pairs (token, its i-th expert) sorted by expert.

    The result has n_expert + 1 int32s, the index at which each expert's pairs begin, and then the
    pairs, as token * n_used + i.
    """
    n_expert, n_used, n_tokens = ne(p, 1, 2), ne(p, 3, 0), ne(p, 3, 1)
    begins = prepared(p, 0)
    pairs = begins + 4 * (n_expert + 1)
    for e in range(n_expert + 1):
        store_i32(begins + 4 * e, 0)
    for t in range(n_tokens):
        for i in range(n_used):
            e = _expert(p, i, t)
            if 0 <= e < n_expert:
                store_i32(begins + 4 * e, load_i32(begins + 4 * e) + 1)
            else:
                fail(p, e, n_expert)
    end = 0
    for e in range(n_expert + 1):
        end += load_i32(begins + 4 * e)
        store_i32(begins + 4 * e, end)
    # from the last pair to the first: each expert's end decreases to its begin
    for pair in range(n_tokens * n_used - 1, -1, -1):
        e = _expert(p, pair % n_used, pair // n_used)
        if 0 <= e < n_expert:
            at = load_i32(begins + 4 * e) - 1
            store_i32(begins + 4 * e, at)
            store_i32(pairs + 4 * at, pair)


@inlined
def _expert(p, i, t):
    return load_i32(data(p, 3) + i * nb(p, 3, 0) + t * nb(p, 3, 1))


@kernel
def mul_mat_id(p, ith, nth):
    """Rows of each expert [k, n, n_expert] times the columns [k, x, n_tokens] that chose it.

    The result is [n, n_used, n_tokens], for ids [n_used, n_tokens]; x divides n_used. All threads
    work on the same expert, one expert after the other. Each thread has groups of rows, which it
    multiplies with all pairs of the expert. Results of invalid ids are not written:
    `group_by_expert` reports them.
    """
    k, n, n_expert = ne(p, 1, 0), ne(p, 1, 1), ne(p, 1, 2)
    begins = prepared(p, 0)
    pairs = begins + 4 * (n_expert + 1)
    step = int_param(p, GROUP)
    groups = (n + step - 1) // step
    for e in range(n_expert):
        begin, end = load_i32(begins + 4 * e), load_i32(begins + 4 * e + 4)
        if begin == end:
            continue
        for g in range(first_of(groups, ith, nth), first_of(groups, ith + 1, nth)):
            first = g * step
            count = min(step, n - first)
            a, stride = _decode_rows(p, row_at(p, 1, first, e, 0), count, k, ith)
            _multiply_pairs(p, a, stride, count, k, pairs, begin, end, 4 * first)


@inlined
def _pair(p, at, offset):
    """The addresses of a pair's column and of byte `offset` of its result."""
    b, s1, s2, _ = _columns(p)
    pair, n_used = load_i32(at), ne(p, 3, 0)
    t, i = pair // n_used, pair % n_used
    return b + i % ne(p, 2, 1) * s1 + t * s2, row_at(p, 0, i, t, 0) + offset


@inlined
def _multiply_pairs(p, a, stride, n, k, pairs, begin, end, offset):
    """Multiply `n` rows with the columns of pairs `begin` to `end`; the results go to byte
    `offset`."""
    whole = end - (end - begin) % TILE
    for c in range(begin, whole, TILE):
        b0, o0 = _pair(p, pairs + 4 * c, offset)
        b1, o1 = _pair(p, pairs + 4 * c + 4, offset)
        b2, o2 = _pair(p, pairs + 4 * c + 8, offset)
        b3, o3 = _pair(p, pairs + 4 * c + 12, offset)
        call_at(int_param(p, DOTS), (a, stride, n, k, b0, b1, b2, b3, o0, o1, o2, o3))
    for c in range(whole, end):
        b, out = _pair(p, pairs + 4 * c, offset)
        _multiply(a, stride, n, k, b, out)


# --- calls ---


def _can_multiply(node: Tensor) -> bool:
    return is_readable(node.src[0]) and is_readable(node.src[1])


def _is_small(node: Tensor) -> bool:
    return node.n_elements * node.src[0].ne[0] < SMALL_WORK


def _is_in_place(t: Tensor, n_columns: int) -> bool:
    """True if weights should be used in place; each row is multiplied with `n_columns`."""
    return is_plain(t) and (n_columns < TILE or t.nb[1] % ALIAS != 0)


def _group(a: Tensor, n_columns: int) -> int:
    """Rows of weights to decode at a time. For few columns one is best: it stays in the cache."""
    if n_columns < TILE and not is_plain(a):
        return 1
    rows = GROUP_BYTES // row_bytes(a.ne[0]) // TILE * TILE
    return max(TILE, min(rows, GROUP_MAX))


def groups_of_experts(node: Tensor) -> PreparedSource[CpuCall]:
    """A MUL_MAT_ID's ids as `group_by_expert` sorts them."""
    n_expert, ids = node.src[0].ne[2], node.src[2]
    size = 4 * (n_expert + 1 + ids.n_elements)
    call = CpuCall(group_by_expert, one_thread=True)
    return PreparedSource(ids, (group_by_expert, n_expert), size, [call])


def _packed_columns(b: Tensor) -> PreparedSource[CpuCall]:
    """The columns of a product as float32 rows without gaps."""
    size = row_bytes(b.ne[0])
    call = CpuCall(pack_columns, (size, *row_reader(b)), b.n_elements < SMALL, work=size)
    return PreparedSource(b, pack_columns, b.n_rows * size, [call])


def _multiplication(
    kernel: Kernel, node: Tensor, n_columns: int, prepared: Sequence[PreparedSource[CpuCall]] = ()
) -> Sequence[CpuCall]:
    """The call of a product. Packed columns are its last prepared source."""
    a, b = node.src[:2]
    size, group, columns = row_bytes(a.ne[0]), _group(a, n_columns), -1
    if not _is_in_place(b, n_columns):
        columns = len(prepared)
        prepared = (*prepared, _packed_columns(b))
    in_place = _is_in_place(a, n_columns)
    params = (in_place, group, size, columns, DOT_TILES, *row_reader(a))
    # memory for the rows, and for the elements of one row with gaps
    work_size = 0 if in_place else (group + 1) * size
    return [CpuCall(kernel, params, _is_small(node), work_size, prepared=prepared)]


@implements(Op.MUL_MAT, supports=_can_multiply)
def _mul_mat(node: Tensor) -> Sequence[CpuCall]:
    a, b = node.src
    n_columns = b.n_rows // (a.ne[2] * a.ne[3])
    return _multiplication(mul_mat, node, n_columns)


@implements(Op.MUL_MAT_ID, supports=_can_multiply)
def _mul_mat_id(node: Tensor) -> Sequence[CpuCall]:
    a, _, ids = node.src
    n_columns = ids.n_elements // max(a.ne[2], 1)  # the average for an expert
    return _multiplication(mul_mat_id, node, n_columns, [groups_of_experts(node)])
