"""X-Request-Id: in every reply, in the log, in errors; a client cannot forge log lines with it."""

from __future__ import annotations

import logging
import socket
from contextlib import closing

import pytest
from fake_context import WAIT_S
from http_world import RunningServer, running

from lamella.server.request_ids import sane_request_id
from lamella.server.request_record import RequestRecord


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


def test_anthropic_has_it_in_the_body_too() -> None:
    with running() as server:
        reply = server.call("POST", "/v1/messages", {}, {"X-Request-Id": "mine"})
    assert reply.status == 400
    assert {reply.json["request_id"], reply.headers["request-id"]} == {"mine"}


def test_malformed_http_has_a_new_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lamella.server")
    with (
        running() as server,
        closing(socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)) as client,
    ):
        client.sendall(b"GET /health HTTP/1.1\r\nContent-Length: -1\r\n\r\n")
        head = client.recv(10_000).decode()
    found = head.split("X-Request-Id: ")[1].split("\r\n")[0]
    assert caplog.messages[-1].endswith(f"  {found}")
