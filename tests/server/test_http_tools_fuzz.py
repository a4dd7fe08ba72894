"""Random requests with tools: each is answered, or refused with the reason, never an error 5xx."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
from http_world import Reply, RunningServer
from tools_world import TEMPLATE, serving

HARBOUR = {"type": "string", "description": "Name", "enum": ["Kiel", "Bergen"]}
SCHEMA = {
    "type": "object",
    "properties": {
        "harbour": HARBOUR,
        "rows": {"type": "integer", "minimum": 1},
        "tags": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
    },
    "required": ["harbour"],
    "additionalProperties": False,
}
CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "When?"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Look it up.",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "times", "arguments": '{"harbour": "Kiel"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "name": "times", "content": "9:00"},
        {"role": "assistant", "function_call": {"name": "times", "arguments": "{}"}},
        {"role": "function", "name": "times", "content": "9:00"},
        {"role": "user", "content": "And then?"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {"name": "times", "description": "Departures.", "parameters": SCHEMA},
        },
        {"type": "function", "function": {"name": "crew", "strict": True, "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "ring"}},
    ],
    "tool_choice": {"type": "function", "function": {"name": "times"}},
    "parallel_tool_calls": True,
    "chat_template_kwargs": {"enable_thinking": False},
    "reasoning_effort": "low",
    "reasoning_format": "auto",
    "stream_options": {"include_usage": True},
    "max_tokens": 2,
}
TOOL_USE = {"type": "tool_use", "id": "toolu_1", "name": "times", "input": {"harbour": "Kiel"}}
RESULT = {
    "type": "tool_result",
    "tool_use_id": "toolu_1",
    "content": [{"type": "text", "text": "9"}],
}
ANTHROPIC: dict[str, Any] = {
    "model": "any",
    "max_tokens": 2,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "When?"},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "Hm.", "signature": "a"}, TOOL_USE],
        },
        {"role": "user", "content": [RESULT, {"type": "text", "text": "And then?"}]},
    ],
    "tools": [{"name": "times", "description": "Departures.", "input_schema": SCHEMA}],
    "tool_choice": {"type": "tool", "name": "times", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "stop_sequences": ["x"],
    "metadata": {"user_id": "me"},
}
FUNCTION = {"type": "function", "name": "times", "parameters": SCHEMA, "strict": True}
RESPONSES: dict[str, Any] = {
    "model": "any",
    "max_output_tokens": 2,
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "When?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "call_1", "name": "times", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "9:00"},
        {"type": "message", "role": "user", "content": "And then?"},
    ],
    "tools": [FUNCTION, {"type": "custom", "name": "patch"}, {"type": "web_search"}],
    "tool_choice": {"type": "function", "name": "times"},
    "parallel_tool_calls": False,
    "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "store": True,
    "include": ["reasoning.encrypted_content"],
}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/apply-template": CHAT,
    "/v1/chat/completions/input_tokens": CHAT,
    "/v1/messages": ANTHROPIC,
    "/v1/messages/count_tokens": ANTHROPIC,
    "/v1/responses": RESPONSES,
    "/v1/responses/input_tokens": RESPONSES,
}
CHOICES: list[Any] = ["none", "auto", "required", {"type": "allowed_tools"}]
FORMATS: list[Any] = [
    {"type": "json_object"},
    {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
]
KEYWORDS = (
    *("$ref", "$defs", "type", "enum", "const", "properties", "required", "additionalProperties"),
    *("patternProperties", "propertyNames", "minProperties", "maxProperties", "dependentRequired"),
    *("items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems", "minimum"),
    *("maximum", "exclusiveMinimum", "multipleOf", "minLength", "maxLength", "pattern", "format"),
    *("anyOf", "oneOf", "allOf", "not", "if", "then", "else", "description", "default"),
)
TEXTS = ("", "x", "auto", "times", "call_1", "\ud83d", "\x00", "<tool_call>", "</s>", "é☃")


def junk(rng: random.Random) -> Any:
    """A value of any type, often a strange one."""
    text = rng.choice(
        ["", "x", "auto", "times", "call_1", "\ud83d", "\x00", "<tool_call>", "</s>", "é☃"]
    )
    return rng.choice(
        [
            *(
                None,
                True,
                False,
                0,
                -1,
                2,
                2**31,
                10**400,
                1.5,
                1e308,
                -0.0,
                [],
                {},
                text,
                text * 99,
            ),
            *([[text]], [None] * 600, {text: text}, {"type": text}, {"name": text}, [{}]),
            *({"type": "function", "function": {"name": text}}, nested(rng.choice([9, 200]))),
        ]
    )


def nested(depth: int) -> Any:
    value: Any = 1
    for i in range(depth):
        value = {"items": value} if i % 2 else [value]
    return value


def schema(rng: random.Random) -> dict[str, Any]:
    """A JSON schema with keywords of wrong types."""
    return {rng.choice(KEYWORDS): junk(rng) for _ in range(rng.randrange(1, 4))}


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """All containers in a value, with each of their keys."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def mutate(rng: random.Random, body: dict[str, Any]) -> None:
    container, key = rng.choice(list(places(body)))
    match rng.randrange(6):
        case 0:
            del container[key]
        case 1:
            container[key] = schema(rng)
        case 2 if isinstance(container, list):
            container.extend(deepcopy(container[key]) for _ in range(rng.choice([1, 9])))
        case 3 if isinstance(container, dict):
            container[str(junk(rng))[:30]] = container[key]
        case _:
            container[key] = junk(rng)


