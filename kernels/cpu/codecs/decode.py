"""Decoding: rows of any type to float32, with the bits of `gguf.quants`.

A decoder is a small kernel `(src, dst, n, table)`: it decodes n elements at `src` to n floats at
`dst`. Kernels for all types (matrix products, copies) are compiled once and call a decoder by its
address, once for each row. `quants.layouts` describes the packing.

This file has the decoders of floats and of blocks of 32 or 64 values; `decode_k` and `decode_iq`
have those of 256. `rows` imports them all. Then `DECODERS` has every type except F32.
Tested by tests/kernels/test_cpu_decode.py.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ....graph.types import GGMLType
from ...quants import values
from ...quants.layouts import LAYOUTS
from ..compiler.jit import Kernel
from ..simd import types
from ..simd.calls import inlined
from ..simd.ints import (
    f32_of_bits,
    lane_bits,
    load_i8_2x8,
    load_u8_i32x16,
    lookup,
    low_high,
    splat_f16,
    to_f32,
)
from ..simd.memory import (
    load_bf16_part,
    load_bf16x16,
    load_f16_part,
    load_f16x16,
    load_f32,
    load_i8x16,
    load_i32,
    load_u8,
    load_u32,
    store_f32,
    store_f32_part,
    store_f32x16,
)
from ..simd.vectors import LANES, splat

f32: Final = types.float32
CODEC_ARGS: Final = 4  # src, dst, n, table

Function = Callable[..., None]
Table = Callable[[], npt.NDArray[Any]]  # makes a table when it is needed


class Codec(NamedTuple):
    """A kernel that converts a row, and its lookup table. `table` returns the same one always."""

    kernel: Kernel
    table: Table | None

    @property
    def params(self) -> tuple[Kernel, int]:
        """The kernel and the address of its table, as parameters of a call."""
        return self.kernel, 0 if self.table is None else self.table().ctypes.data


DECODERS: Final[dict[GGMLType, Codec]] = {}


def decoder(type: GGMLType, table: Table | None = None) -> Callable[[Function], Function]:
    """Declare `function(block, out, table)` as the decoder of one block of a type."""

    def declare(function: Function) -> Function:
        decode_block = inlined(function)
        block_size, block_bytes = type.block_size, type.type_size

        def decode_row(src, dst, n, table):
            for i in range(n // block_size):
                decode_block(src + block_bytes * i, dst + 4 * block_size * i, table)

        _declare(type, decode_row, table)
        return function

    return declare


def _declare(type: GGMLType, function: Function, table: Table | None = None) -> None:
    function.__name__ = f"decode_{type.name.lower()}"
    DECODERS[type] = Codec(Kernel(function, CODEC_ARGS), table and cache(table))


def floats(numbers: Sequence[float]) -> Table:
    """The table of these numbers as floats."""
    return lambda: np.array(numbers, np.float32)


def offsets(type: GGMLType) -> Any:
    """The offsets of a block's fields in bytes: `offsets(GGMLType.Q4_0).qs` is 2."""
    fields = LAYOUTS[type].fields
    assert fields is not None
    # Numba accepts any named tuple, mypy only literal ones
    kind = namedtuple(type.name, fields)  # type: ignore[misc]
    return kind(*(field[1] for field in fields.values()))


# --- not quantized ---


def _decode_f16(src, dst, n, table):
    whole = n - n % LANES
    for i in range(0, whole, LANES):
        store_f32x16(dst + 4 * i, load_f16x16(src + 2 * i))
    if whole < n:
        store_f32_part(dst + 4 * whole, load_f16_part(src + 2 * whole, n - whole), n - whole)


def _decode_bf16(src, dst, n, table):
    whole = n - n % LANES
    for i in range(0, whole, LANES):
        store_f32x16(dst + 4 * i, load_bf16x16(src + 2 * i))
    if whole < n:
        store_f32_part(dst + 4 * whole, load_bf16_part(src + 2 * whole, n - whole), n - whole)


def _decode_i32(src, dst, n, table):
    for i in range(n):
        store_f32(dst + 4 * i, f32(load_i32(src + 4 * i)))


_declare(GGMLType.F16, _decode_f16)
_declare(GGMLType.BF16, _decode_bf16)
_declare(GGMLType.I32, _decode_i32)


