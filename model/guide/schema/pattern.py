"""Regular expressions of schemas, parsed into a language of whole strings.

The syntax is that of Python's `re`, which the reference validator uses, and whatever means the
same in ECMA 262. A pattern becomes the set of the whole strings in which it is found: `^` and `$`
disappear, unanchored ends become "any text", lookaheads become intersections and complements.
Not known here: JSON and its escapes (language.py). Tested by
tests/model/test_guide_schema_patterns.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from .limits import (
    ANCHORED_GROUPS,
    LENGTH_MAX,
    PATTERN_CHARS,
    PATTERN_REPEATS,
)
from .pattern_nodes import (
    ANY_TEXT,
    NOTHING,
    Alt,
    Anchor,
    Both,
    Chars,
    Look,
    Node,
    Other,
    PatternError,
    Repeat,
    Seq,
)
from .pattern_parser import PatternParser


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern's language twice: `narrow` is inside of the exact one, `wide` around it."""

    source: str
    narrow: Node
    wide: Node


def parse_pattern(source: str) -> Pattern:
    """The language of the strings in which `source` is found. Raises PatternError."""
    if len(source) > PATTERN_CHARS:
        raise PatternError(f"it is longer than {PATTERN_CHARS} characters")
    narrow, wide = (PatternParser(source, size).parse() for size in (False, True))
    _nested_repeats(narrow)
    return Pattern(source, _search(narrow, False), _search(wide, True))


def full_pattern(source: str) -> Pattern:
    """The language of the strings that match `source` as a whole; for our own patterns."""
    tree = PatternParser(source, False).parse()
    return Pattern(source, tree, tree)


def _nested_repeats(node: Node) -> int:
    """The largest product of nested repetitions. Raises PatternError past the limits."""
    if isinstance(node, Seq | Alt):
        return max((_nested_repeats(p) for p in node.parts), default=1)
    if isinstance(node, Look):
        return _nested_repeats(node.node)
    if not isinstance(node, Repeat):
        return 1
    inner = _nested_repeats(node.node)
    count = max(node.least, node.most or 1, 1)
    if count > LENGTH_MAX:
        raise PatternError(f"a repetition's count is greater than {LENGTH_MAX}")
    if inner > 1 and inner * count > PATTERN_REPEATS:
        raise PatternError(f"its nested repetitions multiply to more than {PATTERN_REPEATS}")
    return inner * count


def _has_marks(node: Node) -> bool:
    """True if an anchor or a lookahead is inside."""
    if isinstance(node, Anchor | Look):
        return True
    if isinstance(node, Seq | Alt):
        return any(_has_marks(p) for p in node.parts)
    return isinstance(node, Repeat) and _has_marks(node.node)


def _search(tree: Node, wide: bool) -> Node:
    return _choice([_whole([ANY_TEXT, *parts, ANY_TEXT], wide) for parts in _flat(tree, [0])])


def _choice(options: list[Node]) -> Node:
    return options[0] if len(options) == 1 else Alt(tuple(options))


def _flat(tree: Node, count: list[int]) -> list[list[Node]]:
    """The alternatives of a tree as sequences; groups with anchors in them are multiplied out."""
    count[0] += 1
    if isinstance(tree, Alt):
        return [parts for option in tree.parts for parts in _flat(option, count)]
    if isinstance(tree, Repeat) and _has_marks(tree):
        if tree.least > 1 or tree.most != 1:
            raise PatternError("it repeats an anchor or a lookahead")
        optional: list[list[Node]] = [[]] if tree.least == 0 else []
        return _flat(tree.node, count) + optional
    if not isinstance(tree, Seq):
        return [[tree]]
    found: list[list[Node]] = [[]]
    for part in tree.parts:
        tails = _flat(part, count) if _has_marks(part) and not isinstance(part, Look) else [[part]]
        count[0] += len(found) * (len(tails) - 1)
        if count[0] > ANCHORED_GROUPS:
            raise PatternError("it has too many anchors inside of groups")
        found = [[*head, *tail] for head in found for tail in tails]
    return found


def _whole(parts: list[Node], wide: bool) -> Node:
    """The language of a sequence. A lookahead binds all that follows it to the string's end."""
    try:
        parts = _without_ends(_without_starts(parts), wide)
    except _NoMatchError:
        return NOTHING
    after: list[Node] = []
    for part in reversed(parts):
        if not isinstance(part, Look):
            after = [part, *after]
            continue
        inside = wide if part.positive else not wide
        inner = _choice([_whole([*x, ANY_TEXT], inside) for x in _flat(part.node, [0])])
        after = [Both((inner if part.positive else Other(inner), Seq(tuple(after))))]
    return after[0] if len(after) == 1 else Seq(tuple(after))


class _NoMatchError(Exception):
    """Something has to stand before `^` or after `$`."""


def _without_starts(parts: list[Node]) -> list[Node]:
    """Drop every `^`, and what can only match the empty string before it."""
    while Anchor(True) in parts:
        i = parts.index(Anchor(True))
        parts = [*_only_looks(parts[:i]), *parts[i + 1 :]]
    return parts


def _without_ends(parts: list[Node], wide: bool) -> list[Node]:
    """Drop every `$` likewise. Python's `$` also matches before a final newline: wide allows it."""
    while Anchor(False) in parts:
        i = parts.index(Anchor(False))
        if not wide:
            parts = [*parts[:i], *_only_looks(parts[i + 1 :])]
        elif all(_is_nullable(p) for p in parts[i + 1 :]):
            looks = _only_looks(parts[i + 1 :])
            parts = [*parts[:i], Repeat(Chars(((10, 10),)), 0, 1), *looks]
        else:
            parts = [*parts[:i], *parts[i + 1 :]]
    return parts


def _only_looks(parts: list[Node]) -> list[Node]:
    if not all(_is_nullable(p) for p in parts):
        raise _NoMatchError
    return [p for p in parts if isinstance(p, Look)]


def _is_nullable(node: Node) -> bool:
    if isinstance(node, Repeat):
        return node.least == 0 or _is_nullable(node.node)
    if isinstance(node, Seq):
        return all(_is_nullable(p) for p in node.parts)
    if isinstance(node, Alt):
        return any(_is_nullable(p) for p in node.parts)
    return isinstance(node, Anchor | Look)
