"""Clients that lose their connection and come back: X-Conversation-Id and /v1/stream."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

import pytest
from fake_context import WAIT_S, FakeContext
from http_world import Reply, RunningServer, eventually, make_model, running

from lamella.runtime.instance import Instance
from lamella.server.config import ServerConfig
from lamella.server.kept_streams import KeptStream, KeptStreams
from lamella.server.keys import Key

BODY: dict[str, Any] = {"prompt": "a", "n_predict": 40, "ignore_eos": True, "seed": 1}
N_STEP = 12  # the fake model waits there


class World:
    """A server whose model waits in a step until `go_on`."""

    def __init__(self, n_step: int) -> None:
        self.context = FakeContext(512)
        self.context.on_decode = self._on_decode
        self.n_step = n_step
        self.in_step, self.go_on = threading.Event(), threading.Event()
        self.is_cancelled = threading.Event()
        self.server: RunningServer

    def load(self) -> Instance:
        model = make_model(self.context)
        cancel = model.engine.cancel

        def noted(ticket: Any) -> None:
            cancel(ticket)
            self.is_cancelled.set()

        model.engine.cancel = noted  # type: ignore[method-assign]
        return model

    def _on_decode(self, step: int) -> None:
        if step == self.n_step:
            self.in_step.set()
            assert self.go_on.wait(WAIT_S)

    def go_on_when_cancelled(self) -> None:
        assert self.is_cancelled.wait(WAIT_S)
        self.go_on.set()

    @property
    def n_running(self) -> int:
        engine = self.server.model.engine
        return engine.n_running + engine.n_waiting

    def begin(self, id: str = "chat-1", path: str = "/completion", **more: Any) -> socket.socket:
        """A client that has sent a request for a stream."""
        raw = json.dumps(BODY | {"stream": True} | more).encode()
        client = socket.create_connection(("127.0.0.1", self.server.port), timeout=WAIT_S)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nX-Conversation-Id: {id}\r\n"
        client.sendall(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
        return client

    def attach(self) -> socket.socket:
        """A client that reads the stream from its first byte on."""
        client = socket.create_connection(("127.0.0.1", self.server.port), timeout=WAIT_S)
        client.sendall(b"GET /v1/stream?conv_id=chat-1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return client

    def get(self, id: str = "chat-1", at: int = 0, headers: dict[str, str] | None = None) -> Reply:
        return self.server.call("GET", f"/v1/stream?conv_id={id}&from={at}", None, headers)

    def lookup(self, *ids: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.server.ok(
            "/v1/streams/lookup", conversation_ids=list(ids)
        )
        return found


@contextmanager
def world(n_step: int = N_STEP, **config: Any) -> Iterator[World]:
    made = World(n_step)
    with running(made.load, ServerConfig(port=0, **config)) as server:
        made.server = server
        try:
            yield made
        finally:
            made.go_on.set()


def whole_text(raw: bytes) -> str:
    frames = [frame.removeprefix("data: ") for frame in raw.decode().split("\n\n")]
    return "".join(json.loads(frame)["content"] for frame in frames if frame)


def test_a_client_that_drops_gets_the_rest_when_it_comes_back() -> None:
    with world() as here:
        client = here.begin()
        head = client.recv(1 << 16)
        assert head.startswith(b"HTTP/1.1 200")
        assert here.in_step.wait(WAIT_S)
        client.close()
        time.sleep(0.05)
        assert here.n_running == 1, "it ended with its client"
        eventually(lambda: here.lookup("chat-1")[0]["total_bytes"] > 100)
        (found,) = here.lookup("other", "chat-1")
        assert not found["is_done"]
        n_before = found["total_bytes"]
        here.go_on.set()
        live = here.get()  # waits for the end
        assert live.headers["content-type"] == "text/event-stream"
        assert here.get(at=n_before).raw == live.raw[n_before:]
        assert here.get(at=len(live.raw)).raw == b""
        (found,) = here.lookup("chat-1")
        assert found["is_done"]
        assert found["total_bytes"] == len(live.raw)
        assert found["completed_at"] >= found["started_at"] > 1e9
        plain = here.server.ok("/completion", **BODY)
        assert whole_text(live.raw) == plain["content"]
        assert live.events[-1]["tokens_predicted"] == 40


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/api/chat"])
def test_every_api_with_streams_keeps_them(path: str) -> None:
    with world(n_step=0) as here:
        messages = (
            {"input": "ab"}
            if "responses" in path
            else {"messages": [{"role": "user", "content": "ab"}]}
        )
        body = messages | {"stream": True, "max_tokens": 9, "seed": 3}
        first = here.server.call("POST", path, body, {"X-Conversation-Id": "x/y::m"})
        assert first.status == 200, first.raw
        again = here.get("x/y::m")
        assert again.raw == first.raw
        assert again.headers["content-type"] == first.headers["content-type"]
        assert [one["conversation_id"] for one in here.lookup("x/y")] == ["x/y::m"]


def test_a_client_may_drop_before_the_first_event() -> None:
    with world(n_step=1) as here:
        with closing(here.begin()):
            assert here.in_step.wait(WAIT_S)
            eventually(lambda: here.lookup("chat-1") != [])
        time.sleep(0.05)
        assert here.lookup("chat-1")[0]["total_bytes"] == 0
        here.go_on.set()
        assert here.get().events[-1]["tokens_predicted"] == 40


@pytest.mark.parametrize("n_step", [1, N_STEP])
def test_delete_stops_a_generation(n_step: int) -> None:
    with world(n_step) as here:
        with closing(here.begin()) as client:
            assert here.in_step.wait(WAIT_S)
            eventually(lambda: here.lookup("chat-1") != [])
            reply = here.server.call("DELETE", "/v1/stream?conv_id=chat-1")
            assert (reply.status, reply.raw) == (204, b"")
            assert here.is_cancelled.is_set()
            here.go_on.set()
            eventually(lambda: here.n_running == 0)
            seen = b""
            while b"\r\n0\r\n" not in seen and b"request_id" not in seen:
                part = client.recv(1 << 16)
                assert part
                seen += part
            assert seen.startswith(b"HTTP/1.1 503" if n_step == 1 else b"HTTP/1.1 200")
        assert len(here.context.steps) < 40
        assert here.lookup("chat-1") == []
        assert here.get().status == 404
        assert here.server.call("DELETE", "/v1/stream?conv_id=chat-1").status == 204


def test_a_stream_that_is_stopped_before_it_begins_has_no_other_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n_readers = threading.Semaphore(0)
    reading = KeptStreams.reading

    def counted(self: KeptStreams, stream: KeptStream) -> AbstractContextManager[None]:
        n_readers.release()
        return reading(self, stream)

    monkeypatch.setattr(KeptStreams, "reading", counted)
    with world(n_step=1) as here, closing(here.begin()) as first:
        assert n_readers.acquire(timeout=WAIT_S)
        with closing(here.attach()) as second:
            assert n_readers.acquire(timeout=WAIT_S)
            assert here.server.call("DELETE", "/v1/stream?conv_id=chat-1").status == 204
            here.go_on.set()
            for client in (first, second):
                assert client.recv(1 << 16).startswith(b"HTTP/1.1 503")


def test_a_stream_that_nobody_comes_back_for_is_cancelled() -> None:
    with world(stream_timeout=1) as here:
        with closing(here.begin(n_predict=400)):
            assert here.in_step.wait(WAIT_S)
        eventually(lambda: here.lookup("chat-1") == [])
        here.go_on.set()
        eventually(lambda: here.n_running == 0)
        assert len(here.context.steps) < 40


def test_a_stream_without_its_client_has_the_time_of_a_request() -> None:
    with world(request_timeout=2) as here:
        with closing(here.begin(n_predict=400)) as client:
            assert client.recv(10)
        assert here.is_cancelled.wait(WAIT_S)
        here.go_on.set()
        assert b"longer than 2 s (--request-timeout)" in here.get().raw
        assert len(here.context.steps) < 40


def test_without_the_header_or_the_time_a_stream_ends_with_its_client() -> None:
    with world(stream_timeout=0) as here:
        with closing(here.begin(n_predict=400)):
            assert here.in_step.wait(WAIT_S)
        assert here.is_cancelled.wait(WAIT_S)
        here.go_on.set()
        eventually(lambda: here.n_running == 0)
        assert len(here.context.steps) < 100
        assert here.lookup("chat-1") == []


def test_a_second_request_with_the_same_id_replaces_the_first() -> None:
    with world() as here, closing(here.begin()):
        assert here.in_step.wait(WAIT_S)
        with closing(here.begin(n_predict=7)) as second:
            here.go_on.set()
            second.recv(10)
            assert here.get().events[-1]["tokens_predicted"] == 7


def test_an_error_before_the_first_event_leaves_nothing() -> None:
    with world() as here:
        wrong = BODY | {"stream": True, "prompt": "a" * 9999}
        reply = here.server.call("POST", "/completion", wrong, {"X-Conversation-Id": "id"})
        assert reply.error["type"] == "exceed_context_size_error"
        assert here.lookup("id") == []


def test_another_key_finds_nothing() -> None:
    keys = (Key(key="k1", name="one"), Key(key="k2", name="two"))
    with world(n_step=0, api_keys=keys) as here:
        one, two = ({"Authorization": f"Bearer {key}"} for key in ("k1", "k2"))
        call = here.server.call
        first = call(
            "POST", "/completion", BODY | {"stream": True}, one | {"X-Conversation-Id": "id"}
        )
        assert first.status == 200
        ids = {"conversation_ids": ["id"]}
        assert here.get("id", headers=two).status == 404
        assert call("POST", "/v1/streams/lookup", ids, two).json == []
        assert call("DELETE", "/v1/stream?conv_id=id", None, two).status == 204
        assert call("GET", "/v1/stream?conv_id=id").status == 401
        assert here.get("id", headers=one).raw == first.raw


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", '"conv_id" is missing in the query'),
        ("?conv_id=", '"conv_id" is missing in the query'),
        (f"?conv_id={'x' * 257}", '"conv_id" must have at most 256 printable characters'),
        ("?conv_id=a%0Ab", '"conv_id" must have at most 256 printable characters'),
        ("?conv_id=id&from=-1", '"from" must be a number of bytes, found -1'),
        ("?conv_id=id&from=x", '"from" must be a number of bytes, found x'),
        (f"?conv_id=id&from={'9' * 30}", '"from" must be a number of bytes'),
        ("?conv_id=id&from=99999999", '"from" is 99999999: this stream has'),
    ],
)
def test_wrong_queries(server: RunningServer, query: str, message: str) -> None:
    assert server.get(f"/v1/stream{query}").error["message"].startswith(message)


@pytest.mark.parametrize(
    "body", [{}, {"conversation_ids": "id"}, {"conversation_ids": [1]},
             {"conversation_ids": ["x" * 257]}, {"conversation_ids": ["x"] * 1025}]
)  # fmt: skip
def test_wrong_lookups(server: RunningServer, body: dict[str, Any]) -> None:
    assert "conversation_ids" in server.post("/v1/streams/lookup", body).error["message"]


def test_a_stream_has_no_head(server: RunningServer) -> None:
    assert server.call("HEAD", "/v1/stream?conv_id=id").status == 405
    assert server.get("/v1/stream?conv_id=id").status == 200


def test_an_id_that_is_too_long(server: RunningServer) -> None:
    headers = {"X-Conversation-Id": "x" * 257}
    reply = server.call("POST", "/completion", BODY | {"stream": True}, headers)
    assert reply.error["message"].startswith("X-Conversation-Id must have at most 256")
    assert reply.status == 400


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running() as server:
        headers = {"X-Conversation-Id": "id"}
        assert server.call("POST", "/completion", BODY | {"stream": True}, headers).status == 200
        yield server


@pytest.mark.parametrize("n_step", [1, N_STEP])
def test_the_server_tells_the_client_that_it_stops(n_step: int) -> None:
    made = World(n_step)
    with running(made.load) as server:
        made.server = server
        client = made.begin()
        assert made.in_step.wait(WAIT_S)
        eventually(lambda: made.lookup("chat-1") != [])
        threading.Thread(target=made.go_on_when_cancelled).start()
    with closing(client):
        seen = b""
        while part := client.recv(1 << 16):
            seen += part
    assert seen.startswith(b"HTTP/1.1 503" if n_step == 1 else b"HTTP/1.1 200")
    assert b"the server is stopping" in seen


def test_the_server_tells_a_client_that_has_come_back_that_it_stops() -> None:
    made = World(N_STEP)
    with running(made.load) as server:
        made.server = server
        with closing(made.begin()) as first:
            assert made.in_step.wait(WAIT_S)
            assert first.recv(10)
        client = made.attach()
        seen = client.recv(10)
        threading.Thread(target=made.go_on_when_cancelled).start()
    with closing(client):
        while part := client.recv(1 << 16):
            seen += part
    assert seen.startswith(b"HTTP/1.1 200")
    assert b"the server is stopping" in seen
    assert seen.endswith(b"\r\n0\r\n\r\n")
