"""metadata: the key-value pairs of a GGUF file, decoded on access.

In memory are the header's bytes and the position of each value. Knows no key of any model. Tested
by tests/model/test_gguf_metadata.py.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, TypeVar, overload

import numpy as np
import numpy.typing as npt

from ...base.errors import ModelFileError
from .cursor import NUMBER_CODES, Cursor, shown
from .strings import Strings
from .value_type import GGUFValueType

T = TypeVar("T")

_FLOATS: Final = (GGUFValueType.FLOAT32, GGUFValueType.FLOAT64)
_INTEGERS: Final = tuple(
    type for type in NUMBER_CODES if type not in (*_FLOATS, GGUFValueType.BOOL)
)
_REQUIRED: Final = object()


class Array:
    """An array of the metadata, decoded on access.

    Iteration yields Python values. For an array of arrays, it yields `Array`s.
    """

    def __init__(self, cursor: Cursor, what: str) -> None:
        """`cursor` is at the array's head. `what` names the array in messages."""
        self.type, self._n = cursor.array_head(what)  # type and number of the elements
        self._cursor = cursor  # stays at the first element
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
        """Return numbers or bools, `[n]`: a read-only view, or a copy if the byte order differs."""
        cursor = self._cursor
        dtype = np.dtype(cursor.byte_order + NUMBER_CODES[self.type])
        stored = np.frombuffer(cursor.data, dtype, self._n, cursor.pos)
        return stored.astype(dtype.newbyteorder("="), copy=False)

    def bytes_strings(self) -> Strings:
        """Return strings as the bytes in the file."""
        assert self.type is GGUFValueType.STRING, f"{self!r} has no strings"
        return self._cursor.strings(self._n)

    def strings(self) -> list[str]:
        """Return decoded strings.

        Raises:
            ModelFileError: a string is not UTF-8; names its index.
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


Scalar = bool | int | float | str
Value = Scalar | Array


class Metadata(Mapping[str, Value]):
    """The metadata of a file: a mapping in the file's order, with typed access.

    A method named after a type returns the value of a key. If the key is missing, it returns
    `default`. It raises ModelFileError if the key is missing without a default, or if the value has
    another type.
    """

    def __init__(self, cursor: Cursor, positions: Mapping[str, int]) -> None:
        """
        Args:
            cursor: a cursor over the header, at any position.
            positions: for each key, the position of its value's type. `Cursor.skip` must have
                checked the values.
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
        """Return the value of a key.

        Raises:
            KeyError: the key is missing.
            ModelFileError: the value is a string that is not UTF-8.
        """
        cursor, what = self._cursor.at(self._positions[key]), _named(key)
        type = cursor.value_type(what)
        if type is GGUFValueType.STRING:
            return cursor.text(what)
        if type is GGUFValueType.ARRAY:
            return Array(cursor, what)
        return cursor.number(type, what)

    def value_type(self, key: builtins.str) -> GGUFValueType:
        """Return the type of a key's value in the file. Raises KeyError if the key is missing."""
        return self._cursor.at(self._positions[key]).value_type(_named(key))

    @overload
    def int(self, key: builtins.str) -> builtins.int: ...
    @overload
    def int(self, key: builtins.str, default: T) -> builtins.int | T: ...
    def int(self, key: builtins.str, default: object = _REQUIRED) -> object:
        """Return an integer of any width, signed or unsigned."""
        return self._scalar(key, _INTEGERS, "an integer", default)

    @overload
    def float(self, key: builtins.str) -> builtins.float: ...
    @overload
    def float(self, key: builtins.str, default: T) -> builtins.float | T: ...
    def float(self, key: builtins.str, default: object = _REQUIRED) -> object:
        """Return a number of type FLOAT32 or FLOAT64; may be infinite or NaN."""
        return self._scalar(key, _FLOATS, "a float", default)

    @overload
    def bool(self, key: builtins.str) -> builtins.bool: ...
    @overload
    def bool(self, key: builtins.str, default: T) -> builtins.bool | T: ...
    def bool(self, key: builtins.str, default: object = _REQUIRED) -> object:
        """Return a bool."""
        return self._scalar(key, (GGUFValueType.BOOL,), "a bool", default)

    @overload
    def str(self, key: builtins.str) -> builtins.str: ...
    @overload
    def str(self, key: builtins.str, default: T) -> builtins.str | T: ...
    def str(self, key: builtins.str, default: object = _REQUIRED) -> object:
        """Return a string. Raises ModelFileError also if it is not UTF-8."""
        return self._scalar(key, (GGUFValueType.STRING,), "a string", default)

    @overload
    def ints(self, key: builtins.str) -> list[builtins.int]: ...
    @overload
    def ints(self, key: builtins.str, default: T) -> list[builtins.int] | T: ...
    def ints(self, key: builtins.str, default: object = _REQUIRED) -> object:
        """Return an array of integers of any width."""
        array = self._array(key, _INTEGERS, "an array of integers", default)
        return array.numbers().tolist() if isinstance(array, Array) else array

    @overload
    def int_array(self, key: builtins.str) -> npt.NDArray[np.integer]: ...
    @overload
    def int_array(self, key: builtins.str, default: T) -> npt.NDArray[np.integer] | T: ...
    def int_array(self, key: builtins.str, default: object = _REQUIRED) -> object:
        """Return an array of integers, `[n]`, of the width in the file."""
        array = self._array(key, _INTEGERS, "an array of integers", default)
        return array.numbers() if isinstance(array, Array) else array

    def bools(self, key: builtins.str) -> list[builtins.bool]:
        """Return an array of bools, or of integers, of which 0 is false."""
        types = (GGUFValueType.BOOL, *_INTEGERS)
        array = self._array(key, types, "an array of bools", _REQUIRED)
        assert isinstance(array, Array), "a required array"
        return [builtins.bool(value) for value in array.numbers()]

    @overload
    def floats(self, key: builtins.str) -> npt.NDArray[np.float32]: ...
    @overload
    def floats(self, key: builtins.str, default: T) -> npt.NDArray[np.float32] | T: ...
    def floats(self, key: builtins.str, default: object = _REQUIRED) -> object:
        """Return an array of floats, `[n]`. Values too large for float32 become infinite."""
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
        """Return an array of strings. Raises ModelFileError also if one is not UTF-8."""
        array = self._array(key, (GGUFValueType.STRING,), "an array of strings", default)
        return array.strings() if isinstance(array, Array) else array

    @overload
    def bytes_strings(self, key: builtins.str) -> Strings: ...
    @overload
    def bytes_strings(self, key: builtins.str, default: T) -> Strings | T: ...
    def bytes_strings(self, key: builtins.str, default: object = _REQUIRED) -> object:
        """Return an array of strings as the bytes in the file, UTF-8 or not."""
        array = self._array(key, (GGUFValueType.STRING,), "an array of strings", default)
        return array.bytes_strings() if isinstance(array, Array) else array

    def _scalar(
        self,
        key: builtins.str,
        types: Collection[GGUFValueType],
        wanted: builtins.str,
        default: object,
    ) -> object:
        if key not in self:
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
        if key not in self:
            return self._default(key, wanted, default)
        value = self[key] if self.value_type(key) is GGUFValueType.ARRAY else None
        if not isinstance(value, Array) or value.type not in types:
            raise self._mistyped(key, wanted)
        return value

    def _default(self, key: builtins.str, wanted: builtins.str, default: object) -> object:
        if default is _REQUIRED:
            raise self._cursor.error(f"{_named(key)} is missing, must be {wanted}")
        return default

    def _mistyped(self, key: builtins.str, wanted: builtins.str) -> ModelFileError:
        value = self[key]
        if isinstance(value, Array):
            found = f"an array of {len(value)} x {value.type.name}"
        else:
            shown_value = shown(value) if isinstance(value, str) else value
            found = f"the {self.value_type(key).name} {shown_value}"
        return self._cursor.error(f"{_named(key)} is {found}, must be {wanted}")


