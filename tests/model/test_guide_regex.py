"""Regular expressions: exactly the texts that match by Python's `re.fullmatch` are accepted."""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from random import Random

import pytest
from guides import accepts, byte_vocab

from lamella.base.errors import GrammarError
from lamella.model.guide import CompiledGrammar, Compiler, GrammarKind, GrammarSpec

TEXTS = ["".join(each) for n in range(5) for each in product("abB", repeat=n)]


@cache
def compiler() -> Compiler:
    return Compiler(byte_vocab())


def compiled(pattern: str) -> CompiledGrammar:
    return compiler().compile(GrammarSpec(GrammarKind.REGEX, pattern))


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("", ["", "a"]),
        ("a|bc|", ["", "a", "bc", "b", "abc"]),
        ("(ab)+?c*?", ["ab", "abab", "ababcc", "c", "aba"]),
        ("(?P<x>a){2}b{1,}c{,2}d{2,3}", ["aabdd", "aabbccddd", "abdd", "aabd", "aabcccdd"]),
        ("^a$|^(^b$)|c", ["a", "b", "c", "^a$", "ab"]),
        (r"\Aa(b|c$)\Z", ["ab", "ac", "a"]),
        (".", ["a", "é", "😀", "\n", "\r", ""]),
        ("(?s).", ["a", "\n"]),
        (r"\d\D", ["1a", "٣é", "11", "a1", "१\n"]),
        (r"\w\W", ["a-", "é ", "_\n", "--", "aé", "ª́"]),
        (r"\s\S", [" a", "\u3000é", "\x1ca", "aa", "  "]),
        (r"(?a)\w+", ["a_9", "é"]),
        (r"[]a\-z^\d]+", ["]a-z^1", "b"]),
        (r"[^^\n]", ["a", "^", "\n"]),
        (r"[\]-a]", ["]", "`", "a", "-"]),
        (r"\x41\u00e9\U0001F600\n\t\0\.\/\-", ["Aé😀\n\t\0./-", "A"]),
        (r"\N{DIGIT ONE}", ["1", "2"]),
        ('{"a": \\d{2}}', ['{"a": 12}', '{"a": 1}']),
        ("a{x{1,y}", ["a{x{1,y}", "a"]),
        ("(?i)stra\u00dfe[k-m]", ["STRA\u1e9eE\u212a", "\u017ftra\u00dfeL", "stra\u00dfe"]),
        ("(?i:a)b", ["ab", "Ab", "AB"]),
        ("(?i)(?-i:a)b", ["ab", "aB", "AB"]),
        ("a(?#note)b", ["ab", "a"]),
        ("x{3000}", ["x" * 3000, "x" * 2999, "x" * 3001]),
    ],
)
def test_texts_match_as_in_python(pattern: str, texts: list[str]) -> None:
    grammar = compiled(pattern)
    expected = [bool(re.fullmatch(pattern, text)) for text in texts]
    assert [accepts(grammar, text) for text in texts] == expected


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"\p{Lu}\P{L}\pN", "É-½", "é-½"),
        (r"\x{1F600}\u{e9}", "😀é", "é😀"),
        (r"(?<name>a)\z", "a", "b"),
        ("[\ud800-\udfffa]", "a", "b"),
    ],
)
def test_more_than_python_has(pattern: str, good: str, bad: str) -> None:
    if "\ud800" in pattern:
        pattern = r"[\ud800-\udfffa]"
    assert accepts(compiled(pattern), good) and not accepts(compiled(pattern), bad)


@pytest.mark.parametrize(
    ("pattern", "column", "message"),
    [
        ("a(?=b)", 2, "lookahead"),
        ("a(?!b)", 2, "lookahead"),
        ("(?<=a)b", 1, "lookbehind"),
        (r"(a)\1", 4, "backreference"),
        ("(?P<a>x)(?P=a)", 9, "backreference"),
        ("(?>a)", 1, "atomic"),
        ("a++", 3, "possessive"),
        (r"\bfoo", 1, "word boundary"),
        ("a^b", 2, "only at the begin"),
        ("(a$)b", 3, "only at the end"),
        ("(^a)*", 2, "only at the begin"),
        ("^*", 1, "cannot be repeated"),
        ("(?x)a", 1, "flag x"),
        ("(?m)^a", 1, "flag m"),
        ("a(?i)b", 2, "at its begin"),
        ("(a", 1, "no closing"),
        ("[a", 1, "no closing"),
        ("a)", 2, "closes no group"),
        ("a\\", 2, "escapes nothing"),
        (r"\q", 1, "unknown escape"),
        (r"\ud83d\ude00", 1, "surrogate"),
        (r"\U00110000", 1, "beyond"),
        (r"[^\s\S]", 1, "is empty"),
        ("[z-a]", 2, "not a range"),
        (r"[a-\d]", 2, "not a range"),
        ("[a&&b]", 3, "two meanings"),
        ("[[:alpha:]]", 2, "two meanings"),
        ("a**", 3, "follows another"),
        ("*a", 1, "repeats nothing"),
        ("a{3,2}", 2, "larger number first"),
        ("a{1000000}", 2, "more than"),
        (r"\p{Greek}", 1, "general category"),
        ("(" * 100 + "a" + ")" * 100, 49, "nested"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(pattern: str, column: int, message: str) -> None:
    with pytest.raises(GrammarError, match=rf"^regex: column {column}: .*{message}"):
        compiled(pattern)


def test_large_repetitions_are_refused() -> None:
    with pytest.raises(GrammarError, match=r"regex: more than .* characters"):
        compiled("(((a{9999}){9999}){9999})")


def random_pattern(random: Random, depth: int) -> str:
    kind = random.random()
    if kind < 0.3 or depth == 0:
        item = random.choice(["a", "b", "B", ".", "[ab]", "[^a]", r"\w", "[a-z]", r"[^\W_b]"])
    elif kind < 0.6:
        item = "".join(random_pattern(random, depth - 1) for _ in range(random.randint(0, 3)))
    else:
        n = random.randint(1, 3)
        item = "|".join(random_pattern(random, depth - 1) for _ in range(n))
    group = random.choice(["(", "(?:", "(?i:"])
    suffix = random.choice(["", "", "", "*", "+?", "?", "{2}", "{1,2}"])
    return f"{group}{item}){suffix}" if suffix or kind >= 0.6 or random.random() < 0.2 else item


def check_random_pattern(seed: int) -> None:
    pattern = random_pattern(Random(seed), 3)  # deeper ones take Python minutes
    grammar = compiled(pattern)
    matcher = grammar.matcher()
    for text in TEXTS:
        n = matcher.native.try_consume_tokens(list(text.encode()))
        found = n == len(text) and matcher.is_complete
        assert found == bool(re.fullmatch(pattern, text)), (pattern, text)
        matcher.native.reset()


def test_random_patterns() -> None:
    for seed in range(60):
        check_random_pattern(seed)


@pytest.mark.full
@pytest.mark.parametrize("begin", range(1000, 5000, 200))
def test_many_random_patterns(begin: int) -> None:
    for seed in range(begin, begin + 200):
        check_random_pattern(seed)
