"""Parses regular expressions in the syntax of Python's `re`, with anchors and lookaheads as nodes.

Tested by tests/model/test_guide_schema_patterns.py.
"""

from __future__ import annotations

import re
from typing import Final

from . import charset
from .charset import Ranges
from .limits import (
    PATTERN_DEPTH,
    PATTERN_NODES,
)
from .pattern_nodes import (
    EMPTY,
    Alt,
    Anchor,
    Chars,
    Look,
    Node,
    PatternError,
    Repeat,
    Seq,
)

_BEYOND_ASCII: Final[Ranges] = ((0x80, 0x10FFFF),)


_CLASSES: Final = {"d": 0, "w": 1, "s": 2}


_LOW_SURROGATE: Final = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_CONTROLS: Final = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "a": 7, "0": 0}


class PatternParser:
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
            ends = charset.LINE_ENDS[:1] if self.wide else charset.LINE_ENDS
            return Chars(charset.complement(() if self.dot_all else ends))
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
        if c == "u":
            return self._utf16()
        if c in "xU":
            return self._hex({"x": 2, "U": 8}[c])
        if c == "c" and self._peek().isalpha() and self._peek().isascii():
            self.pos += 1
            return ord(self.source[self.pos - 1].upper()) - 64
        if c.isalnum() and c.isascii():
            raise PatternError(f"the escape \\{c} is not supported")
        return ord(c)

    def _utf16(self) -> int:
        """The character of \\uXXXX. In ECMA 262, two surrogates are one character."""
        code = self._hex(4)
        low = _LOW_SURROGATE.match(self.source, self.pos) if 0xD800 <= code < 0xDC00 else None
        if low is None:
            return code
        self.pos = low.end()
        return 0x10000 + (code & 0x3FF) * 0x400 + (int(low[1], 16) & 0x3FF)

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