class OverriddenMetadata(Metadata):
    """The metadata of a file with other values of some keys, or with more keys.

    `unread`: the keys that the file does not have and that nothing has read yet.
    """

    def __init__(self, stored: Metadata, values: Mapping[str, Scalar]) -> None:
        """A key of `values` with a dot at its start follows the architecture's name."""
        super().__init__(stored._cursor, stored._positions)
        arch = stored.str("general.architecture", "")
        self._values = {arch + key if key.startswith(".") else key: v for key, v in values.items()}
        self.unread: set[object] = {key for key in self._values if key not in stored}  # new keys

    def __len__(self) -> builtins.int:
        return len(self._positions.keys() | self._values.keys())

    def __iter__(self) -> Iterator[builtins.str]:
        yield from self._positions
        yield from (key for key in self._values if key not in self._positions)

    def __contains__(self, key: object) -> builtins.bool:
        self.unread.discard(key)
        return key in self._values or super().__contains__(key)

    def __getitem__(self, key: builtins.str) -> Value:
        self.unread.discard(key)
        return self._values[key] if key in self._values else super().__getitem__(key)

    def value_type(self, key: builtins.str) -> GGUFValueType:
        value = self._values.get(key)
        return super().value_type(key) if value is None else _SCALAR_TYPES[type(value)]


_SCALAR_TYPES: Final = {
    bool: GGUFValueType.BOOL,
    int: GGUFValueType.INT64,
    float: GGUFValueType.FLOAT64,
    str: GGUFValueType.STRING,
}


def _named(key: str) -> str:
    return f"metadata key {shown(key)}"
