"""Finite automata of lexemes, to find out where one lexeme may be mistaken for another.

The positions of an expression are its characters. A state is the set of positions that were read
last (Glushkov's construction, https://doi.org/10.1070/RM1961v016n05ABEH004112), as bits of an
integer, as are sets of characters: one bit for all characters that no expression tells apart.

A counted repetition of more than `N_COPIES_MAX` counts as one without limit, so an automaton may
accept more than its expression, which is safe for the questions asked here.
Knows no llguidance. Tested by tests/model/test_guide_gbnf.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from .limits import N_COPIES_MAX, N_STEPS_MAX
from .nodes import CODE_POINT_MAX, Alt, Chars, Node, Ranges, Ref, Repeat, Rules, Seq, Text, Token

START: Final = -1  # the state before any character


class TooManyStepsError(Exception):
    """A search takes too long."""


class Steps:
    """Counts the steps of all searches in one grammar."""

    def __init__(self) -> None:
        self.n = 0

    def spend(self, n: int) -> None:
        """Raise TooManyStepsError if the steps so far are too many."""
        self.n += n
        if self.n > N_STEPS_MAX:
            raise TooManyStepsError


class Alphabet:
    """Divides the characters into classes that no expression of a grammar tells apart."""

    def __init__(self, rules: Rules, steps: Steps) -> None:
        sets = dict.fromkeys(_sets(rules))
        edges = {0, CODE_POINT_MAX + 1}
        for ranges in sets:
            edges.update(edge for first, last in ranges for edge in (first, last + 1))
        bounds = sorted(edges)
        members: list[list[int]] = [[] for _ in bounds]
        covers: list[list[int]] = []
        for i, ranges in enumerate(sets):
            covers.append([])
            for first, last in ranges:
                parts = range(bisect_left(bounds, first), bisect_left(bounds, last + 1))
                steps.spend(len(parts))
                covers[i].extend(parts)
                for part in parts:
                    members[part].append(i)
        classes: dict[tuple[int, ...], int] = {}
        of_part = [classes.setdefault(tuple(each), len(classes)) for each in members]
        self._masks = {
            ranges: sum({1 << of_part[part] for part in covers[i]}) for i, ranges in enumerate(sets)
        }

    def mask(self, ranges: Ranges) -> int:
        """The classes of these characters, which must be a set of the grammar."""
        return self._masks[ranges]


def _sets(rules: Rules) -> Iterator[Ranges]:
    todo = list(rules.values())
    while todo:
        node = todo.pop()
        if isinstance(node, Chars):
            yield node.ranges
        elif isinstance(node, Token):
            yield node.starts
        elif isinstance(node, Text):
            yield from (((ord(c), ord(c)),) for c in dict.fromkeys(node.text))
        todo.extend(node.children)


class _Part(NamedTuple):
    """The positions at which an expression begins and ends."""

    nullable: bool
    first: int
    last: int


_NOTHING: Final = _Part(True, 0, 0)


class Automaton:
    """The automaton of a regular expression.

    Attributes:
        is_exact: it accepts no more than the expression.
        starts: the classes of first characters.
    """

    def __init__(self, node: Node, rules: Rules, alphabet: Alphabet, steps: Steps) -> None:
        self._rules = rules
        self._alphabet = alphabet
        self._steps = steps
        self._masks: list[int] = []
        self._follow: list[int] = []
        self.is_exact = True
        self._part = self._build(node)
        by_class: dict[int, int] = {}
        for position, mask in enumerate(self._masks):
            for bit in bits(mask):
                by_class[bit] = by_class.get(bit, 0) | 1 << position
            steps.spend(mask.bit_count())
        self._by_class = by_class
        self._moves: dict[int, dict[int, int]] = {}
        self.starts = self.continuations(START)

    def accepts(self, state: int) -> bool:
        """True if the text read so far matches."""
        return self._part.nullable if state == START else bool(state & self._part.last)

    def moves(self, state: int) -> dict[int, int]:
        """The next state for each class (as a bit) that can follow."""
        found = self._moves.get(state)
        if found is None:
            targets = self._part.first
            if state != START:
                targets = 0
                for bit in bits(state):
                    targets |= self._follow[bit.bit_length() - 1]
                self._steps.spend(state.bit_count())
            self._steps.spend(len(self._by_class))
            found = {b: t for b, having in self._by_class.items() if (t := targets & having)}
            self._moves[state] = found
        return found

    def continuations(self, state: int) -> int:
        """The classes of the characters that can follow."""
        return sum(self.moves(state))

    def _build(self, node: Node) -> _Part:
        match node:
            case Chars(ranges):
                return self._position(self._alphabet.mask(ranges))
            case Text(text):
                code_points = [ord(c) for c in text]
                return self._chain(
                    self._position(self._alphabet.mask(((c, c),))) for c in code_points
                )
            case Seq(items):
                return self._chain(self._build(item) for item in items)
            case Alt(items):
                parts = [self._build(item) for item in items]
                first = last = 0
                for part in parts:
                    first |= part.first
                    last |= part.last
                return _Part(any(part.nullable for part in parts), first, last)
            case Repeat(item, least, most):
                return self._chain(self._copies(item, least, most))
            case Ref(name):
                return self._build(self._rules[name])
            case _:
                raise AssertionError(node)

    def _copies(self, item: Node, least: int, most: int | None) -> Iterator[_Part]:
        if (least if most is None else most) > N_COPIES_MAX:
            self.is_exact = False
            least, most = min(least, N_COPIES_MAX), None
        for i in range(max(least, 1) if most is None else most):
            part = self._build(item)
            yield part._replace(nullable=True) if i >= least else part
        if most is None:
            self._link(part.last, part.first)

    def _position(self, mask: int) -> _Part:
        self._masks.append(mask)
        self._follow.append(0)
        bit = 1 << (len(self._masks) - 1)
        return _Part(False, bit, bit)

    def _chain(self, parts: Iterable[_Part]) -> _Part:
        whole = _NOTHING
        for part in parts:
            self._link(whole.last, part.first)
            whole = _Part(
                whole.nullable and part.nullable,
                whole.first | part.first if whole.nullable else whole.first,
                whole.last | part.last if part.nullable else part.last,
            )
        return whole

    def _link(self, last: int, first: int) -> None:
        for bit in bits(last):
            self._follow[bit.bit_length() - 1] |= first
        self._steps.spend(last.bit_count() + 1)


def bits(mask: int) -> Iterator[int]:
    """Yield the bits of an integer, each as a power of two."""
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit


class Overlap(NamedTuple):
    """How the matches of two expressions `a` and `b` begin alike.

    Attributes:
        b_goes_on: the classes of characters that continue `b` where `a` may end.
        a_goes_on: the same with `a` and `b` exchanged.
        is_common: a text that is not empty matches both.
    """

    b_goes_on: int
    a_goes_on: int
    is_common: bool


_APART: Final = Overlap(0, 0, False)


def overlap(a: Automaton, b: Automaton, steps: Steps) -> Overlap:
    """Compare two expressions."""
    if not a.starts & b.starts:
        return _APART
    b_goes_on = a_goes_on = 0
    is_common = False
    seen = {(START, START)}
    todo = [(START, START)]
    while todo:
        at_a, at_b = todo.pop()
        if at_a != START:
            a_ends, b_ends = a.accepts(at_a), b.accepts(at_b)
            is_common |= a_ends and b_ends
            b_goes_on |= b.continuations(at_b) if a_ends else 0
            a_goes_on |= a.continuations(at_a) if b_ends else 0
        moves_b = b.moves(at_b)
        for bit, to_a in a.moves(at_a).items():
            pair = (to_a, moves_b.get(bit, 0))
            if pair[1] and pair not in seen:
                seen.add(pair)
                todo.append(pair)
        steps.spend(len(moves_b) + 1)
    return Overlap(b_goes_on, a_goes_on, is_common)


def absorbs(a: Automaton, b: Automaton, steps: Steps) -> bool:
    """True if each match of `a`, followed by a match of `b`, matches `a` too."""
    if not a.is_exact:
        return False
    ends = _states(a, steps)
    seen = {(state, START) for state in ends if a.accepts(state)}
    todo = list(seen)
    while todo:
        at_a, at_b = todo.pop()
        if at_b != START and b.accepts(at_b) and not (at_a and a.accepts(at_a)):
            return False
        moves_a = a.moves(at_a) if at_a else {}
        for bit, to_b in b.moves(at_b).items():
            pair = (moves_a.get(bit, 0), to_b)
            if pair not in seen:
                seen.add(pair)
                todo.append(pair)
        steps.spend(len(moves_a) + 1)
    return True


def _states(automaton: Automaton, steps: Steps) -> set[int]:
    """All states after at least one character."""
    seen: set[int] = set()
    todo = [START]
    while todo:
        moves = automaton.moves(todo.pop())
        for state in moves.values():
            if state not in seen:
                seen.add(state)
                todo.append(state)
        steps.spend(len(moves) + 1)
    return seen
