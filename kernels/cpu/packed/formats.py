"""The byte layout of 16 packed rows: a format for each type of weights.

A record has a block of each of 16 rows. A group of 16 rows is a list of records; the next group
follows it. A record interleaves the rows' fields by units: 2 bytes of a scale, or 4 bytes of
values. Packing only moves bytes, so a record has the size of its 16 blocks, and packing can be
undone. Missing rows of the last group are zeros.
Tested by tests/kernels/test_cpu_packed_formats.py.
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ....graph.tensor import Tensor
from ....graph.types import GGMLType
from ...quants.layouts import LAYOUTS
from ..simd.bf16_dots import HAS_DOTS
from .tiles import ROWS, Kind

# sizes of units; BITS is a unit of 4 bytes in which bit 4 * j + b becomes bit j of byte b
HALF: Final = 2
BYTE: Final = 1
WORD: Final = 4
BITS: Final = 5


RUN_BYTES: Final = 16  # bytes of a row that are moved at once


class Part(NamedTuple):
    """Bytes of a field that rows interleave: their offset in a block, their number, their unit."""

    name: str
    offset: int
    size: int
    unit: int


class Runs(NamedTuple):
    """The blocks of a row: their number, their size in bytes, and their fields in the order of
    packing, each as (offset, bytes, unit)."""

    n_blocks: int
    block_bytes: int
    fields: npt.NDArray[np.int64]

    @property
    def args(self) -> tuple[int, int, int, int]:
        """Arguments of the kernels that move bytes. Valid while this object exists."""
        return self.n_blocks, self.block_bytes, self.fields.ctypes.data, len(self.fields)


@dataclass(frozen=True)
class Format:
    """A packed type: the kind of its scales, and the parts of its fields, in order.

    `kind` is None for floats, which are multiplied without unpacking. `offset`: see `Kind`.
    """

    type: GGMLType
    kind: Kind | None
    offset: int
    largest: int
    parts: tuple[Part, ...]

    @property
    def record_bytes(self) -> int:
        return ROWS * self.type.type_size

    def in_pairs(self, n_values: int) -> bool:
        """True if an instruction multiplies two values of these rows at once."""
        return self.type is GGMLType.BF16 and HAS_DOTS and n_values % 2 == 0

    def bytes_of(self, n_values: int, n_rows: int) -> int:
        """The bytes of `n_rows` packed rows of `n_values` each."""
        return -(-n_rows // ROWS) * ROWS * self.type.row_size(n_values)

    def runs(self, n_values: int) -> Runs:
        """The blocks to move of rows of `n_values`."""
        if self.kind is None and self.type.row_size(n_values) % RUN_BYTES == 0:
            unit = self.parts[0].unit  # blocks of 16 bytes give the same layout
            n_blocks = self.type.row_size(n_values) // RUN_BYTES
            return Runs(n_blocks, RUN_BYTES, np.array([(0, RUN_BYTES, unit)], np.int64))
        fields = [part[1:] for part in self.parts]
        n_blocks = n_values // self.type.block_size
        return Runs(n_blocks, self.type.type_size, np.array(fields, np.int64))

    @cached_property
    def at(self) -> Any:
        """The offsets of the fields' first parts in a record, in bytes, by name."""
        places, here = dict[str, int](), 0
        for part in self.parts:
            places.setdefault(part.name, here)
            here += ROWS * part.size
        # Numba accepts any named tuple, mypy only literal ones
        kind = namedtuple(f"{self.type.name}_record", list(places))  # type: ignore[misc]
        return kind(**places)


def _field(type: GGMLType, name: str) -> tuple[int, int]:
    """The offset of a field in a block, and its size in bytes."""
    if not type.is_quantized:
        return 0, type.type_size
    fields = LAYOUTS[type].fields
    assert fields is not None
    return fields[name][1], fields[name][0].itemsize


def _format(type: GGMLType, kind: Kind | None, offset: int, largest: int, **units: int) -> Format:
    """A format of whole fields, in this order."""
    parts = [Part(name, *_field(type, name), unit) for name, unit in units.items()]
    return Format(type, kind, offset, largest, tuple(parts))


def _in_quarters(form: Format, *words: tuple[str, int]) -> Format:
    """A format with more parts: 16 bytes of a field of words, each as (name, offset in it)."""
    parts = []
    for name, begin in words:
        parts.append(Part(name, _field(form.type, name)[0] + begin, RUN_BYTES, WORD))
    return replace(form, parts=(*form.parts, *parts))


