"""Streams that a router passes on: no client gets a part of an event."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import aiohttp
import pytest

from lamella.base.errors import UnavailableError
from lamella.server import routes_missing
from lamella.server.app import SERVED, create_app, listening
from lamella.server.broken_streams import EVENTS, LINES, WholeEvents
from lamella.server.config import ServerConfig
from lamella.server.listening import urls
from lamella.server.router import forward
from lamella.server.router.child import N_GET_SECONDS
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


def reply(content_type: str, body: bytes, *, is_whole: bool = True) -> bytes:
    """The bytes of a reply in one chunk; its end is missing unless it `is_whole`."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n"
    chunk = b"\r\n%x\r\n%b\r\n" % (len(body), body)
    return head.encode() + chunk + (b"0\r\n\r\n" if is_whole else b"")


class Keeper(NamedTuple):
    """A model that keeps streams: what it answers to lookups, and to other requests."""

    found: bytes
    rest: bytes


class Models:
    """A fleet of loaded models. Each answers all requests with its bytes, and closes the
    connection; with None it does not answer."""

    def __init__(self, folder: Path, replies: Mapping[str, bytes | Keeper | None]) -> None:
        self.folder, self.replies = folder, replies
        self.n_work = 0  # requests that count as work

    def __iter__(self) -> Iterator[Any]:
        return iter([SimpleNamespace(name=name, state=State.LOADED) for name in self.replies])

    @asynccontextmanager
    async def use(self, member: Any, *, is_work: bool, **_: object) -> AsyncIterator[Any]:
        socket, bytes = str(self.folder / member.name), self.replies[member.name]
        self.n_work += is_work

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            if bytes is None:
                await reader.read()
            elif isinstance(bytes, Keeper):
                writer.write(bytes.found if b"/lookup " in head else bytes.rest)
            else:
                end = b"\r\n\r\n"
                writer.write(bytes.partition(end)[0] + end if head.startswith(b"HEAD") else bytes)
            await writer.drain()
            writer.close()

        async def settled() -> None:
            pass

        async with (
            await asyncio.start_unix_server(answer, socket),
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(socket)) as session,
        ):
            error = UnavailableError("the process is gone")
            yield SimpleNamespace(session=session, settled=settled, ended_error=lambda _: error)


@contextmanager
def within(n_seconds: float) -> Iterator[None]:
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < n_seconds


def ask(models: Models, *requests: tuple[str, str, Any]) -> list[tuple[int, bytes]]:
    """The replies of a router of these models, each a status and a body."""

    async def test() -> list[tuple[int, bytes]]:
        config = ServerConfig(port=0)
        state = ServerState(config, role=Role.ROUTER)
        app = create_app(state, [*router_routes(SERVED, routes_missing.ROUTES)], home)
        app[ROUTER] = Router(
            fleet=cast(Fleet, models),
            config=RouterConfig(),
            find_presets=lambda: (),
            is_single=len(models.replies) == 1,
        )
        found = []
        async with listening(state, app) as runner, aiohttp.ClientSession() as client:
            url = next(iter(urls(runner.addresses, config)))
            for method, path, body in requests:
                async with client.request(method, url + path, json=body) as response:
                    found.append((response.status, await response.read()))
        return found

    return asyncio.run(test())


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
    models = Models(tmp_path, {"one": reply(content_type, begin, is_whole=False)})
    ((_, found),) = ask(models, ("POST", path, {"prompt": "a", "messages": []}))
    assert found.startswith(whole)
    assert b"the process is gone" in found


def test_kept_streams_are_found_beside_models_that_hang_or_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "N_GET_SECONDS", 0.5)
    good = reply("application/json", b'[{"conversation_id": "x"}]')
    models = Models(tmp_path, {"ended": b"", "hangs": None, "good": good})
    lookup = {"conversation_ids": ["x"]}
    assert ask(
        models,
        ("POST", "/v1/streams/lookup", lookup),
        ("DELETE", "/v1/stream?conv_id=x", None),
    ) == [(200, b'[{"conversation_id": "x"}]'), (204, b"")]
    assert models.n_work == 0, "models that are only asked may sleep"


NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
PLAIN = "application/json"


@pytest.mark.parametrize("others", [{"ended": b""}, {"hangs": None}, {"other": NOT_FOUND}])
def test_a_model_that_hangs_holds_up_no_search(
    others: Mapping[str, bytes | None], tmp_path: Path
) -> None:
    """Its limit of 10 seconds is not waited for: a model that has what is asked for is enough."""
    keeper = Keeper(reply(PLAIN, b'[{"conversation_id": "x"}]'), reply(EVENTS, b"data: 1\n\n"))
    models = Models(tmp_path, {**others, "good": keeper})
    with within(N_GET_SECONDS / 2):
        assert ask(models, ("GET", "/v1/stream?conv_id=x", None)) == [(200, b"data: 1\n\n")]
    models = Models(tmp_path, {**others, "good": reply(PLAIN, b"{}")})
    with within(N_GET_SECONDS / 2):
        assert ask(models, ("GET", "/v1/responses/resp_1", None)) == [(200, b"{}")]
    assert models.n_work == 0


def test_what_no_model_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "N_GET_SECONDS", 0.5)
    other = reply(PLAIN, b'[{"conversation_id": "x::two"}]')  # which it has by another name
    for good in (NOT_FOUND, other):
        models = Models(tmp_path, {"ended": b"", "hangs": None, "good": good})
        ((status, body),) = ask(models, ("GET", "/v1/stream?conv_id=x", None))
        assert (status, b"no loaded model has 'x'" in body) == (404, True)
    models = Models(tmp_path, {"hangs": None, "good": NOT_FOUND})
    for method in ("GET", "DELETE"):
        ((status, body),) = ask(models, (method, "/v1/responses/resp%2F1", None))
        assert (status, b"no loaded model has 'resp/1'" in body) == (404, True)
