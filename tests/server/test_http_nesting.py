"""Values that are nested too deeply are errors of the request, in every field that keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from http_world import RunningServer, running

DEPTHS = (50, 200, 300, 400, 600, 900, 1500, 5000)


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def chat(arguments: str) -> str:
    function = f'{{"name": "f", "arguments": {arguments}}}'
    call = f'{{"id": "1", "type": "function", "function": {function}}}'
    result = '{"role": "tool", "tool_call_id": "1", "content": "x"}'
    caller = f'{{"role": "assistant", "tool_calls": [{call}]}}'
    return f'"messages": [{{"role": "user", "content": "a"}}, {caller}, {result}], "max_tokens": 1'


def as_text(value: str) -> str:
    return '"' + value.replace('"', '\\"') + '"'


def anthropic(value: str) -> str:
    use = f'{{"type": "tool_use", "id": "1", "name": "f", "input": {value}}}'
    result = '{"type": "tool_result", "tool_use_id": "1", "content": "x"}'
    turns = (
        f'{{"role": "assistant", "content": [{use}]}}, {{"role": "user", "content": [{result}]}}'
    )
    return f'"messages": [{{"role": "user", "content": "a"}}, {turns}], "max_tokens": 1'


def response(value: str) -> str:
    call = (
        f'{{"type": "function_call", "call_id": "1", "name": "f", "arguments": {as_text(value)}}}'
    )
    result = '{"type": "function_call_output", "call_id": "1", "output": "x"}'
    return f'"input": [{call}, {result}], "max_output_tokens": 1'


def options(value: str) -> str:
    user = '{"role": "user", "content": "a"}'
    return f'"messages": [{user}], "chat_template_kwargs": {{"b": {value}}}, "max_tokens": 1'


def tools(value: str) -> str:
    user = '{"role": "user", "content": "a"}'
    function = f'{{"name": "f", "parameters": {{"type": "object", "properties": {value}}}}}'
    tool = f'{{"type": "function", "function": {function}}}'
    return f'"messages": [{user}], "tools": [{tool}], "max_tokens": 1'


CASES: dict[str, tuple[str, Any]] = {
    "text arguments": ("/v1/chat/completions", lambda value: chat(as_text(value))),
    "arguments": ("/v1/chat/completions", chat),
    "apply": ("/apply-template", lambda value: chat(as_text(value))),
    "tool_use": ("/v1/messages", anthropic),
    "count": ("/v1/messages/count_tokens", anthropic),
    "function_call": ("/v1/responses", response),
    "kwargs": ("/v1/chat/completions", options),
    "tools": ("/v1/chat/completions", tools),
    "unknown": ("/completion", lambda value: f'"prompt": "a", "n_predict": 1, "x": {value}'),
    "prompt": ("/completion", lambda value: f'"prompt": {value}, "n_predict": 1'),
    "metadata": (
        "/v1/responses",
        lambda value: f'"input": "a", "max_output_tokens": 1, "metadata": {{"a": {value}}}',
    ),
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running() as server:
        yield server


@pytest.mark.parametrize("name", CASES)
def test_nested_values_are_answered(server: RunningServer, name: str) -> None:
    path, body = CASES[name]
    for depth in DEPTHS:
        reply = server.post(path, f"{{{body(nested(depth))}}}".encode())
        assert reply.status in (200, 400), f"{depth}: {reply.raw[:200]!r}"


def test_the_error_says_so(server: RunningServer) -> None:
    reply = server.post("/v1/messages", f"{{{anthropic(nested(600))}}}".encode())
    assert reply.status == 400
    assert "nested too deeply" in reply.json["error"]["message"]


def test_infinity_is_no_argument(server: RunningServer) -> None:
    body = anthropic('{"a": 1e999}')
    assert server.post("/v1/messages", f"{{{body}}}".encode()).status == 400
