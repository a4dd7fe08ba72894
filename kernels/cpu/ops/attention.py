"""Attention over a paged pool of keys and values: FLASH_ATTN_EXT.

A query, which is a head of a token, meets its positions in blocks of 32, in order, by online
softmax (arXiv 2205.14135): its bits depend on the query and on keys and values by position, not on
pages, other tokens or threads. Queries that read the same keys and values are computed together,
while these are in the cache. Tested by tests/kernels/test_cpu_attention.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

from ....graph.op import AttnParams, Op
from ....graph.tensor import Tensor
from ....graph.types import GGMLType
from ..jit import Kernel
from ..params import data, fail, first_of, float_param, int_param, nb, ne, row_at, work
from ..simd import (
    LANES,
    fma,
    hmax,
    hsum,
    hsum_of_16,
    inlined,
    join,
    lane_numbers,
    load_bf16_part,
    load_f16,
    load_f16_part,
    load_f32,
    load_f32_part,
    load_f32x16,
    load_i8_part,
    load_i8x16,
    load_i32,
    load_i64,
    merged,
    splat,
    store_f32,
    store_f32_part,
    store_f32x16,
    store_i64,
    vexp,
    vmax,
    vtanh,
    zero,
)
from ..table import SMALL, Call, implements
from .rows import alibi_slope

BLOCK: Final = 32  # positions
N_TOKENS: Final = 4  # that are computed together

# parameters
SCALE: Final = 0
MAX_BIAS: Final = 1
SOFTCAP: Final = 2
PAGE_SIZE: Final = 3

VECTOR: Final = 4 * LANES  # bytes

# a thread's scratch memory, in bytes
K_ROWS: Final = 0  # addresses of the block's rows of K and V
V_ROWS: Final = K_ROWS + 8 * BLOCK
DOTS: Final = V_ROWS + 8 * BLOCK  # of four queries: 16 products with keys, not summed up yet
QUERIES: Final = DOTS + 4 * LANES * VECTOR
# and of each query that is computed now
OUT: Final = 0  # address of the result
POS: Final = 8
KV_HEAD: Final = 16
SLOPE: Final = 24  # of ALiBi, a float32
WEIGHTS: Final = VECTOR  # the block's scores, then their exponentials
LARGEST: Final = WEIGHTS + 4 * BLOCK  # score so far, in all lanes
FACTOR: Final = LARGEST + VECTOR  # of sums so far, as the largest score has changed
TOTAL: Final = FACTOR + VECTOR  # sum of exponentials, spread over lanes
VALUES: Final = TOTAL + VECTOR  # weighted sum; behind it, the query itself


@inlined
def _query_size(p):
    """Bytes of a query's state."""
    return _query_at(p) + (ne(p, 1, 0) + LANES - 1) // LANES * VECTOR


@inlined
def _query_at(p):
    return VALUES + (ne(p, 0, 0) + LANES - 1) // LANES * VECTOR


