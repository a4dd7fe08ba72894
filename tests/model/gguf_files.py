"""Builds small GGUF files byte by byte, valid and broken ones.

    data = build({"general.architecture": "llama"}, [Tensor("w", np.zeros((2, 32), np.float32))])

Nothing is checked, so invalid content is written as well. `layout` also returns the position of
every number in the header, for tests that change them. Format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lamella.graph.types import GGMLType
from lamella.model.gguf.value_type import GGUFValueType

ByteOrder = Literal["<", ">"]

MAGIC = b"GGUF"
CODES = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}
ARRAY_TYPES: dict[str, GGMLType] = {
    "float32": GGMLType.F32,
    "float16": GGMLType.F16,
    "float64": GGMLType.F64,
    "int8": GGMLType.I8,
    "int16": GGMLType.I16,
    "int32": GGMLType.I32,
    "int64": GGMLType.I64,
}


@dataclass(frozen=True)
class Typed:
    """A metadata value with its type. The value of an ARRAY is a list.

    `element` is the type of an array's elements (None: that of the first). `n` is the number of
    elements that the file declares (None: the right one).
    """

    type: GGUFValueType
    value: Any
    element: GGUFValueType | None = None
    n: int | None = None


@dataclass(frozen=True)
class Raw:
    """A metadata value as bytes: the number of its type, and the bytes after it."""

    type: int
    data: bytes


@dataclass(frozen=True)
class Tensor:
    """A tensor: an array of a plain type, or bytes with `type` and `ne`.

    None for `type`, `ne` or `n_dims` means the array's own. `n_dims` is the number of dimensions
    that the file declares. `offset` counts from the start of the data; None means after the tensor
    before it.
    """

    name: str | bytes
    data: npt.NDArray[Any] | bytes
    type: GGMLType | int | None = None
    ne: Sequence[int] | None = None
    offset: int | None = None
    n_dims: int | None = None


@dataclass
class Layout:
    """A file's bytes, with (position, size) of each number in its header."""

    byte_order: ByteOrder = "<"
    data: bytearray = field(default_factory=bytearray)
    numbers: list[tuple[int, int]] = field(default_factory=list)

    def number(self, code: str, value: float) -> None:
        raw = struct.pack(self.byte_order + code, value)
        self.numbers.append((len(self.data), len(raw)))
        self.data += raw

    def string(self, text: str | bytes) -> None:
        raw = text.encode() if isinstance(text, str) else text
        self.number("Q", len(raw))
        self.data += raw

    def value(self, value: Any) -> None:
        """Append a metadata value, with its type in front."""
        if isinstance(value, Raw):
            self.number("I", value.type)
            self.data += value.data
        else:
            typed = as_typed(value)
            self.number("I", typed.type)
            self._content(typed)

    def _content(self, typed: Typed) -> None:
        if typed.type is GGUFValueType.STRING:
            self.string(typed.value)
        elif typed.type is GGUFValueType.ARRAY:
            self._array(typed)
        else:
            self.number(CODES[typed.type], typed.value)

    def _array(self, typed: Typed) -> None:
        element = typed.element
        if element is None:
            element = as_typed(typed.value[0]).type if typed.value else GGUFValueType.INT32
        self.number("I", element)
        self.number("Q", len(typed.value) if typed.n is None else typed.n)
        for v in typed.value:
            self._content(v if isinstance(v, Typed) else Typed(element, v))

    def pad(self, alignment: int) -> None:
        self.data += bytes(-len(self.data) % alignment)


def as_typed(value: Any) -> Typed:
    """Return a Python value with the type that a converter would choose."""
    types: dict[type, GGUFValueType] = {
        bool: GGUFValueType.BOOL,
        float: GGUFValueType.FLOAT32,
        str: GGUFValueType.STRING,
        bytes: GGUFValueType.STRING,
        list: GGUFValueType.ARRAY,
    }
    if isinstance(value, Typed):
        return value
    if type(value) is int:
        return Typed(GGUFValueType.UINT32 if value >= 0 else GGUFValueType.INT32, value)
    return Typed(types[type(value)], value)


