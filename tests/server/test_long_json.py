"""Long JSON texts: the same values as `json.loads`, and an error for the same texts."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from lamella.server import long_json
from lamella.server.long_json import STRICT, parse_json

DECODER = json.JSONDecoder()
MESSAGES = "Expecting|Invalid|Extra|Unterminated|twice|Illegal"
SCALARS: tuple[Any, ...] = (
    1,
    -2.5,
    1e30,
    "a",
    'q"\\\n',
    "é",
    "\u2028",
    True,
    None,
    "",
    [],
    {},
    "]",
    "1,2",
)
BREAKERS = ("", ",", "]", "}", '"', "1", "[", " ", "-")


@pytest.fixture(autouse=True)
def all_texts_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_json, "N_LONG", 0)


def value(rng: random.Random, depth: int) -> Any:
    n = rng.randrange(5)
    match rng.randrange(4) if depth else 0:
        case 1:
            return [value(rng, depth - 1) for _ in range(n)]
        case 2:
            return {f"k{i}": value(rng, depth - 1) for i in range(n)}
        case 3:
            return [rng.randrange(-9, 999) for _ in range(n * 3)]
    return rng.choice(SCALARS)


def test_the_same_values() -> None:
    rng = random.Random(1)
    for i in range(400):
        wanted = {"a": value(rng, 4), "b": value(rng, 3)}
        indent = rng.choice([None, 1])
        text = " \n" + json.dumps(wanted, indent=indent, ensure_ascii=i % 2 == 0) + "\t"
        assert parse_json(text, DECODER) == wanted


def test_the_same_errors() -> None:
    rng = random.Random(2)
    for _ in range(1500):
        text = list(json.dumps({"a": value(rng, 3), "b": [1, 2, 3]}))
        for _ in range(rng.randrange(1, 3)):
            text[rng.randrange(len(text))] = rng.choice(
                ["", ",", "]", "}", '"', "1", "[", " ", "-"]
            )
        broken = "".join(text)
        try:
            wanted = STRICT.decode(broken)
        except ValueError:
            with pytest.raises(ValueError, match=MESSAGES):
                parse_json(broken, STRICT)
        else:
            assert parse_json(broken, STRICT) == wanted


@pytest.mark.parametrize(
    "text", ["", " ", "[", "{", '{"a"', '{"a":', '{"a":1', "[1,", "[1,]", "1 2"]
)
def test_texts_that_end_early(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        parse_json(text, DECODER)


def test_an_error_in_a_run_of_numbers_is_found_once() -> None:
    numbers = "1," * 30_000
    wanted = f"column {len(numbers) + 13}"
    with pytest.raises(json.JSONDecodeError, match=wanted):
        parse_json(f'{{"prompt": [{numbers}+1, 2]}}', CountedDecoder(1))


class CountedDecoder(json.JSONDecoder):
    """Decodes only `n` lists."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def decode(self, s: str, *_: Any) -> Any:
        self.n -= 1
        assert self.n >= 0, "decoded too often"
        return super().decode(s)


@pytest.mark.parametrize("n_long", [0, 1 << 20])
@pytest.mark.parametrize("text", ['{"a": 1, "b": [], "a": 1}', '[{"b": {"c": 0, "a": 1, "a": 2}}]'])
def test_repeated_names(monkeypatch: pytest.MonkeyPatch, text: str, n_long: int) -> None:
    monkeypatch.setattr(long_json, "N_LONG", n_long)
    with pytest.raises(ValueError, match='"a" occurs twice'):
        parse_json(text, STRICT)


def test_too_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_json, "N_VALUES_MAX", 10)
    with pytest.raises(ValueError, match="more than 10 values"):
        parse_json('{"a": [[], [], {}, {"b": [[]]}, [], [[], []]]}', STRICT)
    text = json.dumps({"a": [[1, 2] * 50] * 3})
    assert parse_json(text, STRICT) == json.loads(text), "runs of numbers count once"


def test_deep_texts_are_refused() -> None:
    with pytest.raises(RecursionError):
        parse_json("[" * 100_000, STRICT)


def test_long_lists_of_numbers_are_parsed_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = list(range(100_000))
    calls = []
    decode = json.JSONDecoder.decode

    def counted(self: json.JSONDecoder, text: str) -> Any:
        calls.append(len(text))
        return decode(self, text)

    monkeypatch.setattr(json.JSONDecoder, "decode", counted)
    assert parse_json(json.dumps({"prompt": numbers}), DECODER) == {"prompt": numbers}
    assert 1 < len(calls) < 20
    assert max(calls) <= long_json.N_RUN + 2
