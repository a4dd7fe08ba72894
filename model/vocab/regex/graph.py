"""The graph of a regular expression: its characters, and what may follow each of them.

Tests: tests/model/test_vocab_regex.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from .charset import CharSet
from .syntax import Ahead, Chars, Either, Node, Repeat, Then

END_STEP: Final = 0


class Condition(NamedTuple):
    """A condition on the text that follows: `start` is the first step of its expression."""

    start: int
    negative: bool


class Step(NamedTuple):
    """A character with the step behind it, a condition, a choice, or the end of a match."""

    to: list[int]  # the steps that may follow, the preferred first
    chars: CharSet | None = None
    condition: Condition | None = None


class Way(NamedTuple):
    """A way from a step to a character, or to the end, under conditions."""

    to: int
    conditions: tuple[Condition, ...]


class Graph:
    """The steps of an expression.

    Attributes:
        steps: step 0 is the end of a match.
        start: the first step of a match.
        conditions: all conditions. Those within a condition are before it.
    """

    def __init__(self, tree: Node) -> None:
        self.steps = [Step([])]
        self.conditions: list[Condition] = []
        self.start = self._add(tree, END_STEP)
        assert all(way.to != END_STEP for way in self.ways(self.start)), "a match may be empty"

    def ways(self, step: int) -> list[Way]:
        """Return the ways from (and including) a step to characters, the preferred first."""
        return list(dict.fromkeys(self._walk(step, (), set())))

    def _walk(
        self,
        at: int,
        conditions: tuple[Condition, ...],
        seen: set[tuple[int, tuple[Condition, ...]]],
    ) -> Iterator[Way]:
        if (at, conditions) in seen:
            return
        seen.add((at, conditions))
        step = self.steps[at]
        if step.chars or at == END_STEP:
            yield Way(at, conditions)
            return
        if step.condition and step.condition not in conditions:
            conditions = (*conditions, step.condition)
        for to in step.to:
            yield from self._walk(to, conditions, seen)

    def _new(self, to: list[int], chars: CharSet | None = None) -> int:
        self.steps.append(Step(to, chars))
        return len(self.steps) - 1

    def _add(self, node: Node, then: int) -> int:
        """Add the steps of a node before the step `then`. Return its first step."""
        match node:
            case Chars(chars):
                return self._new([then], chars)
            case Then(nodes):
                for part in reversed(nodes):
                    then = self._add(part, then)
                return then
            case Either(nodes):
                return self._new([self._add(part, then) for part in nodes])
            case Repeat():
                return self._add_repeat(node, then)
            case Ahead(part, negative):
                condition = Condition(self._add(part, END_STEP), negative)
                self.conditions.append(condition)
                self.steps.append(Step([then], None, condition))
                return len(self.steps) - 1

    def _add_repeat(self, repeat: Repeat, then: int) -> int:
        part, order = repeat.node, 1 if repeat.greedy else -1
        if repeat.most is None:
            first = self._new([])
            self.steps[first].to.extend((self._add(part, first), then)[::order])
        else:
            first = then
            for _ in range(repeat.most - repeat.least):
                first = self._new([*(self._add(part, first), then)[::order]])
        for _ in range(repeat.least):
            first = self._add(part, first)
        return first
