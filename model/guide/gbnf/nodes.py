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
    """Return a sequence without sequences in it.

    Adjacent texts become one, as do repetitions of the same: `x? x?` is x{0,2}, `x x*` is x{1,}.
    """
    flat: list[Node] = []
    for item in items:
        for part in item.items if isinstance(item, Seq) else (item,):
            joined = _joined(flat[-1], part) if flat else None
            if joined is None:
                flat.append(part)
            else:
                flat[-1] = joined
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def _joined(a: Node, b: Node) -> Node | None:
    """Return one expression for two adjacent ones, if they can be joined."""
    if isinstance(a, Text) and isinstance(b, Text):
        return Text(a.text + b.text)
    if not isinstance(a, Repeat | Chars) and not isinstance(b, Repeat):
        return None
    first = a if isinstance(a, Repeat) else Repeat(a, 1, 1)
    second = b if isinstance(b, Repeat) else Repeat(b, 1, 1)
    if first.item != second.item:
        return None
    most = None if None in (first.most, second.most) else (first.most or 0) + (second.most or 0)
    return Repeat(first.item, first.least + second.least, most)


def alt(items: Iterable[Node]) -> Node:
    """Return alternatives without alternatives in them and without repetitions.

    Several classes become one.
    """
    flat = dict.fromkeys(
        part for item in items for part in (item.items if isinstance(item, Alt) else (item,))
    )
    assert flat, "no alternatives"
    classes = [part for part in flat if isinstance(part, Chars)]
    if len(classes) > 1:
        chars = Chars(union(each for part in classes for each in part.ranges))
        flat = dict.fromkeys([chars, *(part for part in flat if not isinstance(part, Chars))])
    return next(iter(flat)) if len(flat) == 1 else Alt(tuple(flat))


def repeat(item: Node, least: int, most: int | None) -> Node:
    """Return a repetition, or a simpler node for the same.

    `(x (x (x)?)?)?` is x{0,3}: generated grammars nest so a thousand times.
    """
    if item == EMPTY or most == 0:
        return EMPTY
    if (least, most) == (1, 1):
        return item
    if (least, most) == (0, 1):
        return _optional(item)
    if isinstance(item, Repeat) and most is None is item.most and least <= 1 >= item.least:
        return Repeat(item.item, min(least, item.least), None)
    return Repeat(item, least, most)


def _optional(item: Node) -> Node:
    if isinstance(item, Repeat) and item.least <= 1:
        return Repeat(item.item, 0, item.most)
    if isinstance(item, Seq):
        *start, last = item.items
        if isinstance(last, Repeat) and last.least == 0 and seq(start) == last.item:
            return Repeat(last.item, 0, None if last.most is None else last.most + 1)
    return Repeat(item, 0, 1)
