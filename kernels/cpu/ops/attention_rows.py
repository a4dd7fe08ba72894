"""Finds keys and values in the paged pool, and reads blocks of positions as floats.

A block of one head's rows is converted to float32 once for all queries that read it. Each type has
a kernel for it. Knows no queries. Tested by tests/kernels/test_cpu_attention.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ....graph.types import GGMLType
from ..compiler.jit import Kernel
from ..params import data, fail, int_param, nb, ne
from ..simd.calls import inlined
from ..simd.floats import prefetch_line
from ..simd.ints import call_at
from ..simd.memory import (
    load_bf16_part,
    load_bf16x16,
    load_f16,
    load_f16_part,
    load_f16x16,
    load_f32_part,
    load_f32x16,
    load_i8_part,
    load_i8x16,
    load_i32,
    load_i64,
    store_f32x16,
    store_i64,
)
from ..simd.vectors import LANES, join, splat
from .attention_layout import (
    K_SIZE,
    LOAD_K,
    PAGE_SIZE,
    PAGES,
    RUN_K,
    RUN_N,
    RUN_SIZE,
    RUN_V,
    VECTOR,
)

LINE: Final = 64  # bytes of a cache line


@inlined
def find_rows(p, seq, first, n, runs):
    """Write the places of K and V for `n` positions of a sequence, from `first` on, to `runs`.

    A run has positions of one page: the addresses of its first rows of K and of V, and the number
    of rows. Return False if a page is missing.
    """
    page_size = int_param(p, PAGE_SIZE)
    n_pages = ne(p, 2, 1) // page_size
    page_at = data(p, PAGES) + nb(p, PAGES, 1) * seq + nb(p, PAGES, 0) * (first // page_size)
    at = first % page_size
    while n > 0:
        page = load_i32(page_at)
        if page < 0 or page >= n_pages:
            fail(p, page, n_pages)
            return False
        cell, count = page * page_size + at, min(n, page_size - at)
        store_i64(runs + RUN_K, data(p, 2) + nb(p, 2, 1) * cell)
        store_i64(runs + RUN_V, data(p, 3) + nb(p, 3, 1) * cell)
        store_i64(runs + RUN_N, count)
        runs += RUN_SIZE
        page_at += nb(p, PAGES, 0)
        n -= count
        at = 0
    return True


@inlined
def load_block(p, source, head, dim, n, runs, to, n_next, next_runs):
    """Convert a head's elements of `n` rows of K or V (source 2 or 3) to floats.

    Prefetch `n_next` rows of the next block.
    """
    step, n_bytes = nb(p, source, 1), int_param(p, K_SIZE + source - 2)
    load, size = int_param(p, LOAD_K + source - 2), (dim + LANES - 1) // LANES * VECTOR
    row_at = RUN_K if source == 2 else RUN_V
    while n > 0:
        row, count = load_i64(runs + row_at), load_i64(runs + RUN_N)
        ahead = load_i64(next_runs + row_at) + head * n_bytes
        n_ahead = max(0, min(n_next, count))
        call_at(load, (row, step, count, head * dim, dim, to, ahead, n_ahead, n_bytes))
        to += count * size
        n -= count
        n_next -= count
        runs += RUN_SIZE
        next_runs += RUN_SIZE


@inlined
def _load_q8_0(row, i, n):
    """At most `n` elements from i on of a row of Q8_0: blocks of a float16 factor and 32 int8."""
    block, at = row + (i >> 5) * 34, i & 31
    first = load_i8_part(block + 2 + at, min(n, 32 - at)) * splat(load_f16(block))
    if at + min(n, LANES) <= 32:
        return first
    # the rest is in the next block; it goes to the lanes after those of the first
    n_first = 32 - at
    second = load_i8x16(block + 36 - n_first) * splat(load_f16(block + 34))
    return join(first, second, n_first)


def _row_loader(type: GGMLType, load: Callable[..., Any], load_16: Callable[..., Any]) -> Kernel:
    """The kernel that reads rows of a type.

    load(row, i, n) returns at most `n` elements from i on. load_16(row, i) returns 16 elements; its
    i is a multiple of 16.
    """

    def load_rows(row, step, n, at, dim, to, ahead, n_ahead, n_bytes):
        """Write `dim` elements from `at` on of each of `n` rows as floats, padded with zeros to
        whole vectors.

        Rows are `step` bytes apart. Prefetches `n_bytes` of each of `n_ahead` rows from `ahead` on,
        one row at a time: more misses than a processor can have in flight would stall it.
        """
        whole = dim // LANES * LANES if at % LANES == 0 else 0
        for j in range(n):
            if j < n_ahead:
                for i in range(ahead, ahead + n_bytes, LINE):
                    prefetch_line(i)
                ahead += step
            for i in range(at, at + whole, LANES):
                store_f32x16(to, load_16(row, i))
                to += VECTOR
            for i in range(at + whole, at + dim, LANES):
                store_f32x16(to, load(row, i, at + dim - i))
                to += VECTOR
            row += step

    load_rows.__name__ = f"load_rows_{type.name.lower()}"
    return Kernel(load_rows, 9)


@inlined
def _load_16_q8_0(row, i):
    block = row + (i >> 5) * 34
    return load_i8x16(block + 2 + (i & 31)) * splat(load_f16(block))


_LOADS: Final = {
    GGMLType.F32: (
        inlined(lambda row, i, n: load_f32_part(row + 4 * i, n)),
        inlined(lambda row, i: load_f32x16(row + 4 * i)),
    ),
    GGMLType.F16: (
        inlined(lambda row, i, n: load_f16_part(row + 2 * i, n)),
        inlined(lambda row, i: load_f16x16(row + 2 * i)),
    ),
    GGMLType.BF16: (
        inlined(lambda row, i, n: load_bf16_part(row + 2 * i, n)),
        inlined(lambda row, i: load_bf16x16(row + 2 * i)),
    ),
    GGMLType.Q8_0: (_load_q8_0, _load_16_q8_0),
}
ROW_LOADERS: Final = {type: _row_loader(type, *loads) for type, loads in _LOADS.items()}
