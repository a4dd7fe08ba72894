"""Kernels of LoRA adapters (graph/ops/matrix.py): two products with matrices of low rank.

A token's rows are multiplied only with those of its own adapters, each with a sum of one fixed
order. So a token's bits depend on its own row and adapters. Tested by tests/kernels/test_ops.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ....graph.op import Op
from ....graph.tensor import Tensor
from ..codecs.dots import DOT_TILES, TILE, dot
from ..compiler.jit import kernel
from ..params import data, fail, first_of, int_param, nb, ne, row_at
from ..simd.calls import inlined
from ..simd.ints import call_at
from ..simd.memory import (
    load_f32,
    load_f32_part,
    load_f32x16,
    load_i32,
    store_f32,
    store_f32_part,
    store_f32x16,
)
from ..simd.vectors import fma, splat
from ..table import CpuCall, implements
from .matrix import SMALL_WORK

DOTS: Final = 0  # the parameter of lora_a: the address of `dot_tiles`
BLOCK: Final = 64  # elements of a row of y that are summed at once


# --- the first product ---


@kernel
def lora_a(p, ith, nth):
    """Rows [k, rank] times tokens [k, n], with the scales of their parts: [rank, n].

    Threads divide the tokens if they are many, else the rows.
    """
    rank, n = ne(p, 1, 1), ne(p, 2, 1)
    if n >= TILE * nth:
        _products(p, 0, rank, first_of(n, ith, nth), first_of(n, ith + 1, nth))
    else:
        _products(p, first_of(rank, ith, nth), first_of(rank, ith + 1, nth), 0, n)


@inlined
def _products(p, begin, end, t_begin, t_end):
    """The products of rows `begin` to `end`, one part after the other."""
    first = begin
    while first < end:
        part, last = _part(p, first), first + 1
        while last < end and _part(p, last) == part:
            last += 1
        if 0 <= part < ne(p, 3, 0):
            _products_of_part(p, part, first, last - first, t_begin, t_end)
        else:
            fail(p, part, ne(p, 3, 0))
        first = last


@inlined
def _part(p, row):
    return load_i32(data(p, 4) + 4 * row)


@inlined
def _scale(p, part, t):
    return load_f32(data(p, 3) + t * nb(p, 3, 1) + 4 * part)


@inlined
def _products_of_part(p, part, first, n, t, t_end):
    """The products of `n` rows of a part with tokens `t` to `t_end`, four at once if all use it."""
    a, stride, k = row_at(p, 1, first, 0, 0), nb(p, 1, 1), ne(p, 1, 0)
    while t < t_end:
        n_used = 0
        while n_used < TILE and t + n_used < t_end and _scale(p, part, t + n_used) != 0:
            n_used += 1
        x0, z0 = row_at(p, 2, t, 0, 0), row_at(p, 0, t, 0, 0) + 4 * first
        if n_used == TILE:
            x1, z1 = x0 + nb(p, 2, 1), z0 + nb(p, 0, 1)
            x2, z2 = x1 + nb(p, 2, 1), z1 + nb(p, 0, 1)
            x3, z3 = x2 + nb(p, 2, 1), z2 + nb(p, 0, 1)
            call_at(int_param(p, DOTS), (a, stride, n, k, x0, x1, x2, x3, z0, z1, z2, z3))
            for i in range(TILE):
                s = _scale(p, part, t + i)
                for r in range(n):
                    at = z0 + i * nb(p, 0, 1) + 4 * r
                    store_f32(at, s * load_f32(at))
            t += TILE
            continue
        s = _scale(p, part, t)
        for r in range(n):
            store_f32(z0 + 4 * r, s * dot(a + r * stride, x0, k) if s != 0 else s)
        t += 1


# --- the second product ---


@kernel
def lora_b(p, ith, nth):
    """y [m, n] plus rows [m, rank] weighted by z [rank, n]. Threads divide the elements of rows.

    All tokens use a block of the rows while it is in the cache.
    """
    m, n, rank = ne(p, 0, 0), ne(p, 0, 1), ne(p, 3, 0)
    blocks = (m + BLOCK - 1) // BLOCK
    for i in range(first_of(blocks, ith, nth), first_of(blocks, ith + 1, nth)):
        offset, count = 4 * BLOCK * i, min(BLOCK, m - BLOCK * i)
        b, stride = data(p, 2) + offset, nb(p, 2, 1)
        for t in range(n):
            y, out = row_at(p, 1, t, 0, 0) + offset, row_at(p, 0, t, 0, 0) + offset
            z = row_at(p, 3, t, 0, 0)
            if count == BLOCK:
                _add_block(out, y, b, stride, z, rank)
            else:
                _add_part(out, y, b, stride, z, rank, count)


@inlined
def _add_block(out, y, b, stride, z, rank):
    """Add to a whole block."""
    s0, s1 = load_f32x16(y), load_f32x16(y + 64)
    s2, s3 = load_f32x16(y + 128), load_f32x16(y + 192)
    for j in range(rank):
        w = load_f32(z + 4 * j)
        if w != 0:
            v, row = splat(w), b + j * stride
            s0, s1 = fma(v, load_f32x16(row), s0), fma(v, load_f32x16(row + 64), s1)
            s2, s3 = fma(v, load_f32x16(row + 128), s2), fma(v, load_f32x16(row + 192), s3)
    store_f32x16(out, s0)
    store_f32x16(out + 64, s1)
    store_f32x16(out + 128, s2)
    store_f32x16(out + 192, s3)


@inlined
def _add_part(out, y, b, stride, z, rank, count):
    """Add to `count` elements, a vector at a time."""
    for i in range(0, count, 16):
        s, n = load_f32_part(y + 4 * i, count - i), count - i
        for j in range(rank):
            w = load_f32(z + 4 * j)
            if w != 0:
                s = fma(splat(w), load_f32_part(b + j * stride + 4 * i, n), s)
        store_f32_part(out + 4 * i, s, n)


# --- calls ---


@implements(Op.LORA_A)
def _lora_a(node: Tensor) -> Sequence[CpuCall]:
    is_small = node.n_elements * node.src[0].ne[0] < SMALL_WORK
    return [CpuCall(lora_a, (DOT_TILES,), is_small)]


@implements(Op.LORA_B)
def _lora_b(node: Tensor) -> Sequence[CpuCall]:
    return [CpuCall(lora_b, (), node.n_elements * node.src[2].ne[0] < SMALL_WORK)]
