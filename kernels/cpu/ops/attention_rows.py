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
    load_f16_part,
    load_f16x16,
    load_f32_part,
    load_f32x16,
    load_i32,
    load_i64,
    store_f32,
    store_f32x16,
    store_i64,
)
from ..simd.vectors import LANES
from .attention_blocks import BLOCK_LOADS
from .attention_layout import (
    HALF,
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
        # the last run prefetches what is left: the next block may have more rows
        n_ahead = min(n_next, load_i64(next_runs + RUN_N) if count == n else count)
        call_at(load, (row, step, count, head * dim, dim, to, ahead, n_ahead, n_bytes))
        to += count * size
        n -= count
        n_next = max(0, n_next - count)
        runs += RUN_SIZE
        next_runs += RUN_SIZE


@inlined
def read_ahead(p, head, first, n, runs):
    """Prefetch a head's elements of rows `first` to `n` - 1 of a run of K and of V."""
    for source in (2, 3):
        n_bytes, step = int_param(p, K_SIZE + source - 2), nb(p, source, 1)
        row = load_i64(runs + (RUN_K if source == 2 else RUN_V)) + head * n_bytes
        for j in range(first, n):
            _prefetch(row + j * step, n_bytes)


@inlined
def _prefetch(at, n_bytes):
    for i in range(at, at + n_bytes, LINE):
        prefetch_line(i)


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
                _prefetch(ahead, n_bytes)
                ahead += step
            for i in range(at, at + whole, LANES):
                store_f32x16(to, load_16(row, i))
                to += VECTOR
            for i in range(at + whole, at + dim, LANES):
                store_f32x16(to, load(row, i, at + dim - i))
                to += VECTOR
            row += step
        for _ in range(n, n_ahead):
            _prefetch(ahead, n_bytes)
            ahead += step

    load_rows.__name__ = f"load_rows_{type.name.lower()}"
    return Kernel(load_rows, 9)


def _block_loader(type: GGMLType) -> Kernel:
    """The kernel that reads rows of a quantized type, with the arguments of `load_rows`."""
    load, value = BLOCK_LOADS[type]
    size, n_bytes_block = type.block_size, type.type_size

    def load_rows(row, step, n, at, dim, to, ahead, n_ahead, n_bytes):
        end = at + dim
        # whole blocks, then whole halves of blocks, then elements
        blocks_end = end // size * size if at % size == 0 else at
        halves_end = max(blocks_end, end // HALF * HALF) if at % HALF == 0 else at
        padded = end + (LANES - dim % LANES) % LANES
        for j in range(n):
            if j < n_ahead:
                _prefetch(ahead, n_bytes)
                ahead += step
            for i in range(at, blocks_end, size):
                low, high = load(row + i // size * n_bytes_block)
                store_f32x16(to, low)
                store_f32x16(to + VECTOR, high)
                to += 2 * VECTOR
            for i in range(blocks_end, halves_end, HALF):
                low, high = load(row + i // size * n_bytes_block)
                store_f32x16(to, low if i % size == 0 else high)
                to += VECTOR
            for i in range(halves_end, end):
                store_f32(to, value(row + i // size * n_bytes_block, i % size))
                to += 4
            for _ in range(end, padded):
                store_f32(to, 0.0)
                to += 4
            row += step
        for _ in range(n, n_ahead):
            _prefetch(ahead, n_bytes)
            ahead += step

    load_rows.__name__ = f"load_rows_{type.name.lower()}"
    return Kernel(load_rows, 9)


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
}
ROW_LOADERS: Final = {
    **{type: _row_loader(type, *loads) for type, loads in _LOADS.items()},
    **{type: _block_loader(type) for type in BLOCK_LOADS},
}
