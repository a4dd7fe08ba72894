"""Reads sub-schemas: the formula of each keyword.

Knows all keywords of all drafts; a keyword that asserts something is never ignored, whatever the
draft. The table for users is in table.py. Tested by tests/model/test_guide_schema.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from .document import Document, Draft, RefError
from .formats import ANY_FORMATS, NUMBER_FORMATS, STRING_FORMATS, format_strings
from .formulas import (
    ALL_KINDS,
    ARRAY,
    FALSE,
    NUMBERS,
    OBJECT,
    STRING,
    TRUE,
    Absent,
    And,
    Atom,
    Contains,
    Count,
    Formula,
    HasKey,
    ItemAt,
    Items,
    KeyNames,
    Keys,
    Kind,
    Kinds,
    Lit,
    Multiple,
    Or,
    Origin,
    Required,
    Scope,
    Text,
    Unique,
    Unsupported,
    Values,
    Within,
    canonical,
)
from .limits import COUNT_MAX, DISJOINT_BRANCHES, LENGTH_MAX, Budget
from .numbers import Interval, as_decimal
from .pattern import Pattern, PatternError, parse_pattern
from .strings import Strings

_TYPES: Final = {
    "null": frozenset((Kind.NULL,)),
    "boolean": frozenset((Kind.BOOLEAN,)),
    "integer": frozenset((Kind.INTEGER,)),
    "number": NUMBERS,
    "string": STRING,
    "array": ARRAY,
    "object": OBJECT,
    "any": ALL_KINDS,
}


class KeywordError(Exception):
    """A keyword is malformed or cannot be enforced."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy


