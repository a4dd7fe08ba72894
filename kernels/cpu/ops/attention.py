"""Attention over a paged pool of keys and values: FLASH_ATTN_EXT.

A query is a head of a token. It processes the positions of its span in blocks of 32, in order.
Each partition of 256 positions has its own sums, which are merged in order. Blocks and partitions
begin at multiples of their sizes. So the bits depend only on the query and on keys and values by
position, not on pages, other tokens or threads. Queries that read the same keys and values are
computed together: heads that share them, of several tokens of a sequence (a tile). Threads divide
tokens and heads; for few tokens, also the partitions, if threads cannot share the heads equally.
Tested by tests/kernels/test_attention.py and test_cpu_attention.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ....graph.op import AttnParams, Op
from ....graph.tensor import Tensor, params_of
from ....graph.types import GGMLType
from ...plan.node_params import has_whole_qkv
from ..compiler.jit import kernel
from ..params import (
    data,
    ends,
    fail,
    first_of,
    int_param,
    nb,
    ne,
    row_at,
    shared_work,
    take_any,
    work,
)
from ..simd.calls import inlined, merged
from ..simd.memory import load_i64
from ..simd.vectors import LANES
from ..table import SMALL, CpuCall, implements
from .attention_layout import (
    BEGIN,
    BLOCK,
    DOTS,
    END,
    FLOATS,
    IS_DIRECT,
    K_SIZE,
    LOAD_K,
    N_RECORDS,
    N_TOKENS,
    PAGE_SIZE,
    PAGES,
    PARTITION,
    RUN_K,
    RUN_V,
    RUNS,
    RUNS_SIZE,
    SEQ,
    SINKS,
    TILE,
    VALUES,
    sizes_of,
)
from .attention_query import (
    attend_block_f16,
    attend_block_f32,
    begin_query,
    end_partition,
    k_size,
    merge,
    n_partitions,
    query_size,
    sink_of,
    token_int,
    v_size,
    write_result,
)
from .attention_rows import ROW_LOADERS, find_rows, load_block, read_ahead

N_QUERIES: Final = 128  # queries that are computed together and share blocks of keys and values
MAX_TOKENS: Final = 16  # most tokens for which partitions are divided; more occupy all threads


# --- the work: each thread computes the same division ---


@inlined
def _belong(p, t):
    """True if token `t` and the one before may be in a tile: every position from the first to the
    last of both spans is in one of them."""
    if token_int(p, SEQ, t) != token_int(p, SEQ, t - 1):
        return False
    if token_int(p, BEGIN, t) > token_int(p, END, t - 1):
        return False
    return token_int(p, BEGIN, t - 1) <= token_int(p, END, t)


@inlined
def _end_of_tile(p, begin):
    """The end of the tile of tokens from `begin` on: tokens of one sequence, computed together."""
    end, last = begin + 1, min(ne(p, 1, 2), begin + int_param(p, N_TOKENS))
    while end < last and _belong(p, end):
        end += 1
    return end


@inlined
def _span(p, begin, end):
    """The first position of a tile's spans and the end of the last; (0, 0) if one is invalid."""
    seq, n_seqs = token_int(p, SEQ, begin), ne(p, PAGES, 1)
    limit = ne(p, PAGES, 0) * int_param(p, PAGE_SIZE)
    if seq < 0 or seq >= n_seqs:
        fail(p, seq, n_seqs)
        return 0, 0
    least, most = limit, 0
    for t in range(begin, end):
        first, last = token_int(p, BEGIN, t), token_int(p, END, t)
        if last < 0 or last > limit:
            fail(p, last, limit + 1)
            return 0, 0
        if first < 0 or first > last:
            fail(p, first, last + 1)
            return 0, 0
        least, most = min(least, first), max(most, last)
    return least, most


@inlined
def _cost(begin, end, first, last):
    """The cost of a tile: its tokens times its positions, and something for an empty span."""
    return (end - begin) * (last - first + 1)


