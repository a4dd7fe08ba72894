"""Kernels of products with packed weights: MUL_MAT, and MUL_MAT_ID for experts.

Threads divide the groups of rows. A thread multiplies a chunk of groups with all columns, tile by
tile; the chunk stays in the second cache. For many columns, the chunk is unpacked first. With
one column, each weight is read once, and chunks are long, because the processor must find out at
each start what to read ahead.
Tested by tests/kernels/test_cpu_packed.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ....graph.op import Op
from ....graph.tensor import Tensor
from ....graph.types import GGMLType
from ...plan.calls import Param
from ..compiler.jit import kernel
from ..ops.matrix import groups_of_experts
from ..params import (
    data,
    first_of,
    int_param,
    n_rows,
    ne,
    prepared,
    row,
    row_at,
    shared_work,
    take,
    work,
)
from ..simd.calls import inlined
from ..simd.ints import call_at, copy_bytes
from ..simd.memory import load_i32, store_i32, store_i64
from ..table import CpuCall, implements_packed, is_packed
from .activations import (
    MISSING_FLOATS,
    MISSING_QUANTIZED,
    column_bytes,
    filled,
    n_missing,
    prepared_columns,
    width_of,
)
from .formats import FORMATS, Format, format_of
from .micro import RESULTS_BYTES, micro_kernel, unpacked_micro_kernel
from .tiles import COLUMN_BYTES, MOST, QUANTIZED_WIDTHS, ROWS, VALUES, WIDTHS
from .unpacked import group_bytes, unpack_kernel

CHUNK_BYTES: Final = 1 << 17  # bytes of weights that stay in the second cache
UNPACKED_BYTES: Final = 1 << 18  # the same if they are unpacked
STREAM_BYTES: Final = 1 << 20  # bytes of a chunk for one column
CHUNKS_PER_THREAD: Final = 4  # several, so that other threads wait only briefly for a slow one
MOST_AT_ONCE: Final = 32  # most groups of a chunk
MOST_IN_STREAM: Final = MOST_AT_ONCE * MOST  # and for one column: the same number of results

# multiplications below which a second thread costs more than it gains: about 2 us
SMALL_WORK: Final = 1 << 18

# columns from which weights are unpacked once for all tiles: it costs what it saves in 2 to 4 tiles
# of 16, but in 8 if unpacking is an operation or two
MANY: Final = 64

# parameters
MICRO: Final = 0  # addresses of the micro-kernels, widest first
N_BLOCKS: Final = max(len(WIDTHS), len(QUANTIZED_WIDTHS))  # blocks of a row of weights
GROUP_BYTES: Final = N_BLOCKS + 1
COLUMN: Final = GROUP_BYTES + 1  # bytes of a column in its tile
IS_FLOAT: Final = COLUMN + 1
UNPACK: Final = IS_FLOAT + 1  # the kernel that unpacks weights
UNPACKED_MICRO: Final = UNPACK + 1  # the micro-kernel of unpacked weights, for the widest tiles
UNPACKED_GROUP: Final = UNPACKED_MICRO + 1  # bytes of an unpacked group; 0 for floats
MATRIX: Final = UNPACKED_GROUP + 1  # bytes of a matrix
FINISH: Final = MATRIX + 1  # of a MUL_MAT: the kernel that adds a bias, or 0


@inlined
def is_unpacked(p, m):
    """True if weights are unpacked for `m` columns."""
    return m >= MANY and int_param(p, UNPACKED_GROUP) != 0


@inlined
def most_at_once(p, m, n_matrices):
    """The most groups of a chunk of each of `n_matrices`. It is even: some micro-kernels multiply
    pairs of groups."""
    n_bytes, size, most = CHUNK_BYTES, int_param(p, GROUP_BYTES), MOST_AT_ONCE
    if m == 1:
        n_bytes, most = STREAM_BYTES, MOST_IN_STREAM
    elif is_unpacked(p, m):
        n_bytes, size = UNPACKED_BYTES, int_param(p, UNPACKED_GROUP)
    return max(2, min(most, n_bytes // n_matrices // size) // 2 * 2)


@inlined
def n_chunks_of(n_groups, most, nth):
    """The number of chunks: the same for each thread, if all are equally fast."""
    n = max((n_groups + most - 1) // most, min(n_groups, CHUNKS_PER_THREAD * nth))
    return (n + nth - 1) // nth * nth


@inlined
def chunk_begin(n_groups, chunk, n_chunks):
    """The first group of a chunk. The first chunks may be larger by a pair of groups, or by one
    group if there are few."""
    unit = 2 if n_groups >= 2 * n_chunks else 1
    n = (n_groups + unit - 1) // unit
    return min(n_groups, unit * (n // n_chunks * chunk + min(chunk, n % n_chunks)))


@inlined
def unpacked(p, weights, count, m, to):
    """Unpack `count` groups at `to` if that helps for `m` columns. Return `to`, or 0 if not."""
    if not is_unpacked(p, m):
        return 0
    call_at(int_param(p, UNPACK), (weights, count * int_param(p, N_BLOCKS), to))
    return to


@inlined
def multiply_tile(p, weights, unpacked, count, rows, tile, results, offset, width, n_columns):
    """Multiply `count` groups with a tile; `unpacked` is 0 or the groups' address in scratch."""
    if unpacked != 0 and width == QUANTIZED_WIDTHS[0]:
        n_blocks = ne(p, 1, 0) // VALUES
        args = (unpacked, count, rows, n_blocks, tile, results, offset, n_columns)
        call_at(int_param(p, UNPACKED_MICRO), args)
        return
    i = 0
    if int_param(p, IS_FLOAT) != 0:
        while WIDTHS[i] != width:
            i += 1
    else:
        while QUANTIZED_WIDTHS[i] != width:
            i += 1
    n_blocks = int_param(p, N_BLOCKS)
    args = (weights, count, rows, n_blocks, tile, results, offset, n_columns)
    call_at(int_param(p, MICRO + i), args)


