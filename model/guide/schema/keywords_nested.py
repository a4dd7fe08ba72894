"""Keywords of arrays and objects. Tested by tests/model/test_guide_schema.py."""

from __future__ import annotations

from collections.abc import Mapping

from .document import Draft
from .formulas import (
    ARRAY,
    FALSE,
    OBJECT,
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
    Lit,
    Or,
    Origin,
    Required,
    Unique,
)
from .limits import COUNT_MAX
from .pattern import Pattern
from .reader import KeywordError, Reader, Sub
from .strings import Strings


def items(sub: Sub) -> Formula:
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


def counted(sub: Sub) -> Formula:
    value = sub.count(sub.keyword, COUNT_MAX)
    assert value is not None
    kinds = ARRAY if sub.keyword.endswith("Items") else OBJECT
    return (_at_least if sub.keyword.startswith("min") else _at_most)(sub.origin, kinds, value)


def unique(sub: Sub) -> Formula:
    value = sub.schema["uniqueItems"]
    if not isinstance(value, bool):
        raise KeywordError("must be true or false")
    return sub.atom(ARRAY, Unique()) if value else TRUE


def contains(sub: Sub) -> Formula:
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


def properties(sub: Sub) -> Formula:
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


def required_names(sub: Sub) -> Formula:
    names = sub.schema["required"]
    if isinstance(names, bool):
        raise KeywordError(
            "must be an array of property names", "list the name in the object's required"
        )
    return And(tuple(_required(sub.origin, n) for n in dict.fromkeys(sub.names(names))))


def property_names(sub: Sub) -> Formula:
    key, origin = sub.lit("propertyNames"), sub.origin
    other = Atom(OBJECT, HasKey(Strings(), Lit(key.place, not key.positive, origin), None), origin)
    return sub.atom(OBJECT, KeyNames(key), lambda: other)


def dependencies(sub: Sub) -> Formula:
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
