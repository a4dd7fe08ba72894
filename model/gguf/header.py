"""header: reads and checks the header of one GGUF file, which precedes the tensors' data.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; limits that it leaves open are
ggml's (`gguf.cpp`). Knows no split models and no tensor data. Tested by
tests/model/test_gguf_read.py and test_gguf_broken.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from mmap import mmap
from typing import NamedTuple

from ...base.errors import ModelFileError, UnsupportedModelError
from ...graph.types import GGMLType
from .cursor import ByteOrder, Cursor, shown
from .foreign import HEAD_BYTES, describe
from .metadata import Metadata
from .value_type import GGUF_DEFAULT_ALIGNMENT, GGUFValueType

MAGIC = b"GGUF"  # the same in either byte order
VERSIONS = (2, 3)
DIMS_MAX = 4
KEY_BYTES_MAX = 2**16 - 1
NAME_BYTES_MAX = 64  # the format's limit; ggml's is 63
ALIGNMENT_MIN = 8
ALIGNMENT_KEY = "general.alignment"

# minimum bytes of a key-value pair and of a tensor: a key or name of one byte, one dimension
_PAIR_BYTES_MIN = 8 + 1 + 4 + 1
_TENSOR_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8

_TYPES = {t.value: t for t in GGMLType}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor of a file.

    Attributes:
        name: its name.
        type: type of its elements.
        ne: its 1 to 4 dimensions; `ne[0]` is the fastest.
        nbytes: size of its data.
        shard: number of its file, from 0.
        offset: position of its first byte in the file.
    """

    name: str
    type: GGMLType
    ne: tuple[int, ...]
    nbytes: int
    shard: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """The content of a file's header."""

    version: int
    byte_order: ByteOrder
    metadata: Metadata
    tensors: dict[str, TensorInfo]  # in the file's order


def read_header(
    path: str, data: mmap | bytes, shard: int, size: int, *, header_only: bool = False
) -> Header:
    """Return the header of a file. The result does not refer to `data`.

    Args:
        path: the file, for messages.
        data: the file's bytes, or the first ones.
        shard: the file's number in a split model, from 0.
        size: the file's size.
        header_only: the file may end after its header.

    Raises:
        ModelFileError: the file is broken or not a GGUF file.
        UnsupportedModelError: its version or the type of a tensor is unknown.
        MoreBytesError: the header is longer than `data`.
    """
    version, byte_order = _read_version(path, data, size)
    cursor = Cursor(path, data, byte_order, pos=8, size=size)
    n_tensors = cursor.count(_TENSOR_BYTES_MIN, "tensors")
    n_pairs = cursor.count(_PAIR_BYTES_MIN, "metadata keys")
    positions = _read_positions(cursor, n_pairs)
    n_header = cursor.pos
    alignment = _alignment(cursor, Metadata(cursor, positions))
    entries = [_read_tensor(cursor, i, alignment) for i in range(n_tensors)]
    tensors = _place(cursor, entries, alignment, shard)
    if not header_only:
        _check_ends(cursor, tensors)
    copy = Cursor(path, data[:n_header], byte_order)  # copied only after all checks
    return Header(version, byte_order, Metadata(copy, positions), tensors)


def _read_version(path: str, data: mmap | bytes, size: int) -> tuple[int, ByteOrder]:
    head = data[:HEAD_BYTES]
    if head[:4] != MAGIC:
        raise ModelFileError(f"{path}: not a GGUF file: {describe(head, size)}")
    version = Cursor(path, data, "<", pos=4).uint32("the version")
    byte_order: ByteOrder = "<"
    if version & 0xFFFF == 0:  # the header has no other sign of the byte order
        version = Cursor(path, data, ">", pos=4).uint32("the version")
        byte_order = ">"
    if version not in VERSIONS:
        raise UnsupportedModelError(
            f"{path}: GGUF version {version} at byte 4 is not supported; supported: "
            f"{' and '.join(map(str, VERSIONS))}"
        )
    return version, byte_order


def _read_positions(cursor: Cursor, n_pairs: int) -> dict[str, int]:
    """Return, for each key, the position of its value's type."""
    positions: dict[str, int] = {}
    for i in range(n_pairs):
        begin = cursor.pos
        key = _read_name(cursor, f"the name of metadata key {i}", KEY_BYTES_MAX)
        if key in positions:
            raise cursor.error(f"metadata key {shown(key)} at byte {begin} is a duplicate")
        positions[key] = cursor.pos
        what = f"metadata key {shown(key)}"
        cursor.skip(cursor.value_type(what), what)
    return positions


def _read_name(cursor: Cursor, what: str, n_bytes_max: int) -> str:
    begin = cursor.pos
    n_bytes = cursor.at(begin).uint64(f"the length of {what}")
    if not 1 <= n_bytes <= n_bytes_max:
        raise cursor.error(
            f"{what} at byte {begin} has {n_bytes} bytes, must have 1 to {n_bytes_max}"
        )
    return cursor.text(what)


