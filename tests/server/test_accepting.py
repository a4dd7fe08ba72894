"""Connections of real clients: silent and slow ones, too many, none left to open."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from fake_context import WAIT_S, FakeContext
from http_world import RunningServer, eventually, make_model, running
from tls_world import make_pem

from lamella.server import accepting, connections, open_files
from lamella.server.accepting import Acceptor
from lamella.server.config import ServerConfig
from lamella.server.connections import Connections
from lamella.server.http_protocol import N_HEAD_BYTES
from lamella.server.open_files import N_OTHERS, fit_to_files
from lamella.server.request_record import RequestRecord

N_MAX = 8
HEAD = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for localhost and its key."""
    return make_pem(tmp_path_factory.mktemp("pem"))


def connect(server: RunningServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)


def read_all(client: socket.socket) -> bytes:
    """What the server sends until it closes the connection."""
    found = b""
    try:
        while part := client.recv(1 << 16):
            found += part
    except ConnectionResetError:
        pass
    return found


@contextmanager
def short_times(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(accepting, "N_SWEEP_SECONDS", 0.05)
        for name, value in seconds.items():
            patch.setattr(connections, name, value)
        yield


def test_silent_connections_do_not_keep_others_out() -> None:
    with running(config=ServerConfig(port=0, max_connections=N_MAX)) as server:
        silent = [connect(server) for _ in range(5 * N_MAX)]
        try:
            for _ in range(3):
                assert server.get("/health").status == 200
            assert read_all(silent[0]) == b""  # the oldest were closed
        finally:
            for client in silent:
                client.close()


def test_a_connection_without_a_place_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "lamella.server")
    context, answered = FakeContext(), threading.Event()

    def on_decode(step: int) -> None:
        assert step != 9 or answered.wait(WAIT_S)

    context.on_decode = on_decode
    with running(lambda: make_model(context), ServerConfig(port=0, max_connections=1)) as server:
        with closing(connect(server)) as busy:
            body = {"prompt": "a", "n_predict": 100_000, "ignore_eos": True, "stream": True}
            raw = json.dumps(body).encode()
            busy.sendall(b"POST /completion HTTP/1.1\r\nHost: localhost\r\n")
            busy.sendall(b"Content-Length: %d\r\n\r\n" % len(raw) + raw)
            assert busy.recv(100).startswith(b"HTTP/1.1 200 ")
            with closing(connect(server)) as late:
                reply = read_all(late)
        answered.set()
        head, _, text = reply.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: " in head
        request_id = head.split(b"\r\nX-Request-Id: ")[1].split(b"\r\n")[0].decode()
        assert json.loads(text)["error"]["type"] == "unavailable_error"
        assert "--max-connections" in caplog.text
        assert request_id in caplog.text


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: loc"])
def test_a_late_head(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    with (
        short_times(monkeypatch, N_HEAD_SECONDS=0.2),
        running() as server,
        closing(connect(server)) as client,
    ):
        client.sendall(sent)
        assert read_all(client) == b""


def test_a_late_handshake(monkeypatch: pytest.MonkeyPatch, pem: tuple[str, str]) -> None:
    monkeypatch.setattr(accepting, "N_HEAD_SECONDS", 0.2)
    config = ServerConfig(port=0, ssl_cert_file=pem[0], ssl_key_file=pem[1])
    with running(config=config) as server, closing(connect(server)) as client:
        assert read_all(client) == b""


def test_handshakes_have_places(pem: tuple[str, str]) -> None:
    config = ServerConfig(port=0, ssl_cert_file=pem[0], ssl_key_file=pem[1], max_connections=N_MAX)
    with running(config=config) as server:
        silent = [connect(server) for _ in range(3 * N_MAX)]
        trusted = ssl.create_default_context(cafile=pem[0])
        with closing(trusted.wrap_socket(connect(server), server_hostname="localhost")) as client:
            client.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        for one in silent:
            one.close()


def test_a_connection_between_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        short_times(monkeypatch, N_IDLE_SECONDS=0.2),
        running() as server,
        closing(connect(server)) as client,
    ):
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_all(client).startswith(b"HTTP/1.1 200 ")


