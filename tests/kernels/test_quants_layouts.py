"""Block layouts: sizes, byte order, and their documented formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from reference_run import each_type

from lamella.graph import GGMLType
from lamella.kernels.quants import LAYOUTS

F32Array = npt.NDArray[np.float32]


def blocks(type: GGMLType, n: int = 50) -> npt.NDArray[Any]:
    """Random blocks with scales of about 1."""
    raw = np.random.default_rng(0).integers(0, 256, (n, type.type_size), np.uint8)
    result = raw.view(LAYOUTS[type])[:, 0]
    for field in ("d", "m", "dmin"):
        if field in (LAYOUTS[type].names or ()) and LAYOUTS[type][field] == np.float16:
            result[field] = np.linspace(0.5, 2, n)
    return result


def assert_decodes(type: GGMLType, b: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
    """Check that the formula's values equal gguf's, up to rounding."""
    raw = b.view(np.uint8).reshape(len(b), -1)
    wanted = quants.dequantize(raw, GGMLQuantizationType(int(type)))
    np.testing.assert_allclose(values, wanted, rtol=1e-5, atol=1e-6)


def halves(qs: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Low and high 4 bits of the bytes of each run along the last axis."""
    q = qs.astype(np.int64)
    return np.concatenate([q & 15, q >> 4], axis=-1)


def bit_pairs(qs: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """(n, 64) bytes as (n, 16, 16) values of 2 bits."""
    q = qs.reshape(-1, 2, 1, 32).astype(np.int64) >> np.array([0, 2, 4, 6])[:, None]
    values: npt.NDArray[np.int64] = (q & 3).reshape(-1, 16, 16)
    return values


def test_every_quantized_type_has_a_layout() -> None:
    assert set(LAYOUTS) == {t for t in GGMLType if t.is_quantized}


@each_type(LAYOUTS)
def test_sizes_are_those_of_gguf(type: GGMLType) -> None:
    wanted = (type.block_size, LAYOUTS[type].itemsize)
    assert GGML_QUANT_SIZES.get(GGMLQuantizationType(int(type)), wanted) == wanted


@each_type(LAYOUTS)
def test_swapping_twice_gives_the_same(type: GGMLType) -> None:
    b = blocks(type)
    swapped = b.byteswap()
    assert swapped.byteswap().tobytes() == b.tobytes()
    # the other byte order's layout reads the same values
    other = swapped.view(LAYOUTS[type].newbyteorder())
    assert other.astype(LAYOUTS[type]).tobytes() == b.tobytes()


def test_swapping_leaves_bytes_alone() -> None:
    b = np.arange(18, dtype=np.uint8).view(LAYOUTS[GGMLType.Q4_0])
    assert b.byteswap().view(np.uint8).tolist() == [1, 0, *range(2, 18)]
    b = np.arange(66, dtype=np.uint8).view(LAYOUTS[GGMLType.IQ2_XXS])
    assert b.byteswap().view(np.uint8).tolist()[:10] == [1, 0, 2, 3, 4, 5, 9, 8, 7, 6]


@pytest.mark.parametrize("type", [GGMLType.Q4_0, GGMLType.Q5_0], ids=lambda t: t.name)
def test_blocks_with_a_scale(type: GGMLType) -> None:
    b = blocks(type)
    q, zero = halves(b["qs"]), 8
    if type is GGMLType.Q5_0:
        q, zero = q + 16 * (b["qh"][:, None] >> np.arange(32) & 1), 16
    assert_decodes(type, b, b["d"][:, None].astype(np.float32) * (q - zero))


@pytest.mark.parametrize("type", [GGMLType.Q4_1, GGMLType.Q5_1], ids=lambda t: t.name)
def test_blocks_with_a_scale_and_a_minimum(type: GGMLType) -> None:
    b = blocks(type)
    q = halves(b["qs"])
    if type is GGMLType.Q5_1:
        q = q + 16 * (b["qh"][:, None] >> np.arange(32) & 1)
    d, m = (b[name][:, None].astype(np.float32) for name in ("d", "m"))
    assert_decodes(type, b, d * q + m)


def test_q8_0() -> None:
    b = blocks(GGMLType.Q8_0)
    assert_decodes(GGMLType.Q8_0, b, b["d"][:, None].astype(np.float32) * b["qs"])


def test_q2_k() -> None:
    b = blocks(GGMLType.Q2_K)
    d, dmin = (b[name][:, None, None].astype(np.float32) for name in ("d", "dmin"))
    scales = b["scales"][..., None].astype(np.int64)
    y = d * (scales & 15) * bit_pairs(b["qs"]) - dmin * (scales >> 4)
    assert_decodes(GGMLType.Q2_K, b, y.reshape(len(b), 256))


def test_q6_k() -> None:
    b = blocks(GGMLType.Q6_K)
    low = halves(b["ql"].reshape(-1, 2, 64)).reshape(-1, 16, 16)
    q = low + 16 * bit_pairs(b["qh"]) - 32
    y = b["d"][:, None, None].astype(np.float32) * b["scales"][..., None] * q
    assert_decodes(GGMLType.Q6_K, b, y.reshape(len(b), 256))


def test_mxfp4() -> None:
    b = blocks(GGMLType.MXFP4)
    b["e"] = 100 + np.arange(len(b))
    table = np.array(quants.MXFP4.kvalues)
    y = 2.0 ** (b["e"].astype(np.int64) - 128)[:, None] * table[halves(b["qs"])]
    assert_decodes(GGMLType.MXFP4, b, y)
