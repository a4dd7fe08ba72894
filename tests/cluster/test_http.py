"""The HTTP server of the command, with an application of its own."""

from __future__ import annotations

import asyncio
import http.client
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

from lamella.cluster.http import HttpServer

Send = Callable[[Mapping[str, Any]], Awaitable[None]]


async def two_parts(scope: Mapping[str, Any], receive: Any, send: Send) -> None:
    """Sends the second part a little later."""
    if scope["type"] == "lifespan":
        for kind in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{kind}.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"one ", "more_body": True})
    await asyncio.sleep(0.5)
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
    with serving() as (_, port, _), closing(http.client.HTTPConnection("127.0.0.1", port)) as one:
        one.request("GET", "/")
        reply = one.getresponse()
        assert reply.headers.get_all("server") == ["lamella"]
        begin_s = time.monotonic()
        assert reply.read1() == b"one "
        assert time.monotonic() - begin_s < 0.4
        assert reply.read() == b"two"


def test_stopping_waits_for_replies() -> None:
    with serving() as (server, port, served):
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as one:
            one.request("GET", "/")
            reply = one.getresponse()
            server.stop()
            assert reply.read() == b"one two"
        served.result(10)


def test_the_second_stop_does_not_wait() -> None:
    with (
        serving() as (server, port, served),
        closing(http.client.HTTPConnection("127.0.0.1", port)) as one,
    ):
        one.request("GET", "/")
        one.getresponse().read1()
        server.stop()
        server.stop()
        served.result(10)


@pytest.mark.parametrize(("given", "is_kept"), [("mine", True), ("not mine", False)])
def test_replies_have_the_id_of_their_request(given: str, *, is_kept: bool) -> None:
    with serving() as (_, port, _), closing(http.client.HTTPConnection("127.0.0.1", port)) as one:
        one.request("GET", "/", headers={"X-Request-Id": given})
        found = one.getresponse().headers.get_all("x-request-id")
        assert found is not None
        assert len(found) == 1
        assert (found[0] == given) is is_kept
