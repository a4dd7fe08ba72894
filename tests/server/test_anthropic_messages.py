"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from anthropic_world import CLOCK, READ, messages_server
from fake_context import WAIT_S, FakeContext
from http_world import Reply, RunningServer, make_model, running

from lamella.base.errors import BackendError
from lamella.server.anthropic import body as messages_body
from lamella.server.anthropic.blocks import SIGNATURE
from lamella.server.logged import LoggedOnce

TEXT = "Hello there, ☃."
INPUT_TOKENS = ("input_tokens", "cache_read_input_tokens")
INPUT = {"path": "a.txt"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with messages_server(tmp_path_factory.mktemp("model")) as server:
        yield server


def body(script: str, **fields: object) -> dict[str, Any]:
    user = {"role": "user", "content": f"play {script}"}
    return {"model": "claude-any", "max_tokens": 500, "messages": [user], **fields}


def whole(server: RunningServer, script: str, **fields: object) -> Any:
    return server.ok("/v1/messages?beta=true", **body(script, **fields))


def streamed(server: RunningServer, script: str, **fields: object) -> list[tuple[str, Any]]:
    """The names and the data of the events."""
    reply = server.post("/v1/messages", body(script, stream=True, **fields))
    assert reply.status == 200, reply.raw
    assert reply.headers["content-type"] == "text/event-stream"
    return events_of(reply)


def events_of(reply: Reply) -> list[tuple[str, Any]]:
    frames = reply.raw.decode().split("\n\n")
    assert frames.pop() == ""
    found = []
    for frame in frames:
        name, data = frame.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    assert all(name == data["type"] for name, data in found)
    return found


def kinds(message: Any) -> list[str]:
    return [block["type"] for block in message["content"]]


# --- whole ---


def test_a_message(server: RunningServer) -> None:
    reply = server.post("/v1/messages", body("text"))
    message = reply.json
    assert message.pop("id").startswith("msg_")
    usage = message.pop("usage")
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "claude-any",
        "content": [{"type": "text", "text": TEXT}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
    }
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] > 5
    assert usage["cache_creation_input_tokens"] == 0
    assert usage["output_tokens"] > 3
    assert reply.headers["request-id"].startswith("req_")


def test_thinking(server: RunningServer) -> None:
    assert whole(server, "thought", thinking={"type": "adaptive"})["content"] == [
        {"type": "thinking", "thinking": "Let me see.", "signature": SIGNATURE},
        {"type": "text", "text": "It is 4."},
    ]
    omitted = whole(server, "thought", thinking={"type": "adaptive", "display": "omitted"})
    assert omitted["content"][0] == {"type": "thinking", "thinking": "", "signature": SIGNATURE}


def test_thinking_has_a_budget_and_may_be_disabled(server: RunningServer) -> None:
    short = whole(server, "thought", thinking={"type": "enabled", "budget_tokens": 2})
    thinking, text = short["content"]
    assert thinking["thinking"] in "Let me"
    assert short["usage"]["output_tokens_details"] == {"thinking_tokens": 2}
    assert text == {"type": "text", "text": "It is 4."}
    assert whole(server, "thought", thinking={"type": "disabled"})["content"] == [text]


def test_calls(server: RunningServer) -> None:
    message = whole(server, "call", tools=[READ, CLOCK])
    assert kinds(message) == ["thinking", "text", "tool_use"]
    call = message["content"][-1]
    assert call.pop("id")
    assert call == {"type": "tool_use", "name": "read", "input": INPUT}
    assert message["stop_reason"] == "tool_use"
    several = whole(server, "calls", tools=[READ, CLOCK])["content"]
    assert [(call["name"], call["input"]) for call in several] == [("read", INPUT), ("now", {})]
    assert several[0]["id"] != several[1]["id"]


def test_a_required_call(server: RunningServer) -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "read"}):
        message = whole(server, "only", tools=[READ], tool_choice=choice)
        assert (message["content"][-1]["input"], message["stop_reason"]) == (INPUT, "tool_use")


def test_without_tools_there_are_no_calls(server: RunningServer) -> None:
    message = whole(server, "call")
    assert "tool_use" not in kinds(message)
    assert message["stop_reason"] == "end_turn"


def test_a_call_that_a_limit_cuts_off(server: RunningServer) -> None:
    inputs = []
    for n in range(15, 45, 3):
        message = whole(server, "only", tools=[READ], max_tokens=n)
        if message["stop_reason"] == "max_tokens" and "tool_use" in kinds(message):
            inputs.append(message["content"][-1]["input"])
    assert inputs and all(found in ({}, INPUT) for found in inputs)


