"""Random JSON schemas of keywords that can be enforced."""

from __future__ import annotations

from random import Random
from typing import Any

Schema = dict[str, Any]

WORDS = ("a", "id", "name", "größe", 'q"t', "x y", "", "tags")
PATTERNS = ("^[a-c]+$", "^x", "y$", "[0-9]{2}", "^(yes|no)$", "^[^ ]{1,4}$", "é|ü")
FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email")
VALUES = (None, True, 0, -1.5, "a", "", 'say "hi"\n', [1, "b"], {"k": [None]})


def random_schema(random: Random, depth: int = 2) -> Schema:
    """A schema whose texts are short."""
    makers = [_string, _string, _number, _enum, _bool]
    if depth:
        makers += [_object, _object, _object, _array, _array, _any_of]
    return random.choice(makers)(random, depth)


def _bool(random: Random, depth: int) -> Schema:
    return {"type": random.choice(["boolean", "null", ["boolean", "null"]])}


def _enum(random: Random, depth: int) -> Schema:
    if random.random() < 0.3:
        return {"const": random.choice(VALUES)}
    return {"enum": random.sample(VALUES, random.randint(1, 4))}


def _string(random: Random, depth: int) -> Schema:
    schema: Schema = {"type": "string"}
    match random.randrange(4):
        case 0:
            schema["format"] = random.choice(FORMATS)
        case 1:
            schema |= {"pattern": random.choice(PATTERNS), "maxLength": random.randint(4, 12)}
        case _:
            schema["minLength"] = random.randint(0, 3)
            schema["maxLength"] = schema["minLength"] + random.randint(0, 12)
    return schema


def _number(random: Random, depth: int) -> Schema:
    schema: Schema = {"type": random.choice(["integer", "number"])}
    low = random.choice([-1000, -7, 0, 3])
    if random.random() < 0.8:
        schema[random.choice(["minimum", "exclusiveMinimum"])] = low
    if random.random() < 0.8:
        schema[random.choice(["maximum", "exclusiveMaximum"])] = low + random.choice([2, 10, 999])
    if schema["type"] == "integer" and random.random() < 0.3:
        schema["multipleOf"] = random.choice([1, 2])
    return schema


def _array(random: Random, depth: int) -> Schema:
    schema: Schema = {"type": "array", "items": random_schema(random, depth - 1)}
    if random.random() < 0.3:
        schema["prefixItems"] = [random_schema(random, depth - 1)]
    schema["minItems"] = random.randint(0, 2)
    schema["maxItems"] = schema["minItems"] + random.randint(0, 2)
    return schema


def _object(random: Random, depth: int) -> Schema:
    names = random.sample(WORDS, random.randint(1, 4))
    schema: Schema = {
        "type": "object",
        "properties": {name: random_schema(random, depth - 1) for name in names},
        "required": random.sample(names, random.randint(0, len(names))),
        "additionalProperties": False,
    }
    if random.random() < 0.2:
        schema["additionalProperties"] = random_schema(random, 0)
        schema["maxProperties"] = len(names) + 1
        schema["required"] = names
    return schema


def _any_of(random: Random, depth: int) -> Schema:
    return {"anyOf": [random_schema(random, depth - 1) for _ in range(random.randint(2, 3))]}
