"""The positions of a grammar of lexemes, and what can be at each of them.

A way through the positions forgets from where a rule was entered, so it may go on behind any of its
references. That adds ways which the grammar has not, and so finds more conflicts than there are,
never fewer. Knows no llguidance. Tested by tests/model/test_guide_gbnf.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .automaton import Steps
from .nodes import Alt, Node, Ref, Repeat, Seq, Token


@dataclass(frozen=True)
class Lexeme(Node):
    """A regular expression that llguidance's lexer matches as one."""

    node: Node
    nullable: bool
    __hash__ = Node.__hash__


class Edge(NamedTuple):
    """A lexeme or a token between two positions.

    `is_optional`: a way leads past it to its target.
    """

    item: Lexeme | Token
    target: int
    is_optional: bool


class Skeleton:
    """The positions of a grammar, whose leaves are lexemes, tokens and references."""

    def __init__(self, rules: Mapping[str, Node], root: str, steps: Steps) -> None:
        self._steps = steps
        self._free: list[list[int]] = []  # ways without a character, by position
        self._edges: dict[int, Edge] = {}
        self._doors = {name: (self._position(), self._position()) for name in rules}
        for name, body in rules.items():
            entry, end = self._doors[name]
            self._way(self._add(body, entry, False), end)
        self.start = self._doors[root][0]
        self._nexts: dict[int, list[Edge]] = {}

    def nexts(self, position: int) -> list[Edge]:
        """The lexemes and tokens that can follow at a position."""
        found = self._nexts.get(position)
        if found is None:
            found = self._nexts[position] = self._search(position)
        return found

    def _search(self, position: int) -> list[Edge]:
        seen = {position}
        todo = [position]
        found: dict[Edge, None] = {}
        while todo:
            at = todo.pop()
            if at in self._edges:
                found[self._edges[at]] = None
            for to in self._free[at]:
                if to not in seen:
                    seen.add(to)
                    todo.append(to)
        self._steps.spend(len(seen))
        return list(found)

    def _position(self) -> int:
        self._free.append([])
        return len(self._free) - 1

    def _way(self, start: int, end: int) -> None:
        self._free[start].append(end)

    def _add(self, node: Node, start: int, is_optional: bool) -> int:
        """Add an expression from a position on. Return the position of its end."""
        match node:
            case Seq(items):
                for item in items:
                    start = self._add(item, start, False)
                return start
            case Alt(items):
                end = self._position()
                for item in items:
                    inner = self._position()
                    self._way(start, inner)
                    self._way(self._add(item, inner, False), end)
                return end
            case Repeat(item, least, most):
                inner, end = self._position(), self._position()
                self._way(start, inner)
                last = self._add(item, inner, least == 0)
                self._way(last, end)
                if least == 0:
                    self._way(inner, end)
                if most is None or most > 1:
                    self._way(last, inner)
                return end
            case Ref(name):
                end = self._position()
                self._way(start, self._doors[name][0])
                self._way(self._doors[name][1], end)
                return end
            case Lexeme() | Token():
                inner, end = self._position(), self._position()
                self._way(start, inner)
                nullable = isinstance(node, Lexeme) and node.nullable
                self._edges[inner] = Edge(node, end, is_optional or nullable)
                if nullable:
                    self._way(inner, end)
                return end
            case _:
                raise AssertionError(node)
