"""metadata: the key-value pairs of a GGUF file, decoded when they are asked for.

What is kept is the header's bytes and the position of each value in them. Does not know which keys
a model needs. Tested by tests/model/test_gguf_metadata.py.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, TypeVar, overload

import numpy as np
import numpy.typing as npt
from gguf.constants import GGUFValueType

from ...base.errors import ModelFileError
from .cursor import NUMBER_CODES, Cursor, shown

T = TypeVar("T")

_FLOATS: Final = (GGUFValueType.FLOAT32, GGUFValueType.FLOAT64)
_INTEGERS: Final = tuple(
    type for type in NUMBER_CODES if type not in (*_FLOATS, GGUFValueType.BOOL)
)
_REQUIRED: Final = object()


class Array:
    """An array of the metadata: a place in the header until its elements are asked for.

    Iterating gives Python values, of an array of arrays more `Array`s.
    """

    def __init__(self, cursor: Cursor, what: str) -> None:
        """The array whose head `cursor` stands before; `what` names it in messages."""
        self.type, self._n = cursor.array_head(what)  # of the elements
        self._cursor = cursor  # stands before the first of them, and stays there
        self._what = what

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[Value]:
        if self.type is GGUFValueType.STRING:
            yield from self.strings()
        elif self.type is GGUFValueType.ARRAY:
            cursor = self._cursor.at(self._cursor.pos)
            for i in range(self._n):
                what = f"{self._what}[{i}]"
                yield Array(cursor.at(cursor.pos), what)
                cursor.skip(self.type, what)
        else:
            yield from self.numbers().tolist()

    def __repr__(self) -> str:
        return f"<Array of {self._n} x {self.type.name}>"

    def numbers(self) -> npt.NDArray[Any]:
        """Numbers and bools, `[n]`: a read-only view; a copy where the byte order is foreign."""
        cursor = self._cursor
        dtype = np.dtype(cursor.byte_order + NUMBER_CODES[self.type])
        stored = np.frombuffer(cursor.data, dtype, self._n, cursor.pos)
        return stored.astype(dtype.newbyteorder("="), copy=False)

    def bytes_strings(self) -> list[bytes]:
        """Strings, as their bytes stand in the file."""
        assert self.type is GGUFValueType.STRING, f"{self!r} has no strings"
        return self._cursor.strings(self._n)

    def strings(self) -> list[str]:
        """Strings.

        Raises:
            ModelFileError: one is not UTF-8; names its index.
        """
        found: list[str] = []
        try:
            for raw in self.bytes_strings():
                found.append(raw.decode())  # len(found) is the index below
        except UnicodeDecodeError as e:
            raise self._cursor.error(
                f"{self._what}[{len(found)}] is not UTF-8: {shown(e.object)}"
            ) from None
        return found


Value = bool | int | float | str | Array


class Metadata(Mapping[str, Value]):
    """The metadata of a file, in its order; a mapping, and typed access that explains itself.

    The methods named after types return the value of a key. `default` is returned where the key is
    missing, never where it is there with the wrong type. All of them raise ModelFileError: the key
    is missing and there is no default, or its type is another than the one asked for.
    """

    def __init__(self, cursor: Cursor, positions: Mapping[str, int]) -> None:
        """
        Args:
            cursor: over the header; where it stands does not matter.
            positions: by key, where the type of its value stands; `Cursor.skip` went over it.
        """
        self._cursor = cursor
        self._positions = positions

    def __len__(self) -> builtins.int:
        return len(self._positions)

    def __iter__(self) -> Iterator[builtins.str]:
        return iter(self._positions)

    def __contains__(self, key: object) -> builtins.bool:
        return key in self._positions

    def __getitem__(self, key: builtins.str) -> Value:
        """The value of a key.

        Raises:
            KeyError: there is no such key.
            ModelFileError: its value is a string that is not UTF-8.
        """
        cursor, what = self._cursor.at(self._positions[key]), _named(key)
        type = cursor.value_type(what)
        if type is GGUFValueType.STRING:
            return cursor.text(what)
        if type is GGUFValueType.ARRAY:
            return Array(cursor, what)
        return cursor.number(type, what)

    def value_type(self, key: builtins.str) -> GGUFValueType:
        """The type that a key's value has in the file. Raises KeyError: there is no such key."""
        return self._cursor.at(self._positions[key]).value_type(_named(key))

    @overload
    def int(self, key: builtins.str) -> builtins.int: ...
    @overload
    def int(self, key: builtins.str, default: T) -> builtins.int | T: ...
    def int(self, key: builtins.str, default: object = _REQUIRED) -> object:
        """An integer of any width, signed or not."""
        return self._scalar(key, _INTEGERS, "an integer", default)

    @overload
    def float(self, key: builtins.str) -> builtins.float: ...
    @overload
    def float(self, key: builtins.str, default: T) -> builtins.float | T: ...
    def float(self, key: builtins.str, default: object = _REQUIRED) -> object:
        """A number of type FLOAT32 or FLOAT64; may be infinite or not a number."""
        return self._scalar(key, _FLOATS, "a float", default)

    @overload
    def bool(self, key: builtins.str) -> builtins.bool: ...
    @overload
    def bool(self, key: builtins.str, default: T) -> builtins.bool | T: ...
    def bool(self, key: builtins.str, default: object = _REQUIRED) -> object:
        """A bool."""
        return self._scalar(key, (GGUFValueType.BOOL,), "a bool", default)

    @overload
    def str(self, key: builtins.str) -> builtins.str: ...
    @overload
    def str(self, key: builtins.str, default: T) -> builtins.str | T: ...
    def str(self, key: builtins.str, default: object = _REQUIRED) -> object:
        """A string. Raises ModelFileError also where it is not UTF-8."""
        return self._scalar(key, (GGUFValueType.STRING,), "a string", default)

    @overload
    def ints(self, key: builtins.str) -> list[builtins.int]: ...
    @overload
    def ints(self, key: builtins.str, default: T) -> list[builtins.int] | T: ...
    def ints(self, key: builtins.str, default: object = _REQUIRED) -> object:
        """An array of integers of any width."""
        array = self._array(key, _INTEGERS, "an array of integers", default)
        return array.numbers().tolist() if isinstance(array, Array) else array

    @overload
    def floats(self, key: builtins.str) -> npt.NDArray[np.float32]: ...
    @overload
    def floats(self, key: builtins.str, default: T) -> npt.NDArray[np.float32] | T: ...
    def floats(self, key: builtins.str, default: object = _REQUIRED) -> object:
        """An array of floats, `[n]`; what is too large for float32 becomes infinite."""
        array = self._array(key, _FLOATS, "an array of floats", default)
        if not isinstance(array, Array):
            return array
        with np.errstate(over="ignore"):
            return array.numbers().astype(np.float32, copy=False)

    @overload
    def strings(self, key: builtins.str) -> list[builtins.str]: ...
    @overload
    def strings(self, key: builtins.str, default: T) -> list[builtins.str] | T: ...
    def strings(self, key: builtins.str, default: object = _REQUIRED) -> object:
        """An array of strings. Raises ModelFileError also where one is not UTF-8."""
        array = self._array(key, (GGUFValueType.STRING,), "an array of strings", default)
        return array.strings() if isinstance(array, Array) else array

    @overload
    def bytes_strings(self, key: builtins.str) -> list[bytes]: ...
    @overload
    def bytes_strings(self, key: builtins.str, default: T) -> list[bytes] | T: ...
    def bytes_strings(self, key: builtins.str, default: object = _REQUIRED) -> object:
        """An array of strings as they stand in the file, UTF-8 or not."""
        array = self._array(key, (GGUFValueType.STRING,), "an array of strings", default)
        return array.bytes_strings() if isinstance(array, Array) else array

    def _scalar(
        self,
        key: builtins.str,
        types: Collection[GGUFValueType],
        wanted: builtins.str,
        default: object,
    ) -> object:
        if key not in self._positions:
            return self._default(key, wanted, default)
        if self.value_type(key) not in types:
            raise self._mistyped(key, wanted)
        return self[key]

    def _array(
        self,
        key: builtins.str,
        types: Collection[GGUFValueType],
        wanted: builtins.str,
        default: object,
    ) -> object:
        if key not in self._positions:
            return self._default(key, wanted, default)
        value = self[key] if self.value_type(key) is GGUFValueType.ARRAY else None
        if not isinstance(value, Array) or value.type not in types:
            raise self._mistyped(key, wanted)
        return value

    def _default(self, key: builtins.str, wanted: builtins.str, default: object) -> object:
        if default is _REQUIRED:
            raise self._cursor.error(f"{_named(key)} is missing, it must be {wanted}")
        return default

    def _mistyped(self, key: builtins.str, wanted: builtins.str) -> ModelFileError:
        value = self[key]
        if isinstance(value, Array):
            found = f"an array of {len(value)} x {value.type.name}"
        else:
            shown_value = shown(value) if isinstance(value, str) else value
            found = f"the {self.value_type(key).name} {shown_value}"
        return self._cursor.error(f"{_named(key)} is {found}, it must be {wanted}")


def _named(key: str) -> str:
    return f"metadata key {shown(key)}"
