"""The options that constrain a text, for requests, the command line and Python.

Knows no vocabulary. Tested by tests/model/test_guide.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from ...base.errors import RequestError
from ...base.options import Options, Shortcut, option, refused
from .spec import GrammarKind, GrammarSpec

NAMES: Final = ("grammar", "json_schema", "regex")  # at most one of them is given


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as e:
        raise ValueError(f"{text[:100]!r} is not JSON: {e}") from None


def _file(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as e:
        raise ValueError(f"cannot read {path}: {e}") from None


def _schema(name: str, value: object) -> object:
    if value is None or isinstance(value, Mapping | bool):
        return value
    raise refused(name, value, 'a JSON schema, as an object like {"type": "object"}')


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarParams(Options):
    """The grammar of a text: at most one of `grammar`, `json_schema` and `regex`."""

    title: ClassVar[str] = "grammar"

    grammar: str = option(
        "",
        "--grammar",
        metavar="GRAMMAR",
        default_text="none",
        help="GBNF grammar that all text matches; Lark if it begins with %%llguidance",
        shortcuts=(
            Shortcut(("--grammar-file",), None, "the same from a file", _file, metavar="FILE"),
        ),
    )
    json_schema: Mapping[str, Any] | bool | None = option(
        None,
        *("-j", "--json-schema"),
        metavar="SCHEMA",
        parse=_json,
        check=_schema,
        default_text="none",
        help="JSON schema that all text matches; {} is any JSON object",
        shortcuts=(
            Shortcut(
                ("-jf", "--json-schema-file"),
                None,
                "the same from a file",
                lambda path: _json(_file(path)),
                metavar="FILE",
            ),
        ),
    )
    regex: str = option(
        "",
        "--regex",
        metavar="REGEX",
        default_text="none",
        help="regular expression that the whole text matches",
    )
    schema_strict: bool = option(
        True, help="refuse JSON schemas with keywords that cannot be enforced"
    )

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        given = [name for name in NAMES if getattr(self, name) not in ("", None)]
        if len(given) > 1:
            raise RequestError(f"{' and '.join(given)} exclude each other: give one of them")

    @property
    def spec(self) -> GrammarSpec | None:
        """The grammar that a text has to match; None if it is free."""
        if self.grammar:
            return GrammarSpec.of_grammar(self.grammar)
        if self.regex:
            return GrammarSpec(GrammarKind.REGEX, self.regex)
        if self.json_schema is not None:
            schema = {"type": "object"} if self.json_schema == {} else self.json_schema
            return GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema), self.schema_strict)
        return None
