"""Checks grammars in llguidance's dialect of Lark, and makes them keep Lamella's promises.

    %llguidance {}
    start: "a" NUMBER
    NUMBER: /[0-9]+/

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md describes the dialect. Refused by
name are attributes that change the sampling, or that remove text (`temperature`, `max_tokens`,
`stop`), unknown options, and tokens that end a text. JSON schemas within the grammar are checked
like others. Lines stay where they are, so that llguidance's messages name the user's lines.
Tested by tests/model/test_guide_lark.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from ...base.errors import GrammarError
from .schema import schema_to_lark
from .spec import Loosened
from .token_names import TokenNames

_PART: Final = re.compile(
    r"""(?P<comment>(?:\#|//)[^\n]*)
    |(?P<string>"(?:\\.|[^"\\\n])*"i?)
    |(?P<regex>/(?:\\.|[^/\\])+/[imslux]*)
    |(?P<token><[^<>\s]+>)
    |(?P<directive>%[a-z]+)
    |(?P<attribute>(?:stop|stop_capture|max_tokens|temperature)(?=\s*=))
    |(?P<grammar>@[a-zA-Z0-9_\-]+)
    |(?P<other>[A-Za-z0-9_\-]+|.)""",
    re.VERBOSE | re.DOTALL,
)
_OPTIONS: Final = frozenset({"no_forcing", "allow_initial_skip", "ignore_once"})
_REASONS: Final = {
    "stop": "it removes text that the model wrote; use suffix= or lazy",
    "stop_capture": "it needs stop=",
    "max_tokens": "a text that it cuts does not match the rule; use a repetition such as {1,9}",
    "temperature": "set the temperature of the request",
}


class Checked(NamedTuple):
    """A grammar for llguidance, and what its JSON schemas do not enforce."""

    text: str
    loosened: Sequence[Loosened]


def checked(source: str, tokens: TokenNames | None, *, strict: bool = True) -> Checked:
    """Check a grammar and return it with our options. Without `tokens`, it may name any token.

    Raises:
        GrammarError: the grammar has something that cannot be honored; names line and column.
    """
    reader = _Reader(source, tokens, strict)
    text = "".join(reader.parts())
    schemas = (f"\n{name}: %lark {{\n{lark}}}" for name, lark in reader.schemas)
    return Checked("".join([text, *schemas]), tuple(reader.loosened))


class _Reader:
    def __init__(self, source: str, tokens: TokenNames | None, strict: bool) -> None:
        self._source = source
        self._tokens = tokens
        self._strict = strict
        self._at = 0
        self.loosened: list[Loosened] = []
        self._n_lines_owed = 0  # of schemas that moved to the end
        self.schemas: list[tuple[str, str]] = []  # the rule of each JSON schema, and its grammar

    def parts(self) -> Iterator[str]:
        """The parts of the text, some of them replaced."""
        while found := _PART.match(self._source, self._at):
            start, self._at = self._at, found.end()
            match found.lastgroup:
                case "directive" if found[0] == "%json":
                    yield from self._schema(start)
                case "directive":
                    yield found[0]
                    yield from self._argument(found[0], start)
                case "token":
                    yield self._token(found[0], start)
                case "attribute":
                    self._fail(f"{found[0]}= is not supported: {_REASONS[found[0]]}", start)
                case "grammar":
                    self._fail(f"{found[0]}: there are no other grammars to refer to", start)
                case "other" if found[0] == "\n":
                    yield "\n" * (1 + self._n_lines_owed)
                    self._n_lines_owed = 0
                case _:
                    yield found[0]

    def _argument(self, directive: str, start: int) -> Iterator[str]:
        """What follows a directive, if it is JSON."""
        if directive not in ("%llguidance", "%regex"):
            return
        begin = self._at
        value = self._json(directive, start)
        if directive == "%llguidance":
            value = self._options(value, start)
        yield "\n" * self._source.count("\n", begin, self._at)
        yield f" {json.dumps(value)}"

    def _schema(self, start: int) -> Iterator[str]:
        """The name of a rule for the schema, which stands behind the user's lines."""
        begin = self._at
        value = self._json("%json", start)
        try:
            lark, loosened = schema_to_lark(value, strict=self._strict)
        except GrammarError as e:
            self._fail(f"%json: {e}", start)
        self.loosened.extend(loosened)
        name = f"json_schema_{len(self.schemas)}"
        while name in self._source:
            name += "_"
        self.schemas.append((name, lark))
        self._n_lines_owed += self._source.count("\n", begin, self._at)
        yield f" {name} "

    def _json(self, directive: str, start: int) -> Any:
        blanks = re.compile(r"\s*").match(self._source, self._at)
        assert blanks
        try:
            value, self._at = json.JSONDecoder().raw_decode(self._source, blanks.end())
        except ValueError as e:
            self._fail(f"{directive} must have JSON behind it: {e}", start)
        except RecursionError:
            self._fail(f"the JSON of {directive} is nested too deep", start)
        return value

    def _options(self, options: Any, start: int) -> dict[str, Any]:
        if not isinstance(options, dict):
            self._fail("%llguidance must have an object behind it, such as {}", start)
        for name in options:
            if name not in _OPTIONS:
                known = ", ".join(sorted(_OPTIONS))
                self._fail(f"the option {name} is not supported; supported are {known}", start)
        return {**options, "no_forcing": True}

    def _token(self, name: str, start: int) -> str:
        """The ids of a token, a range or a negated one, without tokens that end a text."""
        if self._tokens is None:
            return name
        try:
            ids = _ids(name, self._tokens)
        except ValueError as e:
            self._fail(str(e), start)
        return f"<[{','.join(f'{first}-{last}' for first, last in ids)}]>"

    def _fail(self, message: str, at: int) -> NoReturn:
        line = self._source.count("\n", 0, at) + 1
        column = at - self._source.rfind("\n", 0, at)
        raise GrammarError(f"lark: line {line}, column {column}: {message}")


def _ids(name: str, tokens: TokenNames) -> Sequence[tuple[int, int]]:
    """The ids of `<name>`, `<[5]>`, `<[1-5,7]>`, `<[^5]>` or `<[*]>`."""
    found = re.fullmatch(r"<\[(\^?)(\*|[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*)\]>", name)
    if not found:
        return tokens.token(name, False).ids
    if found[2] == "*":
        if found[1]:
            raise ValueError(f"{name} is no token")
        return tokens.others(())
    ranges = []
    for part in found[2].split(","):
        first, last = (tokens.id(f"<[{id}]>") for id in (part.split("-") * 2)[:2])
        if last < first:
            raise ValueError(f"the range {part} of {name} is in descending order")
        ranges.append((first, last))
    others = tokens.others(tuple(ranges))
    ids = others if found[1] else tokens.others(others)
    if not ids:
        raise ValueError(f"{name} names only tokens that end a text, which no grammar can require")
    return ids