# products of one column read all lines of 64 bytes in this order
_Q6_K: Final = [
    part
    for first in (0, 16, 64, 80)  # in ql; half as much in qh
    for part in (("qh", first // 64 * 32 + first % 64), ("ql", first), ("ql", first + 32))
]
_Q3_K: Final = [("hmask", 0), ("qs", 0), ("hmask", 16), ("qs", 16), ("qs", 32), ("qs", 48)]


FORMATS: Final[dict[GGMLType, Format]] = {
    f.type: f
    for f in (
        _format(GGMLType.Q4_0, Kind.OFFSET, 8, 15, d=HALF, qs=WORD),
        _format(GGMLType.Q5_0, Kind.OFFSET, 16, 31, d=HALF, qh=BITS, qs=WORD),
        _format(GGMLType.Q8_0, Kind.OFFSET, 128, 255, d=HALF, qs=WORD),
        _format(GGMLType.IQ4_NL, Kind.OFFSET, 128, 241, d=HALF, qs=WORD),
        _format(
            GGMLType.IQ4_XS, Kind.OFFSET, 128, 241, d=HALF, scales_h=BYTE, scales_l=BYTE, qs=WORD
        ),
        _format(GGMLType.Q4_1, Kind.MIN, 0, 15, d=HALF, m=HALF, qs=WORD),
        _format(GGMLType.Q5_1, Kind.MIN, 0, 31, d=HALF, m=HALF, qh=BITS, qs=WORD),
        _format(GGMLType.MXFP4, Kind.OFFSET, 12, 24, e=BYTE, qs=WORD),
        _format(GGMLType.NVFP4, Kind.OFFSET_16, 12, 24, d=BYTE, qs=WORD),
        _format(GGMLType.Q4_K, Kind.MIN, 0, 15, d=HALF, dmin=HALF, scales=BYTE, qs=WORD),
        _format(GGMLType.Q5_K, Kind.MIN, 0, 31, d=HALF, dmin=HALF, scales=BYTE, qh=WORD, qs=WORD),
        _in_quarters(_format(GGMLType.Q6_K, Kind.OFFSET_16, 32, 63, d=HALF, scales=BYTE), *_Q6_K),
        _in_quarters(_format(GGMLType.Q3_K, Kind.OFFSET_16, 4, 7, d=HALF, scales=BYTE), *_Q3_K),
        _format(GGMLType.Q2_K, Kind.MIN_16, 0, 3, d=HALF, dmin=HALF, scales=BYTE, qs=WORD),
        _format(
            GGMLType.IQ3_S, Kind.OFFSET, 16, 31, d=HALF, scales=BYTE, qh=BYTE, signs=WORD, qs=WORD
        ),
        _format(GGMLType.IQ3_XXS, Kind.OFFSET, 64, 126, d=HALF, signs=WORD, qs=WORD),
        _format(
            GGMLType.IQ2_S,
            Kind.OFFSET_16,
            43,
            86,
            d=HALF,
            scales=BYTE,
            qh=BYTE,
            signs=WORD,
            qs=WORD,
        ),
        _format(GGMLType.IQ2_XS, Kind.OFFSET_16, 43, 86, d=HALF, scales=BYTE, qs=WORD),
        _format(GGMLType.IQ2_XXS, Kind.OFFSET, 43, 86, d=HALF, qs=WORD),
        _format(GGMLType.IQ1_M, Kind.OFFSET_16, 9, 18, scales=HALF, qh=BYTE, qs=WORD),
        _format(GGMLType.IQ1_S, Kind.MIN, 0, 2, d=HALF, qh=HALF, qs=WORD),
        _format(GGMLType.TQ1_0, Kind.OFFSET, 1, 3, d=HALF, qh=WORD, qs=WORD),
        _format(GGMLType.TQ2_0, Kind.OFFSET, 1, 3, d=HALF, qs=WORD),
        _format(GGMLType.F16, None, 0, 0, values=HALF),
        _format(GGMLType.BF16, None, 0, 0, values=HALF),
        _format(GGMLType.F32, None, 0, 0, values=WORD),
    )
}


def format_of(t: Tensor) -> Format | None:
    """The format of a tensor. None if its type has none, or if it is a view, because the bytes of a
    part are not contiguous."""
    return FORMATS.get(t.type) if t.view_src is None else None


for _f in FORMATS.values():
    _bytes = sorted(i for part in _f.parts for i in range(part.offset, part.offset + part.size))
    assert _bytes == [*range(_f.type.type_size)], f"{_f.type.name}: every byte of a block, once"
