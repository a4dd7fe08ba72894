"""Regular expressions as tables: the matches of Oniguruma, for every expression of the subset."""

from __future__ import annotations

import random
from itertools import accumulate

import numpy as np
import pytest
from matrix import first
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from lamella.model.vocab.regex import Graph, parse
from lamella.model.vocab.regex.charset import ANY, CharSet, partition, unicode_set
from lamella.model.vocab.splitter import Splitter

LETTERS = "abc é\n"
CATEGORIES = [
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi",
    "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "M", "P", "S", "Z",
    "Han",
]  # fmt: skip


def ends(pattern: str, text: str) -> list[int]:
    return [int(end) for end in Splitter((pattern,)).ends(np.frombuffer(text.encode(), np.uint8))]


def expected_ends(pattern: str, text: str) -> list[int]:
    words = Split(Regex(pattern), "isolated").pre_tokenize_str(text)
    return [*accumulate(len(word.encode()) for word, _ in words)]


def random_pattern(chance: random.Random, depth: int) -> str:
    """A random expression that does not match empty text."""
    if depth == 0 or chance.random() < 0.2:
        return chance.choice(["a", "b", "c", "é", "[ab]", "[^a]", r"\s", r"\S", r"[\S&&[^bc]]"])
    parts = [random_pattern(chance, depth - 1) for _ in range(chance.randint(2, 3))]
    match chance.randrange(6):
        case 0 | 1:
            return "".join(parts)
        case 2:
            return f"(?:{'|'.join(parts)})"
        case 3:
            quantifier = chance.choice(["+", "{2}", "{1,3}", "+?", "{1,2}?"])
            return f"(?:{parts[0]}){quantifier}"
        case 4:
            quantifier = chance.choice(["*", "?", "{0,2}", "*?", "??"])
            pair = [f"(?:{parts[0]}){quantifier}", parts[1]]
            return "".join(chance.sample(pair, 2))
        case _:
            return f"{parts[0]}(?{chance.choice('=!')}{parts[1]})"


def test_random_expressions_match_as_in_oniguruma() -> None:
    chance = random.Random(1)
    for _ in range(400):
        pattern = random_pattern(chance, 3)
        for _ in range(5):
            text = "".join(chance.choices(LETTERS, k=chance.choice((1, 4, 12, 30))))
            assert ends(pattern, text) == expected_ends(pattern, text), (pattern, text)


@pytest.mark.parametrize(
    ("pattern", "text", "words"),
    [
        ("a|ab", "ab", ["a", "b"]),  # the first alternative, not the longest
        ("(a|ab)(c|bcd)d*", "abcd", ["abcd"]),
        ("a+?b?", "aab", ["a", "ab"]),
        ("a(?=b)", "aab", ["a", "a", "b"]),
        (r"\s+(?!\S)|\s+", "  a ", [" ", " ", "a", " "]),
        (r"a\z", "aa", ["a", "a"]),
        (r"[a-c&&[^b]]+", "abca", ["a", "b", "ca"]),
        (r"[\-\]^]+", "-]^a", ["-]^", "a"]),
        (r"\x{1F600}", "a\U0001f600b", ["a", "\U0001f600", "b"]),
        ("x", "abc", ["abc"]),
    ],
)
def test_matches_and_the_text_between_them_are_words(
    pattern: str, text: str, words: list[str]
) -> None:
    assert ends(pattern, text) == [*accumulate(len(word.encode()) for word in words)]
    assert expected_ends(pattern, text) == ends(pattern, text)


@pytest.mark.parametrize("pattern", ["a*", "a|", "(?=a)", "a??"])
def test_an_expression_that_matches_empty_text_is_a_bug(pattern: str) -> None:
    with pytest.raises(AssertionError, match="empty"):
        Graph(parse(pattern))


@pytest.mark.parametrize("pattern", ["a)", "(a", "a$", "a^", ".", r"\b", "a{3,}", "*a"])
def test_an_expression_outside_of_the_subset_is_a_bug(pattern: str) -> None:
    with pytest.raises((AssertionError, IndexError)):
        parse(pattern)


@pytest.mark.parametrize("name", first(2, ["L", "s", "N", "w", *CATEGORIES]))
def test_sets_of_code_points_are_those_of_oniguruma(name: str) -> None:
    text = "".join(chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000)
    pattern = rf"\{name}+" if name in "sw" else rf"\p{{{name}}}+"
    assert ends(pattern, text) == expected_ends(pattern, text)


def test_operations_on_sets() -> None:
    a, b = CharSet.of([(5, 9), (1, 2), (10, 12)]), CharSet.of([(2, 5), (20, 20)])
    assert a.bounds.tolist() == [1, 3, 5, 13]
    assert (a | b).bounds.tolist() == [1, 13, 20, 21]
    assert (a & b).bounds.tolist() == [2, 3, 5, 6]
    assert (~a).bounds.tolist() == [0, 1, 3, 5, 13, 0x110000]
    assert (a & ~a).bounds.tolist() == []
    assert (a | ~a).key == ANY.key


def test_a_partition_separates_the_points_of_each_set() -> None:
    sets = [unicode_set("L"), unicode_set("Lu"), unicode_set("s"), CharSet.of([(0x41, 0x43)])]
    class_of_point, members = partition(sets)
    assert len(class_of_point) == 0x110000
    of_character = {c: members[class_of_point[ord(c)]] for c in "aABZ\n1"}
    assert of_character == {
        "a": [0],
        "A": [0, 1, 3],
        "B": [0, 1, 3],
        "Z": [0, 1],
        "\n": [2],
        "1": [],
    }
