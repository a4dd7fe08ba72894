"""Products of pairs of BF16: as the instruction's definition, for all kinds of numbers."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from bf16_twin import dot2, halves_of
from emulated_isa import with_definitions
from llvmlite import binding
from numba import cfunc, types

from lamella.kernels.cpu.simd.bf16_dots import HAS_DOTS, emit_dot2, load_bf16_pairs
from lamella.kernels.cpu.simd.memory import load_f32x16, store_f32x16
from lamella.kernels.cpu.simd.vectors import f32x16, vector_function

F32Array = npt.NDArray[np.float32]

N = 4000
NAME = "llvm.x86.avx512bf16.dpbf16ps.512"
_add = vector_function(f32x16, (f32x16,) * 3, emit_dot2)


def floats_of(halves: npt.NDArray[np.uint16]) -> F32Array:
    return (halves.astype(np.uint32) << 16).view(np.float32)


def random_bits(seed: int, *shape: int) -> F32Array:
    """Floats of any bits: all exponents, infinite, NaN, subnormal."""
    bits = np.random.default_rng(seed).integers(0, 2**32, shape, np.uint32)
    return bits.view(np.float32)


def near_one(seed: int, *shape: int) -> F32Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def assert_equal_bits(found: F32Array, expected: F32Array) -> None:
    """NaN may have any bits."""
    assert (np.isnan(found) == np.isnan(expected)).all()
    number = ~np.isnan(found)
    assert number.mean() > 0.5
    assert (found.view(np.uint32) == expected.view(np.uint32))[number].all()


numbers = pytest.mark.parametrize("make", [near_one, random_bits])


@numbers
@pytest.mark.skipif(not HAS_DOTS, reason="this processor has no AVX512-BF16")
def test_dots_are_the_twin_s(make: Any) -> None:
    def run(n, s, a, b):  # type: ignore[no-untyped-def]
        for i in range(n):
            at = s + 64 * i
            dot = _add(load_f32x16(at), load_bf16_pairs(a + 64 * i), load_f32x16(b + 64 * i))
            store_f32x16(at, dot)

    sums, x, y = make(0, N, 16), halves_of(make(1, N, 16, 2)), halves_of(make(2, N, 16, 2))
    found, rows = sums.copy(), x.swapaxes(1, 2).copy()
    function = cfunc(types.void(*[types.int64] * 4), error_model="numpy")(run)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(function.address)
    call(N, *(int(a.ctypes.data) for a in (found, rows, y)))
    assert_equal_bits(found, dot2(sums, floats_of(x), floats_of(y)))


@numbers
def test_emulated_dots_are_the_twin_s(make: Any) -> None:
    pairs = "<32 x bfloat>"
    module = with_definitions(
        f"declare <16 x float> @{NAME}(<16 x float>, {pairs}, {pairs})\n"
        "define void @run(ptr %s, ptr %x, ptr %y) {\n"
        f"%a = load <16 x float>, ptr %s, align 4\n"
        f"%b = load {pairs}, ptr %x, align 4\n%c = load {pairs}, ptr %y, align 4\n"
        f"%r = call <16 x float> @{NAME}(<16 x float> %a, {pairs} %b, {pairs} %c)\n"
        "store <16 x float> %r, ptr %s, align 4\nret void\n}\n"
    )
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten()
    )
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(engine.get_function_address("run"))
    sums, x, y = make(0, N, 16), halves_of(make(1, N, 16, 2)), halves_of(make(2, N, 16, 2))
    found = sums.copy()
    for i in range(N):
        run(*(int(a.ctypes.data) + 64 * i for a in (found, x, y)))
    assert_equal_bits(found, dot2(sums, floats_of(x), floats_of(y)))
