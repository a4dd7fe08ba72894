"""Random requests of the Responses API: each is answered, or refused with the field's path."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from anthropic_world import MARKS, TEMPLATE
from http_world import Reply, RunningServer, running
from scripted import open_scripted
from test_http_tools_fuzz import SCHEMA, mutate, run

PATHS = ("/v1/responses", "/v1/responses/input_tokens")
FUNCTION = {"type": "function", "name": "times", "parameters": SCHEMA, "strict": True}
CUSTOM = {"type": "custom", "name": "sql", "description": "Asks."}
LARK = {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}
REGEX = {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}
CALL = {"call_id": "c1", "name": "times", "arguments": '{"harbour": "Kiel"}'}
BODY: dict[str, Any] = {
    "model": "any",
    "instructions": "Be brief.",
    "input": [
        {"type": "additional_tools", "role": "developer", "tools": [CUSTOM | {"format": REGEX}]},
        {"role": "developer", "content": "Really."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "When?"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Look it up."}],
            "encrypted_content": "lamella:YQ==",
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Wait.", "annotations": []}],
        },
        CALL | {"type": "function_call", "namespace": "mcp__sea"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "sql", "input": "select 1"},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "9:00"}],
        },
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "1"},
        {"type": "web_search_call", "id": "ws_1"},
        {"role": "user", "content": "And then?"},
    ],
    "tools": [
        FUNCTION,
        CUSTOM | {"name": "patch", "format": LARK},
        {"type": "namespace", "name": "mcp__sea", "tools": [FUNCTION, CUSTOM]},
        {"type": "web_search"},
    ],
    "tool_choice": {"type": "function", "name": "times"},
    "parallel_tool_calls": True,
    "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"verbosity": "low", "format": {"type": "text"}},
    "include": ["reasoning.encrypted_content"],
    "metadata": {"a": "b"},
    "truncation": "auto",
    "store": True,
    "top_logprobs": 1,
    "max_output_tokens": 2,
    "temperature": 1.0,
}
CHOICES: list[Any] = [
    *("none", "auto", "required", {"type": "custom", "name": "patch"}),
    {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "times"}]},
]
FORMATS: list[Any] = [
    {"type": "json_object"},
    {"type": "json_schema", "name": "a", "strict": True, "schema": SCHEMA},
]


def request(seed: int) -> tuple[str, bytes]:
    rng = random.Random(seed)
    body = deepcopy(BODY)
    if rng.random() < 0.5:
        body["tool_choice"] = deepcopy(rng.choice(CHOICES))
    if rng.random() < 0.2:
        body["text"]["format"] = deepcopy(rng.choice(FORMATS))
        body["tool_choice"] = "none"
    if rng.random() < 0.3:
        body["stream"] = True
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        mutate(rng, body)
    return rng.choice(PATHS), json.dumps(body).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder: Path = tmp_path_factory.mktemp("model")
    options: dict[str, Any] = {"chat_template": TEMPLATE, "follows_grammar": False, "n_ctx": 16384}
    with running(lambda: open_scripted(folder, lambda _: "Hm.", marks=MARKS, **options)) as server:
        yield server


def check(reply: Reply, raw: bytes) -> None:
    assert reply.status in (200, 400), (reply.status, reply.raw, raw[:3000])
    if reply.status == 400:
        error = reply.json["error"]
        assert error["type"] == "invalid_request_error"
        assert error["param"] or error["message"].startswith(("the ", "a ", "grammar ")), error
    elif reply.headers["content-type"] == "text/event-stream":
        assert b"response.failed" not in reply.raw, raw[:3000]


def test_random_requests(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "lamella"):
        run(server, range(40), request, check)
    assert caplog.records == []


@pytest.mark.full
def test_many_random_requests(server: RunningServer) -> None:
    run(server, range(40, 5000), request, check)
