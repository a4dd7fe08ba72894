"""Tiles of queries with a block of keys and values: products, and weighted sums.

Keys and values are float32, or F16, which is converted as it is loaded. The order of all sums is
the same for one query and for tiles of two and four, and for both types. Knows no positions.
Tested by tests/kernels/test_cpu_attention.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ..simd.calls import inlined
from ..simd.floats import F16_ROWS, F32_ROWS, Rows, add_rows, dots, halves, transposed
from ..simd.memory import load_f32x16, store_f32x16
from ..simd.vectors import LANES
from .attention_layout import SUMS, TILE, VALUES, VECTOR, WEIGHTS


class Tiles(NamedTuple):
    """Functions for one, two or four queries.

    `multiply(query, count, step, at, n, k, k_step, n_vectors, ahead, n_ahead, temp)` writes the
    products with `n` keys to the weights of each query: its floats are at byte `at` of its state,
    the states are `step` bytes apart, and `temp` has space for a tile's products. It reads whole
    groups of up to 16 keys. `add(query, count, step, begin, end, v, v_step, size, ahead, n_ahead)`
    adds the weighted values of positions `begin` to `end` - 1, as `size` bytes of floats. Of F16,
    `n_ahead` rows `ahead` bytes further on are prefetched.
    """

    multiply: Callable[..., Any]
    add: Callable[..., Any]


def _multiplier(rows: Rows) -> Any:
    dots_4x4 = dots(TILE, 4, y_rows=rows)
    dots_2x8 = dots(2, 8, y_rows=rows)
    dots_1x16 = dots(1, LANES, y_rows=rows)

    @inlined
    def multiply_one(query, at, n, k, k_step, n_vectors, ahead, n_ahead):
        for j in range(0, n, LANES):
            next = ahead if j < n_ahead else 0
            s = dots_1x16((query + at, k_step, k + j * k_step, k_step, n_vectors, next))
            store_f32x16(query + WEIGHTS + 4 * j, s)

    @inlined
    def multiply_two(query, step, at, n, k, k_step, n_vectors, ahead, n_ahead):
        size = LANES // 2 * k_step
        for j in range(0, n, LANES):
            keys, to = k + j * k_step, query + WEIGHTS + 4 * j
            next = ahead if j < n_ahead else 0
            low = dots_2x8((query + at, step, keys, k_step, n_vectors, next))
            high = dots_2x8((query + at, step, keys + size, k_step, n_vectors, next))
            s = halves((low, high))
            store_f32x16(to, s[0])
            store_f32x16(to + step, s[1])

    @inlined
    def multiply_tile(query, step, at, n, k, k_step, n_vectors, ahead, n_ahead, temp):
        for j in range(0, n, 4):
            next = ahead if j < n_ahead else 0
            s = dots_4x4((query + at, step, k + j * k_step, k_step, n_vectors, next))
            store_f32x16(temp + TILE * 4 * j, s)
        # the products are in another order there
        for j in range(0, n, LANES):
            s, to = temp + TILE * 4 * j, query + WEIGHTS + 4 * j
            s0, s1 = load_f32x16(s), load_f32x16(s + VECTOR)
            s2, s3 = load_f32x16(s + 2 * VECTOR), load_f32x16(s + 3 * VECTOR)
            ordered = transposed((s0, s1, s2, s3))
            store_f32x16(to, ordered[0])
            store_f32x16(to + step, ordered[1])
            store_f32x16(to + 2 * step, ordered[2])
            store_f32x16(to + 3 * step, ordered[3])

    @inlined
    def multiply(query, count, step, at, n, k, k_step, n_vectors, ahead, n_ahead, temp):
        if count == TILE:
            multiply_tile(query, step, at, n, k, k_step, n_vectors, ahead, n_ahead, temp)
        elif count == 2:
            multiply_two(query, step, at, n, k, k_step, n_vectors, ahead, n_ahead)
        else:
            multiply_one(query, at, n, k, k_step, n_vectors, ahead, n_ahead)

    return multiply


def _adder_of(n: int, rows: Rows) -> Any:
    vector = rows.vector
    add_4, add_1 = add_rows(n, 4, v_rows=rows), add_rows(n, 1, v_rows=rows)
    # rest: vectors after those of fours, if they are added together
    rest = 3 if n == 1 else 2
    add_rest = add_rows(n, rest, v_rows=rows)

    @inlined
    def add(y, w, step, v, v_step, size, n, ahead, n_ahead):
        d = 0
        while d + 4 * VECTOR <= size:
            add_4((y + d, w, step, v, v_step, n, ahead, n_ahead))
            d += 4 * VECTOR
            v += 4 * vector
        if d + rest * VECTOR <= size:
            add_rest((y + d, w, step, v, v_step, n, ahead, n_ahead))
            d += rest * VECTOR
            v += rest * vector
        while d < size:
            add_1((y + d, w, step, v, v_step, n, ahead, n_ahead))
            d += VECTOR
            v += vector

    return add


def _adder(rows: Rows) -> Any:
    add_one, add_two, add_tile = (_adder_of(n, rows) for n in (1, 2, TILE))

    @inlined
    def add(query, count, step, begin, end, v, v_step, size, ahead, n_ahead):
        y, w, n = query + SUMS + VALUES, query + WEIGHTS + 4 * begin, end - begin
        if n <= 0:
            return
        v += begin * v_step
        if count == TILE:
            add_tile(y, w, step, v, v_step, size, n, ahead, n_ahead - begin)
        elif count == 2:
            add_two(y, w, step, v, v_step, size, n, ahead, n_ahead - begin)
        else:
            add_one(y, w, step, v, v_step, size, n, ahead, n_ahead - begin)

    return add


def _tiles(rows: Rows) -> Tiles:
    return Tiles(_multiplier(rows), _adder(rows))


TILES_F32: Final = _tiles(F32_ROWS)
TILES_F16: Final = _tiles(F16_ROWS)
