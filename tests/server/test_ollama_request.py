"""Ollama's requests, translated: options, thinking, formats and messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lamella.base.errors import RequestError
from lamella.model.chat.message import Tool
from lamella.server.given import Given
from lamella.server.ollama.body import OllamaChatBody, OllamaGenerateBody
from lamella.server.ollama.request import WITHOUT_EFFECT, chat_messages, generation_options
from lamella.server.parsing import parse_body

CALL = {"function": {"name": "read", "arguments": {"path": "a"}}}


def options(**given: Any) -> dict[str, Any]:
    found, unknown = generation_options(Given("options", given))
    assert unknown == set()
    return found


def messages(*given: dict[str, Any]) -> list[dict[str, Any]]:
    return chat_messages(Given("messages", list(given)))


def test_options_have_the_names_of_the_server() -> None:
    assert options(num_predict=3, temperature=0, stop=["a"], mirostat=None) == {
        "n_predict": 3,
        "temperature": 0,
        "stop": ["a"],
    }
    assert options(num_predict=-2) == {"n_predict": -1}
    assert options(repeat_last_n=-1)["repeat_last_n"] > 10**9
    assert options(**dict.fromkeys(WITHOUT_EFFECT, 1)) == {}
    assert generation_options(Given("options", {"nonsense": 1})) == ({}, {"nonsense"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_predict": "3"}, "options.num_predict"),
        ({"temperature": [1]}, "options.temperature"),
        ({"seed": 1.5}, "options.seed"),
        ([], '"options" must be an object'),
    ],
)
def test_an_invalid_option_is_named(given: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        generation_options(Given("options", given))


def test_results_of_tools_find_their_calls() -> None:
    other = {"function": {"name": "now"}}
    found = messages(
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "thinking": "Hm.", "tool_calls": [CALL, other, CALL]},
        {"role": "tool", "tool_name": "now", "content": "noon"},
        {"role": "tool", "content": "first"},
        {"role": "tool", "tool_name": "read", "content": "second"},
    )
    _, assistant, *results = found
    assert assistant["reasoning_content"] == "Hm."
    assert assistant["content"] == ""
    ids = [call["id"] for call in assistant["tool_calls"]]
    assert len(set(ids)) == 3
    assert assistant["tool_calls"][0]["function"] == CALL["function"]
    assert [(one["name"], one["tool_call_id"]) for one in results] == [
        ("now", ids[1]),
        ("read", ids[0]),
        ("read", ids[2]),
    ]


def test_ids_of_the_client_stay() -> None:
    found = messages(
        {"role": "assistant", "tool_calls": [CALL | {"id": "a"}, CALL | {"id": "b"}]},
        {"role": "tool", "tool_call_id": "b", "content": "x"},
    )
    assert [call["id"] for call in found[0]["tool_calls"]] == ["a", "b"]
    assert (found[1]["tool_call_id"], found[1]["name"]) == ("b", "read")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"role": "user", "content": 3}, r'"messages\[0\].content" must be a string'),
        ({"role": "bot", "content": "a"}, r'"messages\[0\].role" must be one of'),
        ({"role": "user", "content": "a", "images": ["x"]}, r'"messages\[0\].images" is not supp'),
        ({"role": "assistant", "tool_calls": [3]}, r'"messages\[0\].tool_calls\[0\]" must be an'),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]},
            r'"messages\[0\].tool_calls\[0\].function.arguments" must be',
        ),
    ],
)
def test_an_invalid_message_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        messages(given)


def chat(**given: Any) -> OllamaChatBody:
    body = {"messages": [{"role": "user", "content": "Hi"}], **given}
    return parse_body(OllamaChatBody, json.dumps(body).encode())


def generate(**given: Any) -> OllamaGenerateBody:
    return parse_body(OllamaGenerateBody, json.dumps(given).encode())


def test_thinking() -> None:
    assert chat().chat.options == {}
    assert chat(think=True).chat.options == {"enable_thinking": True}
    assert chat(think="low").chat.options["reasoning_effort"] == "low"
    off = chat(think=False)
    assert (off.chat.options, off.params["reasoning_budget"]) == ({"enable_thinking": False}, 0)
    with pytest.raises(RequestError, match='"think" must be true, false or one of low'):
        chat(think="much")


def test_formats() -> None:
    assert "json_schema" not in chat(format="").params
    assert chat(format="json").params["json_schema"] == {}
    body = chat(format={"type": "object"})
    assert (body.params["json_schema"], body.response_path()) == ({"type": "object"}, "format")
    with pytest.raises(RequestError, match='"format" must be "json" or a JSON schema'):
        chat(format="yaml")


def test_defaults_are_ollamas() -> None:
    body = chat()
    assert body.stream and body.n_choices == 1 and body.n_top_probs is None
    assert chat(messages=[]).is_empty and generate().is_empty and generate(prompt="").is_empty
    assert not generate(prompt="a").is_empty
    body = chat(tools=[{"type": "function", "function": {"name": "f"}}])
    assert isinstance(body.chat_request(None).tools[0], Tool)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompt": "a", "template": "{{ .Prompt }}"}, "--chat-template"),
        ({"prompt": "a", "raw": True, "system": "b"}, '"raw" excludes'),
        ({"prompt": "a", "images": ["x"]}, '"images" is not supported yet'),
        ({"prompt": "a", "n": 2}, '"n" must be 1'),
        ({"prompt": 3}, '"prompt" must be a string, found 3'),
        ({"prompt": "a", "context": ["x"]}, r'"context\[0\]" must be a valid integer'),
        ({"prompt": "a", "stream": "yes"}, '"stream" must be a valid boolean'),
    ],
)
def test_what_a_completion_refuses(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        generate(**given)
