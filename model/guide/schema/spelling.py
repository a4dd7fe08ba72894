"""The spelling of strings: the terminal that matches the texts of a set of strings.

A terminal is written in the spelled form, where every character has one spelling: itself, or its
escape if there must be one. So complements and intersections of languages stay exact. Only strings
without patterns also allow other escapes. Tested by tests/model/test_guide_schema_patterns.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final

from . import charset
from .charset import Ranges
from .pattern_nodes import Alt, Both, Chars, Node, Other, Repeat, Seq, literal
from .strings import Strings

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_CONTROLS: Final = (0, 0x1F)
_ESCAPED: Final = (
    r"\\[\u{22}\u{5c}\u{2f}bfnrt]|\\u(?:[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})"
)
_SURROGATE: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"


@dataclass(frozen=True, slots=True)
class Spelling:
    """How the characters of a string are written.

    Attributes:
        quote: stands before and after them.
        plain: the characters that are written as they are.
        short: other characters, each with the one that follows a backslash.
        hex: what stands before the two digits of other control characters.
        any_char: a regular expression for any character in any spelling.
    """

    quote: str
    plain: Ranges
    short: tuple[tuple[int, str], ...]
    hex: str
    any_char: str

    def text(self, string: str) -> str:
        """Return the text of a string."""
        return self.quote + "".join(map(self._char, string)) + self.quote

    def _char(self, char: str) -> str:
        code = ord(char)
        if charset.has(self.plain, code):
            return char
        short = dict(self.short)
        return f"\\{short[code]}" if code in short else f"{self.hex}{code:02x}"


def _plain(quote: str) -> Ranges:
    return charset.complement(charset.ranges_of([_CONTROLS, (0x5C, 0x5C), (ord(quote),) * 2]))


def _python(quote: str) -> Spelling:
    short = ((9, "t"), (10, "n"), (13, "r"), (0x5C, "\\"), (ord(quote), quote))
    plain = f"[^\\u{{{ord(quote):x}}}\\u{{5c}}\\u{{0}}-\\u{{1f}}]"
    escaped = r"\\[\u{22}\u{27}\u{5c}nrt]|\\x[0-7][0-9a-fA-F]"
    return Spelling(quote, _plain(quote), short, "\\x", f"(?:{plain}|{escaped})")


JSON: Final = Spelling(
    '"',
    _plain('"'),
    ((8, "b"), (9, "t"), (10, "n"), (12, "f"), (13, "r"), (0x22, '"'), (0x5C, "\\")),
    "\\u00",
    rf"(?:[^\u{{22}}\u{{5c}}\u{{0}}-\u{{1f}}]|{_ESCAPED}|{_SURROGATE})",
)
PYTHON: Final = (_python("'"), _python('"'))
RAW: Final = Spelling("", charset.ALL_CHARS, (), "", r"(?:.|\n)")


def terminal(
    strings: Strings, spelling: Spelling = JSON, *, free_escapes: bool = False, wide: bool = False
) -> str:
    """Return the body of a Lark terminal for the texts of the strings.

    `free_escapes` allows any escape where only the length is bounded. `wide` returns a set around
    the strings instead of inside of them.
    """
    least, most = strings.least, strings.most
    limits = "*" if (least, most) == (0, None) else f"{{{least},{'' if most is None else most}}}"
    quote = "".join(f"\\u{{{ord(c):x}}}" for c in spelling.quote)
    if free_escapes and not (strings.patterns or strings.avoided or strings.excluded):
        return _slashed(f"{quote}{spelling.any_char}{limits}{quote}")
    parts = [spelled(p.wide if wide else p.narrow, spelling) for p in strings.patterns]
    parts += [f"~({spelled(p.narrow if wide else p.wide, spelling)})" for p in strings.avoided]
    if strings.excluded:
        parts.append(f"~({spelled(_trie(strings.excluded), spelling)})")
    if not strings.patterns or limits != "*":
        parts.insert(0, _slashed(f"(?:{_class(charset.ALL_CHARS, spelling)}){limits}"))
    body = " & ".join(f"({p})" for p in parts)
    if not quote:
        return body
    return f"{literal_terminal(spelling.quote)} ({body}) {literal_terminal(spelling.quote)}"


def literal_terminal(text: str) -> str:
    """Return the Lark literal for a text."""
    return json.dumps(text, ensure_ascii=True)


def _trie(texts: tuple[str, ...]) -> Node:
    return Alt(tuple(literal(t) for t in texts))


def _slashed(regex: str) -> str:
    return f"/{regex}/" if regex else '""'


@lru_cache(256)
def spelled(node: Node, spelling: Spelling) -> str:
    """Return the Lark expression for the spelled texts of a language."""
    if not _is_composed(node):
        return _slashed(_regex(node, spelling))
    if isinstance(node, Both):
        return " & ".join(f"({spelled(p, spelling)})" for p in node.parts)
    if isinstance(node, Other):
        any_text = _slashed(f"(?:{_class(charset.ALL_CHARS, spelling)})*")
        return f"{any_text} & ~({spelled(node.node, spelling)})"
    if isinstance(node, Seq):
        return " ".join(f"({spelled(p, spelling)})" for p in node.parts)
    if isinstance(node, Alt):
        return " | ".join(f"({spelled(p, spelling)})" for p in node.parts)
    assert isinstance(node, Repeat), node
    most = "" if node.most is None else str(node.most)
    return f"({spelled(node.node, spelling)}){{{node.least},{most}}}"


def _is_composed(node: Node) -> bool:
    if isinstance(node, Both | Other):
        return True
    if isinstance(node, Seq | Alt):
        return any(_is_composed(p) for p in node.parts)
    return isinstance(node, Repeat) and _is_composed(node.node)


def _regex(node: Node, spelling: Spelling) -> str:
    if isinstance(node, Chars):
        return _class(node.ranges, spelling)
    if isinstance(node, Seq):
        return "".join(_regex(p, spelling) for p in node.parts)
    if isinstance(node, Alt):
        if not node.parts:
            return r"[^\u{0}-\u{10ffff}]"
        return f"(?:{'|'.join(_regex(p, spelling) for p in node.parts)})"
    assert isinstance(node, Repeat), node
    inner = f"(?:{_regex(node.node, spelling)})"
    if node.most is None and node.least < 2:
        return inner + ("+" if node.least else "*")
    return f"{inner}{{{node.least},{'' if node.most is None else node.most}}}"


@lru_cache(1024)
def _class(ranges: Ranges, spelling: Spelling) -> str:
    """The regex for the spellings of one character of a set."""
    plain = charset.intersect(ranges, spelling.plain)
    options = [f"[{''.join(_range_text(r) for r in plain)}]"] if plain else []
    short = "".join(f"\\u{{{ord(s):x}}}" for c, s in spelling.short if charset.has(ranges, c))
    if short:
        options.append(rf"\\[{short}]")
    escaped = charset.union(spelling.plain, tuple((c, c) for c, _ in spelling.short))
    controls = [c for c in range(0x20) if charset.has(ranges, c) and not charset.has(escaped, c)]
    for tens in (0, 1):
        digits = "".join(f"{c % 16:x}{c % 16:X}" for c in controls if c // 16 == tens)
        if digits:
            options.append(rf"\{spelling.hex}{tens}[{''.join(sorted(set(digits)))}]")
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
    from llguidance import LLTokenizer  # noqa: PLC0415 - slow to import

    return LLTokenizer("byte")


@lru_cache(256)
def can_match(body: str) -> bool | None:
    """True if any text matches the terminal `body`; None if that takes too long to find out."""
    from llguidance import LLMatcher  # noqa: PLC0415 - slow to import

    grammar = f'%llguidance {{"no_forcing": true}}\nstart: T\nT: {body}\n'
    matcher = LLMatcher(_byte_tokenizer(), grammar)
    if matcher.is_error():
        return None
    mask = matcher.compute_bitmask()
    if matcher.is_error():
        return False if "NoExtensionBias" in matcher.get_error() else None
    return bool(mask[ord('"') // 8] >> ord('"') % 8 & 1)
