"""Encoding of IQ4_NL: the bits of ggml, and a small error."""

from __future__ import annotations

import numpy as np
import pytest
from backends import CUDA
from cuda_grid import needs_compiler
from gguf import GGMLQuantizationType, quants
from reference_run import data, leaf, normal

from lamella.graph import GGMLType, ops
from lamella.kernels.quants.iq4_nl import encode_iq4_nl
from lamella.kernels.quants.values import IQ4_NL

# written by ggml's quantize_row_iq4_nl_ref
GOLDEN = {
    "steps": "fa2b809091a1b1b2c2c3d3d4e4e5e5f6f7f7",
    "normal": "d8a6629e579a89396da98b603799995abb99",
    "nan": "0000629e579a89396daf8b603799995abb99",
}


def rows() -> dict[str, np.ndarray]:
    some = normal(32, seed=3).astype(np.float32)
    nan = some.copy()
    nan[7] = np.nan
    return {"steps": np.arange(-16, 16, dtype=np.float32) / 2, "normal": some, "nan": nan}


@pytest.mark.parametrize("name", GOLDEN)
def test_bits_of_ggml(name: str) -> None:
    assert encode_iq4_nl(rows()[name]).tobytes().hex() == GOLDEN[name]


def test_zeros_and_tiny_values_become_zeros() -> None:
    values = np.concatenate([np.zeros(32), np.full(32, 9e-16)]).astype(np.float32)
    assert not encode_iq4_nl(values).any()


def test_the_error_is_small() -> None:
    values = normal(4, 50, 320).astype(np.float32)
    packed = encode_iq4_nl(values)
    assert packed.shape == (4, 50, 180)
    back = quants.dequantize(packed, GGMLQuantizationType.IQ4_NL)
    assert np.mean((back - values) ** 2) < 0.007


@needs_compiler
def test_cuda_encodes_the_same_bits() -> None:
    some = normal(32, seed=3)
    blocks = [
        *rows().values(),
        *(some * scale for scale in (1e-6, 1e4, 1e8)),
        *(np.full(32, x) for x in (0.0, -0.0, 9e-16, -1.1e-15, 3.0, -3.0, np.nan)),
        np.where(np.arange(32) == 5, -4, np.where(np.arange(32) == 9, 4, 0)),
        np.concatenate(
            [[-127.0], (np.array(IQ4_NL)[:-1] + np.array(IQ4_NL)[1:]) / 2, [np.nan] * 16]
        ),
    ]
    values = np.array(blocks, np.float32)
    node = ops.cast(leaf(values), GGMLType.IQ4_NL)
    CUDA.compute(node)
    assert (data(node).view(np.uint8).reshape(-1, 18) == encode_iq4_nl(values)).all()
