"""The HTTP server of the command, with an application of its own."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest

from lamella.base.background import begin
from lamella.server.config import ServerConfig
from lamella.server.listening import bound

pytest.importorskip("uvicorn", reason="ray is not installed: lamella[ray]")

from lamella.cluster import http as own_http
from lamella.cluster.http import HttpServer

Send = Callable[[Mapping[str, Any]], Awaitable[None]]

go_on = threading.Event()


@pytest.fixture(autouse=True)
def replies_go_on() -> None:
    go_on.set()


async def two_parts(scope: Mapping[str, Any], receive: Any, send: Send) -> None:
    """Sends the second part once `go_on` is set."""
    if scope["type"] == "lifespan":
        for kind in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{kind}.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"one ", "more_body": True})
    while not go_on.is_set():
        await asyncio.sleep(0.01)
    await send({"type": "http.response.body", "body": b"two"})


@contextmanager
def serving(**options: Any) -> Iterator[tuple[HttpServer, int, Future[None]]]:
    config = ServerConfig.make({"port": 0, **options})
    ready = threading.Event()
    server = HttpServer(two_parts, config, ready.set)
    with bound(config) as listener:
        served = begin(partial(server.serve_on, listener), "http")
        assert ready.wait(30)
        try:
            yield server, listener.getsockname()[1], served
        finally:
            server.stop()
            server.stop()
            served.result(30)


def test_a_reply_passes_as_it_comes() -> None:
    go_on.clear()
    with serving() as (_, port, _), closing(http.client.HTTPConnection("127.0.0.1", port)) as one:
        one.request("GET", "/")
        reply = one.getresponse()
        assert reply.headers.get_all("server") == ["lamella"]
        assert reply.read1() == b"one "
        go_on.set()
        assert reply.read() == b"two"


def test_as_many_connections_as_the_option_says() -> None:
    go_on.clear()
    with (
        serving(max_connections=1) as (_, port, _),
        closing(http.client.HTTPConnection("127.0.0.1", port)) as one,
        closing(http.client.HTTPConnection("127.0.0.1", port)) as two,
    ):
        one.request("GET", "/")
        assert one.getresponse().status == 200
        two.request("GET", "/")
        assert two.getresponse().status == 503


def _rest_of(port: int, begin: bytes, more: bytes = b"") -> bytes:
    """What the server sends to a client until it disconnects."""
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        found = b""
        try:
            client.sendall(begin)
            while more:
                client.sendall(more)
                time.sleep(0.02)
        except OSError:
            pass
        try:
            while part := client.recv(1000):
                found += part
        except ConnectionError:
            pass
        return found


def test_late_and_long_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_http, "N_HEAD_SECONDS", 0.3)
    monkeypatch.setattr(own_http, "N_HEAD_BYTES", 1000)
    with serving() as (_, port, _):
        assert _rest_of(port, b"") == b""
        assert _rest_of(port, b"GET / HTTP/1.1\r\n", b"a: b\r\n") == b""
        assert _rest_of(port, b"GET / HTTP/1.1\r\na: " + b"b" * 1000).startswith(b"HTTP/1.1 400")
        good = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"
        go_on.clear()
        threading.Timer(0.5, go_on.set).start()
        assert b"two" in _rest_of(port, good)  # a reply may take longer


def test_stopping_waits_for_replies() -> None:
    go_on.clear()
    with serving() as (server, port, served):
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as one:
            one.request("GET", "/")
            reply = one.getresponse()
            server.stop()
            go_on.set()
            assert reply.read() == b"one two"
        served.result(30)


def test_the_second_stop_does_not_wait(caplog: pytest.LogCaptureFixture) -> None:
    go_on.clear()
    with (
        serving() as (server, port, served),
        closing(http.client.HTTPConnection("127.0.0.1", port)) as one,
    ):
        one.request("GET", "/")
        one.getresponse().read1()
        server.stop()
        server.stop()
        served.result(30)
    assert caplog.records == []


@pytest.mark.parametrize(("given", "is_kept"), [("mine", True), ("not mine", False)])
def test_replies_have_the_id_of_their_request(given: str, *, is_kept: bool) -> None:
    with serving() as (_, port, _), closing(http.client.HTTPConnection("127.0.0.1", port)) as one:
        one.request("GET", "/", headers={"X-Request-Id": given})
        found = one.getresponse().headers.get_all("x-request-id")
        assert found is not None
        assert len(found) == 1
        assert (found[0] == given) is is_kept
