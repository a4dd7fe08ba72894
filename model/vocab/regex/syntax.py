r"""The syntax of regular expressions: text to a tree. A subset of Oniguruma's syntax.

    a|b  (?:a)  (a)  a?  a*  a+  a{3}  a{1,3}  a+? (lazy)  (?=a)  (?!a)  \z
    [a-z\s&&[^b]]  \p{L}  \s \S \d \w  \n \r \t  \x{1F600}

Knows no automata. Tests: tests/model/test_vocab_regex.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

from .charset import ANY, CharSet, unicode_set


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    chars: CharSet


@dataclass(frozen=True, slots=True)
class Then:
    """One node after the other."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """The first of several nodes that leads to a match."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A node `least` to `most` times (None: without limit), as often as possible if `greedy`."""

    node: Node
    least: int
    most: int | None
    greedy: bool


@dataclass(frozen=True, slots=True)
class Ahead:
    """A condition: the text that follows begins with `node`, or does not if `negative`."""

    node: Node
    negative: bool


Node: TypeAlias = Chars | Then | Either | Repeat | Ahead

_QUANTIFIER: Final = re.compile(r"([*+?]|\{(\d+)(,?)(\d*)\})(\??)")
_LIMITS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_ESCAPE: Final = re.compile(r"\\(?:p\{(\w+)\}|x\{([0-9A-F]+)\}|([sSdwnrt])|([^a-zA-Z0-9]))")
_SETS: Final = {"s": "s", "d": "Nd", "w": "w"}
_CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t"}


def parse(pattern: str) -> Node:
    """Return the tree of an expression. An expression outside of the subset is a bug."""
    parser = _Parser(pattern)
    node = parser.either()
    assert parser.at == len(pattern), parser
    return node


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self.at = 0

    def __repr__(self) -> str:
        return f"{self._pattern[self.at :]!r} of {self._pattern!r}"

    def either(self) -> Node:
        nodes = [self._then()]
        while self._take("|"):
            nodes.append(self._then())
        return nodes[0] if len(nodes) == 1 else Either(tuple(nodes))

    def _then(self) -> Node:
        nodes: list[Node] = []
        while self.at < len(self._pattern) and self._pattern[self.at] not in "|)":
            nodes.append(self._repeated(self._atom()))
        return nodes[0] if len(nodes) == 1 else Then(tuple(nodes))

    def _repeated(self, node: Node) -> Node:
        found = _QUANTIFIER.match(self._pattern, self.at)
        if not found:
            return node
        self.at = found.end()
        sign, least, comma, most, lazy = found.groups()
        if sign in _LIMITS:
            return Repeat(node, *_LIMITS[sign], greedy=not lazy)
        assert most or not comma, self  # {3,} is not used
        return Repeat(node, int(least), int(most or least), greedy=not lazy)

    def _atom(self) -> Node:
        for sign, negative in (("(?=", False), ("(?!", True)):
            if self._take(sign):
                return Ahead(self._rest_of_group(), negative)
        if self._take("(?:") or self._take("("):
            return self._rest_of_group()
        if self._take(r"\z"):
            return Ahead(Chars(ANY), negative=True)
        if self._take("["):
            return Chars(self._rest_of_set())
        assert self._pattern[self.at] not in "*+?{}^$.", self
        return Chars(self._characters())

    def _rest_of_group(self) -> Node:
        node = self.either()
        assert self._take(")"), self
        return node

    def _rest_of_set(self) -> CharSet:
        """The set from behind its opening bracket."""
        negative = self._take("^")
        chars, part = ANY, CharSet.of([])
        while not self._take("]"):
            if self._take("&&"):
                chars, part = chars & part, CharSet.of([])
            else:
                part |= self._rest_of_set() if self._take("[") else self._range()
        chars &= part
        return ~chars if negative else chars

    def _range(self) -> CharSet:
        first = self._characters()
        if not self._take("-"):
            return first
        last = self._characters()
        return CharSet.of([(int(first.bounds[0]), int(last.bounds[0]))])

    def _characters(self) -> CharSet:
        """One character, or a set such as \\p{L}."""
        if self._pattern[self.at] != "\\":
            self.at += 1
            return _one(self._pattern[self.at - 1])
        found = _ESCAPE.match(self._pattern, self.at)
        assert found, self
        self.at = found.end()
        category, number, letter, sign = found.groups()
        if category:
            return unicode_set(category)
        if letter and letter.lower() in _SETS:
            chars = unicode_set(_SETS[letter.lower()])
            return ~chars if letter.isupper() else chars
        return _one(chr(int(number, 16)) if number else _CONTROLS.get(letter, sign))

    def _take(self, text: str) -> bool:
        found = self._pattern.startswith(text, self.at)
        self.at += len(text) * found
        return found


def _one(character: str) -> CharSet:
    return CharSet.of([(ord(character), ord(character))])
