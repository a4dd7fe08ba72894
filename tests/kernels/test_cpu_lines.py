"""Products of one column with lines of bytes: exact for the largest values, signed or not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from llvmlite import binding
from test_cpu_simd_bytes import LANES, run

from lamella.kernels.cpu.compiler.objects import AHEAD
from lamella.kernels.cpu.simd.ints import to_f32
from lamella.kernels.cpu.simd.lines import (
    LINE,
    SIGNED,
    Line,
    Read,
    Values,
    dots,
    keep,
    pinned,
    scaled_bytes,
    signed_entries,
)
from lamella.kernels.cpu.simd.memory import load_f32x16, store_f32x16

binding.add_symbol(AHEAD, LINE)  # these tests link their kernels by Numba, to which 0 is no symbol

N = 11  # lines: products in 16 bits are added by 8, 4, 2 or 1
WORD = 4 * N  # offset of the column's word


@pytest.mark.parametrize("largest", [3, 7, 15, 24, 31, 63, SIGNED])
@pytest.mark.parametrize("value", [127, -127, 0])  # of a column, or 0 for random ones
def test_sums_are_exact(largest: int, value: int) -> None:
    def unpack(read: Read) -> Iterator[Values]:
        lines = keep(read, [LINE * j for j in range(N)])
        for j in range(N):
            line = lines(LINE * j)
            yield 0, 4 * j, line.signed() if largest == SIGNED else line
            if j < N - 1:  # all but one, of the next values of the column
                yield 1, 4 * (j + 1), line.signed() if largest == SIGNED else line

    two = dots(2, largest, unpack, [WORD, WORD + 4])

    def kernel(lines, column, to):  # type: ignore[no-untyped-def]
        first, second = two(lines, column)
        store_f32x16(to, pinned(to_f32(first)))
        store_f32x16(to + 64, pinned(to_f32(second)))

    random = np.random.default_rng(largest)
    values = (
        random.integers(-128, 128, (N, LINE)) if largest == SIGNED else np.full((N, LINE), largest)
    )
    values[::3] = random.choice([-128, 127] if largest == SIGNED else [0, largest], (4, LINE))
    column = np.zeros(4 * N + 8, np.int8)
    column[: 4 * N] = value or random.integers(-127, 128, 4 * N)
    words = column[WORD:].view(np.int32)
    x = column[: 4 * N].reshape(N, 4).astype(np.int64)
    sums = [x.sum(), x[1:].sum()]
    words[:] = [-128 * int(s) if largest == SIGNED else 1000 + int(s) for s in sums]
    result = np.zeros((2, LANES), np.float32)
    run(kernel, values.astype(np.uint8 if largest < SIGNED else np.int8), column, result)
    products = values.reshape(N, LANES, 4) * x[:, None]
    shifted = values.reshape(N, LANES, 4)[:-1] * x[1:, None]
    start = 0 if largest == SIGNED else words
    expected = np.stack([products.sum((0, 2)), shifted.sum((0, 2))]) + np.reshape(start, (-1, 1))
    assert (result == expected).all()


@pytest.mark.parametrize(("shift", "mask"), [(0, 15), (4, 15), (-3, 16), (2, 3), (7, 1)])
def test_bits_of_lines(shift: int, mask: int) -> None:
    def unpack(read: Read) -> Iterator[Values]:
        yield 0, 0, read(0).bits(shift, mask) | read(LINE).bits(0, 64)

    one = dots(1, 127, unpack)

    def kernel(lines, column, to):  # type: ignore[no-untyped-def]
        store_f32x16(to, to_f32(one(lines, column)[0]))

    lines = np.random.default_rng(0).integers(0, 256, (2, LINE), np.uint8)
    result = np.zeros(LANES, np.float32)
    run(kernel, lines, np.array([1, 0, 0, 0], np.int8), result)
    wide = lines[0, ::4].astype(np.int64)
    moved = wide >> shift if shift >= 0 else wide << -shift
    assert (result == (moved & mask | lines[1, ::4] & 64)).all()


def test_looked_up_entries() -> None:
    table = [*range(-127, 113, 15)]

    def unpack(read: Read) -> Iterator[Values]:
        yield 0, 0, read(0).look_up(0, signed_entries(table))
        yield 0, 4, read(0).look_up(4, signed_entries(table))

    one = dots(1, SIGNED, unpack, [8])

    def kernel(lines, column, to):  # type: ignore[no-untyped-def]
        store_f32x16(to, to_f32(one(lines, column)[0]))

    line = np.random.default_rng(0).integers(0, 256, LINE, np.uint8)
    column = np.array([1, 0, 0, 0, 0, 0, 100, 0, *[0] * 4], np.int8)
    column[8:].view(np.int32)[:] = -128 * 101
    result = np.zeros(LANES, np.float32)
    run(kernel, line, column, result)
    entries = np.array(table)
    expected = entries[line & 15][::4] + 100 * entries[line >> 4][2::4]
    assert (result == expected).all()


def test_bytes_as_scaled_floats() -> None:
    def unpack(read: Read) -> Iterator[Line]:
        yield read(LINE).bits(4, 15).minus(3)
        yield read(0).minus(-1)

    floats = scaled_bytes(2, unpack)

    def kernel(lines, scales, to):  # type: ignore[no-untyped-def]
        result = floats(lines, load_f32x16(scales))
        for i in range(8):
            store_f32x16(to + 64 * i, result[i])

    random = np.random.default_rng(0)
    lines = random.integers(0, 256, (2, LINE), np.uint8)
    scales = random.standard_normal(LANES).astype(np.float32)
    result = np.zeros((8, LANES), np.float32)
    run(kernel, lines, scales, result)
    numbers = np.stack([(lines[1] >> 4) - 3, lines[0] + 1]).view(np.int8)
    assert (result == numbers.reshape(8, LANES).astype(np.float32) * scales).all()
