"""What a schema says about one value, as a logical formula without JSON syntax.

A keyword is a demand on values of certain kinds (other values meet it), or joins sub-schemas.
Negation moves inwards: each demand carries its own opposite. Tested by
tests/model/test_guide_schema.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final

from .numbers import Interval
from .pattern import Pattern
from .strings import Strings


class Kind(StrEnum):
    """The kinds of JSON values. A number is an integer or a fraction."""

    NULL = "null"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    FRACTION = "fraction"
    STRING = "string"
    ARRAY = "array"
    OBJECT = "object"


ALL_KINDS: Final = frozenset(Kind)
NUMBERS: Final = frozenset((Kind.INTEGER, Kind.FRACTION))
STRING: Final = frozenset((Kind.STRING,))
ARRAY: Final = frozenset((Kind.ARRAY,))
OBJECT: Final = frozenset((Kind.OBJECT,))


@dataclass(frozen=True, slots=True)
class Origin:
    """The keyword that a demand comes from, and the path of its sub-schema."""

    path: str
    keyword: str


# Formulas


@dataclass(frozen=True, slots=True)
class Lit:
    """A sub-schema, or its opposite.

    `blame` is the keyword whose exactness the literal only serves: where that cannot be had,
    fewer values are accepted instead of none.
    """

    place: int
    positive: bool = True
    blame: Origin | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class And:
    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Or:
    """Any of the parts. `overlapping`: several may hold at once, and each adds annotations."""

    parts: tuple[Formula, ...]
    overlapping: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Kinds:
    kinds: frozenset[Kind]


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """One of the values, or none of them."""

    values: tuple[Any, ...]
    origin: Origin
    positive: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Atom:
    """A demand on values of some kinds. `opposite` is its negation for these kinds."""

    kinds: frozenset[Kind]
    demand: Demand
    origin: Origin
    opposite: Callable[[], Formula] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """A sub-schema with unevaluatedProperties or unevaluatedItems beside other keywords."""

    place: int
    inner: Formula
    properties: Lit | None
    items: Lit | None
    origin: Origin


Formula = Lit | And | Or | Kinds | Values | Atom | Scope

TRUE: Final = And(())
FALSE: Final = Or(())


# Demands


@dataclass(frozen=True, slots=True)
class Within:
    interval: Interval


@dataclass(frozen=True, slots=True)
class Multiple:
    step: Decimal


@dataclass(frozen=True, slots=True)
class Text:
    strings: Strings


@dataclass(frozen=True, slots=True)
class Items:
    """Sub-schemas of the first items, and of the others (None: any)."""

    first: tuple[Lit, ...]
    rest: Lit | None


@dataclass(frozen=True, slots=True)
class ItemAt:
    index: int
    item: Lit


@dataclass(frozen=True, slots=True)
class Contains:
    """Between `least` and `most` items at or after `start` meet `item`."""

    item: Lit
    least: int
    most: int | None
    start: int = 0


@dataclass(frozen=True, slots=True)
class Unique:
    pass


@dataclass(frozen=True, slots=True)
class Count:
    """The number of items of an array, or of properties of an object."""

    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Keys:
    """Sub-schemas of properties by name, by pattern, and of the others (None: any)."""

    names: Mapping[str, Lit]
    patterns: tuple[tuple[Pattern, Lit], ...]
    rest: Lit | None


@dataclass(frozen=True, slots=True)
class Required:
    name: str


@dataclass(frozen=True, slots=True)
class Absent:
    name: str


@dataclass(frozen=True, slots=True)
class KeyNames:
    """All names of properties meet `key`."""

    key: Lit


@dataclass(frozen=True, slots=True)
class HasKey:
    """Some property has a name in the set and meets `key`, and a value that meets `value`."""

    names: Strings
    key: Lit | None
    value: Lit | None


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A demand that no grammar can meet; `remedy` is what a user can do."""

    reason: str
    remedy: str = ""


Demand = (
    Within
    | Multiple
    | Text
    | Items
    | ItemAt
    | Contains
    | Unique
    | Count
    | Keys
    | Required
    | Absent
    | KeyNames
    | HasKey
    | Unsupported
)


def negate(formula: Formula, blame: Origin | None) -> Formula:
    """The opposite of a formula."""
    if isinstance(formula, Lit):
        return Lit(formula.place, not formula.positive, blame)
    if isinstance(formula, And):
        return Or(tuple(negate(p, blame) for p in formula.parts))
    if isinstance(formula, Or):
        return And(tuple(negate(p, blame) for p in formula.parts))
    if isinstance(formula, Kinds):
        return Kinds(ALL_KINDS - formula.kinds)
    if isinstance(formula, Values):
        return Values(formula.values, formula.origin, not formula.positive)
    if isinstance(formula, Scope):
        arrays = ARRAY if formula.items else frozenset()
        objects = OBJECT if formula.properties else frozenset()
        return Or((negate(formula.inner, blame), _no_opposite(arrays | objects, formula.origin)))
    if formula.opposite is None:
        return _no_opposite(formula.kinds, formula.origin)
    return And((Kinds(formula.kinds), formula.opposite()))


def _no_opposite(kinds: frozenset[Kind], origin: Origin) -> Formula:
    problem = Unsupported("its opposite cannot be enforced")
    return And((Kinds(kinds), Atom(kinds, problem, origin)))


def kind_of(value: Any) -> Kind:
    """The kind of a JSON value."""
    if value is None:
        return Kind.NULL
    if isinstance(value, bool):
        return Kind.BOOLEAN
    if isinstance(value, int):
        return Kind.INTEGER
    if isinstance(value, float):
        return Kind.INTEGER if value.is_integer() else Kind.FRACTION
    if isinstance(value, str):
        return Kind.STRING
    return Kind.ARRAY if isinstance(value, list) else Kind.OBJECT


def canonical(value: Any) -> Any:
    """A hashable form that is equal for equal JSON values."""
    if isinstance(value, bool) or value is None:
        return (str(value),)
    if isinstance(value, list):
        return ("array", *(canonical(v) for v in value))
    if isinstance(value, dict):
        return ("object", frozenset((k, canonical(v)) for k, v in value.items()))
    return value  # 1 and 1.0 are equal; so are their hashes
