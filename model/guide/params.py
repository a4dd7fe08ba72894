"""The options that constrain a text, for requests, the command line and Python.

Knows no vocabulary. Tested by tests/model/test_guide.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from ...base.errors import RequestError
from ...base.options import Options, Shortcut, option, parse_json, refused
from ...base.utf8 import read_text
from .spec import GrammarKind, GrammarSpec

NAMES: Final = ("grammar", "json_schema", "regex")  # at most one of them is given


def _text(text: str) -> str:
    """A grammar on the command line, where an empty one is a mistake."""
    if not text.strip():
        raise ValueError("it is empty")
    return text


def _string(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise refused(name, value, "a string")
    return value


def _file(path: str) -> str:
    text = read_text(path)
    if not text.strip():
        raise ValueError(f"{path} is empty")
    return text


def _json_file(path: str) -> Any:
    return parse_json(_file(path), path)


def _schema(name: str, value: object) -> object:
    if value is None or isinstance(value, Mapping | bool):
        return value
    raise refused(name, value, 'a JSON schema, as an object like {"type": "object"}')


def _dumped(schema: object) -> str:
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as e:  # values that JSON has not
        raise RequestError(f"json_schema: {e}") from None


def without_replaced(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The defaults of options, without their grammar if the given options have one."""
    if any(given.get(name) not in ("", None) for name in NAMES):
        return {name: value for name, value in defaults.items() if name not in NAMES}
    return defaults


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarParams(Options):
    """The grammar of a text: at most one of `grammar`, `json_schema` and `regex`."""

    title: ClassVar[str] = "grammar"

    grammar: str = option(
        "",
        "--grammar",
        metavar="GRAMMAR",
        parse=_text,
        check=_string,
        default_text="none",
        help="GBNF grammar that all text matches; Lark if it begins with %llguidance",
        shortcuts=(
            Shortcut(("--grammar-file",), None, "the same from a file", _file, metavar="FILE"),
        ),
    )
    json_schema: Mapping[str, Any] | bool | None = option(
        None,
        *("-j", "--json-schema"),
        metavar="SCHEMA",
        parse=parse_json,
        check=_schema,
        default_text="none",
        help="JSON schema that all text matches; {} is any JSON object",
        shortcuts=(
            Shortcut(
                ("-jf", "--json-schema-file"),
                None,
                "the same from a file",
                _json_file,
                metavar="FILE",
            ),
        ),
    )
    regex: str = option(
        "",
        "--regex",
        metavar="REGEX",
        parse=_text,
        check=_string,
        default_text="none",
        help="regular expression that the whole text matches",
    )
    schema_strict: bool = option(
        True,
        "--schema-strict",
        off=("--no-schema-strict",),
        help="refuse JSON schemas with keywords that cannot be enforced; off: leave these out",
    )

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        given = [name for name in NAMES if getattr(self, name) not in ("", None)]
        if len(given) > 1:
            raise RequestError(f"{given[0]}: cannot be combined with {given[1]}: give one of them")

    @property
    def spec(self) -> GrammarSpec | None:
        """The grammar that a text has to match; None if it is free."""
        if self.grammar:
            return GrammarSpec.of_grammar(self.grammar)
        if self.regex:
            return GrammarSpec(GrammarKind.REGEX, self.regex)
        if self.json_schema is not None:
            schema = {"type": "object"} if self.json_schema == {} else self.json_schema
            return GrammarSpec(GrammarKind.JSON_SCHEMA, _dumped(schema), self.schema_strict)
        return None