@inlined
def _count(p):
    """The cost of all tiles, and the number of records for all their partitions."""
    cost, n_records, begin = 0, 0, 0
    while begin < ne(p, 1, 2):
        end = _end_of_tile(p, begin)
        first, last = _span(p, begin, end)
        n_records += (end - begin) * n_partitions(first, last)
        cost += _cost(begin, end, first, last)
        begin = end
    return cost, n_records


@inlined
def _is_divided(p, n_head_kv, n_records, nth):
    """True if threads divide the partitions: there are several, their records fit, and threads
    cannot have equal shares of each token's heads."""
    n_tokens = ne(p, 1, 2)
    if nth == 1 or n_records <= n_tokens or n_records > int_param(p, N_RECORDS):
        return False
    return n_head_kv % nth != 0 or n_tokens >= 4 * nth


@inlined
def _n_parts(n_head_kv, n_queries, is_large, nth):
    """The number of parts into which the heads of K are divided; each has `n_queries` queries.

    If the tile `is_large`, every thread gets as many parts of equal size, or parts are the
    smallest.
    """
    n_together = max(1, N_QUERIES // n_queries)
    n = (n_head_kv + n_together - 1) // n_together
    while is_large and n < n_head_kv and (n % nth != 0 or n_head_kv % n != 0):
        n += 1
    return min(n, n_head_kv)


# --- the kernels ---


@inlined
def _begin_queries(p, queries, begin, end, kv, end_kv, records, partition, n):
    """Set up the states of tokens `begin` to `end`, for heads that read heads `kv` to `end_kv` of
    K.

    `records`: address of the tile's records, or 0. A query has `n`, the first of `partition`.
    """
    n_head = ne(p, 1, 1)
    n_shared, query = n_head // (ne(p, 2, 0) // ne(p, 1, 0)), queries
    for first in range(kv * n_shared, end_kv * n_shared, n_shared):
        for t in range(begin, end):
            for head in range(first, first + n_shared):
                record = 0
                if records != 0:
                    index = ((t - begin) * n_head + head) * n - partition
                    record = records + index * (VALUES + v_size(p))
                begin_query(p, query, t, head, record)
                query += query_size(p)


@inlined
def _find_first(p, t, runs):
    """Write the places of the first block of token `t`, if there is one; return its rows."""
    if t >= ne(p, 1, 2):
        return 0
    first, last = _span(p, t, t + 1)
    n = min(BLOCK - first % BLOCK, last - first)
    return n if n > 0 and find_rows(p, token_int(p, SEQ, t), first, n, runs) else 0


@inlined
def _attend_rows(p, queries, n_queries, begin, skip, n, head, runs, n_ahead, next_runs, temp):
    """Process a block, whose rows are in one page, where they are, for the queries of one head."""
    k_step, v_step, query, i = nb(p, 2, 1), nb(p, 3, 1), queries, 0
    k = load_i64(runs + RUN_K) + head * int_param(p, K_SIZE) - skip * k_step
    v = load_i64(runs + RUN_V) + head * int_param(p, K_SIZE + 1) - skip * v_step
    k_ahead = load_i64(next_runs + RUN_K) + head * int_param(p, K_SIZE) - k
    v_ahead = load_i64(next_runs + RUN_V) + head * int_param(p, K_SIZE + 1) - v
    n += skip
    read_ahead(p, head, n, n_ahead, next_runs)  # the others are read beside this block's
    while i < n_queries:
        count = TILE if n_queries - i >= TILE else min(2, n_queries - i)
        steps, ahead = (k, k_step, v, v_step), (k_ahead, v_ahead, n_ahead)
        attend_block_f16(p, query, count, begin, n, *steps, *ahead, temp)
        query += count * query_size(p)
        i += count
        n_ahead = 0


@inlined
def _is_latent(p):
    """True if values are the first elements of the keys, of one head: they are loaded once."""
    if data(p, 2) != data(p, 3) or nb(p, 2, 1) != nb(p, 3, 1) or ne(p, 3, 0) > ne(p, 2, 0):
        return False
    return ne(p, 2, 0) == ne(p, 1, 0) and int_param(p, LOAD_K) == int_param(p, LOAD_K + 1)


@merged
def _attend(p, seq, first, end, kv, end_kv, n_queries, scratch, t_ahead):
    """Process positions `first` to `end` - 1 for all queries. No partition is continued later.

    Each head of K from `kv` on has `n_queries`. `t_ahead` is the first token of the next tile.
    """
    size, k_step, v_step = query_size(p), k_size(p), v_size(p)
    direct = n_queries <= TILE and int_param(p, IS_DIRECT) != 0
    k, runs, temp = scratch + FLOATS, scratch + RUNS, scratch + DOTS
    v = k + BLOCK * k_step
    queries = v + BLOCK * v_step
    latent, v_row = _is_latent(p), v_step
    if latent:
        v, v_row = k, k_step
    skip = first % BLOCK  # positions of the first block before `first`: they may have no page
    next_runs, n_next = runs + RUNS_SIZE, min(BLOCK - skip, end - first)
    if not find_rows(p, seq, first, n_next, next_runs):
        return
    for begin in range(first - skip, end, BLOCK):
        runs, next_runs = next_runs, runs
        n, n_next = n_next, max(0, min(BLOCK, end - begin - BLOCK))
        if not find_rows(p, seq, begin + BLOCK, n_next, next_runs):
            return
        n_ahead = n_next if n_next > 0 else _find_first(p, t_ahead, next_runs)
        query = queries
        for head in range(kv, end_kv):
            if direct:
                _attend_rows(
                    p, query, n_queries, begin, skip, n, head, runs, n_ahead, next_runs, temp
                )
                query += n_queries * size
                continue
            load_block(p, 2, head, ne(p, 1, 0), n, runs, k + skip * k_step, n_ahead, next_runs)
            if not latent:
                to = v + skip * v_step
                load_block(p, 3, head, ne(p, 0, 0), n, runs, to, n_ahead, next_runs)
            i, m = 0, skip + n
            while i < n_queries:
                count = TILE if n_queries - i >= TILE else min(2, n_queries - i)
                attend_block_f32(p, query, count, begin, m, k, k_step, v, v_row, 0, 0, 0, temp)
                query += count * size
                i += count
        skip = 0
        if n_next == 0 or (begin + BLOCK) % PARTITION == 0:
            partition = begin // PARTITION
            for i in range((end_kv - kv) * n_queries):
                end_partition(p, queries + i * size, partition, v_step)


@inlined
def _merge(p):
    """Write the results of queries whose partitions were divided, from their records."""
    n_head, size = ne(p, 1, 1), v_size(p)
    begin, record = 0, shared_work(p)
    while begin < ne(p, 1, 2):
        end = _end_of_tile(p, begin)
        first, last = _span(p, begin, end)
        n = n_partitions(first, last)
        for t in range(begin, end):
            before = token_int(p, BEGIN, t) // PARTITION - first // PARTITION
            own = n_partitions(token_int(p, BEGIN, t), token_int(p, END, t))
            for head in range(n_head):
                if own > 1 and n > 0:
                    sums = record + before * (VALUES + size)
                    for i in range(1, own):
                        merge(sums, sums + i * (VALUES + size), size)
                    write_result(p, row_at(p, 0, head, t, 0), sums, sink_of(p, head))
                record += n * (VALUES + size)
        begin = end


@kernel
def flash_attn_ext(p, ith, nth):
    """Compute all queries. Threads take parts of tiles: another program may delay one of them.

    If partitions are divided, threads write records of sums, and the last thread merges them.
    """
    n_head_kv = ne(p, 2, 0) // ne(p, 1, 0)
    n_shared, scratch = ne(p, 1, 1) // n_head_kv, work(p, ith)
    queries = scratch + FLOATS + BLOCK * (k_size(p) + v_size(p))
    record_size = ne(p, 1, 1) * (VALUES + v_size(p))
    cost, n_records = _count(p)
    divided, records = _is_divided(p, n_head_kv, n_records, nth), shared_work(p)
    begin, index, item = 0, 0, take_any(p)
    while begin < ne(p, 1, 2):
        end = _end_of_tile(p, begin)
        first, last = _span(p, begin, end)
        partition, n = first // PARTITION, n_partitions(first, last)
        n_queries = (end - begin) * n_shared
        # threads cannot balance a tile that is much of the work
        is_large = 4 * nth * _cost(begin, end, first, last) > cost
        n_parts = _n_parts(n_head_kv, n_queries, is_large, nth)
        # at least one step, in which results of empty spans are written
        for i in range(max(1, n) if divided else 1):
            low = max(first, (partition + i) * PARTITION)
            high = min(last, (partition + i + 1) * PARTITION) if divided else last
            for part in range(n_parts):
                if index == item:
                    kv = first_of(n_head_kv, part, n_parts)
                    end_kv = first_of(n_head_kv, part + 1, n_parts)
                    to = records if divided else 0
                    _begin_queries(p, queries, begin, end, kv, end_kv, to, partition, n)
                    seq = token_int(p, SEQ, begin)
                    # a guess: tiles have equal numbers of tokens, and parts
                    ahead = ne(p, 1, 2) if divided else end + (nth - 1) * (end - begin)
                    _attend(p, seq, low, high, kv, end_kv, n_queries, scratch, ahead)
                    item = take_any(p)
                index += 1
        records += (end - begin) * n * record_size
        begin = end
    # the last thread can read all records, so no barrier is needed
    if ends(p, item, index, nth) and divided:
        _merge(p)


# --- calls ---


@implements(Op.FLASH_ATTN_EXT, supports=has_whole_qkv)
def _flash_attn_ext(node: Tensor) -> Sequence[CpuCall]:
    op = params_of(node, AttnParams)
    q, k, v, pages = node.src[:4]
    n_head, n_tokens = q.ne[1:3]
    n_shared = n_head // (k.ne[0] // q.ne[0])
    sizes = sizes_of(q.ne[0], node.ne[0], max(N_QUERIES, n_shared))
    # upper limits: the spans are not known yet
    n_positions = pages.ne[0] * op.page_size
    n_seen = min(n_positions, op.n_swa or n_positions)
    small = (q.n_elements + node.n_elements) * n_seen < 4 * SMALL
    divided = not small and n_tokens <= MAX_TOKENS and n_positions > PARTITION
    n_records = 0
    if divided:
        # enough if the sequences fill the pool, each with a partial last partition; of a window,
        # the first one may be partial, too
        n_records = -(-n_positions // PARTITION) + n_tokens
        n_records = min(n_records, n_tokens * (-(-(n_seen - 1) // PARTITION) + 1))
    params = (
        *(op.scale, op.max_bias, op.softcap, op.page_size),
        *(max(1, N_QUERIES // n_shared), n_records),
        *(ROW_LOADERS[k.type], ROW_LOADERS[v.type]),
        *(_bytes(k.type, q.ne[0]), _bytes(v.type, node.ne[0])),
        len(node.src) > SINKS - 1,
        _is_direct(node),
    )
    shared = n_records * n_head * sizes.sums
    return [CpuCall(flash_attn_ext, params, small, sizes.work, shared)]


def _bytes(type: GGMLType, n: int) -> int:
    """Bytes of `n` elements, rounded up to whole blocks."""
    return -(-n // type.block_size) * type.type_size


def _is_direct(node: Tensor) -> bool:
    """True if blocks of keys and values are F16 in one page each, and heads are whole vectors."""
    op = params_of(node, AttnParams)
    types = {src.type for src in node.src[1:3]}
    dims = (node.src[0].ne[0], node.ne[0])
    return (
        types == {GGMLType.F16} and op.page_size % BLOCK == 0 and all(n % LANES == 0 for n in dims)
    )
