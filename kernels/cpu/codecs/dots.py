"""Dot products of float32 rows: one, or 4 weight rows with 4 columns at once.

Element i of a product is added in lane i mod 16 of accumulator i / 16 mod 4. Then the accumulators
are added in order. So both functions give a product the same bits, alone or with others.
Tested by tests/kernels/test_cpu_matrix.py.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir

from ..compiler.jit import Kernel
from ..simd import types
from ..simd.calls import inlined
from ..simd.ints import call
from ..simd.memory import load_f32_part, load_f32x16, store_f32
from ..simd.vectors import LANES, add, f32x16, fma, hsum, vector_function, zero

TILE: Final = 4  # rows and columns of a tile
N_ACCUMULATORS: Final = 4
CHUNK: Final = LANES * N_ACCUMULATORS


@inlined
def dot(a, b, k):
    """Sum of products of `k` floats."""
    s0, s1, s2, s3 = zero(), zero(), zero(), zero()
    whole = k // CHUNK * CHUNK
    for i in range(0, 4 * whole, 4 * CHUNK):
        s0 = fma(load_f32x16(a + i), load_f32x16(b + i), s0)
        s1 = fma(load_f32x16(a + i + 64), load_f32x16(b + i + 64), s1)
        s2 = fma(load_f32x16(a + i + 128), load_f32x16(b + i + 128), s2)
        s3 = fma(load_f32x16(a + i + 192), load_f32x16(b + i + 192), s3)
    if whole < k:
        a, b, n = a + 4 * whole, b + 4 * whole, k - whole
        s0 = fma(load_f32_part(a, n), load_f32_part(b, n), s0)
        s1 = fma(load_f32_part(a + 64, n - 16), load_f32_part(b + 64, n - 16), s1)
        s2 = fma(load_f32_part(a + 128, n - 32), load_f32_part(b + 128, n - 32), s2)
        s3 = fma(load_f32_part(a + 192, n - 48), load_f32_part(b + 192, n - 48), s3)
    # the sum starts at 0, as in a tile, so -0 becomes 0
    return hsum(add(add(add(add(zero(), s0), s1), s2), s3))


# --- a row of a tile: four vectors ---

_vector: Final = ir.VectorType(ir.FloatType(), LANES)
_four: Final = types.UniTuple(f32x16, TILE)


def _pack(b: Any, vectors: list[Any]) -> Any:
    four = ir.Constant(ir.ArrayType(_vector, TILE), ir.Undefined)
    for i, vector in enumerate(vectors):
        four = b.insert_value(four, vector, i)
    return four


def _emit_fma_4(b: Any, x: Any, y: Any, z: Any) -> Any:
    pairs = [(b.extract_value(y, i), b.extract_value(z, i)) for i in range(TILE)]
    return _pack(b, [call(b, "llvm.fma.v16f32", _vector, x, *pair) for pair in pairs])


def _emit_add_4(b: Any, x: Any, y: Any) -> Any:
    return _pack(b, [b.fadd(b.extract_value(x, i), b.extract_value(y, i)) for i in range(TILE)])


_zero_4 = vector_function(_four, (), lambda b: ir.Constant(ir.ArrayType(_vector, TILE), None))
_add_4 = vector_function(_four, (_four, _four), _emit_add_4)
_fma_4 = vector_function(_four, (f32x16, _four, _four), _emit_fma_4)  # a vector times each of four


@inlined
def _load_4(at, i):
    return (
        load_f32x16(at[0] + i),
        load_f32x16(at[1] + i),
        load_f32x16(at[2] + i),
        load_f32x16(at[3] + i),
    )


@inlined
def _load_4_part(at, i, n):
    return (
        load_f32_part(at[0] + i, n),
        load_f32_part(at[1] + i, n),
        load_f32_part(at[2] + i, n),
        load_f32_part(at[3] + i, n),
    )


@inlined
def _store_sums(at, i, four):
    store_f32(at[0] + i, hsum(four[0]))
    store_f32(at[1] + i, hsum(four[1]))
    store_f32(at[2] + i, hsum(four[2]))
    store_f32(at[3] + i, hsum(four[3]))


def dot_tiles(a, stride, n, k, b0, b1, b2, b3, out0, out1, out2, out3):
    """`dot` of 4 columns with `n` rows at `a`, `stride` bytes apart. Writes 4 rows of results.

    With 4 rows, it computes one accumulator of each product at a time, so that all 16 fit in
    registers.
    """
    b, out = (b0, b1, b2, b3), (out0, out1, out2, out3)
    whole = k // CHUNK * CHUNK
    in_tiles = n // TILE * TILE
    for row in range(0, in_tiles, TILE):
        t0, t1, t2, t3 = _zero_4(), _zero_4(), _zero_4(), _zero_4()
        for j in range(N_ACCUMULATORS):
            s0, s1, s2, s3 = _zero_4(), _zero_4(), _zero_4(), _zero_4()
            for i in range(64 * j, 4 * whole, 4 * CHUNK):
                columns = _load_4(b, i)
                s0 = _fma_4(load_f32x16(a + i), columns, s0)
                s1 = _fma_4(load_f32x16(a + stride + i), columns, s1)
                s2 = _fma_4(load_f32x16(a + 2 * stride + i), columns, s2)
                s3 = _fma_4(load_f32x16(a + 3 * stride + i), columns, s3)
            if whole < k:
                i, rest = 4 * whole + 64 * j, k - whole - LANES * j
                columns = _load_4_part(b, i, rest)
                s0 = _fma_4(load_f32_part(a + i, rest), columns, s0)
                s1 = _fma_4(load_f32_part(a + stride + i, rest), columns, s1)
                s2 = _fma_4(load_f32_part(a + 2 * stride + i, rest), columns, s2)
                s3 = _fma_4(load_f32_part(a + 3 * stride + i, rest), columns, s3)
            t0, t1, t2, t3 = _add_4(t0, s0), _add_4(t1, s1), _add_4(t2, s2), _add_4(t3, s3)
        _store_sums(out, 4 * row, t0)
        _store_sums(out, 4 * row + 4, t1)
        _store_sums(out, 4 * row + 8, t2)
        _store_sums(out, 4 * row + 12, t3)
        a += TILE * stride
    for c in range(TILE):
        for row in range(in_tiles, n):
            at = a + (row - in_tiles) * stride
            store_f32(out[c] + 4 * row, dot(at, b[c], k))


# compiled once and called by all kernels of products, because compiling it takes long
DOT_TILES: Final = Kernel(dot_tiles, 12)