class Sub:
    """One sub-schema while it is read: its keywords and its place."""

    def __init__(self, reader: Reader, number: int) -> None:
        place = reader.document[number]
        self.reader = reader
        self.number = number
        self.place = place
        self.schema: dict[str, Any] = place.schema
        self.keyword = ""

    @property
    def origin(self) -> Origin:
        return Origin(self.place.path, self.keyword)

    def lit(self, *keys: str | int) -> Lit:
        """The sub-schema under `keys`."""
        return self.reader.lit(self.reader.document.child(self.number, *keys))

    def made(self, schema: Any) -> Lit:
        """A schema that stands in for the current keyword."""
        path = f"{self.place.path}.{self.keyword}"
        return self.reader.lit(self.reader.document.add(schema, path, self.number))

    def atom(
        self,
        kinds: frozenset[Kind],
        demand: Any,
        opposite: Callable[[], Formula] | None = None,
    ) -> Atom:
        return Atom(kinds, demand, self.origin, opposite)

    def lits(self) -> tuple[Lit, ...]:
        """The sub-schemas of a keyword that has a list of them."""
        found = self.schema[self.keyword]
        if not isinstance(found, list) or not found:
            raise KeywordError("must be a non-empty array of schemas")
        return tuple(self.lit(self.keyword, i) for i in range(len(found)))

    def members(self, keyword: str) -> dict[str, Any]:
        found = self.schema.get(keyword, {})
        if not isinstance(found, dict):
            raise KeywordError("must be an object")
        return found

    def count(self, keyword: str, limit: int) -> int | None:
        """A number of items, characters or properties; None if the keyword is absent."""
        if keyword not in self.schema:
            return None
        value = self.schema[keyword]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise KeywordError(f"must be a whole number of at least 0, not {value!r:.40}")
        if value > limit:
            raise KeywordError(f"{value:.3g} is too large: the limit is {limit}")
        return value

    def number_value(self) -> Decimal:
        value = self.schema[self.keyword]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise KeywordError(f"must be a number, not {value!r:.40}")
        if not math.isfinite(value) or abs(value) > 1e308:
            raise KeywordError("must be a finite number")
        return as_decimal(value)

    def names(self, value: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise KeywordError("must be an array of property names")
        return value


class Reader:
    """The formulas of all places of a document, made on demand.

    Attributes:
        disjoint: whether two sub-schemas surely have no common value; set by the owner.
    """

    def __init__(
        self, document: Document, budget: Budget, ignored: frozenset[Origin] = frozenset()
    ) -> None:
        self.document = document
        self.disjoint: Callable[[Lit, Lit], bool] = lambda a, b: False
        self._budget = budget
        self._ignored = ignored
        self._formulas: dict[int, Formula] = {}
        self._patterns: dict[str, Pattern] = {}

    def lit(self, number: int, positive: bool = True) -> Lit:
        return Lit(number, positive)

    def is_constant(self, lit: Lit) -> bool | None:
        """Whether any value or no value meets the literal; None if that takes more than a look."""
        schema = self.document[lit.place].schema
        if isinstance(schema, bool):
            return schema is lit.positive
        return lit.positive if not schema.keys() & _MEANINGFUL else None

    def formula(self, number: int) -> Formula:
        """What the sub-schema says."""
        found = self._formulas.get(number)
        if found is None:
            self._formulas[number] = TRUE  # a proof that comes back here learns nothing
            found = self._formulas[number] = self._read(number)
        return found

    def pattern(self, source: Any) -> Pattern:
        if not isinstance(source, str):
            raise KeywordError("must be a string")
        if source not in self._patterns:
            self._budget.spend(len(source))
            try:
                self._patterns[source] = parse_pattern(source)
            except PatternError as error:
                raise KeywordError(
                    f"the pattern {source!r:.80} is not supported: {error}"
                ) from None
        return self._patterns[source]

    def _read(self, number: int) -> Formula:
        schema = self.document[number].schema
        self._budget.spend()
        if isinstance(schema, bool):
            return TRUE if schema else FALSE
        sub = Sub(self, number)
        if "$ref" in schema and sub.place.draft <= Draft.D7:
            return self._keyword(sub, "$ref")
        parts = [self._keyword(sub, keyword) for keyword in schema if keyword in _HANDLERS]
        formula: Formula = parts[0] if len(parts) == 1 else And(tuple(parts))
        scoped = [k for k in ("unevaluatedProperties", "unevaluatedItems") if k in schema]
        if scoped:
            sub.keyword = scoped[0]
            lits = [sub.lit(k) if k in schema else None for k in
                    ("unevaluatedProperties", "unevaluatedItems")]  # fmt: skip
            return Scope(number, formula, lits[0], lits[1], sub.origin)
        return formula

    def _keyword(self, sub: Sub, keyword: str) -> Formula:
        self._budget.spend()
        sub.keyword = keyword
        if Origin(sub.place.path, keyword) in self._ignored:
            return TRUE
        try:
            return _HANDLERS[keyword](sub)
        except KeywordError as error:
            sub.keyword = keyword
            kinds = _KINDS.get(keyword, ALL_KINDS)
            return sub.atom(kinds, Unsupported(str(error), error.remedy))


# Types and values


def _type(sub: Sub) -> Formula:
    names = sub.schema["type"]
    kinds: frozenset[Kind] = frozenset()
    for name in names if isinstance(names, list) else [names]:
        if not isinstance(name, str) or name not in _TYPES:
            raise KeywordError(f"{name!r:.40} is no type; types are {', '.join(_TYPES)}")
        kinds |= _TYPES[name]
    return Kinds(kinds)


def _enum(sub: Sub) -> Formula:
    values = sub.schema["enum"]
    if not isinstance(values, list):
        raise KeywordError("must be an array")
    return _values(sub, values)


def _const(sub: Sub) -> Formula:
    return _values(sub, [sub.schema["const"]])


def _values(sub: Sub, values: list[Any]) -> Formula:
    known: dict[Any, Any] = {}
    for value in values:
        sub.reader._budget.spend()
        if isinstance(value, str):
            sub.reader._budget.spend_values(len(value) + 2)
        known.setdefault(canonical(value), value)
    return Values(tuple(known.values()), sub.origin)


# Sub-schemas of the same value


def _all_of(sub: Sub) -> Formula:
    return And(sub.lits())


def _any_of(sub: Sub) -> Formula:
    return Or(sub.lits(), overlapping=True)


def _one_of(sub: Sub) -> Formula:
    lits = sub.lits()
    if len(lits) > DISJOINT_BRANCHES:
        raise KeywordError(f"more than {DISJOINT_BRANCHES} branches", "use anyOf")
    origin = sub.origin
    rivals: dict[int, list[Lit]] = {i: [] for i in range(len(lits))}
    for i, a in enumerate(lits):
        for j in range(i):
            if not sub.reader.disjoint(a, lits[j]):
                rivals[i].append(lits[j])
                rivals[j].append(a)
    return Or(
        tuple(
            And((lit, *(Lit(r.place, not r.positive, origin) for r in rivals[i])))
            for i, lit in enumerate(lits)
        )
    )


def _not(sub: Sub) -> Formula:
    lit = sub.lit("not")
    return Lit(lit.place, False, sub.origin)


def _if(sub: Sub) -> Formula:
    if "then" not in sub.schema and "else" not in sub.schema:
        return TRUE
    test = sub.lit("if")
    then, otherwise = (sub.lit(k) if k in sub.schema else TRUE for k in ("then", "else"))
    return Or((And((test, then)), And((Lit(test.place, False, sub.origin), otherwise))))


def _ref(sub: Sub) -> Formula:
    reference = sub.schema[sub.keyword]
    if not isinstance(reference, str):
        raise KeywordError("must be a string")
    try:
        return sub.reader.lit(sub.reader.document.resolve(sub.number, reference))
    except RefError as error:
        raise KeywordError(str(error)) from None


def _dynamic_ref(sub: Sub) -> Formula:
    name = str(sub.schema["$dynamicRef"]).rpartition("#")[2]
    if sub.reader.document.dynamic_anchors.get(name, 0) > 1:
        raise KeywordError(f"several sub-schemas have the dynamic anchor {name!r:.40}", "use $ref")
    return _ref(sub)


def _recursive_ref(sub: Sub) -> Formula:
    if sub.reader.document.recursive_anchors > 1:
        raise KeywordError("several sub-schemas have $recursiveAnchor", "use $ref")
    return _ref(sub)


def _draft3(sub: Sub) -> Formula:
    remedy = {"divisibleBy": "use multipleOf", "disallow": "use not", "extends": "use allOf"}
    raise KeywordError("a keyword of draft 3 is not supported", remedy[sub.keyword])


# Numbers


def _minimum(sub: Sub) -> Formula:
    is_open = sub.schema.get("exclusiveMinimum") is True
    return _low(sub, sub.number_value(), is_open)


def _maximum(sub: Sub) -> Formula:
    is_open = sub.schema.get("exclusiveMaximum") is True
    return _high(sub, sub.number_value(), is_open)


def _exclusive(sub: Sub) -> Formula:
    value = sub.schema[sub.keyword]
    if isinstance(value, bool):
        if sub.place.draft in (Draft.D6, Draft.D7, Draft.D2019):
            raise KeywordError("must be a number in this draft")
        return TRUE  # draft 4: read with minimum or maximum
    bound = sub.number_value()
    return (_low if sub.keyword == "exclusiveMinimum" else _high)(sub, bound, True)


def _low(sub: Sub, bound: Decimal, is_open: bool) -> Formula:
    inside, outside = (
        Interval(low=bound, low_open=is_open),
        Interval(high=bound, high_open=not is_open),
    )
    other = sub.atom(NUMBERS, Within(outside))
    return sub.atom(NUMBERS, Within(inside), lambda: other)


def _high(sub: Sub, bound: Decimal, is_open: bool) -> Formula:
    inside, outside = (
        Interval(high=bound, high_open=is_open),
        Interval(low=bound, low_open=not is_open),
    )
    other = sub.atom(NUMBERS, Within(outside))
    return sub.atom(NUMBERS, Within(inside), lambda: other)


def _multiple_of(sub: Sub) -> Formula:
    step = sub.number_value()
    if step <= 0:
        raise KeywordError("must be greater than 0")
    return sub.atom(NUMBERS, Multiple(step))


# Strings


def _length(sub: Sub) -> Formula:
    value = sub.count(sub.keyword, LENGTH_MAX)
    assert value is not None
    below, above = (
        sub.atom(STRING, Text(Strings(most=value))),
        sub.atom(STRING, Text(Strings(value))),
    )
    if sub.keyword == "minLength":
        less = sub.atom(STRING, Text(Strings(most=value - 1))) if value else FALSE
        return sub.atom(STRING, above.demand, lambda: less)
    more = sub.atom(STRING, Text(Strings(value + 1)))
    return sub.atom(STRING, below.demand, lambda: more)


def _pattern(sub: Sub) -> Formula:
    pattern = sub.reader.pattern(sub.schema["pattern"])
    avoided = sub.atom(STRING, Text(Strings(avoided=(pattern,))))
    return sub.atom(STRING, Text(Strings(patterns=(pattern,))), lambda: avoided)


def _format(sub: Sub) -> Formula:
    name = sub.schema["format"]
    if not isinstance(name, str):
        raise KeywordError("must be a string")
    if name in ANY_FORMATS:
        return TRUE
    if name in NUMBER_FORMATS:
        return sub.atom(NUMBERS, Within(NUMBER_FORMATS[name]))
    if name not in STRING_FORMATS:
        raise KeywordError(f"the format {name!r:.40} is not supported", "use pattern")
    return sub.atom(STRING, Text(format_strings(name)))


# Arrays


def _items(sub: Sub) -> Formula:
    """All of items, prefixItems and additionalItems; read where the first of them stands."""
    schema = sub.schema
    first_of = [k for k in schema if k in ("items", "prefixItems", "additionalItems")]
    if sub.keyword != first_of[0]:
        return TRUE
    parts: list[Formula] = []
    items = schema.get("items", True)
    prefix: tuple[Lit, ...] = ()
    if "prefixItems" in schema:
        sub.keyword = "prefixItems"
        prefix = sub.lits()
    if isinstance(items, list):
        if prefix:
            raise KeywordError("cannot stand beside an array of items")
        sub.keyword = "items"
        first = tuple(sub.lit("items", i) for i in range(len(items)))
        rest = sub.lit("additionalItems") if "additionalItems" in schema else None
        parts.append(_items_atom(sub, first, rest))
    elif "items" in schema or prefix:
        rest = sub.lit("items") if "items" in schema else None
        if prefix and rest is not None and sub.place.draft < Draft.D2020:
            sub.keyword = "prefixItems"
            parts.append(_items_atom(sub, prefix, None))
            prefix = ()
        sub.keyword = "items" if rest is not None else "prefixItems"
        parts.append(_items_atom(sub, prefix, rest))
    return And(tuple(parts))


def _items_atom(sub: Sub, first: tuple[Lit, ...], rest: Lit | None) -> Formula:
    origin = sub.origin

    def opposite() -> Formula:
        options: list[Formula] = [
            And((_at_least(origin, ARRAY, i + 1),
                 Atom(ARRAY, ItemAt(i, Lit(item.place, not item.positive, origin)), origin)))
            for i, item in enumerate(first)
            if sub.reader.is_constant(item) is not True
        ]  # fmt: skip
        if rest is not None and sub.reader.is_constant(rest) is not True:
            other = Lit(rest.place, not rest.positive, origin)
            options.append(Atom(ARRAY, Contains(other, 1, None, len(first)), origin))
        return Or(tuple(options))

    return sub.atom(ARRAY, Items(first, rest), opposite)


def _at_least(origin: Origin, kinds: frozenset[Kind], n: int) -> Formula:
    return Atom(kinds, Count(n, None), origin, lambda: _at_most(origin, kinds, n - 1))


def _at_most(origin: Origin, kinds: frozenset[Kind], n: int) -> Formula:
    if n < 0:
        return FALSE
    return Atom(kinds, Count(0, n), origin, lambda: _at_least(origin, kinds, n + 1))


def _counted(sub: Sub) -> Formula:
    value = sub.count(sub.keyword, COUNT_MAX)
    assert value is not None
    kinds = ARRAY if sub.keyword.endswith("Items") else OBJECT
    return (_at_least if sub.keyword.startswith("min") else _at_most)(sub.origin, kinds, value)


def _unique(sub: Sub) -> Formula:
    value = sub.schema["uniqueItems"]
    if not isinstance(value, bool):
        raise KeywordError("must be true or false")
    return sub.atom(ARRAY, Unique()) if value else TRUE


def _contains(sub: Sub) -> Formula:
    item, origin = sub.lit("contains"), sub.origin
    least, most = (sub.count(k, COUNT_MAX) for k in ("minContains", "maxContains"))
    least = 1 if least is None else least

    def opposite() -> Formula:
        options: list[Formula] = []
        if least:
            options.append(Atom(ARRAY, Contains(item, 0, least - 1), origin))
        if most is not None:
            options.append(Atom(ARRAY, Contains(item, most + 1, None), origin))
        return Or(tuple(options))

    return sub.atom(ARRAY, Contains(item, least, most), opposite)


# Objects


def _properties(sub: Sub) -> Formula:
    """properties, patternProperties and additionalProperties; read where the first stands."""
    schema, keywords = sub.schema, ("properties", "patternProperties", "additionalProperties")
    if sub.keyword != next(k for k in schema if k in keywords):
        return TRUE
    names = {name: sub.lit("properties", name) for name in sub.members("properties")}
    sub.keyword = "patternProperties"
    patterns = tuple(
        (sub.reader.pattern(p), sub.lit("patternProperties", p))
        for p in sub.members("patternProperties")
    )
    sub.keyword = "additionalProperties"
    rest = sub.lit("additionalProperties") if "additionalProperties" in schema else None
    sub.keyword = next(k for k in schema if k in keywords)
    return keys_atom(sub.reader, sub.origin, names, patterns, rest)


def keys_atom(
    reader: Reader,
    origin: Origin,
    names: Mapping[str, Lit],
    patterns: tuple[tuple[Pattern, Lit], ...],
    rest: Lit | None,
) -> Atom:
    """The atom of a Keys demand."""

    def flipped(lit: Lit) -> Lit:
        return Lit(lit.place, not lit.positive, origin)

    def opposite() -> Formula:
        options: list[Formula] = [
            And((_required(origin, name), Atom(OBJECT, _named(name, flipped(lit)), origin)))
            for name, lit in names.items()
            if reader.is_constant(lit) is not True
        ]
        options += [
            Atom(OBJECT, HasKey(Strings(patterns=(pattern,)), None, flipped(lit)), origin)
            for pattern, lit in patterns
            if reader.is_constant(lit) is not True
        ]
        if rest is not None and reader.is_constant(rest) is not True:
            avoided = tuple(p for p, _ in patterns)
            others = Strings(avoided=avoided, excluded=tuple(names))
            options.append(Atom(OBJECT, HasKey(others, None, flipped(rest)), origin))
        return Or(tuple(options))

    return Atom(OBJECT, Keys(names, patterns, rest), origin, opposite)


def _named(name: str, lit: Lit) -> Keys:
    return Keys({name: lit}, (), None)


def _required(origin: Origin, name: str) -> Formula:
    return Atom(OBJECT, Required(name), origin, lambda: _absent(origin, name))


def _absent(origin: Origin, name: str) -> Formula:
    return Atom(OBJECT, Absent(name), origin, lambda: _required(origin, name))


def _required_names(sub: Sub) -> Formula:
    names = sub.schema["required"]
    if isinstance(names, bool):
        raise KeywordError(
            "must be an array of property names", "list the name in the object's required"
        )
    return And(tuple(_required(sub.origin, n) for n in dict.fromkeys(sub.names(names))))


def _property_names(sub: Sub) -> Formula:
    key, origin = sub.lit("propertyNames"), sub.origin
    other = Atom(OBJECT, HasKey(Strings(), Lit(key.place, not key.positive, origin), None), origin)
    return sub.atom(OBJECT, KeyNames(key), lambda: other)


def _dependencies(sub: Sub) -> Formula:
    """dependencies, dependentRequired and dependentSchemas."""
    parts: list[Formula] = []
    for name, needs in sub.members(sub.keyword).items():
        then: Formula
        if isinstance(needs, list) or (isinstance(needs, str) and sub.keyword == "dependencies"):
            wanted = sub.names([needs] if isinstance(needs, str) else needs)
            then = And(tuple(_required(sub.origin, n) for n in wanted))
        elif sub.keyword == "dependentRequired":
            raise KeywordError("must map names to arrays of property names")
        else:
            then = sub.lit(sub.keyword, name)
        if needs is True or needs == []:
            continue
        present = And((_required(sub.origin, name), then))
        parts.append(Or((_absent(sub.origin, name), present)))
    return And(tuple(parts))


_HANDLERS: Final[dict[str, Callable[[Sub], Formula]]] = {
    "$ref": _ref,
    "$dynamicRef": _dynamic_ref,
    "$recursiveRef": _recursive_ref,
    "type": _type,
    "enum": _enum,
    "const": _const,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "minimum": _minimum,
    "maximum": _maximum,
    "exclusiveMinimum": _exclusive,
    "exclusiveMaximum": _exclusive,
    "multipleOf": _multiple_of,
    "minLength": _length,
    "maxLength": _length,
    "pattern": _pattern,
    "format": _format,
    "items": _items,
    "prefixItems": _items,
    "additionalItems": _items,
    "minItems": _counted,
    "maxItems": _counted,
    "uniqueItems": _unique,
    "contains": _contains,
    "properties": _properties,
    "patternProperties": _properties,
    "additionalProperties": _properties,
    "required": _required_names,
    "minProperties": _counted,
    "maxProperties": _counted,
    "propertyNames": _property_names,
    "dependencies": _dependencies,
    "dependentRequired": _dependencies,
    "dependentSchemas": _dependencies,
    "divisibleBy": _draft3,
    "disallow": _draft3,
    "extends": _draft3,
}
_MEANINGFUL: Final = _HANDLERS.keys() | {"unevaluatedItems", "unevaluatedProperties"}
# The kinds of values that a keyword says something about, if not all. A `required` of draft 3
# stands in the property itself, whatever its type.
_KINDS: Final[dict[str, frozenset[Kind]]] = {
    **dict.fromkeys(("minLength", "maxLength", "pattern"), STRING),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), NUMBERS),
    **dict.fromkeys(("multipleOf", "divisibleBy"), NUMBERS),
    "format": STRING | NUMBERS,
    **dict.fromkeys(("items", "prefixItems", "additionalItems", "contains"), ARRAY),
    **dict.fromkeys(("minItems", "maxItems", "uniqueItems"), ARRAY),
    **dict.fromkeys(("properties", "patternProperties", "additionalProperties"), OBJECT),
    **dict.fromkeys(("minProperties", "maxProperties", "propertyNames"), OBJECT),
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), OBJECT),
}
