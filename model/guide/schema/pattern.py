"""Regular expressions of schemas, parsed into a language of whole strings.

The syntax is that of Python's `re`, which the reference validator uses, and whatever means the
same in ECMA 262. A pattern becomes the set of the whole strings in which it is found: `^` and `$`
disappear, unanchored ends become "any text", lookaheads become intersections and complements.
Not known here: JSON and its escapes (language.py). Tested by
tests/model/test_guide_schema_patterns.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from . import charset
from .charset import Ranges
from .limits import (
    ANCHORED_GROUPS,
    LENGTH_MAX,
    PATTERN_CHARS,
    PATTERN_DEPTH,
    PATTERN_MATCH_STEPS,
    PATTERN_NODES,
    PATTERN_REPEATS,
)


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


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern's language twice: `narrow` is inside of the exact one, `wide` around it."""

    source: str
    narrow: Node
    wide: Node


def literal(text: str) -> Node:
    return Seq(tuple(Chars(((ord(c), ord(c)),)) for c in text))


def parse_pattern(source: str) -> Pattern:
    """The language of the strings in which `source` is found. Raises PatternError."""
    if len(source) > PATTERN_CHARS:
        raise PatternError(f"it is longer than {PATTERN_CHARS} characters")
    narrow, wide = (_Parser(source, size).parse() for size in (False, True))
    _nested_repeats(narrow)
    return Pattern(source, _search(narrow, False), _search(wide, True))


def full_pattern(source: str) -> Pattern:
    """The language of the strings that match `source` as a whole; for our own patterns."""
    tree = _Parser(source, False).parse()
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


# From a search to whole strings


def _has_marks(node: Node) -> bool:
    """Whether an anchor or a lookahead is inside."""
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


# Parsing

_BEYOND_ASCII: Final[Ranges] = ((0x80, 0x10FFFF),)
_CLASSES: Final = {"d": 0, "w": 1, "s": 2}
_CONTROLS: Final = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "a": 7, "0": 0}


