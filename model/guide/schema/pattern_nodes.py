"""The parts of regular expressions, and the error of invalid ones.

Tested by tests/model/test_guide_schema_patterns.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from . import charset
from .charset import Ranges


class PatternError(Exception):
    """A pattern that is invalid or cannot be enforced; the text says why."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Seq:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    node: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Both:
    """The strings of all parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Other:
    """The strings that are not in the node's language."""

    node: Node


@dataclass(frozen=True, slots=True)
class Anchor:
    """`^` or `$`; only between parsing and `whole`."""

    start: bool


@dataclass(frozen=True, slots=True)
class Look:
    """A lookahead; only between parsing and `whole`."""

    node: Node
    positive: bool


Node = Chars | Seq | Alt | Repeat | Both | Other | Anchor | Look


EMPTY: Final = Seq(())


NOTHING: Final = Alt(())


ANY_TEXT: Final = Repeat(Chars(charset.ALL_CHARS), 0, None)


def literal(text: str) -> Node:
    return Seq(tuple(Chars(((ord(c), ord(c)),)) for c in text))
