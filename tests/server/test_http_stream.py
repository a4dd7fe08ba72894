"""Server-sent events: the chunks of the three shapes, the ends of streams, and errors."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from fake_context import WAIT_S, FakeContext
from http_world import Reply, RunningServer, make_model, running

FIELDS: dict[str, Any] = {"temperature": 0, "n_predict": 6, "ignore_eos": True}
USER = {"role": "user", "content": "hi"}
ROUTES: dict[str, dict[str, Any]] = {
    "/completion": {"prompt": "abc"},
    "/v1/completions": {"prompt": "abc"},
    "/v1/chat/completions": {"messages": [USER]},
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running() as server:
        yield server


def stream(server: RunningServer, path: str, **fields: object) -> list[Any]:
    reply = server.post(path, ROUTES[path] | FIELDS | {"stream": True} | fields)
    assert reply.status == 200, reply.raw
    assert reply.headers["x-accel-buffering"] == "no"
    return reply.events


def whole(server: RunningServer, path: str, **fields: object) -> Any:
    return server.ok(path, **(ROUTES[path] | FIELDS | fields))


def test_native_chunks(server: RunningServer) -> None:
    *chunks, final = stream(server, "/completion")
    full = whole(server, "/completion", return_tokens=True)
    assert "".join(chunk["content"] for chunk in chunks) == full["content"]
    assert [token for chunk in chunks for token in chunk["tokens"]] == full["tokens"]
    for chunk in chunks:
        assert chunk.keys() == {
            *("index", "content", "tokens", "stop", "id_slot"),
            *("tokens_predicted", "tokens_evaluated"),
        }
        assert chunk["stop"] is False
    assert [chunk["tokens_predicted"] for chunk in chunks] == [1, 2, 3, 4, 5, 6]
    assert (final["stop"], final["content"], final["tokens"]) == (True, "", [])
    assert final.keys() == full.keys()
    assert (final["stop_type"], final["tokens_predicted"]) == ("limit", 6)


def test_openai_chunks(server: RunningServer) -> None:
    *chunks, last, done = stream(server, "/v1/completions")
    assert done == "[DONE]"
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert text == whole(server, "/v1/completions")["choices"][0]["text"]
    for chunk in [*chunks, last]:
        assert chunk["object"] == "text_completion"
        assert ("usage" in chunk) == (chunk is last)  # as llama-server
        assert (chunk["id"], chunk["model"]) == (last["id"], "fake")
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 6
    assert last["choices"] == [
        {"text": "", "index": 0, "logprobs": None, "finish_reason": "length"}
    ]
    assert last["timings"]["predicted_n"] == 6
    usage = whole(server, "/v1/completions")["usage"]
    assert last["usage"]["total_tokens"] == usage["total_tokens"]


def test_chat_chunks(server: RunningServer) -> None:
    first, *chunks, last, done = stream(server, "/v1/chat/completions")
    assert done == "[DONE]"
    assert first["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": None}, "finish_reason": None}
    ]
    message = whole(server, "/v1/chat/completions")["choices"][0]["message"]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta["content"] for delta in deltas) == message["content"]
    assert {tuple(delta) for delta in deltas} == {("content",)}
    assert last["choices"] == [{"index": 0, "delta": {}, "finish_reason": "length"}]
    assert last["timings"]["predicted_n"] == 6
    assert {chunk["object"] for chunk in (first, *chunks, last)} == {"chat.completion.chunk"}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_include_usage(server: RunningServer, path: str) -> None:
    *_, finish, usage, done = stream(server, path, stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert finish["choices"][0]["finish_reason"] == "length"
    assert "usage" not in finish
    assert usage["choices"] == []
    assert usage["usage"] == whole(server, path)["usage"]
    assert usage["timings"]["predicted_n"] == 6


@pytest.mark.parametrize("path", ROUTES)
def test_probabilities_in_chunks(server: RunningServer, path: str) -> None:
    fields = {"logprobs": True, "top_logprobs": 2} if "chat" in path else {"n_probs": 2}
    chunks = [chunk for chunk in stream(server, path, **fields) if chunk != "[DONE]"]
    reply = whole(server, path, **fields)
    if path == "/completion":
        found = [at for c in chunks for at in c.get("completion_probabilities", [])]
        assert found == reply["completion_probabilities"]
        return
    streamed = [c["choices"][0].get("logprobs") or {"content": []} for c in chunks]
    at_each = [at for logprobs in streamed for at in logprobs["content"]]
    assert at_each == reply["choices"][0]["logprobs"]["content"]


def test_a_stop_string_is_never_streamed(server: RunningServer) -> None:
    text = whole(server, "/completion", n_predict=30)["content"]
    word = text[7:10]
    *chunks, final = stream(server, "/completion", n_predict=30, stop=word)
    assert "".join(chunk["content"] for chunk in chunks) == text[: text.index(word)]
    assert (final["stop_type"], final["stopping_word"]) == ("word", word)


def test_several_choices_share_a_stream(server: RunningServer) -> None:
    events = stream(server, "/v1/completions", prompt=["a", "bc"], n=2, temperature=1, seed=3)
    reply = whole(server, "/v1/completions", prompt=["a", "bc"], n=2, temperature=1, seed=3)
    texts, reasons = [""] * 4, [0] * 4
    assert ["usage" in event for event in events[:-1]].count(True) == 1
    assert events[-2]["usage"]["total_tokens"] == reply["usage"]["total_tokens"]
    for event in events[:-1]:
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["text"]
        reasons[choice["index"]] += choice["finish_reason"] is not None
    assert texts == [choice["text"] for choice in reply["choices"]]
    assert reasons == [1] * 4


def test_progress_of_the_prompt(server: RunningServer) -> None:
    uncached = {"return_progress": True, "cache_prompt": False}
    events = stream(server, "/completion", prompt="a" * 49, **uncached)
    progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert [p["processed"] for p in progress] == [16, 32, 48, 50]
    assert {(p["total"], p["cache"]) for p in progress} == {(50, 0)}
    assert all(p["time_ms"] >= 0 for p in progress)
    server.ok("/completion", prompt="a" * 49, n_predict=0)
    events = stream(server, "/completion", prompt="a" * 49 + "b" * 10, return_progress=True)
    progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert [(p["processed"], p["total"], p["cache"]) for p in progress] == [(60, 60, 50)]
    chat = stream(server, "/v1/chat/completions", return_progress=True)
    assert chat[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "prompt_progress" in chat[1]


def test_timings_of_each_token(server: RunningServer) -> None:
    *chunks, _ = stream(server, "/completion", timings_per_token=True)
    assert [chunk["timings"]["predicted_n"] for chunk in chunks] == [1, 2, 3, 4, 5, 6]
    assert len({chunk["timings"]["prompt_ms"] for chunk in chunks}) == 1
    assert all("timings" not in c for c in stream(server, "/completion")[:-1])


@pytest.mark.parametrize("path", ROUTES)
def test_an_error_before_the_first_token_is_an_error_response(
    server: RunningServer, path: str
) -> None:
    body = {"prompt": "a", "messages": [USER], "stream": True, "temperature": "hot"}
    assert server.post(path, body).error["type"] == "invalid_request_error"


def failing(step: int) -> FakeContext:
    context = FakeContext()

    def on_decode(now: int) -> None:
        if now == step:
            raise OSError("/secret/device: gone")

    context.on_decode = on_decode
    return context


def test_an_engine_error_in_the_prompt() -> None:
    with running(lambda: make_model(failing(1))) as server:
        body = {"prompt": "a", "stream": True, "n_predict": 2, "ignore_eos": True, "seed": 1}
        reply = server.post("/completion", body)
        assert (reply.status, reply.error["type"]) == (500, "server_error")
        assert b"secret" not in reply.raw
        assert len(server.post("/completion", body).events) == 3  # the next request succeeds


def test_a_later_engine_error_is_an_event_of_the_stream() -> None:
    context = failing(20)
    with running(lambda: make_model(context)) as server:
        body = {"prompt": "a", "stream": True, "n_predict": 100, "ignore_eos": True}
        reply = server.post("/v1/completions", body)
        *chunks, last = reply.events
        assert len(chunks) > 0
        assert last["error"]["type"] == "server_error"
        assert b"secret" not in reply.raw
        assert b"[DONE]" not in reply.raw


class Gate:
    """Blocks the engine in step `n` until `open` is called."""

    def __init__(self, context: FakeContext, n: int) -> None:
        self.reached, self._open = threading.Event(), threading.Event()
        self._n = n
        context.on_decode = self._on_decode

    def _on_decode(self, step: int) -> None:
        if step == self._n:
            self.reached.set()
            assert self._open.wait(WAIT_S)

    def open(self) -> None:
        self._open.set()


def test_pings_of_an_idle_stream() -> None:
    context = FakeContext()
    gate = Gate(context, 3)
    body = {"prompt": "a", "stream": True, "n_predict": 5, "sse_ping_interval": 1, "seed": 1}
    body["ignore_eos"] = True
    raw, ping = b"", b":\n\n"
    with running(lambda: make_model(context)) as server, closing(server.connect()) as client:
        begin = time.monotonic()
        client.request("POST", "/completion", json.dumps(body))
        response = client.getresponse()
        while not raw.endswith(ping) and (part := response.read1()):
            raw += part
        assert raw.startswith(b"data: ") and raw.endswith(b"\n\n" + ping)
        assert time.monotonic() - begin >= 1  # not sooner
        gate.open()
        raw += response.read()
        headers = {name.lower(): value for name, value in response.getheaders()}
    assert Reply(200, headers, raw).events[-1]["stop"] is True
