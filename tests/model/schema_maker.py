"""Random JSON schemas from the supported keywords, and random values near to what they accept."""

from __future__ import annotations

from random import Random
from typing import Any, Final

NAMES: Final = ("a", "b", "ab", "x1", "é", 'q"')
PATTERNS: Final = (
    "^a",
    "b$",
    "^[a-z]{1,3}$",
    "[0-9]",
    "^(a|b)+$",
    "^(?!a)",
    "^\\w*$",
    "\\D",
    "[^a]$",
    "^$",
    "a.b",
    "(^x)|1",
    "\\S",
    "é?b",
)
FORMATS: Final = (
    "date",
    "date-time",
    "time",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
    "uri-reference",
    "duration",
    "json-pointer",
    "relative-json-pointer",
    "iri",
    "uri-template",
    "regex",
)
TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")
SCALARS: Final = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3.5,
    0.25,
    10,
    "",
    "a",
    "b",
    "ab",
    "abc",
    "1",
    "é",
    "a b",
)


def random_schema(random: Random, depth: int = 3) -> Any:
    """A schema of draft 2020-12; few levels have few keywords."""
    if random.random() < 0.06:
        return random.choice([True, True, False])
    schema: dict[str, Any] = {}
    if random.random() < 0.75:
        few = random.sample(TYPES, random.choice([1, 1, 1, 2]))
        schema["type"] = few if len(few) > 1 or random.random() < 0.2 else few[0]
    for keyword in random.sample(list(_MAKERS), random.choice([0, 1, 1, 2, 3])):
        if depth > 0 or keyword not in _NESTING:
            schema.update(_MAKERS[keyword](random, depth - 1))
    return schema


def _some(random: Random, depth: int) -> list[Any]:
    return [random_schema(random, depth) for _ in range(random.choice([1, 2, 2, 3]))]


def _named(random: Random, depth: int) -> dict[str, Any]:
    names = random.sample(NAMES, random.choice([1, 2, 3]))
    return {name: random_schema(random, depth) for name in names}


def _number(random: Random) -> int | float:
    return random.choice([-3, -1, 0, 0.5, 1, 2, 2.25, 7, 10, -0.1, 100])


def _counts(least: str, most: str, top: int) -> Any:
    def make(random: Random, depth: int) -> dict[str, Any]:
        low = random.randrange(top)
        both = {least: low, most: max(low + random.randrange(-1, 3), 0)}
        return dict(random.sample(list(both.items()), random.choice([1, 1, 2])))

    return make


def _objects(random: Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"properties": _named(random, depth)}
    if random.random() < 0.5:
        schema["additionalProperties"] = random.choice([False, random_schema(random, depth)])
    if random.random() < 0.5:
        schema["required"] = random.sample(list(schema["properties"]), 1)
    if random.random() < 0.3:
        pattern = random.choice(PATTERNS)
        schema["patternProperties"] = {pattern: random_schema(random, depth)}
    return schema


def _value(random: Random, depth: int) -> Any:
    if depth > 0 and random.random() < 0.3:
        if random.random() < 0.5:
            return [_value(random, depth - 1) for _ in range(random.randrange(3))]
        return {
            name: _value(random, depth - 1) for name in random.sample(NAMES, random.randrange(3))
        }
    return random.choice(SCALARS)


_MAKERS: Final[dict[str, Any]] = {
    "enum": lambda r, d: {"enum": [_value(r, 2) for _ in range(r.choice([1, 3, 6]))]},
    "const": lambda r, d: {"const": _value(r, 2)},
    "bounds": lambda r, d: {
        r.choice(["minimum", "exclusiveMinimum"]): _number(r),
        **({r.choice(["maximum", "exclusiveMaximum"]): _number(r)} if r.random() < 0.4 else {}),
    },
    "multipleOf": lambda r, d: {"multipleOf": r.choice([1, 2, 3, 0.5, 0.01, 0.1, 10])},
    "lengths": _counts("minLength", "maxLength", 4),
    "pattern": lambda r, d: {"pattern": r.choice(PATTERNS)},
    "format": lambda r, d: {"format": r.choice(FORMATS)},
    "items": lambda r, d: {"items": random_schema(r, d)},
    "prefixItems": lambda r, d: {"prefixItems": _some(r, d)},
    "counts": _counts("minItems", "maxItems", 3),
    "uniqueItems": lambda r, d: {"uniqueItems": True, "items": {"enum": r.sample(SCALARS[3:], 3)}},
    "contains": lambda r, d: {"contains": random_schema(r, d)},
    "minContains": lambda r, d: {
        "contains": random_schema(r, d),
        "minContains": r.randrange(3),
        "maxContains": r.randrange(1, 4),
    },
    "objects": _objects,
    "objects again": _objects,
    "patternProperties": lambda r, d: {
        "patternProperties": {p: random_schema(r, d) for p in r.sample(PATTERNS, 2)}
    },
    "required": lambda r, d: {"required": r.sample(NAMES, r.choice([1, 2]))},
    "sizes": _counts("minProperties", "maxProperties", 2),
    "propertyNames": lambda r, d: {"propertyNames": random_schema(r, d)},
    "dependentRequired": lambda r, d: {"dependentRequired": {r.choice(NAMES): r.sample(NAMES, 1)}},
    "dependentSchemas": lambda r, d: {"dependentSchemas": _named(r, d)},
    "allOf": lambda r, d: {"allOf": _some(r, d)},
    "anyOf": lambda r, d: {"anyOf": _some(r, d)},
    "oneOf": lambda r, d: {"oneOf": _some(r, d)},
    "not": lambda r, d: {"not": random_schema(r, d)},
    "if": lambda r, d: {
        "if": random_schema(r, d),
        "then": random_schema(r, d),
        "else": random_schema(r, d),
    },
    "unevaluatedProperties": lambda r, d: {
        "unevaluatedProperties": r.choice([False, {"type": "integer"}]),
        **_objects(r, d),
    },
    "unevaluatedItems": lambda r, d: {"unevaluatedItems": r.choice([False, {"type": "string"}])},
}
_NESTING: Final = frozenset(
    (
        "items",
        "prefixItems",
        "contains",
        "minContains",
        "objects",
        "objects again",
        "patternProperties",
        "propertyNames",
        "dependentSchemas",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "unevaluatedProperties",
    )
)


def random_value(random: Random) -> Any:
    """A value with the names and scalars that random schemas have."""
    return _value(random, 3)