class _Parser:
    """One pattern. `wide` chooses the size of the character classes."""

    def __init__(self, source: str, wide: bool) -> None:
        self.source = source
        self.wide = wide
        self.pos = 0
        self.n_nodes = 0
        self.fold = False
        self.dot_all = False

    def parse(self) -> Node:
        if self.source.startswith(("(?i)", "(?s)", "(?is)", "(?si)")):
            flags = self.source[2 : self.source.index(")")]
            self.fold, self.dot_all = "i" in flags, "s" in flags
            self.pos = len(flags) + 3
        node = self._alternatives(0)
        if self.pos < len(self.source):
            raise PatternError("unbalanced parenthesis")
        return node

    def _peek(self) -> str:
        return self.source[self.pos] if self.pos < len(self.source) else ""

    def _take(self, text: str) -> bool:
        if self.source.startswith(text, self.pos):
            self.pos += len(text)
            return True
        return False

    def _count(self) -> None:
        self.n_nodes += 1
        if self.n_nodes > PATTERN_NODES:
            raise PatternError(f"it has more than {PATTERN_NODES} parts")

    def _alternatives(self, depth: int) -> Node:
        if depth > PATTERN_DEPTH:
            raise PatternError(f"it has more than {PATTERN_DEPTH} nested groups")
        options = [self._sequence(depth)]
        while self._take("|"):
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Alt(tuple(options))

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self._peek() and self._peek() not in "|)":
            self._count()
            atom = self._atom(depth)
            part = self._quantified(atom)
            if part != EMPTY:
                parts.append(part)
        return parts[0] if len(parts) == 1 else Seq(tuple(parts))

    def _quantified(self, atom: Node) -> Node:
        bounds = self._bounds()
        if bounds is None:
            return atom
        if isinstance(atom, Anchor | Look):
            raise PatternError("it repeats an anchor or a lookahead")
        if self._take("+"):
            raise PatternError("possessive quantifiers are not supported")
        self._take("?")  # lazy: the same strings
        if self._bounds() is not None:
            raise PatternError("multiple repeat")
        least, most = bounds
        if most is not None and least > most:
            raise PatternError("a repetition's least count is greater than its largest")
        return EMPTY if most == 0 else Repeat(atom, least, most)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        if self._peek() != "{":
            return None
        end = self.source.find("}", self.pos)
        least, comma, most = self.source[self.pos + 1 : max(end, self.pos + 1)].partition(",")
        if end < 0 or not (least or comma) or not _is_count(least) or not _is_count(most):
            return None  # a plain brace
        if comma and not (least or most):
            return None
        self.pos = end + 1
        low = int(least or 0)
        return low, (int(most) if most else None) if comma else low

    def _atom(self, depth: int) -> Node:
        c = self.source[self.pos]
        self.pos += 1
        if c == "(":
            return self._group(depth)
        if c == "[":
            return self._set()
        if c == "\\":
            return self._escape()
        if c == ".":
            newline: Ranges = () if self.dot_all else ((10, 10),)
            return Chars(charset.complement(newline))
        if c in "^$":
            return Anchor(c == "^")
        if c in "*+?":
            raise PatternError("nothing to repeat")
        return self._char(ord(c))

    def _char(self, code: int) -> Node:
        return Chars(self._folded(charset.ranges_of([(code, code)])))

    def _folded(self, ranges: Ranges) -> Ranges:
        """With (?i): the letters of both cases. Beyond ASCII, wide allows anything."""
        if not self.fold:
            return ranges
        letters = charset.intersect(ranges, ((0x41, 0x5A), (0x61, 0x7A)))
        swapped = tuple((first ^ 32, last ^ 32) for first, last in letters)
        if not self.wide:
            return charset.union(ranges, swapped)
        beyond = charset.intersect(ranges, _BEYOND_ASCII)
        more = (charset.WORD if beyond else ()) + (_BEYOND_ASCII if letters or beyond else ())
        return charset.union(ranges, swapped, more)

    def _group(self, depth: int) -> Node:
        look: bool | None = None
        if self._take("?"):
            if self._take("="):
                look = True
            elif self._take("!"):
                look = False
            elif self._take("P<") or (self._peek() == "<" and self._take_name_start()):
                end = self.source.find(">", self.pos)
                if end < 0:
                    raise PatternError("a group's name has no end")
                self.pos = end + 1
            elif not self._take(":"):
                raise PatternError(f"groups with (?{self._peek()} are not supported")
        outer = self.wide
        self.wide = outer if look is not False else not outer
        node = self._alternatives(depth + 1)
        self.wide = outer
        if not self._take(")"):
            raise PatternError("unbalanced parenthesis")
        return node if look is None else Look(node, look)

    def _take_name_start(self) -> bool:
        if self.source.startswith(("<=", "<!"), self.pos):
            raise PatternError("lookbehinds are not supported")
        return self._take("<")

    def _class(self, letter: str) -> Ranges:
        kind = letter.lower()
        negated = letter.isupper()
        if self.wide != negated:  # a complement of the narrow class is wide, and the reverse
            sets = (charset.wide_digits, charset.wide_word, lambda: charset.WIDE_SPACE)
            ranges = sets[_CLASSES[kind]]()
        else:
            ranges = (charset.DIGITS, charset.WORD, charset.SPACE)[_CLASSES[kind]]
        return charset.complement(ranges) if negated else ranges

    def _escape(self) -> Node:
        c = self._peek()
        if c and c in "dwsDWS":
            self.pos += 1
            return Chars(self._class(c))
        if c == "A":
            self.pos += 1
            return Anchor(True)
        if c in ("Z", "z"):
            self.pos += 1
            return Anchor(False)
        if c and c in "bB":
            raise PatternError(f"\\{c} (word boundary) is not supported")
        if c.isdigit() and c != "0":
            raise PatternError("back references are not supported")
        return self._char(self._escaped_code())

    def _escaped_code(self) -> int:
        c = self._peek()
        self.pos += 1
        if not c:
            raise PatternError("it ends with a backslash")
        if c in _CONTROLS:
            return _CONTROLS[c]
        if c in "xuU":
            return self._hex({"x": 2, "u": 4, "U": 8}[c])
        if c == "c" and self._peek().isalpha() and self._peek().isascii():
            self.pos += 1
            return ord(self.source[self.pos - 1].upper()) - 64
        if c.isalnum() and c.isascii():
            raise PatternError(f"the escape \\{c} is not supported")
        return ord(c)

    def _hex(self, n: int) -> int:
        digits = self.source[self.pos : self.pos + n]
        if len(digits) < n or not all(d in "0123456789abcdefABCDEF" for d in digits):
            raise PatternError("an escape has too few hexadecimal digits")
        self.pos += n
        code = int(digits, 16)
        if code > 0x10FFFF:
            raise PatternError("an escape is past the last character")
        return code

    def _set(self) -> Node:
        negated = self._take("^")
        found: list[tuple[int, int]] = []
        first = True
        # A negated set of a class is the complement of the class's other size.
        outer = self.wide
        self.wide = outer != negated
        while first or self._peek() != "]":
            if not self._peek():
                raise PatternError("a set of characters has no end")
            first = False
            self._count()
            found.extend(self._set_item())
        self.pos += 1
        ranges = self._folded(charset.ranges_of(found))
        self.wide = outer
        return Chars(charset.complement(ranges) if negated else ranges)

    def _set_item(self) -> list[tuple[int, int]]:
        low = self._set_char()
        if not isinstance(low, int):
            return list(low)
        if self._peek() == "-" and self.source[self.pos + 1 : self.pos + 2] not in ("]", ""):
            self.pos += 1
            high = self._set_char()
            if not isinstance(high, int) or high < low:
                raise PatternError("a set has an invalid range of characters")
            return [(low, high)]
        return [(low, low)]

    def _set_char(self) -> int | Ranges:
        c = self._peek()
        self.pos += 1
        if c != "\\":
            return ord(c)
        c = self._peek()
        if c and c in "dwsDWS":
            self.pos += 1
            return self._class(c)
        if c == "b":
            self.pos += 1
            return 8
        return self._escaped_code()