def _alignment(cursor: Cursor, metadata: Metadata) -> int:
    alignment = metadata.int(ALIGNMENT_KEY, GGUF_DEFAULT_ALIGNMENT)
    if ALIGNMENT_KEY in metadata:
        type = metadata.value_type(ALIGNMENT_KEY)
        is_power_of_two = alignment > 0 and alignment & (alignment - 1) == 0
        if type is not GGUFValueType.UINT32 or not is_power_of_two or alignment < ALIGNMENT_MIN:
            raise cursor.error(
                f"metadata key {ALIGNMENT_KEY!r} is the {type.name} {alignment}, must be a UINT32 "
                f"and a power of two of at least {ALIGNMENT_MIN}"
            )
    return alignment


class _Entry(NamedTuple):
    """A tensor's entry in the header. `offset` counts from the start of the data."""

    name: str
    type: GGMLType
    ne: tuple[int, ...]
    nbytes: int
    offset: int


def _read_tensor(cursor: Cursor, i: int, alignment: int) -> _Entry:
    name = _read_name(cursor, f"the name of tensor {i}", NAME_BYTES_MAX)
    what = f"tensor {shown(name)}"
    ne = _read_shape(cursor, what)
    type = _read_type(cursor, what)
    if ne[0] % type.block_size:
        raise cursor.error(
            f"{what} has rows of {ne[0]} elements, type {type.name} needs a multiple of "
            f"{type.block_size}"
        )
    offset = cursor.uint64(f"the offset of {what}")
    if offset % alignment:
        raise cursor.error(
            f"{what} is misaligned: its offset {offset} is not a multiple of {alignment}"
        )
    return _Entry(name, type, ne, type.row_size(ne[0]) * prod(ne[1:]), offset)


def _read_shape(cursor: Cursor, what: str) -> tuple[int, ...]:
    begin = cursor.pos
    n_dims = cursor.uint32(f"the number of dimensions of {what}")
    if not 1 <= n_dims <= DIMS_MAX:
        raise cursor.error(
            f"{what} has {n_dims} dimensions at byte {begin}, must have 1 to {DIMS_MAX}"
        )
    ne = tuple(cursor.uint64(f"dimension {i} of {what}") for i in range(n_dims))
    if 0 in ne or prod(ne) >= 2**63:
        raise cursor.error(
            f"{what} has the dimensions {list(ne)} at byte {begin + 4}: each must be at least 1, "
            "and their product below 2^63"
        )
    return ne


def _read_type(cursor: Cursor, what: str) -> GGMLType:
    number = cursor.uint32(f"the type of {what}")
    if number not in _TYPES:
        known = ", ".join(f"{t.value} {t.name}" for t in GGMLType)
        raise UnsupportedModelError(
            f"{cursor.path}: {what} has the unknown type {number} at byte {cursor.pos - 4}; "
            f"known: {known}"
        )
    return _TYPES[number]


def _place(
    cursor: Cursor, entries: list[_Entry], alignment: int, shard: int
) -> dict[str, TensorInfo]:
    """Return the tensors with their positions in the file. `cursor` is at the header's end."""
    begin = -(-cursor.pos // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, type, ne, nbytes, offset in entries:
        if name in tensors:
            raise cursor.error(f"tensor {shown(name)} is a duplicate")
        tensors[name] = TensorInfo(name, type, ne, nbytes, shard, begin + offset)
    _check_overlaps(cursor, tensors)
    return tensors


def _check_ends(cursor: Cursor, tensors: dict[str, TensorInfo]) -> None:
    cut = [t for t in tensors.values() if t.offset + t.nbytes > cursor.size]
    if cut:
        n_missing = max(t.offset + t.nbytes for t in cut) - cursor.size
        first = cut[0]
        raise cursor.error(
            f"the file is truncated by {n_missing} bytes: it ends at byte {cursor.size}, but "
            f"tensor {shown(first.name)} ({first.type.name} {list(first.ne)}) takes the bytes "
            f"from {first.offset} to {first.offset + first.nbytes} (truncated tensors: {len(cut)} "
            f"of {len(tensors)})"
        )


def _check_overlaps(cursor: Cursor, tensors: dict[str, TensorInfo]) -> None:
    in_place = sorted(tensors.values(), key=lambda t: t.offset)
    for a, b in pairwise(in_place):
        if a.offset + a.nbytes > b.offset:
            raise cursor.error(
                f"tensors {shown(a.name)} and {shown(b.name)} overlap: one takes the bytes from "
                f"{a.offset} to {a.offset + a.nbytes}, the other begins at {b.offset}"
            )
