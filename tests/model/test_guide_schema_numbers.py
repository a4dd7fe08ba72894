"""Bounds, steps and left-out numbers: the regexes against exact arithmetic and the reference."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from schemas import SchemaGrammar, is_valid

from lamella.model.guide.schema.numbers import (
    Interval,
    Numbers,
    as_decimal,
    decimals_regex,
    integers_regex,
    listed_multiples,
    texts_regex,
)

STEPS = ("0", "1", "-1", "0.1", "-0.1", "0.01", "-0.001", "0.5", "10", "-10")


def random_decimal(random: Random) -> Decimal:
    whole = random.choice([0, 1, 5, 9, 10, 99, 100, 101, random.randint(-2000, 2000)])
    return Decimal(whole * random.choice([1, -1])).scaleb(-random.choice([0, 0, 1, 2, 3]))


def random_numbers(random: Random) -> Numbers:
    low, high = (random_decimal(random) if random.random() < 0.7 else None for _ in range(2))
    interval = Interval(low, high, random.random() < 0.4, random.random() < 0.4)
    excluded = tuple(random_decimal(random) for _ in range(random.choice([0, 0, 1])))
    return Numbers(interval=interval, excluded=excluded)


def near(numbers: Numbers, random: Random) -> set[str]:
    """Texts of numbers near to the bounds, in several spellings."""
    ends = [numbers.interval.low, numbers.interval.high, Decimal(0), *numbers.excluded]
    found = {f"{random.uniform(-100, 100):.3f}", str(random.randint(-3000, 3000))}
    for end in ends:
        for step in STEPS:
            if end is not None:
                found |= {f"{end + Decimal(step):f}", f"{(end + Decimal(step)).normalize():f}"}
    return {text for text in found if text.strip("-0.") or not text.startswith("-")}


def test_the_regexes_match_the_numbers_of_an_interval() -> None:
    random = Random(5)
    for _ in range(150):
        numbers = random_numbers(random)
        for regex, is_whole in ((decimals_regex(numbers), False), (integers_regex(numbers), True)):
            for text in near(numbers, random):
                if is_whole and "." in text:
                    continue
                value = Fraction(as_decimal(json.loads(text)))
                inside = any(part.holds(value) for part in numbers.intervals())
                matches = regex is not None and re.fullmatch(regex, text) is not None
                assert matches == inside, (numbers, text)


@pytest.mark.parametrize(
    "schema",
    [
        {"exclusiveMinimum": 0},
        {"exclusiveMaximum": 100, "minimum": 99},
        {"exclusiveMinimum": 0.1, "exclusiveMaximum": 0.2},
        {"minimum": -1.5, "maximum": 1.5, "not": {"const": 0}},
        {"not": {"type": "integer"}},
        {"multipleOf": 0.01},
        {"multipleOf": 0.1, "minimum": -5, "maximum": 5},
        {"multipleOf": 1.5},
        {"multipleOf": 7, "maximum": -3},
        {"type": "integer", "multipleOf": 0.5, "minimum": 1000},
        {"minimum": 1e30},
        {"maximum": -1e17},
    ],
)
def test_random_numbers_are_valid(schema: dict[str, Any]) -> None:
    schema = {"type": "number", **schema}
    grammar = SchemaGrammar(schema)
    texts = [grammar.random_text(seed) for seed in range(20)]
    for text in texts:
        assert text is None or is_valid(schema, json.loads(text)), text
    assert any(texts)


def test_listed_multiples_are_those_that_floats_divide() -> None:
    numbers = Numbers(steps=(Decimal("0.01"),))
    texts = listed_multiples(numbers)
    assert "8.25" in texts and "-0.07" not in texts and "0.07" not in texts  # 7.000000000000001
    pattern = re.compile(texts_regex(texts))
    assert all(pattern.fullmatch(text) for text in texts[::50])
    assert not pattern.fullmatch("0.07") and not pattern.fullmatch("1.005")


@pytest.mark.parametrize(
    "text", ["0", "-1", "1.5", "1e5", "12345678901234567890", "0.1e-7", "1E+307"]
)
def test_usual_spellings_of_any_number(text: str) -> None:
    assert SchemaGrammar({"type": "number"}).accepts(text)


@pytest.mark.parametrize("text", ["01", "+1", ".5", "1.", "1e", "1e999", "-", "NaN", "Infinity"])
def test_what_is_no_number(text: str) -> None:
    assert not SchemaGrammar({"type": "number"}).accepts(text)
