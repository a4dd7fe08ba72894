r"""Regular expressions, which whole texts have to match. The syntax is Python's.

    a|b  (a)  (?:a)  (?P<name>a)  a?  a*  a+  a{2}  a{2,}  a{,3}  a{2,3}  [a-z]  [^\d_]  .
    \d \D \w \W \s \S  \n \t \x41 \u00e9 \U0001F600 \N{DIGIT ONE} \p{Lu}  (?i) (?s) (?a) (?i:a)

`\d`, `\w` and `\s` are Unicode's, with the flag `a` ASCII's. `.` is no line end, unless
the flag `s` is set. A text matches as a whole: lazy quantifiers are as good as others, and `^` and
`$` may be at the ends. Other syntax is refused by name. Not in Python are `\p{..}` for a general
category, and `\x{..}`. Knows no llguidance. Tested by tests/model/test_guide_regex.py.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import groupby
from typing import Final, NoReturn

from ...base.errors import GrammarError
from .gbnf.lark import written
from .gbnf.lexemes import n_characters
from .gbnf.limits import DEPTH_MAX, N_CHARACTERS_MAX, N_REPEATS_MAX, NODE_DEPTH_MAX
from .gbnf.nodes import (
    ANY,
    CODE_POINT_MAX,
    EMPTY,
    SURROGATES,
    Alt,
    Chars,
    Node,
    Ranges,
    Repeat,
    Seq,
    Text,
    alt,
    complement,
    repeat,
    seq,
    union,
)
from .gbnf.skeleton import Lexeme

_QUANTIFIER: Final = re.compile(r"[*+?]|\{(\d+)\}|\{(\d*),(\d*)\}")
_SIGNS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_HEX: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|[xuU]\{([0-9a-fA-F]{1,8})\})"
)
_CONTROLS: Final = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "0": 0}
_ASCII: Final[dict[str, Ranges]] = {
    "d": union([(48, 57)]),
    "w": union([(48, 57), (65, 90), (95, 95), (97, 122)]),
    "s": union([(9, 13), (32, 32)]),
}
_NO_LINE_END: Final = complement(((10, 10),))
_GROUP: Final = re.compile(r"\(\?(?:P?<([^\W\d]\w*)>|([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])|#[^)]*\))")
_REFUSED_GROUPS: Final = {
    "(?=": "lookahead",
    "(?!": "lookahead",
    "(?<=": "lookbehind",
    "(?<!": "lookbehind",
    "(?P=": "a backreference",
    "(?>": "an atomic group",
    "(?(": "a conditional group",
}
_SET_SIGNS: Final = ("&&", "--", "~~", "||", "[:")  # of sets in sets, now or in future


@dataclass(frozen=True)
class _Anchor(Node):
    """The begin or the end of the text."""

    sign: str
    is_begin: bool
    at: int
    __hash__ = Node.__hash__


@dataclass(frozen=True, slots=True)
class _Flags:
    i: bool = False  # letters match both cases
    s: bool = False  # '.' matches line ends
    a: bool = False  # \d, \w and \s are ASCII's


def regex_to_lark(pattern: str) -> str:
    """Translate a regular expression to llguidance's dialect of Lark.

    Raises:
        GrammarError: names the column and the reason.
    """
    node = parse(pattern)
    if n_characters(node, {}) > N_CHARACTERS_MAX:
        raise GrammarError(
            f"regex: more than {N_CHARACTERS_MAX} characters, if repetitions are written out"
        )
    return written({"root": Lexeme(node, False)}, {}, "root")


def parse(pattern: str) -> Node:
    """Return the tree of a regular expression, without anchors.

    Raises:
        GrammarError: names the column and the reason.
    """
    return _Parser(pattern).whole()


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._either(self._global_flags())
        if self._at < len(self._pattern):
            self._fail("')' closes no group")
        node = self._unanchored(node, True, True)
        if node.depth > NODE_DEPTH_MAX:
            self._fail("groups and repetitions are nested too deep", 0)
        return node

    def _global_flags(self) -> _Flags:
        flags = _Flags()
        while (found := _GROUP.match(self._pattern, self._at)) and found[4] == ")":
            flags = self._flags(flags, found[2], found[3] or "")
            self._at = found.end()
        return flags

    def _either(self, flags: _Flags) -> Node:
        alternatives = [self._sequence(flags)]
        while self._take("|"):
            alternatives.append(self._sequence(flags))
        return alt(alternatives)

    def _sequence(self, flags: _Flags) -> Node:
        items: list[Node] = []
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            start = self._at
            item = self._atom(flags)
            items.append(self._repeated(item, start))
        return seq(items)

    def _repeated(self, item: Node, start: int) -> Node:
        bounds = self._quantifier()
        if bounds is None:
            return item
        if isinstance(item, _Anchor):
            self._fail(f"{item.sign} cannot be repeated", start)
        if self._pattern.startswith("+", self._at):
            self._fail("possessive quantifiers are not supported")
        self._take("?")  # lazy: a text matches as a whole, or it does not
        at = self._at
        if self._quantifier() is not None:
            self._fail("a quantifier follows another one: use a group", at)
        return repeat(item, *bounds)

    def _quantifier(self) -> tuple[int, int | None] | None:
        found = _QUANTIFIER.match(self._pattern, self._at)
        if not found:
            return None
        start, self._at = self._at, found.end()
        if found[0] in _SIGNS:
            return _SIGNS[found[0]]
        exactly, least, most = found.groups()
        low = self._number(exactly or least or "0", start)
        high = None if most == "" else self._number(exactly or most, start)
        if high is not None and high < low:
            self._fail(f"the repetition {found[0]} has its larger number first", start)
        return low, high

    def _number(self, digits: str, at: int) -> int:
        if len(digits) > len(str(N_REPEATS_MAX)) or int(digits) > N_REPEATS_MAX:
            self._fail(f"more than {N_REPEATS_MAX} repetitions", at)
        return int(digits)

    def _atom(self, flags: _Flags) -> Node:
        start, character = self._at, self._pattern[self._at]
        if character == "(":
            return self._group(flags)
        if character == "[":
            return Chars(self._set(flags))
        if character in "*+?" or self._quantifier() is not None:
            self._fail(f"{character!r} repeats nothing", start)
        if character in "^$":
            self._at += 1
            return _Anchor(character, character == "^", start)
        if character == ".":
            self._at += 1
            return Chars(ANY if flags.s else _NO_LINE_END)
        if character == "\\" and self._pattern[start + 1 : start + 2] in ("A", "Z", "z"):
            self._at += 2
            sign = self._pattern[start : self._at]
            return _Anchor(sign, sign == "\\A", start)
        ranges, is_single = self._characters(flags)
        if is_single and not flags.i:
            return Text(chr(ranges[0][0]))
        return Chars(_both_cases(ranges) if flags.i else ranges)

    def _group(self, flags: _Flags) -> Node:
        start = self._at
        if self._pattern.startswith("(?", start):
            found = _GROUP.match(self._pattern, start)
            if not found:
                self._refuse_group(start)
            self._at = found.end()
            if found[0].startswith("(?#"):
                return EMPTY
            if found[4] == ")":
                self._fail("flags of the whole expression must be at its begin", start)
            if found[4] == ":":
                flags = self._flags(flags, found[2], found[3] or "")
        else:
            self._at += 1
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(f"groups are nested more than {DEPTH_MAX} deep", start)
        node = self._either(flags)
        self._depth -= 1
        if not self._take(")"):
            self._fail("the group has no closing ')'", start)
        return node

    def _refuse_group(self, start: int) -> NoReturn:
        for sign, name in _REFUSED_GROUPS.items():
            if self._pattern.startswith(sign, start):
                self._fail(f"{name} ({sign}...) is not supported", start)
        self._fail(f"unknown kind of group {self._pattern[start : start + 3]}", start)

    def _flags(self, flags: _Flags, on: str, off: str) -> _Flags:
        for letter in on + off:
            if letter not in "isau":
                self._fail(f"the flag {letter} is not supported; supported are i, s, a and u")
        values = {letter: letter in on for letter in on + off if letter != "u"}
        if "u" in on:
            values["a"] = False
        return replace(flags, **values)

    def _set(self, flags: _Flags) -> Ranges:
        start = self._at
        self._at += 1
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        begin = self._at
        while self._at == begin or not self._take("]"):
            for sign in _SET_SIGNS:
                if self._pattern.startswith(sign, self._at):
                    self._fail(f"{sign} in a class has two meanings: escape it with a backslash")
            ranges.extend(self._range(start, flags))
        chars = union(ranges)
        if flags.i:
            chars = _both_cases(chars)
        chars = complement(chars) if negated else chars
        if not chars:
            self._fail(f"the class {self._pattern[start : self._at]} is empty", start)
        return chars

    def _range(self, set_start: int, flags: _Flags) -> Ranges:
        start = self._at
        if start >= len(self._pattern):
            self._fail("the class has no closing ']'", set_start)
        first, is_single = self._characters(flags, surrogates=True)
        rest = self._pattern[self._at : self._at + 2]
        if rest[:1] != "-" or rest in ("-", "-]"):
            return first
        self._at += 1
        last, is_single_too = self._characters(flags, surrogates=True)
        if not (is_single and is_single_too and first[0][0] <= last[0][0]):
            self._fail(f"{self._pattern[start : self._at]} is not a range", start)
        return ((first[0][0], last[0][0]),)

    def _characters(self, flags: _Flags, *, surrogates: bool = False) -> tuple[Ranges, bool]:
        """Read a character or a set such as \\w. Return it, and whether it is one character."""
        start = self._at
        if self._pattern[start] != "\\":
            self._at += 1
            return ((ord(self._pattern[start]),) * 2,), True
        letter = self._pattern[start + 1 : start + 2]
        self._at += 2
        if letter.lower() in _ASCII and letter:
            ranges = _ASCII[letter.lower()] if flags.a else _unicode(letter.lower())
            return (complement(ranges) if letter.isupper() else ranges), False
        if letter in ("p", "P"):
            ranges = self._category(start)
            return (complement(ranges) if letter == "P" else ranges), False
        code_point = self._code_point(letter, start)
        if code_point > CODE_POINT_MAX:
            self._fail(f"{self._pattern[start : self._at]} is beyond U+{CODE_POINT_MAX:X}", start)
        if SURROGATES[0] <= code_point <= SURROGATES[1] and not surrogates:
            self._fail("a surrogate is no character", start)
        return ((code_point,) * 2,), True

    def _code_point(self, letter: str, start: int) -> int:
        if letter in _CONTROLS and not self._pattern[start + 2 : start + 3].isdigit():
            return _CONTROLS[letter]
        if found := _HEX.match(self._pattern, start):
            self._at = found.end()
            return int(next(digits for digits in found.groups() if digits), 16)
        if letter == "N" and (named := re.compile(r"\\N\{([^}]*)\}").match(self._pattern, start)):
            self._at = named.end()
            try:
                return ord(unicodedata.lookup(named[1]))
            except (KeyError, TypeError):
                self._fail(f"no character has the name {named[1]!r}", start)
        if letter and not (letter.isascii() and letter.isalnum()):
            return ord(letter)
        return self._refuse_escape(letter, start)

    def _refuse_escape(self, letter: str, start: int) -> NoReturn:
        if not letter:
            self._fail("a backslash at the end escapes nothing", start)
        if letter.isdigit():
            self._fail(f"\\{letter} (a backreference or octal number) is not supported", start)
        if letter in "bB":
            self._fail(f"\\{letter} (a word boundary) is not supported", start)
        self._fail(f"unknown escape \\{letter}", start)

    def _category(self, start: int) -> Ranges:
        found = re.compile(r"\\[pP](?:\{(\w+)\}|(\w))").match(self._pattern, start)
        name = (found[1] or found[2]) if found else ""
        ranges = union(r for c, part in _categories().items() if c.startswith(name) for r in part)
        if not found or not ranges:
            self._fail("\\p needs a general category such as \\p{L} or \\p{Lu}", start)
        self._at = found.end()
        return ranges

    def _unanchored(self, node: Node, at_begin: bool, at_end: bool) -> Node:
        """Remove anchors where they hold for each text; refuse others."""
        match node:
            case _Anchor(sign, is_begin, at):
                if not (at_begin if is_begin else at_end):
                    place = "begin" if is_begin else "end"
                    self._fail(f"{sign} is supported only at the {place} of the expression", at)
                return EMPTY
            case Alt(items):
                return alt([self._unanchored(item, at_begin, at_end) for item in items])
            case Seq(items):
                empty = [isinstance(item, _Anchor) for item in items]
                return seq(
                    [
                        self._unanchored(
                            item, at_begin and all(empty[:i]), at_end and all(empty[i + 1 :])
                        )
                        for i, item in enumerate(items)
                    ]
                )
            case Repeat(item, least, most):
                return repeat(self._unanchored(item, False, False), least, most)
            case _:
                return node

    def _take(self, text: str) -> bool:
        found = self._pattern.startswith(text, self._at)
        self._at += len(text) * found
        return found

    def _fail(self, message: str, at: int | None = None) -> NoReturn:
        raise GrammarError(f"regex: column {(self._at if at is None else at) + 1}: {message}")


@cache
def _all_characters() -> str:
    return "".join(chr(c) for first, last in ANY for c in range(first, last + 1))


@cache
def _unicode(letter: str) -> Ranges:
    """The characters of \\d, \\w or \\s."""
    found = re.finditer(rf"\{letter}+", _all_characters())
    return union((ord(run[0][0]), ord(run[0][-1])) for run in found)


def unicode_classes() -> None:
    """Compute the sets of \\d, \\w and \\s, which are cached."""
    for letter in "dws":
        _unicode(letter)


@cache
def _categories() -> dict[str, list[tuple[int, int]]]:
    """The characters of each general category."""
    found: dict[str, list[tuple[int, int]]] = {}
    for name, run in groupby(_all_characters(), unicodedata.category):
        characters = list(run)
        found.setdefault(name, []).append((ord(characters[0]), ord(characters[-1])))
    return found


@cache
def _cased() -> str:
    """The characters that have another case."""
    return "".join(c for c in _all_characters() if c.lower() != c or c.upper() != c)


@lru_cache(maxsize=1024)
def _both_cases(ranges: Ranges) -> Ranges:
    """Add the other cases of characters, as Python's `re.IGNORECASE`."""
    written = "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)
    more = re.findall(f"[{written}]", _cased(), re.IGNORECASE)
    return union([*ranges, *((ord(c), ord(c)) for c in more)])
