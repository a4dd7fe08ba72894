"""Tensor types: every GGML type, with its block size in elements and in bytes.

The sizes are ggml's (`ggml.c`, type_traits); a test compares them with the `gguf` package's. How a
block is packed is in `kernels.quants`. Tested by tests/graph/test_types.py.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class GGMLType(IntEnum):
    """A tensor type. Its value is its number in a GGUF file.

    `block_size` is the number of elements in a block (1: not quantized), `type_size` its bytes.
    """

    block_size: int
    type_size: int

    def __new__(cls, number: int, block_size: int, type_size: int) -> GGMLType:
        member = int.__new__(cls, number)
        member._value_ = number
        member.block_size = block_size
        member.type_size = type_size
        return member

    F32 = 0, 1, 4
    F16 = 1, 1, 2
    Q4_0 = 2, 32, 18
    Q4_1 = 3, 32, 20
    Q5_0 = 6, 32, 22
    Q5_1 = 7, 32, 24
    Q8_0 = 8, 32, 34
    Q8_1 = 9, 32, 40
    Q2_K = 10, 256, 84
    Q3_K = 11, 256, 110
    Q4_K = 12, 256, 144
    Q5_K = 13, 256, 176
    Q6_K = 14, 256, 210
    Q8_K = 15, 256, 292
    IQ2_XXS = 16, 256, 66
    IQ2_XS = 17, 256, 74
    IQ3_XXS = 18, 256, 98
    IQ1_S = 19, 256, 50
    IQ4_NL = 20, 32, 18
    IQ3_S = 21, 256, 110
    IQ2_S = 22, 256, 82
    IQ4_XS = 23, 256, 136
    I8 = 24, 1, 1
    I16 = 25, 1, 2
    I32 = 26, 1, 4
    I64 = 27, 1, 8
    F64 = 28, 1, 8
    IQ1_M = 29, 256, 56
    BF16 = 30, 1, 2
    TQ1_0 = 34, 256, 54
    TQ2_0 = 35, 256, 66
    MXFP4 = 39, 32, 17
    NVFP4 = 40, 64, 36
    Q1_0 = 41, 128, 18

    @property
    def is_quantized(self) -> bool:
        return self.block_size > 1

    def row_size(self, n: int) -> int:
        """The bytes of a row of `n` elements; `n` must be a multiple of the block size."""
        assert n % self.block_size == 0, f"{n} elements are not a multiple of {self.name} blocks"
        return n // self.block_size * self.type_size


# types of the keys and values of attention; the default first
KV_TYPES: Final = (
    *(GGMLType.F16, GGMLType.BF16, GGMLType.F32, GGMLType.Q8_0),
    *(GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.IQ4_NL, GGMLType.Q5_0, GGMLType.Q5_1),
)
