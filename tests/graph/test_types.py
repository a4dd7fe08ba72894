"""The table of tensor types: equal to gguf's; and the size of a row."""

from __future__ import annotations

import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from lamella.graph.types import GGMLType


@pytest.mark.parametrize("ours", GGMLType, ids=lambda t: t.name)
def test_gguf_knows_the_type_by_this_number_and_size(ours: GGMLType) -> None:
    theirs = GGMLQuantizationType[ours.name]
    assert int(theirs) == int(ours)
    assert GGML_QUANT_SIZES[theirs] == (ours.block_size, ours.type_size)


@pytest.mark.parametrize("theirs", GGMLQuantizationType, ids=lambda t: t.name)
def test_lamella_knows_the_type_by_this_number_and_size(theirs: GGMLQuantizationType) -> None:
    ours = GGMLType[theirs.name]
    assert int(ours) == int(theirs)
    assert (ours.block_size, ours.type_size) == GGML_QUANT_SIZES[theirs]


def test_quantized_types_are_those_with_blocks() -> None:
    plain = {t.name for t in GGMLType if not t.is_quantized}
    assert plain == {"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"}


@pytest.mark.parametrize(
    ("type", "n", "size"),
    [
        (GGMLType.F32, 5, 20),
        (GGMLType.BF16, 5, 10),
        (GGMLType.Q4_0, 64, 36),
        (GGMLType.Q8_0, 32, 34),
        (GGMLType.Q6_K, 512, 420),
        (GGMLType.MXFP4, 0, 0),
    ],
)
def test_row_size(type: GGMLType, n: int, size: int) -> None:
    assert type.row_size(n) == size


def test_row_size_requires_whole_blocks() -> None:
    with pytest.raises(AssertionError, match="48 elements are not a multiple of Q4_0 blocks"):
        GGMLType.Q4_0.row_size(48)
