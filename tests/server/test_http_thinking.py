"""Budgets of reasoning over HTTP, and requests that end the reasoning of a running chat."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from http_world import RunningServer, running
from scripted import open_scripted

from lamella.server.config import ServerConfig

MARKS = ("<think>", "</think>")
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% if opens %}<think>\n{% endif %}"
    "{% endif %}{# </think> <tool_call> </tool_call> {{ tools }} #}"
)
N_WORDS = 20_000  # seconds of reasoning
CALL = '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>'
CONTROL = "/v1/chat/completions/control"


def play(prompt: str) -> str:
    """Short reasoning, or long if the prompt says so."""
    n = N_WORDS if "long" in prompt else 8
    answer = CALL if "call" in prompt else "Done."
    opened = "" if prompt.endswith("<think>\n") else "<think>"
    return f"{opened}{'on ' * n}</think>{answer}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder: Path = tmp_path_factory.mktemp("scripted")
    options: dict[str, Any] = {"special": MARKS, "chat_template": TEMPLATE}
    config = ServerConfig(port=0, metrics=True)
    with running(lambda: open_scripted(folder, play, **options), config) as server:
        yield server


def body(text: str = "Go.", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "reasoning_format": "none", **more}


def answer(server: RunningServer, **more: Any) -> tuple[str, int]:
    """The text of an answer, and its number of reasoning tokens. Streamed, it is the same."""
    reply = server.ok("/v1/chat/completions", **body(**more))
    events = server.post("/v1/chat/completions", body(**more, stream=True)).events
    deltas = [e["choices"][0]["delta"] for e in events if e != "[DONE]"]
    text: str = reply["choices"][0]["message"]["content"]
    assert "".join(delta.get("content") or "" for delta in deltas) == text
    return text, reply["usage"]["completion_tokens_details"]["reasoning_tokens"]


@pytest.mark.parametrize("name", ["reasoning_budget_tokens", "thinking_budget_tokens"])
def test_a_budget_ends_reasoning(server: RunningServer, name: str) -> None:
    text, n = answer(server)
    assert text.endswith(f"{'on ' * 8}</think>Done.")
    assert n > 6
    text, n = answer(server, **{name: 6})
    assert n == 6
    assert text.removesuffix("</think>Done.") in "<think>" + "on " * 7
    assert answer(server, **{name: 0}) == ("<think></think>Done.", 0)


def test_reasoning_that_the_prompt_has_begun(server: RunningServer) -> None:
    variables = {"chat_template_kwargs": {"opens": True}}
    text, n = answer(server, **variables, reasoning_budget=5, reasoning_budget_message=" Enough.")
    assert n > 5
    assert text.endswith(" Enough.</think>Done.")
    assert answer(server, **variables, reasoning_budget=0)[0].endswith("</think>Done.")


def test_reasoning_is_apart_from_content(server: RunningServer) -> None:
    request = body(reasoning_budget=5) | {"reasoning_format": "auto"}
    reply = server.ok("/v1/chat/completions", **request)
    message = reply["choices"][0]["message"]
    assert message["content"] == "Done."
    assert set(message["reasoning_content"].split()) == {"on"}
    assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": 5}
    events = server.post("/v1/chat/completions", request | {"stream": True}).events
    deltas = [e["choices"][0]["delta"] for e in events if e != "[DONE]"]
    for name in ("content", "reasoning_content"):
        assert "".join(delta.get(name) or "" for delta in deltas) == message[name]


def test_a_required_call_follows_the_budget(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    for budget in (0, 5):
        request = body("Go, call.", tools=tools, tool_choice="required", reasoning_budget=budget)
        reply = server.ok("/v1/chat/completions", **request | {"reasoning_format": "auto"})
        (choice,) = reply["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["constraint"]["complete"]
        (call,) = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "f", "arguments": '{"n": 1}'}
        assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": budget}


def test_metrics_count_reasoning(server: RunningServer) -> None:
    def n_tokens() -> float:
        (line,) = re.findall(r"^lamella_reasoning_tokens_total (.*)$", metrics(), re.MULTILINE)
        return float(line)

    def metrics() -> str:
        return server.get("/metrics").raw.decode()

    before = n_tokens()
    answer(server, reasoning_budget=3)  # twice
    assert n_tokens() == before + 6


def test_wrong_budgets_are_refused(server: RunningServer) -> None:
    for budget in (-2, 1.5, "5", True):
        error = server.post("/v1/chat/completions", body(thinking_budget_tokens=budget)).error
        assert error["code"] == 400
        assert "thinking_budget_tokens" in error["message"]


def test_a_request_ends_the_reasoning_of_another(server: RunningServer) -> None:
    found = json.dumps(body("Go, long.", stream=True, reasoning_control=True))
    with closing(server.connect()) as connection:
        connection.request("POST", "/v1/chat/completions", found)
        response = connection.getresponse()
        id = json.loads(response.readline().removeprefix(b"data: "))["id"]
        assert server.ok(CONTROL, id=id, action="reasoning_end") == {"success": True}
        raw = response.read().decode()
    chunks = [json.loads(line[6:]) for line in raw.split("\n\n") if line.startswith("data: {")]
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert text.endswith("</think>Done.")
    assert text.count("on") < N_WORDS
    assert not server.ok(CONTROL, id=id, action="reasoning_end")["success"]


def test_only_chats_that_allow_it_are_controlled(server: RunningServer) -> None:
    with closing(server.connect()) as connection:
        found = json.dumps(body("Go, long.", stream=True))
        connection.request("POST", "/v1/chat/completions", found)
        response = connection.getresponse()
        id = json.loads(response.readline().removeprefix(b"data: "))["id"]
        reply = server.ok(CONTROL, id=id, action="reasoning_end")
        assert (reply["success"], "reasoning_control" in reply["message"]) == (False, True)
    assert "action" in server.post(CONTROL, {"id": "a", "action": "stop"}).error["message"]
    assert "id" in server.post(CONTROL, {"action": "reasoning_end"}).error["message"]