def test_limits_and_stop_sequences(server: RunningServer) -> None:
    limited = whole(server, "text", max_tokens=2)
    assert (limited["stop_reason"], limited["usage"]["output_tokens"]) == ("max_tokens", 2)
    stopped = whole(server, "text", stop_sequences=["x", "there"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "there")
    assert stopped["content"] == [{"type": "text", "text": "Hello "}]
    del (without := body("text"))["max_tokens"]
    assert server.ok("/v1/messages", **without)["stop_reason"] == "end_turn"


def test_an_empty_answer(server: RunningServer) -> None:
    message = whole(server, "nothing")
    assert (message["content"], message["stop_reason"]) == ([], "end_turn")


def test_a_schema_of_the_answer(server: RunningServer) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    format = {"type": "json_schema", "schema": schema}
    message = whole(server, "person", output_config={"format": format})
    assert json.loads(message["content"][0]["text"]) == {"name": "Ann", "age": 3}
    failed = server.post("/v1/messages", body("text", output_config={"format": format}))
    assert "doesn't satisfy the grammar" in failed.json["error"]["message"]


def test_the_assistant_s_last_message_is_continued(server: RunningServer) -> None:
    prefill = {"role": "assistant", "content": "Well, he said: "}
    messages = [*body("text")["messages"], prefill]
    assert whole(server, "", messages=messages)["content"] == [{"type": "text", "text": TEXT}]


def test_server_side_tools_are_skipped(
    server: RunningServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages_body, "_LOGGED", LoggedOnce())
    search = {"type": "web_search_20250305", "name": "web_search"}
    choice = {"type": "tool", "name": "web_search"}
    with caplog.at_level(logging.INFO, "lamella.server"):
        message = whole(server, "text", tools=[search], tool_choice=choice)
    assert kinds(message) == ["text"]
    lines = [record.getMessage() for record in caplog.records]
    assert "skipping tools that Anthropic's servers run: 'web_search_20250305'" in lines


# --- streams ---


def test_the_events_of_a_stream(server: RunningServer) -> None:
    found = streamed(server, "call", tools=[READ])
    names = [name for name, _ in found]
    assert (names[0], names[-2:]) == ("message_start", ["message_delta", "message_stop"])
    started = found[0][1]["message"]
    assert (started["content"], started["stop_reason"], started["role"]) == ([], None, "assistant")
    assert started["usage"]["output_tokens"] == 0
    ended = found[-2][1]
    assert ended["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    counts = [
        [usage[name] for name in INPUT_TOKENS] for usage in (started["usage"], ended["usage"])
    ]
    assert counts[0] == counts[1]
    assert ended["usage"]["output_tokens_details"]["thinking_tokens"] > 1
    opened = [data["content_block"]["type"] for name, data in found if "block_start" in name]
    assert opened == ["thinking", "text", "tool_use"]
    indices = [data["index"] for _, data in found[1:-2]]
    assert indices == sorted(indices)
    stops = [data["index"] for name, data in found if name == "content_block_stop"]
    assert stops == [0, 1, 2]


@pytest.mark.parametrize("script", ["text", "thought", "call", "calls", "nothing"])
def test_a_stream_adds_up_to_the_whole_message(server: RunningServer, script: str) -> None:
    blocks: list[dict[str, Any]] = []
    parts: list[str] = []
    for name, data in streamed(server, script, tools=[READ, CLOCK]):
        if name == "content_block_start":
            blocks.append(data["content_block"])
            parts.append("")
        elif name == "content_block_delta":
            delta = data["delta"]
            if delta["type"] != "signature_delta":
                parts[-1] += next(text for key, text in delta.items() if key != "type")
    message = whole(server, script, tools=[READ, CLOCK])
    assert [block["type"] for block in blocks] == kinds(message)
    for block, text in zip(message["content"], parts, strict=True):
        kind = block["type"]
        assert (json.loads(text) if kind == "tool_use" else text) == block[
            "input" if kind == "tool_use" else kind
        ]


def test_a_silent_stream_gets_pings() -> None:
    context = FakeContext()
    open_gate, ping = threading.Event(), b'event: ping\ndata: {"type":"ping"}\n\n'

    def wait(i: int) -> None:
        if i == 3:
            open_gate.wait(WAIT_S)

    context.on_decode = wait
    asked = body("a", stream=True, sse_ping_interval=1, ignore_eos=True, max_tokens=5)
    raw = b""
    with running(lambda: make_model(context)) as server, closing(server.connect()) as client:
        client.request("POST", "/v1/messages", json.dumps(asked))
        response = client.getresponse()
        while not raw.endswith(ping) and (part := response.read1()):
            raw += part
        open_gate.set()
        raw += response.read()
    assert raw.startswith(b"event: message_start\n")
    assert raw.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')


def test_a_later_failure_is_an_event() -> None:
    context = FakeContext()

    def fail(i: int) -> None:
        if i == 20:
            raise BackendError("secret")

    context.on_decode = fail
    with running(lambda: make_model(context)) as server:
        name, last = streamed(server, "a", ignore_eos=True)[-1]
    assert (name, last["error"]["type"]) == ("error", "api_error")
    assert "secret" not in last["error"]["message"]


# --- conversations ---


def test_the_second_turn_evaluates_only_what_is_new(server: RunningServer) -> None:
    def system(i: int) -> list[dict[str, Any]]:
        billing = f"x-anthropic-billing-header: cc_version=2.{i}; cch={i}a{i};"
        long = "You are an agent. " * 40
        return [{"type": "text", "text": billing}, {"type": "text", "text": long}]

    messages: list[dict[str, Any]] = [{"role": "user", "content": "play call"}]
    first = whole(server, "", system=system(1), messages=messages, tools=[READ])
    messages.append({"role": "assistant", "content": first["content"]})
    id = first["content"][-1]["id"]
    result = {"type": "tool_result", "tool_use_id": id, "content": "play text"}
    messages.append({"role": "user", "content": [result]})
    second = whole(server, "", system=system(2), messages=messages, tools=[READ])
    assert second["content"] == [{"type": "text", "text": TEXT}]
    usage = second["usage"]
    n_first = sum(first["usage"][name] for name in (*INPUT_TOKENS, "output_tokens"))
    assert usage["cache_read_input_tokens"] >= n_first - 2  # the end token is not evaluated
    assert usage["input_tokens"] < 40


# --- counting ---


def test_tokens_are_counted(server: RunningServer) -> None:
    asked = body("text", system="Be brief.", tools=[READ])
    usage = server.ok("/v1/messages", **asked)["usage"]
    del asked["max_tokens"]
    counted = server.ok("/v1/messages/count_tokens?beta=true", **asked)
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