def change_chat(rng: random.Random, body: dict[str, Any]) -> None:
    """Give a chat other fields that are valid."""
    if rng.random() < 0.5:
        body["tool_choice"] = rng.choice(CHOICES)
    if rng.random() < 0.2:
        body["response_format"] = deepcopy(rng.choice(FORMATS))
    if rng.random() < 0.1:
        body["functions"] = [tool["function"] for tool in body.pop("tools")]
        body["function_call"] = {"name": "times"}
        del body["tool_choice"]


def random_request(seed: int) -> tuple[str, bytes]:
    rng = random.Random(seed)
    path = rng.choice(list(BODIES))
    body = deepcopy(BODIES[path])
    if BODIES[path] is CHAT:
        change_chat(rng, body)
    if rng.random() < 0.3:
        body["stream"] = True
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        mutate(rng, body)
    return path, json.dumps(body).encode()


@pytest.fixture(scope="module", params=[TEMPLATE, "chatml"], ids=["hermes", "generic"])
def server(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[RunningServer]:
    options = {"chat_template": request.param, "follows_grammar": False, "n_ctx": 16384}
    with serving(tmp_path_factory.mktemp("model"), lambda _: "Hm.", **options) as server:
        yield server


def check(reply: Reply, raw: bytes) -> None:
    assert reply.status in (200, 400), (reply.status, reply.raw, raw[:3000])
    if reply.status == 400:
        assert reply.json["error"]["message"]
    elif reply.headers["content-type"] == "text/event-stream":
        assert b'"error":{' not in reply.raw, (reply.raw, raw[:3000])


def run(
    server: RunningServer,
    seeds: range,
    request: Callable[[int], tuple[str, bytes]] = random_request,
    check: Callable[[Reply, bytes], None] = check,
) -> None:
    """Send random requests, and check the reply to each."""
    statuses = set()
    for seed in seeds:
        path, raw = request(seed)
        reply = server.call("POST", path, raw)
        check(reply, raw)
        statuses.add(reply.status)
    assert statuses == {200, 400}


def test_random_requests(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "lamella"):
        run(server, range(40))
    assert caplog.records == []


@pytest.mark.full
def test_many_random_requests(server: RunningServer) -> None:
    run(server, range(300, 5000))


HOSTILE = {
    "lists": b'{"messages": ' + b"[" * 100_000,
    "objects": b'{"tools": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
    "many tools": b'{"messages": [{"role": "user", "content": "a"}], "tools": ['
    + b"1," * 100_000
    + b"1]}",
    "no UTF-8": b'{"messages": [{"role": "user", "content": "\xff"}]}',
    "many calls": b'{"messages": [{"role": "assistant", "tool_calls": ['
    + b"{}," * 10_000
    + b"{}]}]}",
    "many items": b'{"input": [' + b'{"type": "function_call"},' * 10_000 + b"{}]}",
}


# by default, each path with two of the bodies, and each body on some paths
@pytest.mark.parametrize(
    ("path", "name"),
    [
        pytest.param(path, name, marks=pytest.mark.full if (i + k) % 3 else ())
        for i, path in enumerate(BODIES)
        for k, name in enumerate(HOSTILE)
    ],
)
def test_hostile_bodies(server: RunningServer, path: str, name: str) -> None:
    reply = server.call("POST", path, HOSTILE[name])
    assert reply.status == 400
    assert reply.json["error"]["message"]
