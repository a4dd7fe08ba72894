"""Kernels over arrays: compiled and as plain Python."""

from __future__ import annotations

import numpy as np
import pytest

from lamella.base.settings import NO_JIT
from lamella.kernels.cpu.compiler.jit import KERNELS
from lamella.kernels.cpu.vocab.access import (
    VOCAB_KERNELS,
    ArrayKernel,
    get_f32,
    get_f64,
    get_i32,
    get_i64,
    get_u8,
    get_u16,
    put_f32,
    put_f64,
    put_i32,
    put_i64,
    put_u8,
    shared,
)


@shared
def twice(x):  # type: ignore[no-untyped-def]
    return 2 * x


def test_double_all(n, u8, u16, i32, i64, f32, f64):  # type: ignore[no-untyped-def]
    for i in range(n):
        put_u8(u8, i, twice(get_u8(u8, i)))
        put_i32(i32, i, twice(get_i32(i32, i)) + get_u16(u16, i))
        put_i64(i64, i, twice(get_i64(i64, i)))
        put_f32(f32, i, twice(get_f32(f32, i)))
        put_f64(f64, i, twice(get_f64(f64, i)))


test_double_all.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("no_jit", [0, 1])
def test_a_kernel_reads_and_writes_arrays(no_jit: int) -> None:
    kernel = ArrayKernel(test_double_all)
    types = (np.uint8, np.uint16, np.int32, np.int64, np.float32, np.float64)
    arrays = [np.arange(5).astype(type) for type in types]
    try:
        with NO_JIT.set(no_jit):
            kernel(4, *arrays)
    finally:
        del KERNELS[kernel.name]
    u8, u16, i32, i64, f32, f64 = [array.tolist() for array in arrays]
    assert u8 == i64 == f32 == f64 == [0, 2, 4, 6, 4]
    assert u16 == [0, 1, 2, 3, 4]
    assert i32 == [0, 3, 6, 9, 4]


def test_all_kernels_are_listed() -> None:
    declared = [kernel for kernel in KERNELS.values() if isinstance(kernel, ArrayKernel)]
    assert declared == VOCAB_KERNELS
