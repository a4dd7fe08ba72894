"""Random schemas: each text that a grammar leads to is valid, and valid values are accepted."""

from __future__ import annotations

import json
from random import Random

import pytest
from schema_maker import random_schema, random_value
from schemas import SchemaGrammar, is_valid

from lamella import GrammarError

N_TEXTS = 4
N_VALUES = 12


def check(seed: int) -> tuple[int, int]:
    """The number of valid values, and of those that are accepted."""
    schema = random_schema(Random(seed))
    values = [random_value(Random(1000 * seed + i)) for i in range(N_VALUES)]
    valid = [value for value in values if is_valid(schema, value)]
    try:
        grammar = SchemaGrammar(schema)
    except GrammarError as error:
        if "no JSON value is valid" in str(error):
            assert not valid, (schema, valid)
        return 0, 0
    for i in range(N_TEXTS):
        text = grammar.random_text(1000 * seed + i)
        assert text is None or is_valid(schema, json.loads(text)), (schema, text)
    for value in values:
        assert value in valid or not grammar.accepts_value(value), (schema, value)
    return len(valid), sum(map(grammar.accepts_value, valid))


def test_random_schemas() -> None:
    found = [check(seed) for seed in range(60)]
    n_valid, n_accepted = (sum(each) for each in zip(*found, strict=True))
    assert n_valid > 100
    assert n_accepted >= 0.98 * n_valid


@pytest.mark.full
@pytest.mark.parametrize("begin", range(1000, 5000, 500))
def test_many_random_schemas(begin: int) -> None:
    found = [check(seed) for seed in range(begin, begin + 500)]
    n_valid, n_accepted = (sum(each) for each in zip(*found, strict=True))
    assert n_accepted >= 0.99 * n_valid