@inlined
def _n_missing(p):
    """The most columns that a tile may lack."""
    return MISSING_FLOATS if int_param(p, IS_FLOAT) != 0 else MISSING_QUANTIZED


@kernel
def mul_mat_packed(p, ith, nth):
    """Packed rows [k, n] times columns [k, ...]: [n, ...]; with FINISH, tensor 3 is a bias [n].

    Of several matrices [k, n, n_matrices], each multiplies its own columns [k, m, n_matrices].
    """
    n, n_matrices = ne(p, 1, 1), ne(p, 1, 2)
    m, n_groups = n_rows(p, 2) // n_matrices, (n + ROWS - 1) // ROWS
    most = most_at_once(p, m, 1)
    n_chunks = n_chunks_of(n_groups, most, nth)
    if n_matrices >= CHUNKS_PER_THREAD * nth:  # these are chunks enough
        n_chunks = (n_groups + most - 1) // most
    results, is_float = work(p, ith), int_param(p, IS_FLOAT)
    item = take(p, n_matrices * n_chunks, nth)
    while item < n_matrices * n_chunks:
        matrix, chunk = item // n_chunks, item % n_chunks
        group = chunk_begin(n_groups, chunk, n_chunks)
        count, c, first = chunk_begin(n_groups, chunk + 1, n_chunks) - group, 0, matrix * m
        tile = prepared(p, 0) + matrix * (m + _n_missing(p)) * int_param(p, COLUMN)
        weights = data(p, 1) + group * int_param(p, GROUP_BYTES) + matrix * int_param(p, MATRIX)
        ready = unpacked(p, weights, count, m, results + RESULTS_BYTES)
        while c < m:
            width = width_of(m - c, is_float)
            n_columns = filled(m - c, width, is_float)
            for i in range(n_columns):
                store_i64(results + 8 * i, row(p, 0, first + min(c + i, m - 1)))
            rows, offset = n - ROWS * group, 4 * ROWS * group
            multiply_tile(p, weights, ready, count, rows, tile, results, offset, width, n_columns)
            if int_param(p, FINISH) != 0:
                for i in range(min(width, m - c)):
                    to, bias = row(p, 0, c + i) + offset, data(p, 3) + offset
                    call_at(int_param(p, FINISH), (to, bias, min(rows, ROWS * count)))
            tile += width * int_param(p, COLUMN)
            c += width
        item = take(p, n_matrices * n_chunks, nth)


