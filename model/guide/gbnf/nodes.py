"""The syntax tree of a grammar: characters, texts, sequences, alternatives, repetitions, rules.

Nodes are immutable and compare by value. `seq`, `alt` and `repeat` build simplified nodes.
Knows neither GBNF's syntax nor llguidance. Tested by tests/model/test_guide_gbnf.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

Ranges = tuple[tuple[int, int], ...]  # of code points: ascending, disjoint, both ends included

CODE_POINT_MAX: Final = 0x10FFFF
SURROGATES: Final = (0xD800, 0xDFFF)
ANY: Final[Ranges] = ((0, SURROGATES[0] - 1), (SURROGATES[1] + 1, CODE_POINT_MAX))


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the code points of all these ranges, without surrogates, which no text has."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], last)
        else:
            merged.append((first, last))
    return tuple(
        part
        for first, last in merged
        for part in (
            (first, min(last, SURROGATES[0] - 1)),
            (max(first, SURROGATES[1] + 1), last),
        )
        if part[0] <= part[1]
    )


def complement(ranges: Ranges) -> Ranges:
    """Return all other code points."""
    starts = [0, *(last + 1 for _, last in ranges)]
    ends = [*(first - 1 for first, _ in ranges), CODE_POINT_MAX]
    return union((a, b) for a, b in zip(starts, ends, strict=True) if a <= b)


class Node:
    """An expression."""

    @cached_property
    def _hash(self) -> int:
        return hash((type(self), *(v for name, v in vars(self).items() if name[0] != "_")))

    def __hash__(self) -> int:
        return self._hash

    @property
    def children(self) -> tuple[Node, ...]:
        """The expressions directly inside."""
        return ()

    @cached_property
    def _depth(self) -> int:
        return 1 + max((child.depth for child in self.children), default=0)

    @property
    def depth(self) -> int:
        """The number of nodes on the longest way to a leaf."""
        return self._depth


@dataclass(frozen=True)
class Chars(Node):
    """One character of a set that is not empty."""

    ranges: Ranges
    __hash__ = Node.__hash__


@dataclass(frozen=True)
class Text(Node):
    """This text, of at least one character."""

    text: str
    __hash__ = Node.__hash__


@dataclass(frozen=True)
class Token(Node):
    """One token of the vocabulary, whatever its text is.

    Attributes:
        ids: ranges with both ends included, ascending and disjoint.
        starts: characters with which the text of the tokens begins; none if they have no text.
        name: as the grammar names it.
    """

    ids: Ranges
    starts: Ranges
    name: str
    __hash__ = Node.__hash__


@dataclass(frozen=True)
class Ref(Node):
    """What the rule of this name matches."""

    name: str
    __hash__ = Node.__hash__


@dataclass(frozen=True)
class Seq(Node):
    """One expression after the other; the empty text if there is none."""

    items: tuple[Node, ...]
    __hash__ = Node.__hash__

    @property
    def children(self) -> tuple[Node, ...]:
        return self.items


@dataclass(frozen=True)
class Alt(Node):
    """One of several expressions."""

    items: tuple[Node, ...]
    __hash__ = Node.__hash__

    @property
    def children(self) -> tuple[Node, ...]:
        return self.items


@dataclass(frozen=True)
class Repeat(Node):
    """An expression `least` to `most` times (None: without limit)."""

    item: Node
    least: int
    most: int | None
    __hash__ = Node.__hash__

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.item,)


EMPTY: Final = Seq(())

Rules = dict[str, Node]  # a grammar: the body of each rule by its name


def seq(items: Iterable[Node]) -> Node:
    """Return a sequence without sequences in it; adjacent texts become one."""
    flat: list[Node] = []
    for item in items:
        for part in item.items if isinstance(item, Seq) else (item,):
            last = flat[-1] if flat else None
            if isinstance(part, Text) and isinstance(last, Text):
                flat[-1] = Text(last.text + part.text)
            else:
                flat.append(part)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def alt(items: Iterable[Node]) -> Node:
    """Return alternatives without alternatives in them and without repetitions."""
    flat = dict.fromkeys(
        part for item in items for part in (item.items if isinstance(item, Alt) else (item,))
    )
    assert flat, "no alternatives"
    return next(iter(flat)) if len(flat) == 1 else Alt(tuple(flat))


def repeat(item: Node, least: int, most: int | None) -> Node:
    """Return a repetition, or a simpler node for the same."""
    if item == EMPTY or most == 0:
        return EMPTY
    if (least, most) == (1, 1):
        return item
    return Repeat(item, least, most)