# --- blocks of 32 ---

Q4_0: Final = offsets(GGMLType.Q4_0)
Q4_1: Final = offsets(GGMLType.Q4_1)
Q5_0: Final = offsets(GGMLType.Q5_0)
Q5_1: Final = offsets(GGMLType.Q5_1)
Q8_0: Final = offsets(GGMLType.Q8_0)
IQ4_NL: Final = offsets(GGMLType.IQ4_NL)
MXFP4: Final = offsets(GGMLType.MXFP4)
NVFP4: Final = offsets(GGMLType.NVFP4)


@decoder(GGMLType.Q4_0)
def _q4_0(block, out, table):
    d = splat_f16(block + Q4_0.d)
    q = load_u8_i32x16(block + Q4_0.qs)
    store_f32x16(out, to_f32((q & 15) - 8) * d)
    store_f32x16(out + 64, to_f32((q >> 4) - 8) * d)


@decoder(GGMLType.Q4_1)
def _q4_1(block, out, table):
    d, m = splat_f16(block + Q4_1.d), splat_f16(block + Q4_1.m)
    q = load_u8_i32x16(block + Q4_1.qs)
    store_f32x16(out, to_f32(q & 15) * d + m)
    store_f32x16(out + 64, to_f32(q >> 4) * d + m)


@decoder(GGMLType.Q5_0)
def _q5_0(block, out, table):
    d = splat_f16(block + Q5_0.d)
    q, high = load_u8_i32x16(block + Q5_0.qs), load_u32(block + Q5_0.qh)
    store_f32x16(out, to_f32((q & 15 | lane_bits(high) << 4) - 16) * d)
    store_f32x16(out + 64, to_f32((q >> 4 | lane_bits(high >> 16) << 4) - 16) * d)


@decoder(GGMLType.Q5_1)
def _q5_1(block, out, table):
    d, m = splat_f16(block + Q5_1.d), splat_f16(block + Q5_1.m)
    q, high = load_u8_i32x16(block + Q5_1.qs), load_u32(block + Q5_1.qh)
    store_f32x16(out, to_f32(q & 15 | lane_bits(high) << 4) * d + m)
    store_f32x16(out + 64, to_f32(q >> 4 | lane_bits(high >> 16) << 4) * d + m)


@decoder(GGMLType.Q8_0)
def _q8_0(block, out, table):
    d = splat_f16(block + Q8_0.d)
    store_f32x16(out, load_i8x16(block + Q8_0.qs) * d)
    store_f32x16(out + 64, load_i8x16(block + Q8_0.qs + 16) * d)


@decoder(GGMLType.IQ4_NL, floats(values.IQ4_NL))
def _iq4_nl(block, out, table):
    d = splat_f16(block + IQ4_NL.d)
    q = load_u8_i32x16(block + IQ4_NL.qs)
    store_f32x16(out, lookup(table, q & 15) * d)
    store_f32x16(out + 64, lookup(table, q >> 4) * d)


@decoder(GGMLType.MXFP4, floats(values.E2M1))
def _mxfp4(block, out, table):
    e = load_u8(block + MXFP4.e)
    # half of 2 ** (e - 127); subnormal for e < 2
    d = splat(f32_of_bits(0x00200000 << e if e < 2 else (e - 1) << 23))
    q = load_u8_i32x16(block + MXFP4.qs)
    store_f32x16(out, lookup(table, q & 15) * d)
    store_f32x16(out + 64, lookup(table, q >> 4) * d)


def _nvfp4_table() -> npt.NDArray[np.float32]:
    """The 16 values, then the 256 scales."""
    return np.concatenate([np.array(values.E2M1, np.float32), values.ue4m3()])


@decoder(GGMLType.NVFP4, _nvfp4_table)
def _nvfp4(block, out, table):
    for i in range(4):
        d = splat(load_f32(table + 64 + 4 * load_u8(block + NVFP4.d + i)))
        qs = block + NVFP4.qs + 8 * i
        q = load_i8_2x8(qs, qs)
        low, high = lookup(table, q & 15), lookup(table, q >> 4 & 15)
        store_f32x16(out + 64 * i, low_high(low, high) * d)