@inlined
def _find_rows(p, seq, first, n, scratch):
    """Write where K and V of positions `first` ... of a sequence lie; False: there is no page."""
    page_size = int_param(p, PAGE_SIZE)
    n_pages = ne(p, 2, 1) // page_size
    table = data(p, 4) + nb(p, 4, 1) * seq
    j = 0
    while j < n:
        at = (first + j) % page_size
        page = load_i32(table + nb(p, 4, 0) * ((first + j) // page_size))
        if page < 0 or page >= n_pages:
            fail(p, page, n_pages)
            return False
        cell = page * page_size + at
        for i in range(j, min(n, j + page_size - at)):
            store_i64(scratch + K_ROWS + 8 * i, data(p, 2) + nb(p, 2, 1) * cell)
            store_i64(scratch + V_ROWS + 8 * i, data(p, 3) + nb(p, 3, 1) * cell)
            cell += 1
        j += page_size - at
    return True


@inlined
def _sequence(p, t):
    return load_i32(data(p, 5) + nb(p, 5, 0) * t)


@inlined
def _begin_all(p, begin, end, first_head, end_head, scratch):
    """Set up the queries of some tokens of a sequence and of some heads: their number, or 0."""
    seq, n_seqs = _sequence(p, begin), ne(p, 4, 1)
    n_positions = ne(p, 4, 0) * int_param(p, PAGE_SIZE)
    if seq < 0 or seq >= n_seqs:
        fail(p, seq, n_seqs)
        return 0
    query = scratch + QUERIES
    for head in range(first_head, end_head):
        for t in range(begin, end):
            pos = load_i32(data(p, 6) + nb(p, 6, 0) * t)
            if pos < 0 or pos >= n_positions:
                fail(p, pos, n_positions)
                return 0
            _begin(p, query, t, pos, head)
            query += _query_size(p)
    return (end - begin) * (end_head - first_head)


@inlined
def _begin(p, query, t, pos, head):
    """Set up a query's state."""
    store_i64(query + OUT, row_at(p, 0, head, t, 0))
    store_i64(query + POS, pos)
    store_i64(query + KV_HEAD, head // (ne(p, 1, 1) // (ne(p, 2, 0) // ne(p, 1, 0))))
    store_f32(query + SLOPE, alibi_slope(head, ne(p, 1, 1), float_param(p, MAX_BIAS)))
    store_f32x16(query + LARGEST, splat(-math.inf))
    for at in range(TOTAL, _query_at(p), VECTOR):
        store_f32x16(query + at, zero())
    q, to, n = row_at(p, 1, head, t, 0), query + _query_at(p), ne(p, 1, 0)
    for d in range(0, n, LANES):
        store_f32x16(to + 4 * d, load_f32_part(q + 4 * d, n - d))


@inlined
def _next_queries(query, n_queries, size, first, n):
    """How many queries to compute together, 4 or 1, and for how many of a block's positions.

    Four read the same keys and values, at all of the positions.
    """
    own = min(n, load_i64(query + POS) + 1 - first)
    if n_queries < 4 or own < n:
        return 1, own
    kv = load_i64(query + KV_HEAD)
    for i in range(1, 4):
        other = query + size * i
        if load_i64(other + POS) + 1 - first < n or load_i64(other + KV_HEAD) != kv:
            return 1, own
    return 4, n


@inlined
def _score(p, dots, query, first, j, n):
    """Sum up 16 products, which are of positions first + j ...: scores, of `n` positions."""
    s, softcap = hsum_of_16(dots), float_param(p, SOFTCAP)
    if softcap > 0:
        s = vtanh(s * splat(float_param(p, SCALE) / softcap)) * splat(softcap)
    else:
        s = s * splat(float_param(p, SCALE))
    if float_param(p, MAX_BIAS) > 0:
        distance = splat(first + j - load_i64(query + POS)) + lane_numbers()
        s = s + splat(load_f32(query + SLOPE)) * distance
    store_f32x16(query + WEIGHTS + 4 * j, join(s, splat(-math.inf), n - j))


@inlined
def _weigh(query, n):
    """The block's scores become weights, relative to the largest score so far."""
    largest = splat(-math.inf)
    for j in range(0, n, LANES):
        largest = vmax(largest, load_f32x16(query + WEIGHTS + 4 * j))
    before = load_f32x16(query + LARGEST)
    largest = vmax(before, splat(hmax(largest)))
    factor = vexp(before - largest)
    total = load_f32x16(query + TOTAL) * factor
    for j in range(0, n, LANES):
        weights = vexp(load_f32x16(query + WEIGHTS + 4 * j) - largest)
        store_f32x16(query + WEIGHTS + 4 * j, weights)
        total = total + weights
    store_f32x16(query + LARGEST, largest)
    store_f32x16(query + FACTOR, factor)
    store_f32x16(query + TOTAL, total)


@inlined
def _finish(p, query):
    """Write a query's result."""
    n, out = ne(p, 0, 0), load_i64(query + OUT)
    factor = splat(1.0 / hsum(load_f32x16(query + TOTAL)))
    for d in range(0, n, LANES):
        store_f32_part(out + 4 * d, load_f32x16(query + VALUES + 4 * d) * factor, n - d)


def _multiplier(load: Callable[..., Any]) -> Any:
    """Products of one query or four with a key, for a type of K.

    load(row, i, n) gives elements i ... of a row, `n` at most.
    """

    @inlined
    def multiply(query, count, size, row, at, n, dots):
        a0, a1, a2, a3 = zero(), zero(), zero(), zero()
        if count == 1:
            for d in range(0, n, LANES):
                a0 = fma(load_f32x16(query + 4 * d), load(row, at + d, n - d), a0)
            store_f32x16(dots, a0)
            return
        query1, query2, query3 = query + size, query + 2 * size, query + 3 * size
        for d in range(0, n, LANES):
            k = load(row, at + d, n - d)
            a0 = fma(load_f32x16(query + 4 * d), k, a0)
            a1 = fma(load_f32x16(query1 + 4 * d), k, a1)
            a2 = fma(load_f32x16(query2 + 4 * d), k, a2)
            a3 = fma(load_f32x16(query3 + 4 * d), k, a3)
        store_f32x16(dots, a0)
        store_f32x16(dots + LANES * VECTOR, a1)
        store_f32x16(dots + 2 * LANES * VECTOR, a2)
        store_f32x16(dots + 3 * LANES * VECTOR, a3)

    return multiply


def _accumulator(load: Callable[..., Any]) -> Any:
    """Adding up the weighted values of `n` positions for one query or four, for a type of V."""

    @inlined
    def weight(query, j):
        return splat(load_f32(query + WEIGHTS + 4 * j))

    @inlined
    def scaled(query, d):
        return load_f32x16(query + VALUES + 4 * d) * load_f32x16(query + FACTOR)

    @inlined
    def accumulate_four(query, size, rows, at, dim, n):
        query1, query2, query3 = query + size, query + 2 * size, query + 3 * size
        for d in range(0, dim, LANES):
            y0, y1 = scaled(query, d), scaled(query1, d)
            y2, y3 = scaled(query2, d), scaled(query3, d)
            for j in range(n):
                v = load(load_i64(rows + 8 * j), at + d, dim - d)
                y0 = fma(weight(query, j), v, y0)
                y1 = fma(weight(query1, j), v, y1)
                y2 = fma(weight(query2, j), v, y2)
                y3 = fma(weight(query3, j), v, y3)
            store_f32x16(query + VALUES + 4 * d, y0)
            store_f32x16(query1 + VALUES + 4 * d, y1)
            store_f32x16(query2 + VALUES + 4 * d, y2)
            store_f32x16(query3 + VALUES + 4 * d, y3)

    @inlined
    def accumulate(query, count, size, rows, at, dim, n):
        if count == 4:
            accumulate_four(query, size, rows, at, dim, n)
            return
        # several sums at once, as each has to wait for its last addition
        d = 0
        while d + 4 * LANES <= dim:
            y0, y1 = scaled(query, d), scaled(query, d + LANES)
            y2, y3 = scaled(query, d + 2 * LANES), scaled(query, d + 3 * LANES)
            for j in range(n):
                w, v = weight(query, j), load_i64(rows + 8 * j)
                y0 = fma(w, load(v, at + d, LANES), y0)
                y1 = fma(w, load(v, at + d + LANES, LANES), y1)
                y2 = fma(w, load(v, at + d + 2 * LANES, LANES), y2)
                y3 = fma(w, load(v, at + d + 3 * LANES, LANES), y3)
            store_f32x16(query + VALUES + 4 * d, y0)
            store_f32x16(query + VALUES + 4 * (d + LANES), y1)
            store_f32x16(query + VALUES + 4 * (d + 2 * LANES), y2)
            store_f32x16(query + VALUES + 4 * (d + 3 * LANES), y3)
            d += 4 * LANES
        while d < dim:
            y0 = scaled(query, d)
            for j in range(n):
                y0 = fma(weight(query, j), load(load_i64(rows + 8 * j), at + d, dim - d), y0)
            store_f32x16(query + VALUES + 4 * d, y0)
            d += LANES

    return accumulate


def _attention_kernel(name: str, load_k: Callable[..., Any], load_v: Callable[..., Any]) -> Kernel:
    """The kernel for types of K and V."""
    multiply, accumulate = _multiplier(load_k), _accumulator(load_v)

    @merged
    def attend_block(p, query, count, first, n, scratch):
        """Bring one query or four further by `n` positions."""
        head_dim, dim, size = ne(p, 1, 0), ne(p, 0, 0), _query_size(p)
        dots, q, kv = scratch + DOTS, query + _query_at(p), load_i64(query + KV_HEAD)
        for j in range(0, n, LANES):
            for i in range(min(LANES, n - j)):
                k = load_i64(scratch + K_ROWS + 8 * (j + i))
                multiply(q, count, size, k, kv * head_dim, head_dim, dots + VECTOR * i)
            for i in range(count):
                _score(p, dots + LANES * VECTOR * i, query + size * i, first, j, n)
        for i in range(count):
            _weigh(query + size * i, n)
        accumulate(query, count, size, scratch + V_ROWS, kv * dim, dim, n)

    @merged
    def attend(p, n_queries, seq, scratch):
        """Compute the queries that were set up, which are of one sequence."""
        queries, size = scratch + QUERIES, _query_size(p)
        n_positions = 0
        for i in range(n_queries):
            n_positions = max(n_positions, load_i64(queries + size * i + POS) + 1)
        for first in range(0, n_positions, BLOCK):
            n = min(BLOCK, n_positions - first)
            if not _find_rows(p, seq, first, n, scratch):
                return
            i = 0
            while i < n_queries:
                query = queries + size * i
                count, own = _next_queries(query, n_queries - i, size, first, n)
                if own > 0:
                    attend_block(p, query, count, first, own, scratch)
                i += count
        for i in range(n_queries):
            _finish(p, queries + size * i)

    def run(p, ith, nth):
        n_head, n_tokens, scratch = ne(p, 1, 1), ne(p, 1, 2), work(p, ith)
        n_steps = (n_tokens + N_TOKENS - 1) // N_TOKENS
        # heads are divided where tokens are too few; those of a thread lie side by side
        n_parts = 1 if n_steps >= 4 * nth else min(nth, n_head)
        for item in range(ith, n_steps * n_parts, nth):
            part, begin = item % n_parts, item // n_parts * N_TOKENS
            head, end_head = first_of(n_head, part, n_parts), first_of(n_head, part + 1, n_parts)
            last = min(n_tokens, begin + N_TOKENS)
            while begin < last:
                seq, end = _sequence(p, begin), begin + 1
                while end < last and _sequence(p, end) == seq:
                    end += 1
                n_queries = _begin_all(p, begin, end, head, end_head, scratch)
                attend(p, n_queries, seq, scratch)
                begin = end

    run.__name__ = name
    return Kernel(run)


@inlined
def _load_q8_0(row, i, n):
    """Elements i ... of a row of Q8_0, `n` at most: blocks of a float16 factor and 32 int8."""
    block, at = row + (i >> 5) * 34, i & 31
    first = load_i8_part(block + 2 + at, min(n, 32 - at)) * splat(load_f16(block))
    if at + min(n, LANES) <= 32:
        return first
    # the rest from the next block, loaded so that it comes to lie in the lanes behind
    n_first = 32 - at
    second = load_i8x16(block + 36 - n_first) * splat(load_f16(block + 34))
    return join(first, second, n_first)


LOADS: Final = {
    GGMLType.F32: inlined(lambda row, i, n: load_f32_part(row + 4 * i, n)),
    GGMLType.F16: inlined(lambda row, i, n: load_f16_part(row + 2 * i, n)),
    GGMLType.BF16: inlined(lambda row, i, n: load_bf16_part(row + 2 * i, n)),
    GGMLType.Q8_0: _load_q8_0,
}


@cache
def _kernel(k: GGMLType, v: GGMLType) -> Kernel:
    name = f"flash_attn_ext_{k.name.lower()}_{v.name.lower()}"
    return _attention_kernel(name, LOADS[k], LOADS[v])


def _has_whole_rows(node: Tensor) -> bool:
    return all(t.has_contiguous_rows for t in node.src[:3])


@implements(Op.FLASH_ATTN_EXT, supports=_has_whole_rows)
def flash_attn_ext(node: Tensor) -> Sequence[Call]:
    p = node.params
    assert isinstance(p, AttnParams)
    q, k, v, pages = node.src[:4]
    n_queries = min(N_TOKENS, q.ne[2]) * q.ne[1]
    work = QUERIES + n_queries * (VALUES + 4 * (node.ne[0] + q.ne[0]) + 2 * VECTOR)
    # how far sequences really reach is not known yet
    n_products = (q.n_elements + node.n_elements) * pages.ne[0] * p.page_size
    params = (p.scale, p.max_bias, p.softcap, p.page_size)
    kernel = _kernel(k.type, v.type)
    return [Call(kernel, params, one_thread=n_products < 4 * SMALL, work=work)]
