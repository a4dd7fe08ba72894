"""Strings: what a schema demands of one, and the terminal that matches its JSON text.

A terminal is written in the escaped form, where every character has one spelling: itself, or its
escape if JSON demands one. So complements and intersections of languages stay exact. Only strings
without patterns also allow other \\u escapes. Tested by tests/model/test_guide_schema_patterns.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Final

from llguidance import LLMatcher, LLTokenizer

from . import charset
from .charset import Ranges
from .pattern import Pattern
from .pattern_match import matches
from .pattern_nodes import Alt, Both, Chars, Node, Other, Repeat, Seq, literal

_SHORT: Final = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 0x22: '"', 0x5C: "\\\\"}
_PLAIN: Final[Ranges] = charset.complement(((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)))
_SURROGATE: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPED: Final = (
    r"\\[\u{22}\u{5c}\u{2f}bfnrt]|\\u(?:[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})"
)
ANY_CHAR: Final = rf"(?:[^\u{{22}}\u{{5c}}\u{{0}}-\u{{1f}}]|{_ESCAPED}|{_SURROGATE})"


@dataclass(frozen=True, slots=True)
class Strings:
    """A set of strings: all demands at once.

    Attributes:
        least, most: bounds of the number of characters.
        patterns: languages that a string is in.
        avoided: languages that a string is not in.
        excluded: strings that are left out.
    """

    least: int = 0
    most: int | None = None
    patterns: tuple[Pattern, ...] = ()
    avoided: tuple[Pattern, ...] = ()
    excluded: tuple[str, ...] = ()

    def both(self, other: Strings) -> Strings:
        """The strings in both sets."""
        mosts = [m for m in (self.most, other.most) if m is not None]
        return Strings(
            max(self.least, other.least),
            min(mosts, default=None),
            tuple(dict.fromkeys(self.patterns + other.patterns)),
            tuple(dict.fromkeys(self.avoided + other.avoided)),
            tuple(dict.fromkeys(self.excluded + other.excluded)),
        )

    def without(self, names: tuple[str, ...]) -> Strings:
        return replace(self, excluded=tuple(dict.fromkeys(self.excluded + names)))

    @property
    def is_any(self) -> bool:
        return self == Strings()

    def holds(self, text: str) -> bool:
        """True if the text surely is in the set. Raises PatternError."""
        return (
            self.least <= len(text)
            and (self.most is None or len(text) <= self.most)
            and text not in self.excluded
            and all(matches(p.narrow, text) for p in self.patterns)
            and not any(matches(p.wide, text) for p in self.avoided)
        )

    def is_plain(self) -> bool:
        """True if the set is not empty for a simple reason: it has only bounds."""
        return not (self.patterns or self.avoided) and (
            self.most is None or self.least < self.most or not self.excluded
        )

    def is_surely_empty(self) -> bool:
        return self.most is not None and self.least > self.most


def terminal(strings: Strings, *, free_escapes: bool = False, wide: bool = False) -> str:
    """The body of a Lark terminal for the JSON texts of the strings.

    `free_escapes` allows any escape where only the length is bounded. `wide` returns a set around
    the strings instead of inside of them.
    """
    least, most = strings.least, strings.most
    limits = "*" if (least, most) == (0, None) else f"{{{least},{'' if most is None else most}}}"
    if free_escapes and not (strings.patterns or strings.avoided or strings.excluded):
        return _slashed(rf"\u{{22}}{ANY_CHAR}{limits}\u{{22}}")
    parts = [quoted(p.wide if wide else p.narrow) for p in strings.patterns]
    parts += [f"~({quoted(p.narrow if wide else p.wide)})" for p in strings.avoided]
    if strings.excluded:
        parts.append(f"~({quoted(_trie(strings.excluded))})")
    if not strings.patterns or limits != "*":
        parts.insert(0, _slashed(f"(?:{_class(charset.ALL_CHARS)}){limits}"))
    body = " & ".join(f"({p})" for p in parts)
    return f'"\\"" ({body}) "\\""'


def literal_terminal(text: str) -> str:
    """The Lark literal for a text that is JSON already."""
    return json.dumps(text, ensure_ascii=True)


def _trie(texts: tuple[str, ...]) -> Node:
    return Alt(tuple(literal(t) for t in texts))


def _slashed(regex: str) -> str:
    return f"/{regex}/" if regex else '""'


@lru_cache(256)
def quoted(node: Node) -> str:
    """The Lark expression for the escaped texts of a language."""
    if not _is_composed(node):
        return _slashed(_regex(node))
    if isinstance(node, Both):
        return " & ".join(f"({quoted(p)})" for p in node.parts)
    if isinstance(node, Other):
        any_text = _slashed(f"(?:{_class(charset.ALL_CHARS)})*")
        return f"{any_text} & ~({quoted(node.node)})"
    if isinstance(node, Seq):
        return " ".join(f"({quoted(p)})" for p in node.parts)
    if isinstance(node, Alt):
        return " | ".join(f"({quoted(p)})" for p in node.parts)
    assert isinstance(node, Repeat), node
    most = "" if node.most is None else str(node.most)
    return f"({quoted(node.node)}){{{node.least},{most}}}"


def _is_composed(node: Node) -> bool:
    if isinstance(node, Both | Other):
        return True
    if isinstance(node, Seq | Alt):
        return any(_is_composed(p) for p in node.parts)
    return isinstance(node, Repeat) and _is_composed(node.node)


def _regex(node: Node) -> str:
    if isinstance(node, Chars):
        return _class(node.ranges)
    if isinstance(node, Seq):
        return "".join(_regex(p) for p in node.parts)
    if isinstance(node, Alt):
        if not node.parts:
            return r"[^\u{0}-\u{10ffff}]"
        return f"(?:{'|'.join(_regex(p) for p in node.parts)})"
    assert isinstance(node, Repeat), node
    inner = f"(?:{_regex(node.node)})"
    if node.most is None and node.least < 2:
        return inner + ("+" if node.least else "*")
    return f"{inner}{{{node.least},{'' if node.most is None else node.most}}}"


@lru_cache(1024)
def _class(ranges: Ranges) -> str:
    """The regex for the escaped spellings of one character of a set."""
    plain = charset.intersect(ranges, _PLAIN)
    options = [f"[{''.join(_range_text(r) for r in plain)}]"] if plain else []
    short = "".join(f"\\u{{{ord(s[-1]):x}}}" for c, s in _SHORT.items() if charset.has(ranges, c))
    if short:
        options.append(rf"\\[{short}]")
    controls = [c for c in range(0x20) if c not in _SHORT and charset.has(ranges, c)]
    for tens in (0, 1):
        digits = "".join(f"{c % 16:x}{c % 16:X}" for c in controls if c // 16 == tens)
        if digits:
            options.append(rf"\\u00{tens}[{''.join(sorted(set(digits)))}]")
    if not options:
        return r"[^\u{0}-\u{10ffff}]"
    return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"


def _range_text(pair: tuple[int, int]) -> str:
    first, last = (_char_text(c) for c in pair)
    return first if first == last else f"{first}-{last}"


def _char_text(code: int) -> str:
    c = chr(code)
    return c if c.isascii() and c.isalnum() else f"\\u{{{code:x}}}"


# Emptiness


@cache
def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")


@lru_cache(256)
def can_match(body: str) -> bool | None:
    """True if any text matches the terminal `body`; None if that takes too long to find out."""
    grammar = f'%llguidance {{"no_forcing": true}}\nstart: T\nT: {body}\n'
    matcher = LLMatcher(_byte_tokenizer(), grammar)
    if matcher.is_error():
        return None
    mask = matcher.compute_bitmask()
    if matcher.is_error():
        return False if "NoExtensionBias" in matcher.get_error() else None
    return bool(mask[ord('"') // 8] >> ord('"') % 8 & 1)
