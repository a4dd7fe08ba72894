"""The state of a query, which is a head of a token, and its updates by blocks of positions.

The updates are those of online softmax (arXiv 2205.14135): scores, exponentials relative to the
largest score so far, weighted values. The order of all sums is the same for one query and for
tiles of two and four. Knows no pages. Tested by tests/kernels/test_cpu_attention.py.
"""

from __future__ import annotations

import math
from typing import Any, Final

from ..params import data, float_param, int_param, nb, ne, row_at
from ..simd.calls import inlined
from ..simd.functions import vexp, vtanh
from ..simd.memory import (
    load_f32,
    load_f32_part,
    load_f32x16,
    load_i32,
    load_i64,
    store_f32,
    store_f32_part,
    store_f32x16,
    store_i64,
)
from ..simd.vectors import LANES, hmax, hsum, join, lane_numbers, splat, vabs, vmax, zero
from .attention_layout import (
    BEGIN,
    BLOCK,
    END,
    FIRST,
    HAS_SINKS,
    LARGEST,
    LAST,
    MAX_BIAS,
    OUT,
    PARTITION,
    POS,
    POSITION,
    RECORD,
    SCALE,
    SINK,
    SINKS,
    SLOPE,
    SOFTCAP,
    SUMS,
    TOTAL,
    VALUES,
    VECTOR,
    WEIGHTS,
)
from .attention_tiles import TILES_F16, TILES_F32, Tiles
from .rows import alibi_slope

# a score may exceed the reference of the exponentials by this much, so that sums are rarely
# rescaled; e**8 cannot overflow
SLACK: Final = 8.0
LOWEST: Final = -3.4028234663852886e38  # below every score; finite, so that it can be subtracted


@inlined
def k_size(p):
    """Bytes of a key or a query as floats in whole vectors."""
    return (ne(p, 1, 0) + LANES - 1) // LANES * VECTOR


@inlined
def v_size(p):
    """Bytes of a value as floats in whole vectors."""
    return (ne(p, 0, 0) + LANES - 1) // LANES * VECTOR


@inlined
def query_size(p):
    """Bytes of a query's state."""
    return SUMS + 2 * (VALUES + v_size(p)) + k_size(p)


@inlined
def clear(sums, size):
    """Set sums to those of no positions; `size` is the size of values."""
    store_f32x16(sums + LARGEST, splat(LOWEST))
    for i in range(TOTAL, VALUES + size, VECTOR):
        store_f32x16(sums + i, zero())


@inlined
def token_int(p, source, t):
    """Element `t` of SEQ, POS, BEGIN or END."""
    return load_i32(data(p, source) + nb(p, source, 0) * t)


@inlined
def sink_of(p, head):
    """The score of a head's sink; minus infinity, which changes no sum, if it has none."""
    if int_param(p, HAS_SINKS) == 0:
        return -math.inf
    return load_f32(data(p, SINKS) + nb(p, SINKS, 0) * head)


@inlined
def begin_query(p, query, t, head, record):
    """Set up the state of a head of token `t`. The result of an empty span is written here.

    `record`: address of partition 0's record of sums, or 0.
    """
    size = v_size(p)
    store_i64(query + OUT, row_at(p, 0, head, t, 0))
    store_i64(query + FIRST, token_int(p, BEGIN, t))
    store_i64(query + LAST, token_int(p, END, t))
    store_i64(query + RECORD, record)
    store_f32(query + SLOPE, alibi_slope(head, ne(p, 1, 1), float_param(p, MAX_BIAS)))
    store_i64(query + POSITION, token_int(p, POS, t))
    store_f32(query + SINK, sink_of(p, head))
    clear(query + SUMS, size)
    if load_i64(query + FIRST) == load_i64(query + LAST):
        write_scaled(p, load_i64(query + OUT), query + SUMS, 1.0)
    q, n, to = row_at(p, 1, head, t, 0), ne(p, 1, 0), query + SUMS + 2 * (VALUES + size)
    for d in range(0, n, LANES):
        store_f32x16(to + 4 * d, load_f32_part(q + 4 * d, n - d))


# --- a block of positions ---


@inlined
def _bend(p, query, first):
    """Turn products with keys of positions from `first` on into scores: softcap and ALiBi."""
    softcap, max_bias = float_param(p, SOFTCAP), float_param(p, MAX_BIAS)
    for j in range(0, BLOCK, LANES):
        s = load_f32x16(query + WEIGHTS + 4 * j)
        if softcap > 0:
            s = vtanh(s * splat(float_param(p, SCALE) / softcap)) * splat(softcap)
        else:
            s = s * splat(float_param(p, SCALE))
        if max_bias > 0:
            distance = splat(first + j - load_i64(query + POSITION)) + lane_numbers()
            s = s - splat(load_f32(query + SLOPE)) * vabs(distance)
        store_f32x16(query + WEIGHTS + 4 * j, s)


@inlined
def _scale(sums, factor, size):
    """Rescale sums to another reference score."""
    store_f32x16(sums + TOTAL, load_f32x16(sums + TOTAL) * factor)
    for i in range(VALUES, VALUES + size, VECTOR):
        store_f32x16(sums + i, load_f32x16(sums + i) * factor)


