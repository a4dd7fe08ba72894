"""What a request asks of its text: a grammar, a regular expression or a JSON schema.

Knows no vocabulary, and not whether the source is valid. Tested by tests/model/test_guide.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Self

LARK_MARK: Final = "%llguidance"  # the first word of a Lark grammar, as in llama.cpp


class GrammarKind(StrEnum):
    """The languages of grammars."""

    GBNF = "gbnf"
    LARK = "lark"
    REGEX = "regex"
    JSON_SCHEMA = "json_schema"
    CHAT = "chat"  # the JSON text of `chat_spec`


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A grammar as a request gives it.

    Attributes:
        kind: its language.
        source: its text; of a JSON schema, the JSON text.
        strict: refuse a keyword of a JSON schema that cannot be enforced. Otherwise it loosens its
            own sub-schema.
        salt: only specs of equal salts share a compiled grammar.
    """

    kind: GrammarKind
    source: str
    strict: bool = True
    salt: str = ""

    @classmethod
    def of_grammar(cls, text: str) -> Self:
        """The spec of the field `grammar`: Lark if it begins with %llguidance, else GBNF."""
        is_lark = text.lstrip().startswith(LARK_MARK)
        return cls(GrammarKind.LARK if is_lark else GrammarKind.GBNF, text)


class Loosened(NamedTuple):
    """A keyword of a JSON schema that is not enforced."""

    path: str  # of the sub-schema, as in "$.properties.tags"
    keyword: str
    reason: str


class Lark(NamedTuple):
    """A grammar for llguidance, and what it does not enforce."""

    text: str
    loosened: Sequence[Loosened] = ()
