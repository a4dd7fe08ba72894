"""The lookup tables of quantized types are those of the `gguf` package."""

from __future__ import annotations

import numpy as np
from gguf import quants

from lamella.kernels.quants import values


def test_tables_are_those_of_gguf() -> None:
    assert tuple(quants.IQ4_NL.kvalues) == values.IQ4_NL
    assert tuple(quants.MXFP4.kvalues) == values.E2M1 == tuple(quants.NVFP4.kvalues)


def test_scales_are_those_of_gguf() -> None:
    theirs = quants.NVFP4.ue4m3_to_fp32(np.arange(256, dtype=np.uint8))
    np.testing.assert_array_equal(values.ue4m3(), theirs.astype(np.float32))
    assert values.signs().size == values.N_SIGNS
