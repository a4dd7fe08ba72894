"""Sparse attention's choice of positions (graph/ops/sparse.py).

Threads divide tokens and blocks of positions. A score has its own sums, in one order: products of
a key with 16 heads at a time, along the key's elements. Tested by tests/kernels/test_sparse.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from ....graph.op import IndexParams, Op, PageParams
from ....graph.ops.sparse import LOWEST
from ....graph.tensor import Tensor, params_of
from ..compiler.jit import kernel
from ..params import data, fail, first_of, int_param, nb, ne, row_at, work
from ..simd.calls import inlined
from ..simd.ints import call_at
from ..simd.memory import (
    load_f32,
    load_f32_part,
    load_f32x16,
    load_i32,
    store_f32,
    store_f32x16,
    store_i32,
)
from ..simd.vectors import LANES, fma, hsum, splat, vmax, zero
from ..table import CpuCall, implements
from .attention_layout import VECTOR
from .attention_rows import ROW_LOADERS
from .matrix import SMALL_WORK

POSITIONS: Final = 256  # positions that a thread scores at a time
AT_ONCE: Final = 4  # positions whose sums are in registers
LARGE: Final = 4096  # cells below which a second thread costs more than it gains

# parameters of index_scores
PAGE_SIZE: Final = 0
TOP_K: Final = 1
LOAD: Final = 2  # address of the `load_rows` of keys
# tensors
KEYS: Final = 2
WEIGHTS: Final = 3
PAGES: Final = 4
SEQ: Final = 5
END: Final = 6


@inlined
def _page_at(p, pages, seq, i):
    return load_i32(data(p, pages) + nb(p, pages, 1) * seq + nb(p, pages, 0) * i)


@inlined
def _of_token(p, vector, t):
    return load_i32(data(p, vector) + nb(p, vector, 0) * t)


@kernel
def index_scores(p, ith, nth):
    """Scratch memory: queries of a token by element and head, weights, and keys."""
    n_positions, n_tokens = ne(p, 0, 0), ne(p, 0, 1)
    blocks = (n_positions + POSITIONS - 1) // POSITIONS
    for i in range(ith, n_tokens * blocks, nth):  # in turns: the last blocks may not be seen
        t, first = i // blocks, i % blocks * POSITIONS
        seq, end = _of_token(p, SEQ, t), _of_token(p, END, t)
        if seq < 0 or seq >= ne(p, PAGES, 1):
            fail(p, seq, ne(p, PAGES, 1))
            return
        if end < 0 or end > n_positions:
            fail(p, end, n_positions + 1)
            return
        n = min(POSITIONS, n_positions - first)
        n_seen, out = max(0, min(n, end - first)), row_at(p, 0, t, 0, 0) + 4 * first
        all_chosen = end <= int_param(p, TOP_K)
        for j in range(n):
            store_f32(out + 4 * j, 0.0 if j < n_seen else -math.inf)
        if n_seen > 0 and not all_chosen:
            _score(p, t, seq, first, n_seen, out, work(p, ith))


@inlined
def _score(p, t, seq, first, n, out, queries):
    """Write the scores of token t for n positions from `first` on."""
    size, n_head, page_size = ne(p, 1, 0), ne(p, 1, 1), int_param(p, PAGE_SIZE)
    padded = (n_head + LANES - 1) // LANES * LANES
    weights = queries + 4 * size * padded
    keys, step = weights + 4 * padded, (size + LANES - 1) // LANES * VECTOR
    for h in range(0, padded, LANES):
        given = row_at(p, WEIGHTS, t, 0, 0)
        store_f32x16(weights + 4 * h, load_f32_part(given + 4 * h, n_head - h))
    for h in range(padded):
        q = row_at(p, 1, min(h, n_head - 1), t, 0)
        for i in range(size):
            value = load_f32(q + 4 * i)
            store_f32(queries + 4 * (i * padded + h), value if h < n_head else 0.0)
    n_pages = ne(p, KEYS, 1) // page_size
    for begin in range(0, n, AT_ONCE):
        count = min(AT_ONCE, n - begin)
        for c in range(AT_ONCE):  # the last position stands for those after it
            position = first + begin + min(c, count - 1)
            page = _page_at(p, PAGES, seq, position // page_size)
            if page < 0 or page >= n_pages:
                fail(p, page, n_pages)
                return
            row = data(p, KEYS) + nb(p, KEYS, 1) * (page * page_size + position % page_size)
            call_at(int_param(p, LOAD), (row, 0, 1, 0, size, keys + c * step, row, 0, 0))
        s0, s1, s2, s3 = zero(), zero(), zero(), zero()
        for h in range(0, padded, LANES):
            a0, a1, a2, a3 = zero(), zero(), zero(), zero()
            for i in range(0, 4 * size, 4):
                q = load_f32x16(queries + i * padded + 4 * h)
                a0 = fma(q, splat(load_f32(keys + i)), a0)
                a1 = fma(q, splat(load_f32(keys + step + i)), a1)
                a2 = fma(q, splat(load_f32(keys + 2 * step + i)), a2)
                a3 = fma(q, splat(load_f32(keys + 3 * step + i)), a3)
            w = load_f32x16(weights + 4 * h)
            s0, s1 = fma(vmax(a0, zero()), w, s0), fma(vmax(a1, zero()), w, s1)
            s2, s3 = fma(vmax(a2, zero()), w, s2), fma(vmax(a3, zero()), w, s3)
        to = out + 4 * begin
        _store(to, s0)
        if count > 1:
            _store(to + 4, s1)
        if count > 2:
            _store(to + 8, s2)
        if count > 3:
            _store(to + 12, s3)


@inlined
def _store(to, sums):
    score = hsum(sums)
    store_f32(to, score if score > LOWEST else LOWEST)  # also for NaN


@implements(Op.INDEX_SCORES)
def _index_scores(node: Tensor) -> Sequence[CpuCall]:
    q, k = node.src[:2]
    size, n_head = q.ne[:2]
    padded, step = -(-n_head // LANES) * LANES, -(-size // LANES) * VECTOR
    memory = 4 * (size + 1) * padded + AT_ONCE * step
    page_size, top_k = params_of(node, IndexParams)
    params = (page_size, top_k, ROW_LOADERS[k.type])
    small = node.n_elements * size * n_head < SMALL_WORK
    return [CpuCall(index_scores, params, small, memory)]


@kernel
def page_cells(p, ith, nth):
    """Parameter 0: cells in a page."""
    page_size, n, n_seqs = int_param(p, 0), ne(p, 0, 0), ne(p, 2, 1)
    limit = ne(p, 2, 0) * page_size
    for t in range(first_of(ne(p, 0, 1), ith, nth), first_of(ne(p, 0, 1), ith + 1, nth)):
        seq, positions, out = _of_token(p, 3, t), row_at(p, 1, t, 0, 0), row_at(p, 0, t, 0, 0)
        if seq < 0 or seq >= n_seqs:
            fail(p, seq, n_seqs)
            return
        for i in range(n):
            position = load_i32(positions + 4 * i)
            if position < 0 or position >= limit:
                fail(p, position, limit)
                return
            page = _page_at(p, 2, seq, position // page_size)
            store_i32(out + 4 * i, page * page_size + position % page_size)


@implements(Op.PAGE_CELLS)
def _page_cells(node: Tensor) -> Sequence[CpuCall]:
    params = (params_of(node, PageParams).page_size,)
    return [CpuCall(page_cells, params, node.n_elements < LARGE)]
