"""Clients that do not read their streams: only their own generations pause.

They use a unix socket, as its buffers are smaller than those of TCP.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import pytest
from fake_context import WAIT_S, FakeContext
from http_world import RunningServer, eventually, make_model, running

from lamella.runtime.engine.ticket import Ticket
from lamella.runtime.instance import Instance
from lamella.server.bridge import N_UNREAD_MAX
from lamella.server.config import ServerConfig

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it has no unix sockets")

N_LONG = 3000  # its stream is larger than all buffers
N_BUFFERS = 600_000  # bytes that are more than all buffers take
FIELDS: dict[str, Any] = {
    "prompt": "abc",
    "temperature": 0,
    "ignore_eos": True,
    "cache_prompt": False,
}
BODY: dict[str, Any] = {**FIELDS, "stream": True, "n_predict": N_LONG}


class World(NamedTuple):
    server: RunningServer
    path: str  # of its unix socket

    @property
    def running(self) -> list[Ticket]:
        """The jobs that run."""
        return list(self.server.model.engine._runner.running)


@contextmanager
def world_of(n_parallel: int) -> Iterator[World]:
    def load() -> Instance:
        return make_model(FakeContext(20_000), n_parallel=n_parallel)

    with tempfile.TemporaryDirectory() as folder:  # a short path
        path = f"{folder}/a.sock"
        with running(load, ServerConfig(port=0, host=f"{path},127.0.0.1")) as server:
            yield World(server, path)


def unread(world: World, header: str = "", **fields: object) -> socket.socket:
    """A client that has sent its request and reads nothing. `header`: one more, with its end."""
    raw = json.dumps(BODY | fields).encode()
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(WAIT_S)
    client.connect(world.path)
    head = f"POST /completion HTTP/1.1\r\nHost: localhost\r\n{header}"
    client.sendall(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
    return client


def wait_for_pause(world: World) -> None:
    """Wait until a job that runs is paused."""
    eventually(lambda: any(ticket.paused for ticket in world.running))


def tokens_of(raw: bytes) -> list[int]:
    """The tokens of a stream."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    assert b"chunked" in head.lower()
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        n = int(size, 16)
        assert rest[n : n + 2] == b"\r\n"
        body, rest = body + rest[:n], rest[n + 2 :]
    *events, end = body.decode().split("\n\n")
    assert end == ""
    found = [json.loads(event.removeprefix("data: ")) for event in events]
    assert found[-1]["stop"] is True
    return [token for event in found for token in event["tokens"]]


def read_to_end(client: socket.socket) -> bytes:
    raw = bytearray()
    while not raw.endswith(b"\r\n0\r\n\r\n"):
        data = client.recv(1 << 20)
        assert data, "the server closed the connection"
        raw += data
    return bytes(raw)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with world_of(n_parallel=3) as world:
        yield world


@pytest.fixture(scope="module")
def tokens(world: World) -> list[int]:
    """The tokens of the whole text."""
    found = world.server.ok("/completion", **FIELDS, n_predict=N_LONG, return_tokens=True)
    return list(found["tokens"])


def test_a_slow_reader_pauses_alone_and_gets_the_whole_text(
    world: World, tokens: list[int]
) -> None:
    with closing(unread(world)) as client:
        wait_for_pause(world)
        (ticket,) = (ticket for ticket in world.running if ticket.paused)
        n_before = ticket.n_predicted
        assert n_before < N_LONG - N_UNREAD_MAX
        others: list[list[int]] = []

        def read() -> None:
            with closing(unread(world, n_predict=300)) as fast:
                others.append(tokens_of(read_to_end(fast)))

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert others == [tokens[:300]] * 2
        assert ticket.n_predicted <= n_before + 1  # a step was in flight
        assert tokens_of(read_to_end(client)) == tokens


def test_slow_readers_leave_their_places_to_others(tokens: list[int]) -> None:
    with world_of(n_parallel=1) as world, closing(unread(world)) as first:
        wait_for_pause(world)
        with closing(unread(world)):
            wait_for_pause(world)
            whole = world.server.ok("/completion", **FIELDS, n_predict=50, return_tokens=True)
            assert whole["tokens"] == tokens[:50]
        assert tokens_of(read_to_end(first)) == tokens


def test_a_slow_reader_that_disconnects_is_cancelled(world: World) -> None:
    engine = world.server.model.engine
    with closing(unread(world)):
        wait_for_pause(world)
    eventually(lambda: engine.n_running == engine.n_waiting == 0)


def test_a_kept_stream_of_a_slow_reader_can_be_stopped(world: World) -> None:
    """Its generation does not pause, as the bytes are kept; only the connection waits."""

    def n_kept() -> int:
        found = world.server.ok("/v1/streams/lookup", conversation_ids=["chat"])
        return sum(stream["total_bytes"] for stream in found)

    with closing(unread(world, "X-Conversation-Id: chat\r\n", n_predict=15_000)):
        eventually(lambda: n_kept() > N_BUFFERS)
        assert world.running
        assert world.server.call("DELETE", "/v1/stream?conv_id=chat").status == 204
        eventually(lambda: not world.running)


def test_several_texts_of_one_slow_reader(world: World) -> None:
    with closing(unread(world, n=3, n_predict=N_LONG // 2)) as client:
        eventually(lambda: len(world.running) == sum(t.paused for t in world.running) == 3)
        assert len(tokens_of(read_to_end(client))) == 3 * (N_LONG // 2)


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_a_reader_of_http_1_0_gets_events_without_chunks(world: World, path: str) -> None:
    raw = json.dumps(BODY | {"n_predict": 20}).encode()
    head = f"POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n\r\n"
    with closing(socket.create_connection(("127.0.0.1", world.server.port), WAIT_S)) as client:
        client.sendall(head.encode() + raw)
        found = b""
        while data := client.recv(1 << 16):
            found += data
    assert b"chunked" not in found.lower()
    events = found.partition(b"\r\n\r\n")[2].decode().split("\n\n")
    assert events.pop() == ""
    assert len(events) > 10
    assert all(event.startswith("data: ") for event in events)
