"""The fuzzer of grammars: its inputs, and its checks of finished texts."""

from __future__ import annotations

import json
from collections import Counter

import fuzz_grammars
import pytest
from fuzz_inputs import make_input

from lamella.model.guide import GrammarKind, GrammarSpec


def test_a_number_makes_the_same_input_again() -> None:
    inputs = [make_input(number) for number in range(300)]
    assert inputs == [make_input(number) for number in range(300)]
    kinds = Counter(spec.kind for spec in inputs)
    # clients do not write grammars of chats: they come from tools and formats
    assert set(kinds) == set(GrammarKind) - {GrammarKind.CHAT} and min(kinds.values()) > 20


@pytest.mark.parametrize(
    ("kind", "source", "good", "bad"),
    [
        (GrammarKind.REGEX, "[a-c]+", b"abc", b"abd"),
        (GrammarKind.JSON_SCHEMA, json.dumps({"type": "integer", "minimum": 3}), b"3", b"2"),
        (GrammarKind.JSON_SCHEMA, "{}", b'{"a": [1]}', b'{"a": [1}'),
        (GrammarKind.JSON_SCHEMA, "{}", b"[]", b"[] "),
        (GrammarKind.GBNF, 'root ::= "a"', "é".encode(), "é".encode()[:1]),
    ],
)
def test_a_wrong_text_is_a_finding(kind: GrammarKind, source: str, good: bytes, bad: bytes) -> None:
    spec = GrammarSpec(kind, source)
    assert not fuzz_grammars.wrong(spec, good)
    assert fuzz_grammars.wrong(spec, bad)
