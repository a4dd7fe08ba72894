"""Inputs of the fuzzer of grammars: JSON schemas, GBNF, Lark and regular expressions.

Each input is made from a number alone: random ones, hostile ones, and mutations of both.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from lamella.model.guide import GrammarKind, GrammarSpec

NUMBERS: Final = (
    0,
    1,
    2,
    3,
    7,
    30,
    100,
    1000,
    65535,
    10**6,
    2**31 - 1,
    2**32,
    10**18,
    -1,
    0.1,
    1e300,
)
WORDS: Final = ("a", "name", "é", "日本", "", "x y", '"', "\\", "\n", "\x00", "😀", "true", "0")
FORMATS: Final = (*("date", "time", "date-time", "email", "uuid", "ipv4", "ipv6", "uri"), "x")

LARK_SEEDS: Final = (
    'start: "a" b*\nb: /[0-9]+/ | "(" b ")"',
    'start: s\ns: s s | "a" |',
    "start: A{1,1000}\nA: /(a|b)*a(a|b){12}/ & ~/b+/",
    'start: %json {"type": "object"} | %regex {"substring_words": "a b c"}',
    "start: x x?\nx[capture, stop=/b/]: /.*/\n%ignore / +/",
    'start: f::0x1\nf::_: "a" f::incr(_) %if lt(_, 9) | ""',
    "start: NUMBER <|end|> <[3-9]>\n%import common.NUMBER",
    "start: %lark {\nstart: /a+/\n}",
)
GBNF_SEEDS: Final = (
    'root ::= obj\nobj ::= "{" (pair ("," pair)*)? "}"\npair ::= [a-z]+ ":" (obj | [0-9]+)',
    'root ::= ("a" | "b" root "c"){2,5} [^x-z\\n]* # comment\n',
    'root ::= x{3,} | y\nx ::= "é"? .\ny ::= y1 | y1 y\ny1 ::= [\\x41-\\u00e9]',
    'root ::= (("a"{1,999}){1,999} | "b"+){1,999}',
)
REGEX_SEEDS: Final = (
    *(r"[a-z]+@[a-z]+\.(com|org)", r"(a+)+b?", r"(\d{1,3}\.){3}\d{1,3}", r"\w{1,500}\s\p{L}*"),
    *(
        r"(?i)abc[^\x00-\x1f]{2,9}?",
        r"(a?){30}a{30}",
        r"(?:x|xy|xyz){1,100000}",
        r"(?=a).\b",
        r"[[a]",
    ),
)


def make_input(number: int) -> GrammarSpec:
    """The input with this number."""
    return _Maker(random.Random(number)).spec()


class _Maker:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._paths = ["#", "#/$defs/a", "#/$defs/b", "#/properties/name", "http://example.com/"]

    def spec(self) -> GrammarSpec:
        rng = self.rng
        kind = rng.choice(
            [GrammarKind.JSON_SCHEMA] * 5
            + [GrammarKind.GBNF, GrammarKind.LARK, GrammarKind.REGEX] * 2
        )
        makers: dict[GrammarKind, Callable[[], str]] = {
            GrammarKind.JSON_SCHEMA: self._schema_text,
            GrammarKind.GBNF: lambda: rng.choice(GBNF_SEEDS),
            GrammarKind.LARK: lambda: "%llguidance {}\n" + rng.choice(LARK_SEEDS),
            GrammarKind.REGEX: self._regex,
        }
        text = makers[kind]()
        if kind is not GrammarKind.JSON_SCHEMA or rng.random() < 0.1:
            text = self._mutated(text, makers[kind]())
        return GrammarSpec(kind, text, strict=rng.random() < 0.7)

    def _schema_text(self) -> str:
        schema = self._schema(self.rng.randint(1, 5))
        if isinstance(schema, dict):
            schema["$defs"] = {name: self._schema(2) for name in "ab"}
        if self.rng.random() < 0.2:
            schema = self._hostile_schema()
        return json.dumps(schema, ensure_ascii=self.rng.random() < 0.5)

    def _schema(self, depth: int) -> Any:
        """A random schema of at most `depth` levels."""
        rng = self.rng
        if depth == 0 or rng.random() < 0.05:
            return rng.choice([True, False, {}, {"type": "string"}, {"type": "null"}])
        found: dict[str, Any] = {}
        if rng.random() < 0.8:
            names = ["object", "array", "string", "number", "integer", "boolean", "null"]
            found["type"] = rng.choice([*names[:4], names[4], rng.sample(names, 2)])
        makers = self._keywords(depth - 1)
        for keyword in rng.sample(sorted(makers), rng.choice([0, 1, 1, 2, 2, 3, 5])):
            found[keyword] = makers[keyword]()
        return found

    def _keywords(self, depth: int) -> dict[str, Callable[[], Any]]:
        rng = self.rng

        def number() -> Any:
            return rng.choice([rng.choice(NUMBERS), rng.randint(0, 9)])

        def schema() -> Any:
            return self._schema(depth)

        def schemas() -> list[Any]:
            return [schema() for _ in range(rng.randint(1, 3))]

        def named() -> dict[str, Any]:
            return {rng.choice(WORDS): schema() for _ in range(rng.randint(0, 4))}

        numbers = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
        sizes = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
        return {
            **dict.fromkeys((*numbers, *sizes), number),
            **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), schemas),
            **dict.fromkeys(("items", "additionalProperties", "not", "if", "then"), schema),
            **dict.fromkeys(("contains", "propertyNames"), schema),
            **dict.fromkeys(("properties", "dependentSchemas"), named),
            "patternProperties": lambda: {self._regex(): schema()},
            "required": lambda: rng.sample(WORDS, 2),
            "enum": lambda: [self._value(2) for _ in range(rng.randint(0, 5))],
            "const": lambda: self._value(2),
            "pattern": self._regex,
            "format": lambda: rng.choice(FORMATS),
            "$ref": lambda: rng.choice(self._paths),
            "uniqueItems": lambda: rng.random() < 0.5,
        }

    def _value(self, depth: int) -> Any:
        rng = self.rng
        leaves: list[Any] = [None, True, rng.choice(NUMBERS), rng.choice(WORDS)]
        if depth == 0:
            return rng.choice(leaves)
        values = [self._value(depth - 1) for _ in range(rng.randint(0, 3))]
        return rng.choice([*leaves, values, dict(zip(WORDS, values, strict=False))])

    def _hostile_schema(self) -> Any:
        """A schema that is repeated, nested or multiplied."""
        rng, part = self.rng, self._schema(2)
        n = rng.choice([5, 30, 300, 3000])
        match rng.randrange(7):
            case 0:
                for _ in range(min(n, 400)):  # Python cannot write deeper ones
                    part = {rng.choice(["items", "not", "additionalProperties"]): part}
                return part
            case 1:
                word = rng.choice(["allOf", "anyOf", "oneOf"])
                return {word: [self._schema(1) for _ in range(n)]}
            case 2:
                return {"properties": {f"p{i}": part for i in range(n)}, "type": "object"}
            case 3:
                return {"enum": [f"{self._value(0)}{i}" for i in range(n)]}
            case 4:
                return {"allOf": [{"anyOf": [self._schema(1), self._schema(1)]}] * n}
            case 5:
                patterns = [{"pattern": self._regex()} for _ in range(n // 5)]
                return {"type": "string", "allOf": patterns}
        defs: dict[str, Any] = {"a0": part}
        for i in range(n):
            one = {"$ref": f"#/$defs/a{i}", **rng.choice([{}, {"minProperties": 0}])}
            properties = {"type": "object", "properties": {"x": one, "y": one}}
            defs[f"a{i + 1}"] = rng.choice([properties, {"anyOf": [one, one]}, {"allOf": [one]}])
        return {"$ref": f"#/$defs/a{n}", "$defs": defs}

    def _regex(self) -> str:
        return self.rng.choice([self._random_regex(3), self.rng.choice(REGEX_SEEDS)])

    def _random_regex(self, depth: int) -> str:
        rng = self.rng
        atoms: tuple[str, ...] = (
            *"ab.é",
            r"\d",
            r"\w",
            "[a-c]",
            "[^x]",
            r"\p{Lu}",
            r"\.",
            "",
            "^",
            "$",
            r"\n",
        )
        if depth == 0:
            return rng.choice(atoms)
        parts = [self._random_regex(depth - 1) for _ in range(rng.randint(1, 3))]
        body = rng.choice(["", "|"]).join(parts)
        m, n = sorted(rng.choice([0, 1, 2, 5, 20, 100, 1000]) for _ in range(2))
        return f"({body})" + rng.choice(["", "*", "+", "?", "*?", f"{{{m},{n}}}", f"{{{n}}}"])

    def _mutated(self, text: str, other: str) -> str:
        """`text` after a few random edits, with parts of `other`."""
        rng = self.rng
        for _ in range(rng.choice([0, 0, 1, 1, 2, 4, 8])):
            i, j = sorted(rng.randint(0, len(text)) for _ in range(2))
            j = min(j, i + rng.choice([1, 5, 40]))
            part = self._edit(text[i:j], other)
            text = text[:i] + part + text[j:]
        return text

    def _edit(self, part: str, other: str) -> str:
        rng = self.rng
        k = rng.randint(0, len(other))
        choices: Sequence[Callable[[], str]] = (
            lambda: "",
            lambda: part * rng.choice([2, 3, 50, 2000]),
            lambda: other[k : k + rng.choice([1, 8, 80])],
            lambda: str(rng.choice(NUMBERS)),
            lambda: rng.choice(WORDS),
            lambda: chr(rng.choice([rng.randrange(128), rng.randrange(0x11000)])),
            lambda: rng.choice("()[]{}|*+?~&/\\\"'%#:<>@^$.-"),
            lambda: "(" * rng.choice([3, 300, 5000]),
        )
        return rng.choice(choices)()
