"""`Model.chat`: messages become prompts, with the checks and errors of HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_models import N_CTX, tiny_file
from tiny_models import TINY, write_model

import lamella
from lamella import RequestError
from lamella.server.parsing import parse_body
from lamella.server.prompts import prepared_chat, request_params
from lamella.server.schema_chat import ChatBody

USER = {"role": "user", "content": "a b"}
SYSTEM = {"role": "system", "content": "c"}
REPLY = {"role": "assistant", "content": "d"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_file(tmp_path_factory)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[lamella.Model]:
    with lamella.load(path, n_ctx=N_CTX) as model:
        yield model


def test_a_chat_continues_its_prompt(model: lamella.Model) -> None:
    answer = model.chat([SYSTEM, USER], max_tokens=8, seed=1)
    prompt = model.tokenize(model.apply_chat_template([SYSTEM, USER]), parse_special=True)
    assert answer.text == model.complete(prompt, max_tokens=8, seed=1).text
    assert "".join(model.chat_stream([SYSTEM, USER], max_tokens=8, seed=1)) == answer.text
    assert answer.usage.prompt_tokens == len(prompt)


def test_a_text_is_a_message_of_the_user(model: lamella.Model) -> None:
    assert model.apply_chat_template("a b") == model.apply_chat_template([USER]) == "u a b "
    assert model.apply_chat_template("a b", system="c") == "s c u a b "


@pytest.mark.parametrize("messages", [[USER], [SYSTEM, USER], [USER, REPLY], [PARTS], (USER,)])
def test_prompts_are_those_of_http(model: lamella.Model, messages: Any) -> None:
    body = parse_body(ChatBody, json.dumps({"messages": messages}).encode())
    instance = model._generator()
    params = request_params(instance, body)
    prompt = prepared_chat(instance, body.chat_request(None), params).prompt
    assert model.apply_chat_template(messages) == prompt


@pytest.mark.parametrize(
    "messages",
    [[], [3], [{}], [{"role": "user"}], [USER, {"role": "", "content": "x"}], {"role": "user"}],
)
def test_errors_are_those_of_http(model: lamella.Model, messages: Any) -> None:
    with pytest.raises(RequestError) as over_http:
        parse_body(ChatBody, json.dumps({"messages": messages}).encode())
    for method in (model.chat, model.chat_stream, model.achat_stream, model.apply_chat_template):
        with pytest.raises(RequestError) as in_python:
            method(messages)
        assert str(in_python.value) == str(over_http.value)


def test_variables_of_the_template(path: Path) -> None:
    template = "{{ messages[0].content }}{{ flag }}"
    with lamella.load(path, chat_template=template) as model:
        assert model.chat_template == template
        assert model.apply_chat_template("a", chat_template_kwargs={"flag": "!"}) == "a!"
        with pytest.raises(RequestError, match="must not set"):
            model.chat("a", chat_template_kwargs={"messages": []})
        with pytest.raises(RequestError, match="chat_template_kwargs: 3 is not a dict"):
            model.chat("a", chat_template_kwargs=3)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match=r"names that are strings, found 5"):
            model.chat("a", chat_template_kwargs={5: 1})  # type: ignore[dict-item]


def test_messages_that_are_not_utf8(model: lamella.Model) -> None:
    for messages in ("caf\udce9", [{"role": "user", "content": "caf\udce9"}]):
        with pytest.raises(RequestError, match=r'"messages\[0\]\.content" .* \(byte 0xE9 at 3\)'):
            model.chat(messages)
    with pytest.raises(RequestError, match=r"system is not valid UTF-8 \(byte 0xE9 at 3\)"):
        model.chat("a", system="caf\udce9")


def test_a_model_without_a_template_warns(tmp_path: Path) -> None:
    write_model(TINY["llama"], tmp_path / "base.gguf")
    with lamella.load(tmp_path / "base.gguf", n_ctx=64) as model:
        with pytest.warns(UserWarning, match="this model has no chat template") as caught:
            model.chat("a", max_tokens=1)
        assert caught[0].filename == __file__


def test_invalid_system_messages(model: lamella.Model) -> None:
    with pytest.raises(RequestError, match="begin with a system message already"):
        model.chat([SYSTEM, USER], system="again")
    with pytest.raises(RequestError, match="system: 3 is not a string"):
        model.chat("a", system=3)  # type: ignore[arg-type]


def test_a_chat_goes_on() -> None:
    messages: list[dict[str, str]] = [{"role": "user", "content": "What is 8 + 5?"}]
    with lamella.load() as model:
        answer = model.chat(messages, temperature=0)
        assert (answer.text, answer.finish_reason) == ("8 plus 5 is 13.", "stop")
        messages += [answer.message, {"role": "user", "content": "Who are you?"}]
        assert "Lamella" in model.chat(messages, temperature=0).text
