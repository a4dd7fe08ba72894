"""Automata: a regular expression as tables that find its matches in linear time.

A match is the one that backtracking finds: the first alternative that leads to a match, and greedy
or lazy repetitions. Two passes over a text look at each character once (A. Frisch and L. Cardelli,
"Greedy Regular Expression Matching", 2004):

1. From the end to the beginning: which characters of the expression are live before each character
   of the text? Those with which the rest of a match can begin. The number of their set is the state
   of a deterministic automaton.
2. From the beginning: the first alternative that is live comes next.

Conditions such as (?!...) hold or not, depending on the live characters alone.
Tests: tests/model/test_vocab_regex.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ....kernels.cpu.vocab.split import END, NONE, START
from .graph import END_STEP, Condition, Graph, Way

U16Array: TypeAlias = npt.NDArray[np.uint16]

_END_BIT: Final = 1 << END_STEP


class Automaton(NamedTuple):
    """The tables of an expression. A place is a step of the graph behind a character.

    Attributes:
        back: [n_states, n_classes], the state before a character by the state behind it and the
            character's class. State 0 is that at the end of the text.
        choice: [n_places, n_states], the place behind the next character by place and state.
    """

    back: U16Array
    choice: U16Array


def automaton(graph: Graph, classes: Sequence[Sequence[int]]) -> Automaton:
    """Return the tables of a graph.

    `classes`: for each class of characters, the steps with sets that contain it.
    """
    places = _Places(graph)
    of_class = [sum(1 << step for step in steps) for steps in classes]
    states, numbers = [_END_BIT], {_END_BIT: 0}
    back: list[list[int]] = []
    choices: list[list[int]] = []
    for live in states:  # grows
        before, choice = places.at(live)
        choices.append(choice)
        back.append([])
        for steps in of_class:
            state = before & steps | _END_BIT
            if state not in numbers:
                numbers[state] = len(states)
                states.append(state)
            back[-1].append(numbers[state])
    assert max(len(states), places.n_rows) < NONE, (len(states), places.n_rows)
    choice_table = np.empty((places.n_rows, len(states)), np.uint16)
    for row, to in places.fixed:
        choice_table[row] = to
    choice_table[places.branching] = np.array(choices).T
    return Automaton(np.array(back, np.uint16), choice_table)


class _Places:
    """The places of a graph. A set of steps is an int: bit `i` for step `i`.

    Attributes:
        n_rows: the number of places in a match; `rows` of the table of choices.
        fixed: rows with one choice, and this choice.
        branching: the other rows.
    """

    def __init__(self, graph: Graph) -> None:
        self._steps = graph.steps
        self._conditions = graph.conditions
        self._before: dict[int, int] = {}  # the characters before each place
        for i, step in enumerate(graph.steps):
            if step.chars:
                self._before[step.to[0]] = self._before.get(step.to[0], 0) | 1 << i
        starts = (graph.start, *(condition.start for condition in graph.conditions))
        self._ways = {place: graph.ways(place) for place in (*self._before, *starts)}
        found = self._found(graph.start)
        self._rows = {place: row for row, place in enumerate(found, START)}
        self.n_rows = len(found)
        single = {place for place in found[1:] if self._steps[place].chars}
        self.fixed = [(self._rows[p], self._rows[self._steps[p].to[0]]) for p in single]
        self._branching = [place for place in found if place not in single]
        self.branching = [self._rows[place] for place in self._branching]
        # \s{512} is a chain of characters, in which each is live before the next
        self._chain = 0
        for place, before in tuple(self._before.items()):
            if self._steps[place].chars and before == 1 << (place + 1):
                self._chain |= self._before.pop(place)
        undecided = (*self._before, *self._branching, *starts)
        reached = {way.to for place in undecided for way in self._ways[place]}
        self._relevant = sum(1 << to for to in reached)
        self._decided: dict[int, tuple[int, list[int]]] = {}  # results of `at`

    def _found(self, start: int) -> list[int]:
        """The places of a match, `start` first."""
        found = {start: None}
        todo = [start]
        for place in todo:  # grows
            behind = [to for way in self._ways[place] for to in self._steps[way.to].to]
            todo += [to for to in dict.fromkeys(behind) if to not in found]
            found |= dict.fromkeys(behind)
        return [*found]

    def at(self, live: int) -> tuple[int, list[int]]:
        """Return the characters that may precede a live set, and the choices of `branching`."""
        relevant = live & self._relevant
        if relevant not in self._decided:
            self._decided[relevant] = self._decide(relevant)
        before, choices = self._decided[relevant]
        return before | live << 1 & self._chain, choices

    def _decide(self, live: int) -> tuple[int, list[int]]:
        holds: dict[Condition, bool] = {}
        for condition in self._conditions:
            matches = self._first(condition.start, live, holds) is not None
            holds[condition] = matches != condition.negative
        before = 0
        for place, characters in self._before.items():
            if self._first(place, live, holds):
                before |= characters
        return before, [self._choice(self._first(place, live, holds)) for place in self._branching]

    def _first(self, place: int, live: int, holds: dict[Condition, bool]) -> Way | None:
        """The first way from a place that leads to a match."""
        for way in self._ways[place]:
            if live >> way.to & 1 and all(holds[condition] for condition in way.conditions):
                return way
        return None

    def _choice(self, way: Way | None) -> int:
        if way is None:
            return NONE
        return END if way.to == END_STEP else self._rows[self._steps[way.to].to[0]]
