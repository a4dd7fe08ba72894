"""The steps of triggers' patterns, which `triggers` follows. Knows no text and no grammar.

Tested by tests/model/test_guide_triggers.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .schema import charset
from .schema.charset import Ranges
from .schema.pattern_nodes import Alt, Anchor, Chars, Node, PatternError, Repeat, Seq
from .schema.pattern_parser import PatternParser
from .triggers import MATCH

N_STATES_MAX: Final = 128  # of all patterns: each costs time for every character


class TriggerError(ValueError):
    """A pattern cannot be a trigger: what is wrong, and where."""


class Grouped(Chars):
    """A character within a group."""

    __slots__ = ()


class _Parser(PatternParser):
    def _group(self, depth: int) -> Node:
        is_group = self._peek() != "?" or self.source.startswith(("?P<", "?<"), self.pos)
        node = super()._group(depth)
        return _grouped(node) if is_group else node


def _grouped(node: Node) -> Node:
    match node:
        case Chars(ranges):
            return Grouped(ranges)
        case Seq(parts):
            return Seq(tuple(map(_grouped, parts)))
        case Alt(parts):
            return Alt(tuple(map(_grouped, parts)))
        case Repeat(inner, least, most):
            return Repeat(_grouped(inner), least, most)
    return node


@dataclass(slots=True)
class Step:
    """A step of a pattern: a character, a condition, or a choice between the next steps."""

    next: list[int]
    ranges: Ranges | None = None
    is_grouped: bool = False
    anchor: Anchor | None = None

    def takes(self, code: int) -> bool:
        """True for a step of a character that this one is."""
        return self.ranges is not None and charset.has(self.ranges, code)


class Steps:
    """The steps of all patterns."""

    def __init__(self) -> None:
        self.all = [Step([])]
        self._n_left = 20 * N_STATES_MAX  # empty parts make no steps

    def of_pattern(self, pattern: str) -> int:
        """Add the steps of a pattern. Return the first one.

        Raises:
            TriggerError: the pattern is invalid or too long.
        """
        try:
            return self.of(_Parser(pattern, wide=False).parse(), MATCH)
        except (PatternError, ValueError) as e:
            raise TriggerError(str(e)) from None

    def of(self, node: Node, after: int) -> int:
        """Add the steps of a node before the step `after`. Return the first one."""
        self._n_left -= 1
        if self._n_left < 0:
            raise PatternError(f"it is too long: patterns have at most {N_STATES_MAX} states")
        match node:
            case Chars(ranges):
                return self._add(Step([after], ranges, isinstance(node, Grouped)))
            case Seq(parts):
                for part in reversed(parts):
                    after = self.of(part, after)
                return after
            case Alt(parts):
                return self._add(Step([self.of(part, after) for part in parts]))
            case Anchor():
                return self._add(Step([after], anchor=node))
            case Repeat(inner, least, most):
                return self._repeat(inner, least, most, after)
        raise PatternError("lookaheads are not supported")

    def _repeat(self, node: Node, least: int, most: int | None, after: int) -> int:
        if most is None:
            loop = self._add(Step([after]))
            self.all[loop].next.append(self.of(node, loop))
            first = loop
        else:
            first = after
            for _ in range(most - least):
                first = self._add(Step([self.of(node, first), after]))
        for _ in range(least):
            first = self.of(node, first)
        return first

    def _add(self, step: Step) -> int:
        if len(self.all) > N_STATES_MAX:
            raise PatternError(f"it is too long: patterns have at most {N_STATES_MAX} states")
        self.all.append(step)
        return len(self.all) - 1