def layout(
    metadata: Mapping[str, Any] | Iterable[tuple[str | bytes, Any]] = (),
    tensors: Sequence[Tensor] = (),
    *,
    version: int = 3,
    byte_order: ByteOrder = "<",
    alignment: int = 32,
    n_tensors: int | None = None,
    n_pairs: int | None = None,
) -> Layout:
    """Return a GGUF file with the positions of the numbers in its header.

    Args:
        metadata: Python values by key (an int becomes UINT32 or INT32, a float FLOAT32, a list an
            ARRAY), `Typed` or `Raw`. A list of pairs can have a key twice.
        tensors: the tensors in the file's order.
        version: version of the format.
        byte_order: byte order of numbers and arrays, as in `struct`. Data given as bytes is not
            swapped.
        alignment: alignment of tensors; adds `general.alignment` if it is not 32.
        n_tensors: the number of tensors that the file declares, if not the right one.
        n_pairs: the number of metadata keys that the file declares, if not the right one.
    """
    pairs = list(metadata.items() if isinstance(metadata, Mapping) else metadata)
    if alignment != 32:
        pairs.append(("general.alignment", alignment))
    out = Layout(byte_order, bytearray(MAGIC))
    out.number("I", version)
    out.number("Q", len(tensors) if n_tensors is None else n_tensors)
    out.number("Q", len(pairs) if n_pairs is None else n_pairs)
    for key, value in pairs:
        out.string(key)
        out.value(value)
    content = bytearray()
    for tensor in tensors:
        content += bytes(-len(content) % alignment)
        _tensor(out, tensor, len(content))
        content += _data_of(tensor, byte_order)
    if tensors:
        out.pad(alignment)
    out.data += content
    return out


def _tensor(out: Layout, tensor: Tensor, offset: int) -> None:
    ne, type = tensor.ne, tensor.type
    if isinstance(tensor.data, np.ndarray):
        ne = tensor.data.shape[::-1] if ne is None else ne
        type = ARRAY_TYPES[tensor.data.dtype.name] if type is None else type
    assert ne is not None and type is not None, f"tensor {tensor.name!r} needs a type and ne"
    out.string(tensor.name)
    out.number("I", len(ne) if tensor.n_dims is None else tensor.n_dims)
    for n in ne:
        out.number("Q", n)
    out.number("I", type)
    out.number("Q", offset if tensor.offset is None else tensor.offset)


def _data_of(tensor: Tensor, byte_order: ByteOrder) -> bytes:
    if isinstance(tensor.data, bytes):
        return tensor.data
    return tensor.data.astype(tensor.data.dtype.newbyteorder(byte_order)).tobytes()


def build(
    metadata: Mapping[str, Any] | Iterable[tuple[str | bytes, Any]] = (),
    tensors: Sequence[Tensor] = (),
    **options: Any,
) -> bytes:
    """Return a GGUF file; see `layout` for the arguments."""
    return bytes(layout(metadata, tensors, **options).data)


def shard_name(prefix: str, no: int, count: int) -> str:
    """Return the name of a split model's file `no`, counted from 0."""
    return f"{prefix}-{no + 1:05d}-of-{count:05d}.gguf"


def split_layouts(
    metadata: Mapping[str, Any], shards: Sequence[Sequence[Tensor]], **options: Any
) -> list[Layout]:
    """Return a split model with a file for each list of tensors. The first has the metadata."""
    result = []
    for no, tensors in enumerate(shards):
        keys = {
            **(metadata if no == 0 else {}),
            "split.no": Typed(GGUFValueType.UINT16, no),
            "split.count": Typed(GGUFValueType.UINT16, len(shards)),
            "split.tensors.count": Typed(GGUFValueType.INT32, sum(map(len, shards))),
        }
        result.append(layout(keys, tensors, **options))
    return result


def write_split(folder: Path, prefix: str, files: Sequence[bytes | bytearray | Layout]) -> Path:
    """Write the files of a split model. Return the path of the first."""
    for no, file in enumerate(files):
        data = file.data if isinstance(file, Layout) else file
        (folder / shard_name(prefix, no, len(files))).write_bytes(data)
    return folder / shard_name(prefix, 0, len(files))


def blocks(type: GGMLType, ne: Sequence[int], seed: int = 0) -> bytes:
    """Return random bytes of the size of a tensor."""
    rng = np.random.default_rng(seed)
    return rng.bytes(prod(ne) // type.block_size * type.type_size)
