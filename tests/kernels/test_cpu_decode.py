"""Decoders of the CPU kernels: every type, with the bits of `gguf`."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import pytest
from gguf import quants
from gguf.constants import GGMLQuantizationType
from numba import njit
from reference_run import DECODED, each_type

from lamella.graph import GGMLType
from lamella.kernels.cpu.codecs import rows as codecs
from lamella.kernels.cpu.codecs.decode import DECODERS
from lamella.kernels.cpu.simd import ints as simd_int
from lamella.kernels.cpu.simd.memory import store_f32x16

QUANTIZED = [t for t in DECODED if t.is_quantized]
N_BLOCKS = 67

F32Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


def decode(type: GGMLType, raw: Bytes, n: int) -> F32Array:
    """Decode `n` elements. Floats after them must not change."""
    out = np.full(n + 32, 7, np.float32)
    kernel, table = DECODERS[type].params
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(kernel.address)
    function(raw.ctypes.data, out.ctypes.data, n, table)
    assert (out[n:] == 7).all(), "decoded too much"
    return out[:n]


def expected(type: GGMLType, raw: Bytes) -> F32Array:
    with np.errstate(all="ignore"):
        values: F32Array = quants.dequantize(raw, GGMLQuantizationType(int(type)))
    return values.ravel()


def assert_same(actual: F32Array, wanted: F32Array) -> None:
    nan = np.isnan(wanted)
    assert (np.isnan(actual) == nan).all()
    assert (actual.view(np.uint32) == wanted.view(np.uint32))[~nan].all()


def test_every_type_that_gguf_decodes_has_a_decoder() -> None:
    assert set(DECODED) - {GGMLType.F32} == set(DECODERS) - {GGMLType.I32}


@each_type(QUANTIZED)
def test_random_blocks(type: GGMLType) -> None:
    # random bytes include every index, and scales that are inf, NaN or subnormal
    raw = np.random.default_rng(int(type)).integers(0, 256, N_BLOCKS * type.type_size, np.uint8)
    assert_same(decode(type, raw, N_BLOCKS * type.block_size), expected(type, raw))


@each_type(QUANTIZED)
def test_rows_of_one_block(type: GGMLType) -> None:
    raw = np.random.default_rng(1).integers(0, 256, type.type_size, np.uint8)
    assert_same(decode(type, raw, type.block_size), expected(type, raw))


@each_type((GGMLType.F16, GGMLType.BF16))
def test_every_16_bit_float(type: GGMLType) -> None:
    raw = np.arange(2**16, dtype=np.uint16).view(np.uint8)
    assert_same(decode(type, raw, 2**16), expected(type, raw))


@each_type((GGMLType.F16, GGMLType.BF16))
@pytest.mark.parametrize("n", [1, 15, 16, 17, 47])
def test_16_bit_floats_of_any_count(type: GGMLType, n: int) -> None:
    raw = np.random.default_rng(n).standard_normal(n).astype(np.float16).view(np.uint8)
    assert_same(decode(type, raw, n), expected(type, raw))


def test_integers_are_rounded_to_even() -> None:
    raw = np.array([0, -5, 2**24 + 1, 2**24 + 3, -(2**31), 2**31 - 1], np.int32)
    assert (decode(GGMLType.I32, raw.view(np.uint8), 6) == raw.astype(np.float32)).all()


def test_lookup_without_avx_512(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simd_int, "_HAS_PERMUTE", False)
    load, look_up = simd_int.load_u8_i32x16, simd_int.lookup

    @njit
    def squares(table, raw, out):  # type: ignore[no-untyped-def]
        store_f32x16(out, look_up(table, load(raw)))

    table = np.arange(16, dtype=np.float32) ** 2
    out, raw = np.zeros(16, np.float32), np.arange(16, dtype=np.uint8)[::-1].copy()
    squares(table.ctypes.data, raw.ctypes.data, out.ctypes.data)
    assert (out == table[::-1]).all()


def test_rows_in_scratch_memory_use_different_cache_sets() -> None:
    for n in (1, 16, 1000, 1024, 2048, 4096):
        size = codecs.row_bytes(n)
        assert size >= 4 * n and size % 64 == 0 and size % 4096
