"""The field `model` of a body, found without parsing the body."""

from __future__ import annotations

import json
import time

import pytest

from lamella.base.errors import RequestError
from lamella.server.router.body import N_NAME_BYTES_MAX, is_empty_in, model_in, scalar_in


@pytest.mark.parametrize(
    "body",
    [
        {"model": "a b"},
        {"prompt": "x", "model": "a b"},
        {"prompt": '"model": "wrong"', "model": "a b"},
        {"prompt": 'ends with a quote"', "model": "a b"},
        {"prompt": "ends with a backslash\\", "model": "a b"},
        {"prompt": '\\"\\\\"', "model": "a b"},
        {"metadata": {"model": "wrong"}, "model": "a b"},
        {"messages": [{"model": "wrong"}, ["model"]], "model": "a b"},
        {"x": "model", "model": "a b"},
        {"model ": "wrong", "model": "a b"},
        {"prompt": "{[", "model": "a b", "stop": ["]}"]},
    ],
)
def test_the_field_is_found_wherever_it_is(body: object) -> None:
    for text in (
        json.dumps(body),
        json.dumps(body, indent=2),
        json.dumps(body).replace(": ", " :"),
    ):
        assert model_in(text.encode()) == "a b"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'["model", "a"]',
        b'[{"model": "a"}]',
        b'{"model": null}',
        b'{"model',
        b"\xff",
        b'{"x": {"model": "a"}}',
        b'{"prompt": "no end',
        b'{"model"}',
        b'{"prompt": "\\',
    ],
)
def test_without_the_field(body: bytes) -> None:
    assert model_in(body) is None


@pytest.mark.parametrize("value", ["1", "{}", "[1]", "true", '"no end', '"bad \\x escape"'])
def test_a_model_that_is_no_text(value: str) -> None:
    with pytest.raises(RequestError, match="model"):
        model_in(f'{{"model": {value}'.encode())


def test_a_long_name() -> None:
    with pytest.raises(RequestError, match=f"at most {N_NAME_BYTES_MAX} bytes"):
        model_in(json.dumps({"model": "a" * 5000}).encode())


def test_escapes_in_the_name() -> None:
    assert model_in(json.dumps({"model": 'ä "x" \\'}).encode()) == 'ä "x" \\'


@pytest.mark.parametrize(
    "prompt",
    ["a" * 4_000_000, '"' * 200_000, "\\" * 1_000_000, ["a"] * 100_000],
    ids=["text", "quotes", "backslashes", "texts"],
)
def test_a_long_body_takes_linear_time(prompt: object) -> None:
    raw = json.dumps({"prompt": prompt, "model": "last"}).encode()
    begin = time.thread_time()
    assert model_in(raw) == "last"
    assert time.thread_time() - begin < 2.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-1.5", -1.5),
        ('"5m"', "5m"),
        ("null", None),
        ("true", True),
        ('"\\u0035m"', "5m"),
    ],
)
def test_numbers_and_short_texts(text: str, value: object) -> None:
    for body in ('{"x": 1}', '{"x": {"keep": 9}}'):
        assert scalar_in(body.encode(), "keep") is None
    for body in (f'{{"keep": {text}}}', f'{{"p": "\\"keep\\": 1", "keep" :{text}, "x": "ä"}}'):
        assert scalar_in(body.encode(), "keep") == value


@pytest.mark.parametrize("text", ["[1]", "{}", "x", "", "1" * 5000, '"' + "x" * 200 + '"'])
def test_other_values_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match='"keep" must be a number or a short text'):
        scalar_in(f'{{"keep": {text}}}'.encode(), "keep")


@pytest.mark.parametrize(
    ("body", "is_empty"),
    [
        ({}, True),
        ({"prompt": ""}, True),
        ({"prompt": None}, True),
        ({"prompt": []}, True),
        ({"prompt": "a"}, False),
        ({"prompt": ["a"]}, False),
        ({"x": {"prompt": "a"}}, True),
    ],
)
def test_fields_that_are_empty(body: object, is_empty: bool) -> None:
    assert is_empty_in(json.dumps(body).encode(), "prompt") is is_empty
