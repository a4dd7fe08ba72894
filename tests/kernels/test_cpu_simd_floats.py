"""Tiles of float rows: NumPy's bits, for every tile and number of registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numba import cfunc, types

from lamella.kernels.cpu.simd import floats as simd_float
from lamella.kernels.cpu.simd import memory as access
from lamella.kernels.cpu.simd import vectors as arithmetic

LANES = arithmetic.LANES
F32Array = npt.NDArray[np.float32]

ROWS = pytest.mark.parametrize(
    ("type", "rows"), [(np.float32, simd_float.F32_ROWS), (np.float16, simd_float.F16_ROWS)]
)
SUMS = pytest.mark.parametrize("n_sums", [4, 16])  # both sizes, on any machine


def compiled(function: Any, n_args: int) -> Any:
    """A function of int64s."""
    return cfunc(types.void(*[types.int64] * n_args), error_model="numpy")(function).ctypes


def call(function: Any, *args: int | npt.NDArray[Any]) -> None:
    """Call a compiled function. Arrays are passed as addresses."""
    function(*[int(a.ctypes.data) if isinstance(a, np.ndarray) else a for a in args])


def run(function: Any, *args: int | npt.NDArray[Any]) -> None:
    """Compile a function and call it."""
    call(compiled(function, len(args)), *args)


def normal(*shape: int, seed: int = 0) -> F32Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def fma(x: F32Array, y: F32Array, z: F32Array) -> F32Array:
    """Rounded once: a product of floats is exact in float64, the sum of both nearly always."""
    return (x.astype(np.float64) * y + z).astype(np.float32)


def hsums(products: F32Array) -> F32Array:
    """Sums of 16 lanes over the last axis, in the order of `hsum`: halves onto each other."""
    while products.shape[-1] > 1:
        half = products.shape[-1] // 2
        products = products[..., :half] + products[..., half:]
    return products[..., 0]


@SUMS
@ROWS
@pytest.mark.parametrize(("n_x", "n_y"), [(4, 4), (2, 8), (1, 16)])
def test_dots(n_x: int, n_y: int, n_sums: int, type: Any, rows: simd_float.Rows) -> None:
    dots, store = simd_float.dots(n_x, n_y, n_sums, rows), access.store_f32x16

    def kernel(x, x_step, y, y_step, n, to):  # type: ignore[no-untyped-def]
        store(to, dots((x, x_step, y, y_step, n, 64)))

    function = compiled(kernel, 6)
    for n in (1, 2, 3, 5, 8):
        # rows with a gap after each
        x, result = normal(n_x, LANES * n + 3), normal(LANES)
        y = normal(n_y, LANES * n + 16, seed=1).astype(type)
        call(function, x, x.strides[0], y, y.strides[0], n, result)
        sums = np.zeros((n_x, n_y, LANES), np.float32)
        for i in range(0, LANES * n, LANES):
            sums = fma(x[:, None, i : i + LANES], y[None, :, i : i + LANES], sums)
        assert (result == hsums(sums).ravel()).all(), n


@SUMS
@ROWS
@pytest.mark.parametrize(
    ("n_w", "n_v"), [(4, 4), (4, 2), (4, 1), (2, 4), (2, 1), (1, 4), (1, 3), (1, 1)]
)
def test_rows_are_added(n_w: int, n_v: int, n_sums: int, type: Any, rows: simd_float.Rows) -> None:
    add_rows = simd_float.add_rows(n_w, n_v, n_sums, rows)

    def kernel(y, w, step, v, v_step, n):  # type: ignore[no-untyped-def]
        add_rows((y, w, step, v, v_step, n, 64, n - 1))

    function = compiled(kernel, 6)
    for n in (1, 2, 31):
        both = normal(n_w, 200)
        y, w = both[:, : LANES * n_v], both[:, 100 : 100 + n]
        v = normal(n, LANES * n_v + 5, seed=1).astype(type)
        expected = both.copy()
        for j in range(n):
            part = expected[:, : LANES * n_v]
            part[...] = fma(w[:, j : j + 1], v[None, j, : LANES * n_v], part)
        call(function, y, w, both.strides[0], v, v.strides[0], n)
        assert (both == expected).all(), n


def test_groups_of_four_lanes_are_transposed() -> None:
    transposed, load, store = simd_float.transposed, access.load_f32x16, access.store_f32x16

    def kernel(x, to):  # type: ignore[no-untyped-def]
        rows = transposed((load(x), load(x + 64), load(x + 128), load(x + 192)))
        store(to, rows[0])
        store(to + 64, rows[1])
        store(to + 128, rows[2])
        store(to + 192, rows[3])

    x, result = normal(4, 4, 4), normal(4, 4, 4, seed=1)
    run(kernel, x, result)
    assert (result == x.transpose(1, 0, 2)).all()


def test_halves_of_two_vectors() -> None:
    halves, load, store = simd_float.halves, access.load_f32x16, access.store_f32x16

    def kernel(x, to):  # type: ignore[no-untyped-def]
        rows = halves((load(x), load(x + 64)))
        store(to, rows[0])
        store(to + 64, rows[1])

    x, result = normal(2, 2, 8), normal(2, 2, 8, seed=1)
    run(kernel, x, result)
    assert (result == x.transpose(1, 0, 2)).all()


def test_any_address_may_be_prefetched() -> None:
    prefetch = simd_float.prefetch_line

    def kernel(x, n):  # type: ignore[no-untyped-def]
        for i in range(n):
            prefetch(x + i * 4096)

    x = normal(4)
    before = x.copy()
    run(kernel, x, 10)
    run(kernel, 0, 10)
    assert (x == before).all()
