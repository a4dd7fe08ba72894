"""Pieces: the JSON values that a grammar can express, one kind each.

Children of arrays and objects are conjunctions. Knows no grammar text. Tested by
tests/model/test_guide_schema.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .alternatives import Conj
from .formulas import (
    Lit,
    Origin,
)
from .numbers import (
    Numbers,
)
from .strings import Strings


@dataclass(frozen=True, slots=True)
class Listed:
    """Listed values of any kind, each as canonical form and JSON value."""

    values: tuple[Any, ...]
    keys: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Listed) and self.keys == other.keys

    def __hash__(self) -> int:
        return hash(self.keys)


@dataclass(frozen=True, slots=True)
class Counted:
    """Items that meet `item` are counted, from the item `start` on."""

    item: Lit
    least: int
    most: int | None
    start: int


@dataclass(frozen=True, slots=True)
class Array:
    first: tuple[Conj, ...]
    rest: Conj
    least: int
    most: int | None
    counted: tuple[Counted, ...]
    unique: bool
    origin: Origin


@dataclass(frozen=True, slots=True)
class KeyClass:
    """The properties whose names are in a set, and what their values meet."""

    names: Strings
    value: Conj


@dataclass(frozen=True, slots=True)
class Object:
    """Named properties in their order, then free ones.

    Attributes:
        names: name, what its value meets, whether it is required.
        free: the sets of other names, apart from each other.
        last: if not empty, the object has to end in a free property of one of these.
    """

    names: tuple[tuple[str, Conj, bool], ...]
    free: tuple[KeyClass, ...]
    last: tuple[KeyClass, ...]
    least: int
    most: int | None
    origin: Origin


Piece = Listed | Numbers | Strings | Array | Object
