"""X-Request-Id: in every reply, in the log, in errors; a client cannot forge log lines with it."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from fake_context import WAIT_S, FakeContext
from http_world import RunningServer, make_model, running

from lamella.base.errors import BackendError
from lamella.server.request_ids import sane_request_id
from lamella.server.request_record import RequestRecord


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running() as server:
        yield server


@pytest.mark.parametrize("given", ["a", "0f-9.Z:{}", '"quoted"', "x" * 128])
def test_sane_ids_are_kept(given: str) -> None:
    assert sane_request_id(given) == given


@pytest.mark.parametrize(
    "given", [None, "", " ", "a b", "a\n", "a\r\nlamella: forged", "\x1b[31m", "é", "x" * 129]
)
def test_others_are_replaced(given: str | None) -> None:
    first, second = sane_request_id(given), sane_request_id(given)
    assert first.startswith("req_")
    assert first != second


def ids_of(server: RunningServer, path: str, given: str, body: object = None) -> str:
    """The id of the reply."""
    method = "GET" if body is None else "POST"
    return server.call(method, path, body, {"X-Request-Id": given}).headers["x-request-id"]


def test_every_reply_has_the_id(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "lamella.server")
    stream = {"prompt": "a", "n_predict": 2, "stream": True}
    with running() as server:
        for i, (path, body) in enumerate(
            [
                ("/health", None),
                ("/nothing", None),
                ("/completion", {"prompt": 7}),
                ("/completion", stream),
                ("/v1/messages", stream),
            ]
        ):
            assert ids_of(server, path, f"mine-{i}", body) == f"mine-{i}"
        made = ids_of(server, "/health", "not mine")
    logged = [str(r.msg).split()[-1] for r in caplog.records if isinstance(r.msg, RequestRecord)]
    assert logged == [*(f"mine-{i}" for i in range(5)), made]


@pytest.mark.parametrize(
    "path", ["/completion", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/nothing"]
)
def test_errors_have_it_in_the_body_too(server: RunningServer, path: str) -> None:
    reply = server.call("POST", path, {}, {"X-Request-Id": "mine"})
    assert reply.status in (400, 404)
    assert reply.json["request_id"] == "mine"
    assert reply.headers.get("request-id", "mine") == "mine", "Anthropic's header"


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_a_stream_that_fails_has_it_in_its_error(path: str) -> None:
    def fail(step: int) -> None:
        if step == 3:
            raise BackendError("lost")

    context = FakeContext()
    context.on_decode = fail
    body = {"prompt": "a", "ignore_eos": True, "stream": True}
    with running(lambda: make_model(context)) as server:
        reply = server.call("POST", path, body, {"X-Request-Id": "mine"})
    assert [e["request_id"] for e in reply.events if "error" in e] == ["mine"]


def test_malformed_http_has_a_new_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lamella.server")
    with (
        running() as server,
        closing(socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)) as client,
    ):
        client.sendall(b"GET /health HTTP/1.1\r\nContent-Length: -1\r\n\r\n")
        head, _, body = client.recv(10_000).decode().partition("\r\n\r\n")
    found = head.split("X-Request-Id: ")[1].split("\r\n")[0]
    assert json.loads(body)["request_id"] == found
    assert caplog.messages[-1].endswith(f"  {found}")