def _is_count(text: str) -> bool:
    return text == "" or (text.isascii() and text.isdigit() and len(text) < 10)


# Matching


def matches(node: Node, text: str) -> bool:
    """Whether the whole text is in the language. Raises PatternError after too many steps."""
    return len(text) in _Matcher(text).ends(node, 0)


class _Matcher:
    """The ends of every match that starts at a position, computed once for each pair."""

    def __init__(self, text: str) -> None:
        self.codes = [ord(c) for c in text]
        self.steps = PATTERN_MATCH_STEPS
        self.known: dict[tuple[int, int], frozenset[int]] = {}

    def ends(self, node: Node, start: int) -> frozenset[int]:
        key = (id(node), start)
        found = self.known.get(key)
        if found is None:
            self.steps -= 1
            if self.steps < 0:
                raise PatternError("matching it takes too long")
            found = self.known[key] = self._ends(node, start)
        return found

    def _ends(self, node: Node, start: int) -> frozenset[int]:
        n = len(self.codes)
        if isinstance(node, Chars):
            hit = start < n and charset.has(node.ranges, self.codes[start])
            return frozenset((start + 1,)) if hit else frozenset()
        if isinstance(node, Seq):
            reached = frozenset((start,))
            for part in node.parts:
                reached = self._step(part, reached)
            return reached
        if isinstance(node, Alt):
            return frozenset().union(*(self.ends(p, start) for p in node.parts))
        if isinstance(node, Both):
            return frozenset.intersection(*(self.ends(p, start) for p in node.parts))
        if isinstance(node, Other):
            return frozenset(range(start, n + 1)) - self.ends(node.node, start)
        assert isinstance(node, Repeat), node
        return self._repeat(node, start)

    def _step(self, node: Node, starts: frozenset[int]) -> frozenset[int]:
        return frozenset().union(*(self.ends(node, s) for s in starts))

    def _repeat(self, node: Repeat, start: int) -> frozenset[int]:
        if node.node == ANY_TEXT.node and node.most is None and node.least == 0:
            return frozenset(range(start, len(self.codes) + 1))
        reached = frozenset((start,))
        found: set[int] = set(reached) if node.least == 0 else set()
        # After as many rounds as there are characters, rounds repeat themselves.
        rounds = min(
            node.most if node.most is not None else 10**9, node.least + len(self.codes) + 1
        )
        seen: set[frozenset[int]] = set()
        for i in range(1, rounds + 1):
            self.steps -= 1
            reached = self._step(node.node, reached)
            if not reached or self.steps < 0:
                break
            if i >= node.least:
                if reached in seen and reached <= found:
                    break
                seen.add(reached)
                found |= reached
        if self.steps < 0:
            raise PatternError("matching it takes too long")
        return frozenset(found)
