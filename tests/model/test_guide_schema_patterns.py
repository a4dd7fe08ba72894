"""Patterns: their languages against Python's re, and the terminals against the languages."""

from __future__ import annotations

import json
import re

import pytest
from schemas import SchemaGrammar

from lamella.model.guide.schema.pattern import parse_pattern
from lamella.model.guide.schema.pattern_match import matches
from lamella.model.guide.schema.pattern_nodes import PatternError

PATTERNS = [
    "^\\d{3}$",
    "a|b",
    "^a|b$",
    "(^a$)|7",
    "^(?!x)[a-z]+$",
    "^(?=.*\\d)(?=.*[A-Z]).{3,}$",
    "x{2,}",
    "^\\S+@\\S+$",
    "[^\\w]",
    "^$",
    "a$b",
    "(?i)^aBc$",
    "^[^\\s]*$",
    "^.*$",
    "\\.",
    "^[\\w.+-]+$",
    "[]a]",
    "[^]a]",
    "^a*^b",
    "^(a|b$)",
    "\\u00e9",
    "^(foo|bar)(?!.*z)",
    "(?!a)",
    "(?:ab){1,2}c?",
    "^(?:a|(?=b)b)$",
    "\\x41",
    "[\\x41-C]",
    "a{,2}b",
    "a{x",
    "\\Aab\\Z",
    "^\\D\\W\\S$",
    "()",
    "(?P<n>a)b",
]
TEXTS = [
    "",
    "a",
    "b",
    "ab",
    "ba",
    "123",
    "12",
    "7",
    "xyz",
    "abc",
    "ABC",
    "aBC",
    "a1B",
    "aA1",
    "x@y",
    "é",
    "a b",
    "\n",
    "a\n",
    "foo",
    "fooz",
    "bar",
    "foo z",
    "x.x",
    "]",
    "^",
    "٣٣٣",
    "\t",
    "xx",
    "a{x",
    '"',
    "\\",
    "\x00",
    "ababc",
    "- +",
    "é-é",
    "aab",
]


@pytest.mark.parametrize("source", PATTERNS)
def test_languages(source: str) -> None:
    """Narrow is inside of what Python finds, wide is around it."""
    pattern = parse_pattern(source)
    found = {text for text in TEXTS if re.search(source, text)}
    narrow = {text for text in TEXTS if matches(pattern.narrow, text)}
    assert narrow <= found <= {text for text in TEXTS if matches(pattern.wide, text)}
    if found:
        assert narrow, "the narrow language is not just empty"


@pytest.mark.parametrize("end", ["\r", "\u2028", "\u2029"])
def test_a_dot_matches_no_line_end_of_ecma(end: str) -> None:
    pattern = parse_pattern("^.$")
    assert matches(pattern.wide, end) and not matches(pattern.narrow, end)
    assert not SchemaGrammar({"type": "string", "pattern": "^.$"}).accepts_value(end)
    assert matches(parse_pattern("(?s)^.$").narrow, end)


@pytest.mark.parametrize(
    ("source", "inside"),
    [
        (r"^\uD83D\uDE00$", "\U0001f600"),
        (r"^[\ud83c\udf00-\ud83d\udeff]$", "\U0001f600"),
        (r"^[\uD83D\u0041]$", "A"),
        (r"^[a\uD800-\uDFFF]$", "a"),
    ],
)
def test_two_escapes_of_surrogates_are_one_character(source: str, inside: str) -> None:
    for tree in (parse_pattern(source).narrow, parse_pattern(source).wide):
        assert matches(tree, inside) and not matches(tree, "\U0001f700")


@pytest.mark.parametrize("source", PATTERNS)
def test_terminals(source: str) -> None:
    """A grammar accepts the narrow language, and the complement of the wide one."""
    pattern = parse_pattern(source)
    positive = {"type": "string", "pattern": source}
    inside = [text for text in TEXTS if matches(pattern.narrow, text)]
    outside = [text for text in TEXTS if not matches(pattern.wide, text)]
    for schema, accepted in (
        (positive, inside),
        ({**positive, "maxLength": 2}, [text for text in inside if len(text) < 3]),
        ({"type": "string", "not": positive}, outside),
    ):
        if accepted:
            grammar = SchemaGrammar(schema)
            for text in TEXTS:
                assert grammar.accepts(json.dumps(text, ensure_ascii=False)) == (text in accepted)


@pytest.mark.parametrize(
    "source",
    [
        "(",
        ")",
        "[a",
        "a**",
        "*a",
        "a{2,1}",
        "\\",
        "(?<=a)b",
        "(?<!a)b",
        "(a)\\1",
        "\\bx",
        "a++",
        "(?>a)",
        "[b-a]",
        "\\p{L}",
        "\\q",
        "(?P<n",
        "(^a)+",
        "\\u12",
    ],
)
def test_patterns_that_are_refused(source: str) -> None:
    with pytest.raises(PatternError):
        parse_pattern(source)


def test_a_hostile_pattern_is_matched_in_bounded_time() -> None:
    pattern = parse_pattern("^(a|aa)*(a|aa)*(a|aa)*b$")
    assert not matches(pattern.narrow, "a" * 60)
    with pytest.raises(PatternError, match="too long"):
        matches(parse_pattern("^((a?){20}){900}b$").narrow, "a" * 3000)
