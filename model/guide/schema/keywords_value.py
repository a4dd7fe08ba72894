"""Keywords of types, listed values, numbers and strings, and those that join sub-schemas.

Tested by tests/model/test_guide_schema.py.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from .document import Draft, RefError
from .formats import ANY_FORMATS, NUMBER_FORMATS, STRING_FORMATS, format_strings
from .formulas import (
    ALL_KINDS,
    ARRAY,
    FALSE,
    NUMBERS,
    OBJECT,
    STRING,
    TRUE,
    And,
    Formula,
    Kind,
    Kinds,
    Lit,
    Multiple,
    Or,
    Text,
    Values,
    Within,
    canonical,
)
from .limits import DISJOINT_BRANCHES, LENGTH_MAX
from .numbers import N_DIGITS, Interval
from .reader import KeywordError, Sub
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


def type(sub: Sub) -> Formula:
    names = sub.schema["type"]
    kinds: frozenset[Kind] = frozenset()
    for name in names if isinstance(names, list) else [names]:
        if not isinstance(name, str) or name not in _TYPES:
            raise KeywordError(f"{name!r:.40} is no type; types are {', '.join(_TYPES)}")
        kinds |= _TYPES[name]
    return Kinds(kinds)


def enum(sub: Sub) -> Formula:
    values = sub.schema["enum"]
    if not isinstance(values, list):
        raise KeywordError("must be an array")
    return _values(sub, values)


def const(sub: Sub) -> Formula:
    return _values(sub, [sub.schema["const"]])


def _values(sub: Sub, values: list[Any]) -> Formula:
    known: dict[Any, Any] = {}
    for value in values:
        sub.reader.budget.spend()
        if isinstance(value, str):
            sub.reader.budget.spend_values(len(value) + 2)
        known.setdefault(canonical(value), value)
    return Values(tuple(known.values()), sub.origin)


def all_of(sub: Sub) -> Formula:
    return And(sub.lits())


def any_of(sub: Sub) -> Formula:
    return Or(sub.lits(), overlapping=True)


def one_of(sub: Sub) -> Formula:
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


def not_(sub: Sub) -> Formula:
    lit = sub.lit("not")
    return Lit(lit.place, False, sub.origin)


def if_(sub: Sub) -> Formula:
    if "then" not in sub.schema and "else" not in sub.schema:
        return TRUE
    test = sub.lit("if")
    then, otherwise = (sub.lit(k) if k in sub.schema else TRUE for k in ("then", "else"))
    return Or((And((test, then)), And((Lit(test.place, False, sub.origin), otherwise))))


def ref(sub: Sub) -> Formula:
    reference = sub.schema[sub.keyword]
    if not isinstance(reference, str):
        raise KeywordError("must be a string")
    try:
        return sub.reader.lit(sub.reader.document.resolve(sub.number, reference))
    except RefError as error:
        raise KeywordError(str(error)) from None


def dynamic_ref(sub: Sub) -> Formula:
    name = str(sub.schema["$dynamicRef"]).rpartition("#")[2]
    if sub.reader.document.dynamic_anchors.get(name, 0) > 1:
        raise KeywordError(f"several sub-schemas have the dynamic anchor {name!r:.40}", "use $ref")
    return ref(sub)


def recursive_ref(sub: Sub) -> Formula:
    if sub.reader.document.recursive_anchors > 1:
        raise KeywordError("several sub-schemas have $recursiveAnchor", "use $ref")
    return ref(sub)


def draft3(sub: Sub) -> Formula:
    remedy = {"divisibleBy": "use multipleOf", "disallow": "use not", "extends": "use allOf"}
    raise KeywordError("a keyword of draft 3 is not supported", remedy[sub.keyword])


def minimum(sub: Sub) -> Formula:
    is_open = sub.schema.get("exclusiveMinimum") is True
    return _low(sub, sub.number_value(), is_open)


def maximum(sub: Sub) -> Formula:
    is_open = sub.schema.get("exclusiveMaximum") is True
    return _high(sub, sub.number_value(), is_open)


def exclusive(sub: Sub) -> Formula:
    value = sub.schema[sub.keyword]
    if isinstance(value, bool):
        if sub.place.draft in (Draft.D6, Draft.D7, Draft.D2019):
            raise KeywordError("must be a number in this draft")
        return TRUE  # draft 4: read with minimum or maximum
    bound = sub.number_value()
    return (_low if sub.keyword == "exclusiveMinimum" else _high)(sub, bound, True)


def _low(sub: Sub, bound: Decimal, is_open: bool) -> Formula:
    _check_digits(bound)
    below = sub.atom(NUMBERS, Within(Interval(high=bound, high_open=not is_open)))
    return sub.atom(NUMBERS, Within(Interval(low=bound, low_open=is_open)), lambda: below)


def _high(sub: Sub, bound: Decimal, is_open: bool) -> Formula:
    _check_digits(-bound)
    above = sub.atom(NUMBERS, Within(Interval(low=bound, low_open=not is_open)))
    return sub.atom(NUMBERS, Within(Interval(high=bound, high_open=is_open)), lambda: above)


def _check_digits(least: Decimal) -> None:
    if least >= 10**N_DIGITS:
        raise KeywordError(f"it leaves only numbers of more than {N_DIGITS} digits")


def multiple_of(sub: Sub) -> Formula:
    step = sub.number_value()
    if step <= 0:
        raise KeywordError("must be greater than 0")
    return sub.atom(NUMBERS, Multiple(step))


def length(sub: Sub) -> Formula:
    value = sub.count(sub.keyword, LENGTH_MAX)
    assert value is not None
    if sub.keyword == "minLength":
        less = sub.atom(STRING, Text(Strings(most=value - 1))) if value else FALSE
        return sub.atom(STRING, Text(Strings(value)), lambda: less)
    more = sub.atom(STRING, Text(Strings(value + 1)))
    return sub.atom(STRING, Text(Strings(most=value)), lambda: more)


def pattern(sub: Sub) -> Formula:
    pattern = sub.reader.pattern(sub.schema["pattern"])
    avoided = sub.atom(STRING, Text(Strings(avoided=(pattern,))))
    return sub.atom(STRING, Text(Strings(patterns=(pattern,))), lambda: avoided)


def format(sub: Sub) -> Formula:
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
