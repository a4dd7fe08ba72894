"""Encoders of the CPU kernels: they have the bits of the reference, which are those of `gguf`."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import pytest
from gguf import quants
from gguf.constants import GGMLQuantizationType
from reference_run import each_type

from lamella.graph import GGMLType
from lamella.kernels.cpu.codecs.encode import ENCODERS
from lamella.kernels.reference.arrays import from_f32

QUANTIZED = [t for t in ENCODERS if t.is_quantized]

F32Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


def encode(type: GGMLType, values: F32Array) -> Bytes:
    """Encode a row. Bytes after it must not change."""
    n_bytes = type.row_size(values.size)
    out = np.full(n_bytes + 64, 0xA5, np.uint8)
    kernel, table = ENCODERS[type].params
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(kernel.address)
    function(values.ctypes.data, out.ctypes.data, values.size, table)
    assert (out[n_bytes:] == 0xA5).all(), "encoded too much"
    return out[:n_bytes]


def expected(type: GGMLType, values: F32Array) -> Bytes:
    with np.errstate(all="ignore"):
        rows = from_f32(type, values)
    return np.ascontiguousarray(rows).view(np.uint8).ravel()


def rows() -> dict[str, F32Array]:
    """Blocks, each with one special property."""
    normal = np.random.default_rng(0).standard_normal(64 * 32)
    blocks = {
        "normal": normal,
        "small": normal * 1e-6,
        "large": normal * 1e4,
        "positive": np.abs(normal),
        "zeros": np.zeros(32),
        "minus zero": -np.zeros(32),
        "equal": np.full(32, -3.0),
        "steps": np.arange(-16, 16) / 2,
        "ties": np.concatenate([[127.0], np.arange(31) - 15.5]),
        "two furthest": np.where(np.arange(32) == 5, -4, np.where(np.arange(32) == 9, 4, 0)),
        "too large for float16": normal * 1e8,
    }
    return {name: block.astype(np.float32) for name, block in blocks.items()}


@each_type(QUANTIZED)
@pytest.mark.parametrize("values", rows().values(), ids=list(rows()))
def test_blocks(type: GGMLType, values: F32Array) -> None:
    assert (encode(type, values) == expected(type, values)).all()


@each_type(QUANTIZED)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e-40])
@pytest.mark.parametrize("at", [0, 7, 31])
def test_inf_and_nan(type: GGMLType, bad: float, at: int) -> None:
    values = np.arange(64, dtype=np.float32)
    values[at] = bad
    if abs(bad) < 1:
        values[:32] = bad
    assert (encode(type, values) == expected(type, values)).all()


@each_type((GGMLType.F16, GGMLType.BF16))
@pytest.mark.parametrize("n", [1, 16, 17, 4097])
def test_halves(type: GGMLType, n: int) -> None:
    bits = np.random.default_rng(n).integers(0, 2**32, n, np.uint32)
    # values within float16's range; NaN is tested below
    values = np.clip(np.nan_to_num(bits.view(np.float32)), -65504, 65504)
    values[:10] = [0, -0.0, np.inf, -np.inf, 65519, 65520, 1e-8, 1.00390625, 1.01171875, 3e38][:n]
    assert (encode(type, values) == expected(type, values)).all()


@each_type((GGMLType.F16, GGMLType.BF16))
def test_nan_stays_nan(type: GGMLType) -> None:
    values = np.array([0x7F800001, 0xFFC00000, 0x7FFFFFFF, 0x3F800000] * 5, np.uint32)
    halves = encode(type, values.view(np.float32))
    back = quants.dequantize(halves, GGMLQuantizationType(int(type)))
    assert (np.isnan(back) == ([True, True, True, False] * 5)).all()


def test_integers_are_truncated() -> None:
    values = np.array([0.9, -0.9, 7.5, -7.5, 2**30, np.nan, 1e10, -1e10], np.float32)
    integers = encode(GGMLType.I32, values).view(np.int32)
    assert integers.tolist() == [0, 0, 7, -7, 2**30, 0, 2**31 - 1, -(2**31)]
