"""Wrong arguments of the public methods are refused, with what to use instead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from api_models import N_CTX, tiny_file

import lamella
from lamella import RequestError


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_file(tmp_path_factory)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[lamella.Model]:
    with lamella.load(path, n_ctx=N_CTX) as model:
        yield model


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (b"Once", "prompt is bytes, not a text: decode it first"),
        (bytearray(b"Once"), "prompt is bytearray, not a text"),
        (memoryview(b"Once"), "prompt is memoryview, not a text"),
        (None, "prompt: None are not token ids"),
        ({5: 1}, "are not token ids"),
        ({5, 6}, "are not token ids"),
        (7, "are not token ids"),
        ([1.0], "are not token ids"),
        ([1, True], "are not token ids"),
        (np.array([1.5, 2.0], np.float32), "are not token ids"),
        (np.array([[1, 2]]), "are not token ids"),
        (["a", "b"], "prompt is a list of texts: call once for each text"),
        ("caf\udce9", r"the prompt is not valid UTF-8 \(byte 0xE9 at 3\)"),
        ([], "the prompt is empty"),
        ([-1], "token -1 of the prompt: must be 0 to 287"),
        ([288], "token 288 of the prompt: must be 0 to 287"),
    ],
)
def test_wrong_prompts(model: lamella.Model, prompt: Any, message: str) -> None:
    for method in (model.complete, model.complete_stream, model.generate):
        with pytest.raises(RequestError, match=message):
            method(prompt)


def test_token_ids_of_any_sequence(model: lamella.Model) -> None:
    text = model.complete([1, 5], max_tokens=4, seed=1).text
    for ids in ((1, 5), np.array([1, 5]), range(1, 6, 4)):
        assert model.complete(ids, max_tokens=4, seed=1).text == text  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temprature": 1}, "unknown option 'temprature'; did you mean temperature?"),
        ({"temp": 1}, "unknown option 'temp'; did you mean temperature?"),
        ({"max_token": 1}, "did you mean max_tokens?"),
        ({"max_new_tokens": 1}, "did you mean max_tokens?"),
        ({"repetition_penalty": 1}, "did you mean repeat_penalty?"),
        ({"stop_sequences": ["a"]}, "did you mean stop?"),
        ({"xyz": 1}, "unknown option 'xyz'; options are n_predict, context_shift, "),
        ({"stream": True}, "stream is not an option: call complete_stream or chat_stream"),
        ({"n": 2}, "n is not an option: call once for each text"),
        ({"functions": [{}]}, "functions is not an option: give tools"),
        ({"max_tokens": -5}, "max_tokens is -5: must be -1 to 2147483647"),
        ({"max_tokens": 1, "n_predict": 2}, "max_tokens and n_predict are one option"),
        ({"temperature": "hot"}, "temperature is 'hot': must be a number"),
        ({"stop": 3}, "stop is 3: must be a string or a list of strings"),
        ({"stop": b"a"}, "stop is b'a': must be a string or a list of strings"),
    ],
)
def test_wrong_options(model: lamella.Model, options: dict[str, Any], message: str) -> None:
    for method in (model.complete, model.chat, model.chat_stream, model.acomplete_stream):
        with pytest.raises(RequestError) as refused:
            method("a", **options)
        assert message in str(refused.value)


def test_names_of_openai(model: lamella.Model) -> None:
    for name in ("max_tokens", "max_completion_tokens", "n_predict"):
        options: dict[str, Any] = {name: 3}
        whole = model.complete("a", ignore_eos=True, **options)
        assert (whole.usage.completion_tokens, whole.finish_reason) == (3, "length")
    model.complete(
        *("a",), max_tokens=2, frequency_penalty=0.5, presence_penalty=0.5, top_p=0.9, stop=None
    )


def test_none_means_the_default(model: lamella.Model) -> None:
    expected = model.complete("a", max_tokens=5, seed=1, temperature=0.8)
    absent: Any = {"n_predict": None, "max_completion_tokens": None, "tools": None}
    whole = model.complete("a", max_tokens=5, seed=1, temperature=None, top_k=None, **absent)
    assert whole.tokens == expected.tokens
    wrong: Any = {"temprature": None}
    with pytest.raises(RequestError, match="did you mean temperature"):
        model.complete("a", **wrong)


def test_no_tools(model: lamella.Model) -> None:
    absent: tuple[Any, ...] = ([], None)
    for tools in absent:
        options = {"tools": tools, "max_tokens": 1}
        assert model.chat("a", **options).usage.completion_tokens <= 1


def test_biases_of_tokens(model: lamella.Model) -> None:
    id = model.tokenize("b", add_special=False)[0]
    for bias in ({id: 1000}, {str(id): 1000}, [(id, 1000.0)], [("b", 1000)], {"b": 1000}):
        whole = model.complete("a", max_tokens=2, logit_bias=bias)
        assert whole.tokens == (id, id)


def test_wrong_texts(model: lamella.Model) -> None:
    with pytest.raises(RequestError, match="tokenize: b'a' is not a string"):
        model.tokenize(b"a")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="detokenize is bytes, not a text"):
        model.detokenize(b"a")
    with pytest.raises(RequestError, match=r"the text is not .* \(lone surrogate U\+D800 at 0\)"):
        model.tokenize("\ud800")


def test_wrong_options_of_load(path: Path) -> None:
    with pytest.raises(RequestError, match=r"unknown option 'num_ctx'; did you mean n_ctx\?"):
        lamella.load(path, num_ctx=3)  # type: ignore[call-arg]
