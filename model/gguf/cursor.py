"""cursor: reads and checks the fields of a GGUF header one after the other.

Every length and count is compared with the bytes left before memory is allocated or a loop starts,
so a broken file cannot cause large allocations. Format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Knows no meaning of keys and tensors.
Tested by tests/model/test_gguf_broken.py and test_gguf_fuzz.py.
"""

from __future__ import annotations

import struct
from mmap import mmap
from typing import Final, Literal

import numpy as np

from ...base.errors import ModelFileError
from .strings import LENGTH_BYTES, Strings, find_strings
from .value_type import GGUFValueType

ByteOrder = Literal["<", ">"]

# format codes of both `struct` and NumPy
NUMBER_CODES: Final = {
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
ARRAY_DEPTH_MAX = 4  # the format has no limit; ggml itself rejects nested arrays

# the minimum size of a value in bytes: an empty string has a length, an empty array has a type and
# a count
MIN_BYTES: Final = {
    **{type: struct.calcsize("=" + code) for type, code in NUMBER_CODES.items()},
    GGUFValueType.STRING: 8,
    GGUFValueType.ARRAY: 12,
}

_CHUNK_BYTES = 1 << 16  # bools checked at a time
_NO_BYTES = np.empty(0, np.uint8)


class MoreBytesError(Exception):
    """The header goes on behind the bytes that are given."""


class Cursor:
    """A position in the header of one file.

    Its methods raise ModelFileError for a broken file. Their `what` names the field in the message.

    Args:
        path: the file, for messages.
        data: the file from its first byte on, so that positions are those in the file. It may be
            a part: then methods raise MoreBytesError if it does not suffice.
        byte_order: byte order of numbers, as in `struct`.
        pos: position of the next byte to read.
        size: size of the file; None: that of `data`.
    """

    def __init__(
        self,
        path: str,
        data: mmap | bytes,
        byte_order: ByteOrder,
        pos: int = 0,
        size: int | None = None,
    ) -> None:
        self.path = path
        self.data = data
        self.size = len(data) if size is None else size
        self.byte_order = byte_order
        self.pos = pos

    def at(self, pos: int) -> Cursor:
        """Return another cursor over the same bytes."""
        return Cursor(self.path, self.data, self.byte_order, pos, self.size)

    def error(self, message: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {message}")

    def take(self, n: int, what: str) -> int:
        """Skip `n` bytes and return the position of the first."""
        begin, left = self.pos, self.size - self.pos
        if n > left:
            raise self.error(
                f"{what} takes {n} bytes at byte {begin}, but only {left} are left: the file is "
                f"truncated by {n - left} bytes or more, or the length is wrong"
            )
        if begin + n > len(self.data):
            raise MoreBytesError
        self.pos = begin + n
        return begin

    def count(self, min_bytes: int, what: str) -> int:
        """Read the number of items that follow. Each takes at least `min_bytes`."""
        n, left = self.uint64(f"the number of {what}"), self.size - self.pos
        if n > left // min_bytes:
            raise self.error(
                f"the header declares {n} {what} at byte {self.pos - 8}, which take at least "
                f"{n * min_bytes} bytes, but only {left} are left: the file is truncated, or the "
                "number is wrong"
            )
        return n

    def uint32(self, what: str) -> int:
        return int(self.number(GGUFValueType.UINT32, what))

    def uint64(self, what: str) -> int:
        return int(self.number(GGUFValueType.UINT64, what))

    def number(self, type: GGUFValueType, what: str) -> bool | int | float:
        """Read a number, or a bool, which must be 0 or 1."""
        begin = self.take(MIN_BYTES[type], what)
        if type is GGUFValueType.BOOL:
            self._check_bools(begin, 1, what)
        value: bool | int | float
        (value,) = struct.unpack_from(self.byte_order + NUMBER_CODES[type], self.data, begin)
        return value

    def string(self, what: str) -> bytes:
        begin = self._skip_string(what)
        return self.data[begin : self.pos]

    def text(self, what: str) -> str:
        begin, raw = self.pos, self.string(what)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.error(f"{what} at byte {begin} is not UTF-8: {shown(raw)}") from None

    def strings(self, n: int) -> Strings:
        """Return the next `n` strings without moving the cursor. `skip` must have checked them."""
        places = find_strings(self.data, self.pos, n, self.byte_order)
        assert places is not None, "skip checked the strings"
        n_bytes = int(places[-1]) - LENGTH_BYTES - self.pos
        data = np.frombuffer(self.data, np.uint8, n_bytes, self.pos) if n else _NO_BYTES
        places -= self.pos
        return Strings(data, places[:-1], places[1:] - LENGTH_BYTES)

    def value_type(self, what: str) -> GGUFValueType:
        """Read the type in front of a value."""
        number = self.uint32(f"the type of {what}")
        try:
            return GGUFValueType(number)
        except ValueError:
            known = ", ".join(f"{t.value} {t.name}" for t in GGUFValueType)
            raise self.error(
                f"{what} has the unknown type {number} at byte {self.pos - 4}; known: {known}"
            ) from None

    def array_head(self, what: str) -> tuple[GGUFValueType, int]:
        """Read the type and the number of an array's elements."""
        type = self.value_type(f"an element of {what}")
        return type, self.count(MIN_BYTES[type], f"elements of {what}")

    def skip(self, type: GGUFValueType, what: str) -> None:
        """Skip a value and check it. Strings are not checked to be UTF-8."""
        if type is GGUFValueType.STRING:
            self._skip_string(what)
        elif type is GGUFValueType.ARRAY:
            self._skip_array(what, depth=1)
        else:
            self.number(type, what)

    def _skip_string(self, what: str) -> int:
        return self.take(self.uint64(f"the length of {what}"), what)

    def _skip_array(self, what: str, depth: int) -> None:
        if depth > ARRAY_DEPTH_MAX:
            raise self.error(
                f"{what} at byte {self.pos} is an array within {depth - 1} arrays, "
                f"at most {ARRAY_DEPTH_MAX - 1} are allowed"
            )
        type, n = self.array_head(what)
        if type is GGUFValueType.STRING:
            self._skip_strings(n, what)
        elif type is GGUFValueType.ARRAY:
            for i in range(n):
                self._skip_array(f"{what}[{i}]", depth + 1)
        else:
            begin = self.take(n * MIN_BYTES[type], what)
            if type is GGUFValueType.BOOL:
                self._check_bools(begin, n, what)

    def _skip_strings(self, n: int, what: str) -> None:
        places = find_strings(self.data, self.pos, n, self.byte_order)
        if places is not None:
            self.pos = int(places[-1]) - LENGTH_BYTES
            return
        if len(self.data) < self.size:
            raise MoreBytesError
        for i in range(n):  # a string ends outside the file; this raises the error for it
            self._skip_string(f"{what}[{i}]")

    def _check_bools(self, begin: int, n: int, what: str) -> None:
        end = begin + n
        for at in range(begin, end, _CHUNK_BYTES):
            raw = self.data[at : min(at + _CHUNK_BYTES, end)]
            wrong = raw.translate(None, b"\0\1")
            if wrong:
                raise self.error(
                    f"{what} holds the bool {wrong[0]} at byte {at + raw.index(wrong[0])}, "
                    "must be 0 or 1"
                )


def shown(text: str | bytes) -> str:
    """Return a name from a file for a message: quoted, and cut to 80 characters."""
    return repr(text) if len(text) <= 80 else f"{text[:80]!r}..."