@inlined
def _weigh(p, query, first, begin, end, size):
    """Turn products into weights, relative to the largest score.

    The query attends to positions `begin` to `end` - 1 of the block; the others get weight 0.
    """
    sums, weights, factor = query + SUMS, query + WEIGHTS, splat(float_param(p, SCALE))
    if float_param(p, SOFTCAP) > 0 or float_param(p, MAX_BIAS) > 0:
        _bend(p, query, first)
        factor = splat(1.0)
    low = join(load_f32x16(weights) * factor, splat(-math.inf), end)
    high = join(load_f32x16(weights + VECTOR) * factor, splat(-math.inf), end - LANES)
    if begin > 0:
        low = join(splat(-math.inf), low, begin)
        high = join(splat(-math.inf), high, begin - LANES)
    largest, before = hmax(vmax(low, high)), load_f32(sums + LARGEST)
    if largest > before + SLACK:
        store_f32x16(sums + LARGEST, splat(largest))
        _scale(sums, vexp(splat(before) - splat(largest)), size)
    else:
        largest = before
    low, high = vexp(low - splat(largest)), vexp(high - splat(largest))
    store_f32x16(weights, low)
    store_f32x16(weights + VECTOR, high)
    store_f32x16(sums + TOTAL, load_f32x16(sums + TOTAL) + low + high)


@inlined
def _own(query, first, n):
    """The range of the positions, of `n` from `first` on, that a query attends to."""
    end = max(0, min(n, load_i64(query + LAST) - first))
    return min(end, max(0, load_i64(query + FIRST) - first)), end


def _block_function(tiles: Tiles) -> Any:
    multiply, add = tiles

    @inlined
    def attend_block(
        p, query, count, first, n, k, k_step, v, v_step, k_ahead, v_ahead, n_ahead, temp
    ):
        """Process `n` positions for one, two or four queries.

        Their keys and values are at k and v, at distances of `k_step` and `v_step` bytes. `n_ahead`
        of those that are read next are `k_ahead` and `v_ahead` bytes further on.
        """
        step, size = query_size(p), v_size(p)
        at, n_vectors = step - k_size(p), k_size(p) // VECTOR
        begin, end, most = 0, n, 0  # `begin` to `end`: the positions that all queries attend to
        for i in range(count):
            own = _own(query + i * step, first, n)
            begin, end = max(begin, own[0]), min(end, own[1])
            if own[0] < own[1]:
                most = max(most, own[1])
        if most == 0:
            return
        multiply(query, count, step, at, most, k, k_step, n_vectors, k_ahead, n_ahead, temp)
        for i in range(count):
            one = query + i * step
            own = _own(one, first, n)
            _weigh(p, one, first, own[0], own[1], size)
        if count == 1 or begin >= end:
            begin = end = n  # each query adds all of its positions by itself
        if begin > 0:
            for i in range(count):
                one = query + i * step
                own = _own(one, first, n)
                add(one, 1, step, own[0], min(begin, own[1]), v, v_step, size, v_ahead, n_ahead)
        if count > 1:
            add(query, count, step, begin, end, v, v_step, size, v_ahead, n_ahead)
        if end < n:
            for i in range(count):
                one = query + i * step
                own = _own(one, first, n)
                add(one, 1, step, max(end, own[0]), own[1], v, v_step, size, v_ahead, n_ahead)

    return attend_block


attend_block_f32: Final = _block_function(TILES_F32)
attend_block_f16: Final = _block_function(TILES_F16)


# --- partitions and results ---


@inlined
def n_partitions(begin, end):
    """The number of partitions with positions of a span."""
    if begin >= end:
        return 0
    return (end - 1) // PARTITION - begin // PARTITION + 1


@inlined
def merge(sums, others, size):
    """Add the sums over the positions that follow."""
    a, b = load_f32x16(sums + LARGEST), load_f32x16(others + LARGEST)
    largest = vmax(a, b)
    a, b = vexp(a - largest), vexp(b - largest)
    store_f32x16(sums + LARGEST, largest)
    for i in range(TOTAL, VALUES + size, VECTOR):
        x, y = load_f32x16(sums + i), load_f32x16(others + i)
        store_f32x16(sums + i, x * a + y * b)


@inlined
def write_result(p, out, sums, sink):
    """Write the weighted mean to the row at `out`.

    A sink has the weight of one more position, whose value is zero.
    """
    sunk = vexp(splat(sink) - load_f32x16(sums + LARGEST))
    total = hsum(load_f32x16(sums + TOTAL)) + hmax(sunk)
    write_scaled(p, out, sums, 1.0 / total)


@inlined
def write_scaled(p, out, sums, factor):
    """Write the values of `sums` times `factor` to the row at `out`."""
    n = ne(p, 0, 0)
    for d in range(0, n, LANES):
        store_f32_part(out + 4 * d, load_f32x16(sums + VALUES + 4 * d) * splat(factor), n - d)


@inlined
def end_partition(p, query, partition, size):
    """End a partition: write its sums, or the result."""
    first, last = load_i64(query + FIRST), load_i64(query + LAST)
    record, sums = load_i64(query + RECORD), query + SUMS
    before = sums + VALUES + size
    i, n = partition - first // PARTITION, n_partitions(first, last)
    if i < 0 or i >= n:
        return  # the query attends to none of its positions
    if record != 0 and n > 1:
        _copy(record + partition * (VALUES + size), sums, size)
        return
    if i > 0:
        merge(before, sums, size)
    if i == n - 1:
        write_result(p, load_i64(query + OUT), before if i > 0 else sums, load_f32(query + SINK))
        return
    if i == 0:
        _copy(before, sums, size)
    clear(sums, size)


@inlined
def _copy(to, sums, size):
    for i in range(LARGEST, VALUES + size, VECTOR):
        store_f32x16(to + i, load_f32x16(sums + i))
