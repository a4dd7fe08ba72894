"""Bodies of requests: the limit of their length, and their turns."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from aiohttp import web
from http_world import RunningServer, running

from lamella.server import bodies, routes
from lamella.server.bodies import (
    MIB,
    N_BYTES_LANES,
    N_BYTES_LEAST,
    N_BYTES_MOST,
    PAUSE_SECONDS,
    PAUSE_SECONDS_OTHERS,
    discard_rest,
    n_bytes_max,
)
from lamella.server.config import ServerConfig
from lamella.server.pace import RequestPace
from lamella.server.state import STATE, ServerState
from lamella.server.turns import Turns


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(config=ServerConfig(port=0)) as server:
        yield server


@pytest.mark.parametrize(
    ("n_ctx", "n_piece", "flag", "limit"),
    [
        (4096, 16, 0, N_BYTES_LEAST),
        (32_768, 128, 0, 4 * MIB),
        (1 << 20, 256, 0, N_BYTES_MOST),
        (1 << 20, 256, 64, 64 * MIB),
        (4096, 16, 3, 3 * MIB),
    ],
)
def test_the_limit_is_what_the_context_can_hold(
    n_ctx: int, n_piece: int, flag: int, limit: int
) -> None:
    model = SimpleNamespace(n_ctx=n_ctx, vocab=SimpleNamespace(n_piece_bytes_max=n_piece))
    state = ServerState(ServerConfig(max_body=flag), cast(Any, model))
    assert n_bytes_max(state) == limit


def raw_request(head: str, body: bytes = b"") -> bytes:
    return f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n".encode() + body


def first_reply(server: RunningServer, raw: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(raw)
        return connection.recv(4096)


def test_a_long_body_is_refused_before_it_is_sent(server: RunningServer) -> None:
    reply = first_reply(server, raw_request(f"Content-Length: {N_BYTES_LEAST + 1}"))
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert b"the limit is 1.00 MiB" in reply
    assert b"--max-body" in reply


def test_a_long_body_in_chunks_is_refused(server: RunningServer) -> None:
    chunk = b"10000\r\n" + b"a" * 0x10000 + b"\r\n"
    reply = first_reply(server, raw_request("Transfer-Encoding: chunked", 17 * chunk))
    assert reply.startswith(b"HTTP/1.1 413 ")


def test_a_short_body_that_becomes_long_is_refused(server: RunningServer) -> None:
    body = gzip.compress(b'{"content": "' + b"a" * N_BYTES_LEAST + b'"}')
    assert len(body) < 4096
    head = f"Content-Encoding: gzip\r\nContent-Length: {len(body)}"
    assert first_reply(server, raw_request(head, body)).startswith(b"HTTP/1.1 413 ")


def test_a_body_at_the_limit_is_read(server: RunningServer) -> None:
    text = "a" * (N_BYTES_LEAST - len('{"content": ""}'))
    assert len(server.post("/tokenize", {"content": text}).json["tokens"]) > 0


def test_a_client_whose_body_takes_long_stops_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a body of client a is worked on, two more of its bodies wait, and one of b does not."""
    go_on = threading.Event()
    arrived = threading.Semaphore(0)
    order: list[str] = []

    def work(_: object, raw: bytes) -> Any:
        name = json.loads(raw)["content"]
        if name[0] == "a":
            assert go_on.wait(60)
        order.append(name)
        return routes.json_response({})

    async def begin(turns: Turns, client: str) -> None:
        arrived.release()
        await begin_turn(turns, client)

    begin_turn = Turns.begin
    monkeypatch.setattr(Turns, "begin", begin)
    monkeypatch.setattr(routes, "_tokenize", work)
    monkeypatch.setattr(bodies, "client_of", lambda request: request.headers["X-Client"])
    with running(config=ServerConfig(port=0)) as server:
        threads = []
        for name in ("a1", "a2", "a3", "b1"):
            body, headers = json.dumps({"content": name}).encode(), {"X-Client": name[0]}
            call = partial(server.call, "POST", "/tokenize", body, headers)
            threads.append(threading.Thread(target=call))
            threads[-1].start()
            assert arrived.acquire(timeout=60)
        threads.pop().join(60)
        assert order == ["b1"]
        go_on.set()
        for thread in threads:
            thread.join(60)
    assert order == ["b1", "a1", "a2", "a3"]


def test_beside_a_running_text_long_bodies_get_a_part_of_a_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests: list[bool] = []

    def end(turns: Turns, client: str, n_rest_seconds: float = 0.0) -> None:
        rests.append(n_rest_seconds > 0)
        end_turn(turns, client)

    end_turn = Turns.end
    monkeypatch.setattr(Turns, "end", end)
    with running(config=ServerConfig(port=0)) as server:
        long = {"content": "a" * N_BYTES_LANES[0]}
        server.ok("/tokenize", **long)
        monkeypatch.setattr(bodies, "generates", lambda model: True)
        server.ok("/tokenize", **long)
        server.ok("/tokenize", content="a")
    assert rests == [False, True, False]


def test_a_prompt_far_too_long_is_not_tokenized(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = server.model
    n_characters = (model.n_ctx + 1) * model.vocab.n_piece_bytes_max
    monkeypatch.setattr(type(model.vocab), "tokenize", None)  # a call would be an error
    reply = server.post("/completion", {"prompt": "a" * n_characters})
    assert (reply.status, reply.error["type"]) == (400, "exceed_context_size_error")
    assert reply.error["n_prompt_tokens"] == model.n_ctx + 1


@pytest.mark.parametrize("path", ["/tokenize", "/nowhere"])
def test_a_client_that_reads_after_it_has_sent_all_gets_its_reply(
    server: RunningServer, path: str
) -> None:
    reply = server.post(path, b"a" * (6 * MIB))  # more than the system's buffers hold
    assert reply.status in (404, 413)


def test_the_rest_of_a_refused_body_is_read_slower_beside_texts_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pace, pauses = RequestPace(), list[float]()
    own, real_sleep = threading.current_thread(), asyncio.sleep

    async def sleep(seconds: float) -> None:
        if threading.current_thread() is own:  # not the server of other tests
            pauses.append(seconds)
        else:
            await real_sleep(seconds)

    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.Response(status=413)

    def pauses_of_reading() -> list[float]:
        pauses.clear()
        parts = [b"a", b"b", b""]
        content = SimpleNamespace(is_eof=lambda: False, readany=AsyncMock(side_effect=parts))
        state = SimpleNamespace(pace=pace, discards=Turns())
        request = SimpleNamespace(content=content, app={STATE: state}, remote="127.0.0.2")
        asyncio.run(discard_rest(cast(Any, request), refuse))
        return pauses.copy()

    monkeypatch.setattr(bodies, "client_of", lambda _: "the name of a key")
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pace.generating("127.0.0.2"):
        assert pauses_of_reading() == [PAUSE_SECONDS] * 2, "the texts are its own"
        with pace.generating("127.0.0.1"):
            assert pauses_of_reading() == [PAUSE_SECONDS_OTHERS] * 2


def test_a_body_without_end_is_not_read_forever(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "N_DISCARD_SECONDS", 0.0)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(raw_request(f"Content-Length: {N_BYTES_LEAST + 1}", b"aaa"))
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")
        with suppress(ConnectionResetError):  # its rest was not read
            while connection.recv(4096):
                pass