def test_a_body_that_drips(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "lamella.server")
    with (
        short_times(monkeypatch, N_BODY_SECONDS=0.3),
        running() as server,
        closing(connect(server)) as client,
    ):
        client.sendall(HEAD + b"Content-Length: 1000\r\n\r\n{")
        assert read_all(client) == b""
    records = [r.msg for r in caplog.records if isinstance(r.msg, RequestRecord)]
    assert [record.end for record in records] == ["timeout"]


def test_a_whole_request_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ServerConfig(port=0, request_timeout=1)
    with (
        short_times(monkeypatch),
        running(config=config) as server,
        closing(connect(server)) as client,
    ):
        client.sendall(HEAD + b"Content-Length: 1000\r\n\r\n{")
        assert read_all(client) == b""


def test_headers_have_a_limit_together(caplog: pytest.LogCaptureFixture) -> None:
    with running() as server, closing(connect(server)) as client:
        n_lines = N_HEAD_BYTES // 1000 + 2
        client.sendall(HEAD + b"".join(b"H%d: %s\r\n" % (i, b"a" * 1000) for i in range(n_lines)))
        reply = read_all(client)
    assert reply.startswith(b"HTTP/1.1 431 ")
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"] == 431


def test_a_long_body_after_a_short_head() -> None:
    with running() as server:
        assert len(server.ok("/tokenize", content="a" * 4 * N_HEAD_BYTES)["tokens"]) > 1


def test_without_a_file_the_server_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`accept` fails until the test says otherwise."""
    monkeypatch.setattr(accepting, "N_PAUSE_SECONDS", 0.05)
    n_failed, is_free = 0, threading.Event()
    plain = asyncio.SelectorEventLoop.sock_accept

    async def sock_accept(loop: asyncio.SelectorEventLoop, listener: socket.socket) -> object:
        nonlocal n_failed
        if is_free.is_set():
            return await plain(loop, listener)
        n_failed += 1
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_accept", sock_accept)
    with running() as server, closing(connect(server)) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        eventually(lambda: n_failed >= 3)
        is_free.set()
        assert read_all(client).startswith(b"HTTP/1.1 200 ")
    assert "cannot accept connections now: Too many open files" in caplog.text


def test_few_connections_are_accepted_per_turn() -> None:
    """While many clients connect, other work of the event loop gets its turns."""
    n_clients, n_lost = 4 * accepting.N_PER_TURN, 0
    turns: list[int] = []

    class Lost(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            nonlocal n_lost
            n_lost += 1

    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=n_clients)
        clients = []
        for _ in range(n_clients):
            clients.append(socket.create_connection(listener.getsockname()))
        table = Connections(2 * n_clients, 0)
        acceptor = Acceptor(table, lambda connection: Lost(), bytes)
        acceptor.start(listener, None)
        while len(table) < n_clients:
            turns.append(len(table))
            await asyncio.sleep(0)
        for client in clients:
            client.close()
        while n_lost < n_clients:
            await asyncio.sleep(0)
        await acceptor.close()

    asyncio.run(main())
    assert max(b - a for a, b in itertools.pairwise(turns)) <= accepting.N_PER_TURN


@pytest.mark.skipif(sys.platform == "win32", reason="it has no limit of open files")
def test_the_limit_of_files(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = [256, 1000]

    class Resource:
        RLIMIT_NOFILE, RLIM_INFINITY = 7, -1

        def getrlimit(self, what: int) -> tuple[int, int]:
            assert what == self.RLIMIT_NOFILE
            return limits[0], limits[1]

        def setrlimit(self, what: int, new: tuple[int, int]) -> None:
            limits[:] = new

    monkeypatch.setattr(open_files, "resource", Resource())
    assert (fit_to_files(100), limits[0]) == (100, 256)
    assert (fit_to_files(500), limits[0]) == (500, 500 + N_OTHERS)
    assert caplog.text == ""
    assert (fit_to_files(5000), limits[0]) == (1000 - N_OTHERS, 1000)
    assert "at most 872 connections, not 5000" in caplog.text
    limits[:] = [100, 100]
    assert fit_to_files(5000) == 50
    assert fit_to_files(5000, n_each=2) == 25
    limits[:] = [-1, -1]
    assert fit_to_files(10**6) == 10**6
