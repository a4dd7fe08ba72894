"""Messages of remote devices: the handshake, the header, and lost connections."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest

from lamella.base.errors import DeviceLostError
from lamella.kernels.remote import wire
from lamella.kernels.remote.wire import (
    Channel,
    Kind,
    Role,
    accept,
    connect,
    new_secret,
    to_json,
)

SECRET = new_secret()


class Server:
    """Accepts one connection."""

    def __init__(self, secret: bytes = SECRET) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.secret = secret
        self.error: Exception | None = None
        self.channel: Channel | None = None
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        sock, _ = self.listener.accept()
        try:
            self.channel = accept(sock, self.secret, "driver")
        except (OSError, ValueError) as e:
            self.error = e
            sock.close()

    def close(self) -> None:
        self.thread.join()
        self.listener.close()
        if self.channel is not None:
            self.channel.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def test_messages_arrive_in_order_with_their_numbers_and_bytes(server: Server) -> None:
    mine = connect(server.address, SECRET, Role.STREAM, "worker")
    server.thread.join()
    theirs = server.channel
    assert theirs is not None and theirs.role is Role.STREAM
    large = np.arange(100_000, dtype=np.uint8)
    mine.queue(Kind.WRITE, 1, 2, data=large)
    mine.queue(Kind.RUN, -7)
    mine.send(Kind.CALL, data=to_json({"a": [1.5, None]}))
    first, second, third = (theirs.receive() for _ in range(3))
    assert Kind(first.kind) is Kind.WRITE
    assert (first.numbers, bytes(first.data)) == ((1, 2, 0, 0, 0), large.tobytes())
    assert Kind(second.kind) is Kind.RUN
    assert (second.numbers[0], bytes(second.data)) == (-7, b"")
    assert third.json() == {"a": [1.5, None]}
    mine.close()
    with pytest.raises(DeviceLostError, match=r"driver: the connection .* was lost: it was closed"):
        theirs.receive()


def test_another_secret_is_refused_by_both_sides() -> None:
    server = Server(new_secret())
    with pytest.raises(DeviceLostError, match=r"worker: .*does not know the secret"):
        connect(server.address, SECRET, Role.CONTROL, "worker")
    server.close()
    assert server.channel is None


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        struct.pack("<8sHH16s", b"LAMELLA\x00", 99, 1, b""),  # another version
        struct.pack("<8sHH16s", b"LAMELLA\x00", 1, 77, b""),  # an unknown role
        struct.pack("<8sHH16s", b"LAMELLA\x00", 1, 1, b"") + bytes(32),  # no proof
        b"",
    ],
)
def test_strangers_are_refused(server: Server, sent: bytes) -> None:
    with socket.create_connection(server.address) as stranger:
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        server.thread.join()
    assert server.channel is None
    assert server.error is not None


def test_a_slow_stranger_is_refused(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    """The handshake has a time, not each byte of it."""
    monkeypatch.setattr(wire, "CONNECT_SECONDS", 0.3)
    with socket.create_connection(server.address) as stranger, suppress(ConnectionError):
        for byte in struct.pack("<8sHH16s", b"LAMELLA\x00", 1, 1, b""):
            stranger.sendall(bytes([byte]))
            time.sleep(0.05)
            if not server.thread.is_alive():
                break
        else:
            raise AssertionError("it may send for longer")
    server.thread.join()
    assert isinstance(server.error, TimeoutError)


def test_bytes_that_are_no_message_end_the_connection(server: Server) -> None:
    mine = connect(server.address, SECRET, Role.CONTROL, "worker")
    server.thread.join()
    assert server.channel is not None
    server.channel._sock.sendall(bytes([9]) * 100)
    with pytest.raises(DeviceLostError, match="message of version"):
        mine.receive()
    mine.close()


def test_a_port_without_a_worker_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(DeviceLostError, match=rf"w: cannot connect .* 127.0.0.1:{address[1]}"):
        connect(address, SECRET, Role.CONTROL, "w")
