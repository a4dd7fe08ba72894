"""Streams that a router passes on: no client gets a part of an event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from lamella.base.errors import UnavailableError
from lamella.server import routes_missing
from lamella.server.app import SERVED, create_app, listening
from lamella.server.broken_streams import EVENTS, LINES, WholeEvents
from lamella.server.config import ServerConfig
from lamella.server.listening import urls
from lamella.server.router.config import RouterConfig
from lamella.server.router.fleet import Fleet
from lamella.server.router.member import State
from lamella.server.router.router import ROUTER, Router
from lamella.server.router.routes import home, router_routes
from lamella.server.state import Role, ServerState

STREAM = b'data: {"a": 1}\n\n:\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize("n", [1, 2, 3, 7, 1000])
def test_events_are_passed_on_when_they_are_whole(n: int) -> None:
    whole, sent = WholeEvents(), b""
    for begin in range(0, len(STREAM), n):
        sent += whole.add(STREAM[begin : begin + n])
        assert sent == b"" or sent.endswith(b"\n\n")
    assert sent == STREAM


def test_the_begin_of_an_event_is_kept() -> None:
    whole = WholeEvents()
    assert whole.add(b"data: 1\n\ndata: 2") == b"data: 1\n\n"
    assert whole.add(b"\n") == b""
    assert whole.add(b"\n:") == b"data: 2\n\n"


def test_a_long_event_takes_linear_time() -> None:
    whole = WholeEvents()
    for _ in range(20_000):
        assert whole.add(b"x" * 1000) == b""
    assert len(whole.add(b"\n\n")) == 20_000_002


class OneModel:
    """A fleet of one model, whose process answers each request with the begin of a stream, and
    ends."""

    def __init__(self, socket: str, content_type: str, begin: bytes) -> None:
        self.socket = socket
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n"
        self.reply = head.encode() + b"\r\n%x\r\n%b\r\n" % (len(begin), begin)

    def __iter__(self) -> Iterator[Any]:
        yield SimpleNamespace(name="one", state=State.LOADED)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.reply)
        await writer.drain()
        writer.close()

    @asynccontextmanager
    async def use(self, *_: object, **__: object) -> AsyncIterator[Any]:
        async def settled() -> None:
            pass

        connector = aiohttp.UnixConnector(self.socket)
        async with (
            await asyncio.start_unix_server(self.answer, self.socket),
            aiohttp.ClientSession(connector=connector) as session,
        ):
            error = UnavailableError("the process is gone")
            yield SimpleNamespace(session=session, settled=settled, ended_error=lambda cause: error)


@pytest.mark.parametrize(
    ("path", "content_type", "begin", "whole"),
    [
        ("/completion", EVENTS, b'data: {"a": 1}\n\ndata: {"b"', b'data: {"a": 1}\n\ndata: {"e'),
        ("/api/chat", LINES, b'{"a": 1}\n{"b"', b'{"a": 1}\n{"e'),
    ],
)
def test_the_error_of_a_stream_that_breaks_off_follows_whole_events(
    path: str, content_type: str, begin: bytes, whole: bytes, tmp_path: Path
) -> None:
    async def test() -> bytes:
        config = ServerConfig(port=0)
        state = ServerState(config, role=Role.ROUTER)
        app = create_app(state, [*router_routes(SERVED, routes_missing.ROUTES)], home)
        fleet = cast(Fleet, OneModel(str(tmp_path / "model.sock"), content_type, begin))
        options = {"config": RouterConfig(), "find_presets": lambda: (), "is_single": True}
        app[ROUTER] = Router(fleet=fleet, **cast(Any, options))
        async with listening(state, app) as runner, aiohttp.ClientSession() as client:
            url = next(iter(urls(runner.addresses, config)))
            async with client.post(url + path, json={"prompt": "a", "messages": []}) as reply:
                return await reply.read()

    found = asyncio.run(test())
    assert found.startswith(whole)
    assert b"the process is gone" in found