# --- experts ---


@kernel
def gather_columns(p, ith, nth):
    """Write the columns of all pairs as tiles to shared scratch memory, in the order of
    `group_by_expert`. Threads divide the blocks of columns."""
    begins = prepared(p, 0)
    pairs, columns = begins + 4 * (ne(p, 1, 2) + 1), prepared(p, 1)
    n_used, x, size = ne(p, 3, 0), ne(p, 2, 1), int_param(p, COLUMN)
    is_float = int_param(p, IS_FLOAT)
    for e in range(ne(p, 1, 2)):
        at, end = load_i32(begins + 4 * e), load_i32(begins + 4 * e + 4)
        while at < end:
            width, tile = width_of(end - at, is_float), _tile_of(p, e, at)
            for i in range(filled(end - at, width, is_float)):
                pair = load_i32(pairs + 4 * min(at + i, end - 1))
                column = columns + (pair // n_used * x + pair % n_used % x) * size
                if is_float != 0:
                    _place_words(column, tile, i, width, size // 4, ith, nth)
                else:
                    _place_blocks(column, tile, i, width, ne(p, 1, 0) // VALUES, ith, nth)
            at += width


@inlined
def _tile_of(p, e, at):
    """The tile of expert `e` whose first column is the one of pair `at`. A tile of each expert may
    lack columns."""
    return shared_work(p) + (at + e * _n_missing(p)) * int_param(p, COLUMN)


@inlined
def _place_words(column, tile, i, width, n, ith, nth):
    for j in range(first_of(n, ith, nth), first_of(n, ith + 1, nth)):
        store_i32(tile + 4 * (width * j + i), load_i32(column + 4 * j))


@inlined
def _place_blocks(column, tile, i, width, n_blocks, ith, nth):
    for block in range(first_of(n_blocks, ith, nth), first_of(n_blocks, ith + 1, nth)):
        src, dst = column + COLUMN_BYTES * block, tile + COLUMN_BYTES * width * block
        copy_bytes(dst + COLUMN_BYTES * i, src, COLUMN_BYTES)


@kernel
def mul_mat_id_packed(p, ith, nth):
    """Packed rows of each expert [k, n, n_expert] times the columns that chose it.

    As in `mul_mat_id`, all threads work on the same expert, one expert after the other. They divide
    its groups of rows.
    """
    n, n_used = ne(p, 1, 1), ne(p, 3, 0)
    begins = prepared(p, 0)
    pairs = begins + 4 * (ne(p, 1, 2) + 1)
    n_groups, results = (n + ROWS - 1) // ROWS, work(p, ith)
    is_float = int_param(p, IS_FLOAT)
    for e in range(ne(p, 1, 2)):
        begin, end = load_i32(begins + 4 * e), load_i32(begins + 4 * e + 4)
        if begin == end:
            continue
        weights, m = data(p, 1) + e * int_param(p, MATRIX), end - begin
        chunk, last = most_at_once(p, m, 1), first_of(n_groups, ith + 1, nth)
        for group in range(first_of(n_groups, ith, nth), last, chunk):
            at, count = begin, min(chunk, last - group)
            w = weights + group * int_param(p, GROUP_BYTES)
            ready = unpacked(p, w, count, m, results + RESULTS_BYTES)
            while at < end:
                width = width_of(end - at, is_float)
                n_columns = filled(end - at, width, is_float)
                for i in range(n_columns):
                    pair = load_i32(pairs + 4 * min(at + i, end - 1))
                    store_i64(results + 8 * i, row_at(p, 0, pair % n_used, pair // n_used, 0))
                tile, rows, offset = _tile_of(p, e, at), n - ROWS * group, 4 * ROWS * group
                multiply_tile(p, w, ready, count, rows, tile, results, offset, width, n_columns)
                at += width


# --- calls ---


def _can_multiply(node: Tensor) -> bool:
    a, b = node.src[:2]
    if format_of(a) is None or not is_packed(a) or is_packed(b):
        return False
    return b.type is GGMLType.F32 and b.has_contiguous_rows


def can_multiply_matrix(node: Tensor) -> bool:
    return _can_multiply(node) and node.src[0].ne[2] == node.src[0].ne[3] == 1


def _can_multiply_matrices(node: Tensor) -> bool:
    """True for one matrix, or if each matrix has its own columns."""
    a, b = node.src
    own = a.ne[3] == b.ne[3] == 1 and a.ne[2] == b.ne[2]
    return can_multiply_matrix(node) or (own and _can_multiply(node))


def product_params(form: Format, a: Tensor) -> list[Param]:
    """The parameters of all kernels here, with micro-kernels for tiles of every width.

    Graphs of other sizes need other widths, so the first graph compiles or loads all of them.
    """
    widths = WIDTHS if form.kind is None else QUANTIZED_WIDTHS
    in_pairs = form.in_pairs(a.ne[0])
    micro: list[Param] = [micro_kernel(a.type, width, in_pairs) for width in widths]
    micro += [0] * (N_BLOCKS - len(widths))
    n_blocks = a.ne[0] // (2 if in_pairs else a.type.block_size)
    group, column = form.bytes_of(a.ne[0], ROWS), column_bytes(form, a.ne[0])
    unpack: list[Param] = [0, 0, 0]
    if form.kind is not None:
        many = unpacked_micro_kernel(form.kind, form.largest)
        unpack = [unpack_kernel(a.type), many, group_bytes(form, a.ne[0])]
    size = form.bytes_of(a.ne[0], a.ne[1])
    return [*micro, n_blocks, group, column, form.kind is None, *unpack, size]


def unpacked_bytes(a: Tensor, m: int, n_matrices: int = 1) -> int:
    """The scratch memory of a thread for the unpacked groups of a chunk, for `m` columns."""
    group = group_bytes(FORMATS[a.type], a.ne[0])
    if m < MANY or group == 0:
        return 0
    most = UNPACKED_BYTES // n_matrices // group
    return n_matrices * group * max(2, min(MOST_AT_ONCE, most))


def is_small(node: Tensor) -> bool:
    return node.n_elements * node.src[0].ne[0] < SMALL_WORK


@implements_packed(Op.MUL_MAT, supports=_can_multiply_matrices)
def _mul_mat(node: Tensor) -> Sequence[CpuCall]:
    return [mul_mat_call(node)]


def mul_mat_call(node: Tensor, finish: Param = 0) -> CpuCall:
    """The call of a MUL_MAT. `finish` is the kernel that adds a bias, or 0."""
    a, b = node.src
    form = FORMATS[a.type]
    params, columns = [*product_params(form, a), finish], prepared_columns(form, b, a.ne[2])
    work = RESULTS_BYTES + unpacked_bytes(a, b.n_rows // a.ne[2])
    return CpuCall(mul_mat_packed, params, is_small(node), work, prepared=[columns])


@implements_packed(Op.MUL_MAT_ID, supports=_can_multiply)
def _mul_mat_id(node: Tensor) -> Sequence[CpuCall]:
    a, b, ids = node.src
    form, small = FORMATS[a.type], is_small(node)
    params, columns = product_params(form, a), prepared_columns(form, b, alone=True)
    sources = [groups_of_experts(node), columns]
    # a tile of each expert may lack columns
    scratch = (ids.n_elements + a.ne[2] * n_missing(form)) * column_bytes(form, a.ne[0])
    work = RESULTS_BYTES + unpacked_bytes(a, ids.n_elements)
    return [
        CpuCall(gather_columns, params, small, scratch=scratch, prepared=sources),
        CpuCall(mul_mat_id_packed, params, small, work, scratch, prepared=sources[:1]),
    ]
