"""Values that nest deeply, in every place of a request that code walks: 400, never 500."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from http_world import RunningServer, running

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
HI: Any = [{"role": "user", "content": "a"}]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running() as server:
        yield server


def text(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def value(depth: int) -> Any:
    return json.loads(text(depth))


def openai(arguments: Any) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "1", "content": "x"}
    return {"messages": [*HI, {"role": "assistant", "content": "", "tool_calls": [call]}, result]}


def legacy(arguments: Any) -> dict[str, Any]:
    call = {"name": "f", "arguments": arguments}
    return {"messages": [*HI, {"role": "assistant", "function_call": call}]}


def anthropic(arguments: Any) -> dict[str, Any]:
    use = {"type": "tool_use", "id": "1", "name": "f", "input": arguments}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "x"}
    return {
        "messages": [
            *HI,
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ]
    }


def responses(arguments: Any) -> dict[str, Any]:
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": arguments}
    output = {"type": "function_call_output", "call_id": "1", "output": "x"}
    return {"input": [*HI, call, output]}


CALL = "messages[1].tool_calls[0].function.arguments"
INPUT = "messages[1].content[0].input"


@pytest.mark.parametrize(
    ("path", "body", "make", "where"),
    [
        (CHAT, openai, text, CALL),
        (CHAT, openai, value, CALL),
        (CHAT, legacy, text, CALL),
        ("/apply-template", openai, text, CALL),
        (MESSAGES, anthropic, value, INPUT),
        ("/v1/messages/count_tokens", anthropic, value, INPUT),
        (RESPONSES, responses, text, "input[1].arguments"),
        ("/v1/responses/input_tokens", responses, text, "input[1].arguments"),
    ],
)
def test_arguments_have_a_limit(
    server: RunningServer, path: str, body: Any, make: Any, where: str
) -> None:
    more = {"max_tokens": 1, "max_output_tokens": 1}
    server.ok(path, **body(make(100)) | more)
    for depth in (101, 150, 400):
        reply = server.post(path, body(make(depth)) | more)
        assert reply.status == 400, (depth, reply.raw[:200])
        message = reply.json["error"]["message"]
        assert message.startswith(f'"{where}'), message
        assert "is nested too deeply: at most" in message


PLACES: dict[str, tuple[str, Any]] = {
    "unknown field": ("/completion", lambda deep: {"prompt": "a", "unknown": deep}),
    "prompt": ("/completion", lambda deep: {"prompt": deep}),
    "biases": ("/completion", lambda deep: {"prompt": "a", "logit_bias": deep}),
    "schema": ("/completion", lambda deep: {"prompt": "a", "json_schema": deep}),
    "schema's text": ("/completion", lambda deep: {"prompt": "a", "json_schema": json.dumps(deep)}),
    "message": (CHAT, lambda deep: {"messages": [{**HI[0], "x": deep}]}),
    "content": (CHAT, lambda deep: {"messages": [{"role": "user", "content": deep}]}),
    "part": (
        CHAT,
        lambda deep: {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": deep}]}]
        },
    ),
    "variables": (CHAT, lambda deep: {"messages": HI, "chat_template_kwargs": {"a": deep}}),
    "tools of the template": (
        CHAT,
        lambda deep: {"messages": HI, "chat_template_kwargs": {"tools": [{"function": deep}]}},
    ),
    "tool": (
        CHAT,
        lambda deep: {
            "messages": HI,
            "tool_choice": "none",
            "tools": [{"type": "function", "function": {"name": "f", "parameters": deep}}],
        },
    ),
    "tool choice": (CHAT, lambda deep: {"messages": HI, "tool_choice": deep}),
    "format": (
        CHAT,
        lambda deep: {
            "messages": HI,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": deep},
            },
        },
    ),
    "template's format": (
        "/apply-template",
        lambda deep: {"messages": HI, "json_schema": json.dumps(deep)},
    ),
    "metadata": (RESPONSES, lambda deep: {"input": "a", "metadata": {"a": deep}}),
    "item": (RESPONSES, lambda deep: {"input": [{**HI[0], "x": deep}]}),
    "response's tool": (
        RESPONSES,
        lambda deep: {
            "input": "a",
            "tool_choice": "none",
            "tools": [{"type": "function", "name": "f", "parameters": deep}],
        },
    ),
    "tool schema": (
        MESSAGES,
        lambda deep: {
            "messages": HI,
            "tool_choice": {"type": "none"},
            "tools": [{"name": "f", "input_schema": deep}],
        },
    ),
    "result": (
        CHAT,
        lambda deep: {
            "messages": [*openai("{}")["messages"][:-1], {"role": "tool", "content": text(400)}]
        },
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_no_place_leads_to_an_internal_error(server: RunningServer, place: str) -> None:
    path, make = PLACES[place]
    for depth in (99, 120, 200, 240, 260, 300, 320, 400, 700, 950):
        body = make("deep")
        raw = json.dumps(body | {"n_predict": 1, "max_tokens": 1}).encode()
        nested = text(depth)
        raw = raw.replace(b'"\\"deep\\""', json.dumps(nested).encode())
        raw = raw.replace(b'"deep"', nested.encode())
        reply = server.post(path, raw)
        assert reply.status in (200, 400), (depth, reply.raw[:200])
        assert reply.status == 400 or depth < 260 or place == "result", depth


@pytest.mark.parametrize("number", ["1e999", "-1e999"])
def test_infinite_numbers_in_arguments(server: RunningServer, number: str) -> None:
    for path, body in ((CHAT, openai), (MESSAGES, anthropic)):
        raw = json.dumps(body({"a": [0.5]}) | {"max_tokens": 1})
        assert server.post(path, raw.encode()).status == 200
        reply = server.post(path, raw.replace("0.5", number).encode())
        assert reply.status == 400
        assert f"{number} is no finite number" in reply.json["error"]["message"]


@pytest.mark.parametrize("tools", ["f", [1], {"a": 1}, [[]], 7])
def test_tools_of_the_template_that_are_no_objects(server: RunningServer, tools: Any) -> None:
    for path in (CHAT, "/apply-template"):
        reply = server.post(path, {"messages": HI, "chat_template_kwargs": {"tools": tools}})
        assert reply.status == 400
        assert '"chat_template_kwargs.tools" must be a list of obj' in reply.error["message"]
    given = {"tools": [{"function": {"name": "f"}}]}
    server.ok(CHAT, messages=HI, max_tokens=1, chat_template_kwargs=given)
