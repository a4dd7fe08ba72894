"""Values looked up in grids, signs and ternary digits: exact, for 16 rows of 32 values."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from llvmlite import ir
from numba import cfunc, types

from lamella.kernels.cpu.simd import bytes as simd_bytes
from lamella.kernels.cpu.simd import grids, ternary
from lamella.kernels.cpu.simd.grids import Layout
from lamella.kernels.cpu.simd.ints import load_i32x16
from lamella.kernels.cpu.simd.vectors import pointer_to, vector_function

Array = npt.NDArray[Any]

ROWS, VALUES = 16, 32
RANDOM = np.random.default_rng(0)


def _emit_store(b: Any, address: Any, words: Any) -> None:
    place = pointer_to(b, address, ir.VectorType(ir.IntType(8), 64))
    for i, v in enumerate(simd_bytes.unpack(b, words)):
        b.store(v, b.gep(place, [ir.IntType(64)(i)]), align=1)


store = vector_function(types.void, (types.int64, simd_bytes.words), _emit_store)


def words_of(function: Callable[..., None], *args: Array) -> Array:
    """Rows of 32 values: the words that a function of addresses stores at its last argument."""
    out = np.zeros((8, ROWS, 4), np.uint8)
    arrays = [np.ascontiguousarray(a) for a in (*args, out)]
    compiled = cfunc(types.void(*[types.int64] * len(arrays)), error_model="numpy")(function)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(arrays))(compiled.address)
    call(*(int(a.ctypes.data) for a in arrays))
    return out.swapaxes(0, 1).reshape(ROWS, VALUES)


def bytes_of_rows(*shape: int) -> Array:
    return RANDOM.integers(0, 256, shape, np.uint8)


def entries(n: int, size: int) -> Array:
    """`n` random entries, of as many levels as a grid may have."""
    levels = RANDOM.choice(256, 16 if size == 4 else 4, replace=False).astype(np.uint8)
    return RANDOM.choice(levels, (n, size))


@pytest.mark.parametrize("entry", [4, 8])
@pytest.mark.parametrize("layout", Layout, ids=lambda layout: layout.name)
def test_grids(layout: Layout, entry: int) -> None:
    n, top = VALUES // entry, 256 if layout is Layout.BYTES else 2048
    values, index = entries(top, entry), RANDOM.integers(0, top, (ROWS, n))
    look_up = grids.grid(lambda: values, layout)
    expected = values[index].reshape(ROWS, VALUES)
    # runs of 4 bytes of a row: [run, row, 4]
    low = (index & 255).astype(np.uint8).reshape(ROWS, -1, 4).swapaxes(0, 1)
    high = (index >> 8).astype(np.uint8).reshape(ROWS, -1, 4).swapaxes(0, 1)
    pairs = index.astype(np.uint16).reshape(ROWS, -1, 2).swapaxes(0, 1)

    def in_place(at, out):  # type: ignore[no-untyped-def]
        store(out, look_up(at))

    def four(low, high, out):  # type: ignore[no-untyped-def]
        store(out, look_up(grids.wide_indices(load_i32x16(low), load_i32x16(high))))

    def eight(low, high, out):  # type: ignore[no-untyped-def]
        first = load_i32x16(low), load_i32x16(high)
        last = load_i32x16(low + 64), load_i32x16(high + 64)
        store(out, look_up(grids.wide_indices_2(first[0], first[1], last[0], last[1])))

    if layout is Layout.WIDE:
        found = words_of(four if n == 4 else eight, low, high)
    else:
        found = words_of(in_place, low if layout is Layout.BYTES else pairs)
    assert (found == expected).all()


def test_pairs_that_are_computed() -> None:
    values, index = entries(512, 8), RANDOM.integers(0, 512, (2, ROWS, 2), np.uint16)
    look_up = grids.grid(lambda: values, Layout.PAIRS)

    def run(at, out):  # type: ignore[no-untyped-def]
        first, last = load_i32x16(at), load_i32x16(at + 64)
        store(out, look_up(grids.in_memory(first & 0x01FF01FF, last & 0x01FF01FF)))

    noise = RANDOM.integers(0, 128, index.shape, np.uint16) << 9
    expected = values[index.swapaxes(0, 1)].reshape(ROWS, VALUES)
    assert (words_of(run, index | noise) == expected).all()


@pytest.mark.parametrize("even", [False, True])
def test_signs(even: bool) -> None:
    values = RANDOM.integers(0, 64, (8, ROWS, 4), np.uint8)
    signs = RANDOM.integers(0, 128 if even else 256, (ROWS, 4), np.uint8)
    shifts = 7 * np.arange(4) if even else 8 * np.arange(4)
    lanes = (signs.astype(np.uint64) << shifts.astype(np.uint64)).sum(-1) | (
        0xA << 28 if even else 0
    )
    signed = grids.signed_grid(64)

    def run(values, lanes, out):  # type: ignore[no-untyped-def]
        v = load_i32x16(lanes)
        store(out, signed(simd_bytes.load_words(values), grids.even_signs(v) if even else v))

    bits = np.unpackbits(signs, axis=-1, bitorder="little").reshape(ROWS, 4, 8)
    if even:
        bits[..., 7] = bits[..., :7].sum(-1) % 2
    rows = values.swapaxes(0, 1).reshape(ROWS, VALUES).astype(int)
    expected = 64 + np.where(bits.reshape(ROWS, VALUES), -rows, rows)
    assert (words_of(run, values, lanes.astype(np.uint32)) == expected).all()


def test_less_bytes() -> None:
    values, less = bytes_of_rows(8, ROWS, 4), bytes_of_rows(ROWS, 4)

    def run(values, less, out):  # type: ignore[no-untyped-def]
        store(out, grids.less_bytes(simd_bytes.load_words(values), load_i32x16(less)))

    expected = values.swapaxes(0, 1).reshape(ROWS, VALUES) - np.repeat(less, 8, axis=-1)
    assert (words_of(run, values, less) == expected).all()


def test_ternary_digits() -> None:
    q, last = np.arange(512, dtype=np.uint16).astype(np.uint8), bytes_of_rows(ROWS, 4)
    fractions = q.reshape(8, ROWS, 4)

    def digit(q: Array, n: int) -> Array:
        digits: Array = (q.astype(int) * 3**n & 255) * 3 >> 8
        return digits

    def all_of(at, out):  # type: ignore[no-untyped-def]
        store(out, ternary.first_digits(ternary.times_3(ternary.load_fractions(at))))

    def twice(at, out):  # type: ignore[no-untyped-def]
        store(out, ternary.first_digits(ternary.load_fractions_twice(at)))

    def at_end(at, last, out):  # type: ignore[no-untyped-def]
        store(out, ternary.first_digits(ternary.load_last_fractions(at, last)))

    rows, half = fractions.swapaxes(0, 1), fractions[:4].swapaxes(0, 1).reshape(ROWS, 16)
    assert (words_of(all_of, fractions) == digit(rows.reshape(ROWS, VALUES), 1)).all()
    pair = np.concatenate([digit(half, 0), digit(half, 1)], axis=-1)
    assert (words_of(twice, fractions) == pair).all()
    end = np.concatenate([digit(half, 4), *(digit(last, n) for n in range(4))], axis=-1)
    assert (words_of(at_end, fractions, last) == end).all()
