"""Parses GBNF, the grammar format of llama.cpp, into a syntax tree.

https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md describes the format. Names may
also have underscores. Each error names line, column and the expected. Knows no llguidance.
Tested by tests/model/test_guide_gbnf_parser.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, NoReturn

from ....base.errors import GrammarError
from .limits import N_NODES_MAX, N_REPEATS_MAX, NODE_DEPTH_MAX
from .nodes import (
    ANY,
    CODE_POINT_MAX,
    EMPTY,
    SURROGATES,
    Chars,
    Node,
    Ref,
    Rules,
    Text,
    Token,
    alt,
    complement,
    repeat,
    seq,
    union,
)

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_BLANKS: Final = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANKS_AND_LINES: Final = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NUMBER: Final = re.compile(r"[0-9]+")
_PLAIN: Final = re.compile(r'[^"\\]+')  # part of a literal
_TOKEN: Final = re.compile(r"<(?:\[([0-9]+)\]|[^\[>][^>]*|)>")
_ESCAPES: Final = {"t": "\t", "r": "\r", "n": "\n"} | {c: c for c in '\\"[]-'}
_HEX_DIGITS: Final = {"x": 2, "u": 4, "U": 8}
_SIGNS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_OPENERS: Final = "a literal, a class, a group, a rule's name, a token or '.'"

# returns the node for a token's name and whether it is negated; raises ValueError with the reason
FindToken = Callable[[str, bool], Token]


class Parsed(NamedTuple):
    """A grammar as it is written.

    Attributes:
        text: the grammar.
        rules: their bodies by name, in the order of the text.
        places: the offset in the text at which each rule is defined.
        references: the offset at which each name is first referenced.
    """

    text: str
    rules: Rules
    places: dict[str, int]
    references: dict[str, int]

    def place(self, at: int) -> str:
        """Return line and column of an offset, both from 1."""
        column = at - self.text.rfind("\n", 0, at)
        line = self.text.count("\n", 0, at) + 1
        return f"line {line}, column {column}"

    def fail(self, message: str, at: int) -> NoReturn:
        """Raise GrammarError for an offset."""
        raise GrammarError(f"gbnf: {self.place(at)}: {message}")


def parse(text: str, find_token: FindToken) -> Parsed:
    """Parse a grammar.

    Raises:
        GrammarError: the text is no GBNF, or too large.
    """
    return _Parser(text, find_token).grammar()


@dataclass(slots=True)
class _Group:
    """A group that is being read: its complete alternatives and the items of the last one."""

    start: int
    alternatives: list[Node] = field(default_factory=list)
    items: list[Node] = field(default_factory=list)

    def node(self) -> Node:
        return alt((*self.alternatives, seq(self.items)))


class _Parser:
    def __init__(self, text: str, find_token: FindToken) -> None:
        self._text = text
        self._find_token = find_token
        self._at = 0
        self._n_nodes = 0
        self._parsed = Parsed(text, {}, {}, {})

    def grammar(self) -> Parsed:
        self._skip(lines=True)
        while self._at < len(self._text):
            self._rule()
            self._skip(lines=True)
        return self._parsed

    def _rule(self) -> None:
        start = self._at
        name = self._name()
        if name in self._parsed.rules:
            first = self._parsed.place(self._parsed.places[name])
            self._fail(f"the rule {name} is defined again; its first definition is {first}", start)
        self._skip(lines=False)
        if not self._take("::="):
            self._expected("'::='")
        self._skip(lines=True)
        self._parsed.places[name] = start
        self._parsed.rules[name] = self._alternatives()
        if self._at < len(self._text) and not (self._take("\r") or self._take("\n")):
            self._expected(f"{_OPENERS}, or the end of the line")

    def _alternatives(self) -> Node:
        """Read a rule's body. Groups are on a stack, so that their depth is no recursion."""
        groups = [_Group(self._at)]
        while True:
            group = groups[-1]
            start = self._at
            if self._take("("):
                groups.append(_Group(start))
            elif self._take("|"):
                group.alternatives.append(seq(group.items))
                group.items = []
                self._skip(lines=True)
                continue
            elif self._take(")"):
                if len(groups) == 1:
                    self._fail("')' closes no group", start)
                groups.pop()
                groups[-1].items.append(self._counted(group.node()))
                self._check_depth(groups[-1].items[-1])
            elif self._char in "*+?{":
                if not self._char:
                    break
                self._repetition(group)
            elif not self._terminal(group):
                break
            self._skip(lines=len(groups) > 1)
        if len(groups) > 1:
            opened = self._parsed.place(groups[-1].start)
            self._expected(f"{_OPENERS}, '|', or ')' for the group of {opened}")
        return groups[0].node()

    def _terminal(self, group: _Group) -> bool:
        """Read a literal, a class, a token or a name. Return False if there is none."""
        if self._char == '"':
            node = self._literal()
        elif self._char == "[":
            node = self._class()
        elif self._take("."):
            node = Chars(ANY)
        elif self._char and self._char in "<!":
            node = self._token()
        elif _NAME.match(self._text, self._at):
            node = self._reference()
        else:
            return False
        group.items.append(self._counted(node))
        return True

    def _reference(self) -> Ref:
        start = self._at
        name = self._name()
        blanks = _BLANKS.match(self._text, self._at)
        assert blanks
        if self._text.startswith("::=", blanks.end()):
            self._fail(f"the rule {name} must begin in a line of its own", start)
        self._parsed.references.setdefault(name, start)
        return Ref(name)

    def _repetition(self, group: _Group) -> None:
        if not group.items:
            self._fail(f"{self._char!r} repeats nothing: {_OPENERS} must be before it", self._at)
        sign = self._char
        if sign in _SIGNS:
            self._at += 1
            least, most = _SIGNS[sign]
        else:
            least, most = self._bounds()
        item = group.items.pop()
        group.items.append(self._counted(repeat(item, least, most)))
        self._check_depth(group.items[-1])

    def _bounds(self) -> tuple[int, int | None]:
        start = self._at
        self._at += 1
        self._skip(lines=False)
        least = self._number()
        most: int | None = least
        if self._take(","):
            self._skip(lines=False)
            most = self._number() if self._char != "}" else None
        if not self._take("}"):
            self._expected("',' or '}'" if most == least else "'}'")
        if most is not None and most < least:
            self._fail(f"the repetition {{{least},{most}}} has its larger number first", start)
        return least, most

    def _number(self) -> int:
        start = self._at
        found = _NUMBER.match(self._text, start)
        if not found:
            self._expected("a number")
        self._at = found.end()
        if len(found[0]) > len(str(N_REPEATS_MAX)) or int(found[0]) > N_REPEATS_MAX:
            self._fail(f"more than {N_REPEATS_MAX} repetitions", start)
        self._skip(lines=False)
        return int(found[0])

    def _literal(self) -> Node:
        start = self._at
        self._at += 1
        parts: list[str] = []
        while not self._take('"'):
            if found := _PLAIN.match(self._text, self._at):
                parts.append(found[0])
                self._at = found.end()
            elif self._char:
                escape = self._at
                parts.append(chr(self._code_point()))
                if SURROGATES[0] <= ord(parts[-1]) <= SURROGATES[1]:
                    self._fail("a surrogate is no character: write \\U and 8 digits", escape)
            else:
                self._fail("the literal has no closing '\"'", start)
        return Text("".join(parts)) if any(parts) else EMPTY

    def _class(self) -> Node:
        start = self._at
        self._at += 1
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            at = self._at
            first = last = self._class_character(start)
            if self._char == "-" and not self._text.startswith("-]", self._at):
                self._at += 1
                last = self._class_character(start)
            if last < first:
                self._fail(f"the range {self._text[at : self._at]} is in descending order", at)
            ranges.append((first, last))
        chars = union(ranges)
        if negated:
            chars = complement(chars)
        if not chars or not ranges:
            self._fail(f"the class {self._text[start : self._at]} is empty", start)
        return Chars(chars)

    def _class_character(self, start: int) -> int:
        if not self._char:
            self._fail("the class has no closing ']'", start)
        return self._code_point()

    def _code_point(self) -> int:
        """Read a character or an escape."""
        start = self._at
        self._at += 1
        if self._text[start] != "\\":
            return ord(self._text[start])
        letter = self._char
        self._at += 1
        if letter and letter in _ESCAPES:
            return ord(_ESCAPES[letter])
        if letter and letter in _HEX_DIGITS:
            digits = self._text[self._at : self._at + _HEX_DIGITS[letter]]
            if not re.fullmatch(rf"[0-9A-Fa-f]{{{_HEX_DIGITS[letter]}}}", digits):
                self._fail(f"\\{letter} needs {_HEX_DIGITS[letter]} hexadecimal digits", start)
            self._at += len(digits)
            if int(digits, 16) > CODE_POINT_MAX:
                self._fail(f"\\{letter}{digits} is beyond U+{CODE_POINT_MAX:X}", start)
            return int(digits, 16)
        known = " ".join("\\" + c for c in (*_ESCAPES, *_HEX_DIGITS))
        return self._fail(f"unknown escape \\{letter}: expected one of {known}", start)

    def _token(self) -> Token:
        start = self._at
        negated = self._take("!")
        found = _TOKEN.match(self._text, self._at)
        if not found or found[0] == "<>":
            self._expected("a token as <[id]> or <text>")
        self._at = found.end()
        try:
            return self._find_token(found[0], negated)
        except ValueError as e:
            self._fail(str(e), start)

    def _name(self) -> str:
        found = _NAME.match(self._text, self._at)
        if not found:
            self._expected("a rule's name")
        self._at = found.end()
        return found[0]

    @property
    def _char(self) -> str:
        """The next character, or the empty text at the end."""
        return self._text[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) * found
        return found

    def _skip(self, *, lines: bool) -> None:
        found = (_BLANKS_AND_LINES if lines else _BLANKS).match(self._text, self._at)
        assert found
        self._at = found.end()

    def _check_depth(self, node: Node) -> None:
        if node.depth > NODE_DEPTH_MAX:
            self._fail("groups or repetitions are nested too deep: use rules", self._at)

    def _counted(self, node: Node) -> Node:
        self._n_nodes += 1
        if self._n_nodes > N_NODES_MAX:
            self._fail(f"the grammar has more than {N_NODES_MAX} expressions", self._at)
        return node

    def _expected(self, what: str) -> NoReturn:
        found = repr(self._char) if self._char else "the end of the text"
        self._fail(f"expected {what}; found {found}", self._at)

    def _fail(self, message: str, at: int) -> NoReturn:
        self._parsed.fail(message, at)
