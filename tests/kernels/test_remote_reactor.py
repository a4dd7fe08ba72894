"""The reactor: it reads many connections, and outlives everything that arrives."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from lamella.kernels.remote.reactor import Reactor
from lamella.kernels.remote.wire import Channel, Kind, Message, Role

SOON = 20.0


class Recorder:
    """Keeps the messages of a connection."""

    is_busy = False

    def __init__(self) -> None:
        self.found: list[bytes] = []
        self.n_rounds = 0
        self.went_on = threading.Event()
        self.ended = threading.Event()

    def take(self, message: Message) -> None:
        if message.kind == Kind.FILL:
            raise RuntimeError("do not like it")
        self.found.append(bytes(message.data))

    def go_on(self) -> None:
        self.n_rounds += 1
        self.went_on.set()

    def end(self) -> None:
        self.ended.set()

    def wait(self, n: int) -> list[bytes]:
        end = time.monotonic() + SOON
        while len(self.found) < n:
            assert time.monotonic() < end
            time.sleep(0.001)
        return self.found


class World:
    def __init__(self) -> None:
        self.reactor = Reactor("test")
        self.channels: list[Channel] = []

    def connect(self, recorder: Recorder | None = None) -> tuple[Channel, Recorder]:
        mine, theirs = socket.socketpair()
        recorder = recorder or Recorder()
        self.channels.append(Channel(mine, "worker", Role.STREAM))
        self.reactor.add(Channel(theirs, "driver", Role.STREAM), recorder)
        return self.channels[-1], recorder


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.reactor.close()
    for channel in world.channels:
        channel.close()


def test_messages_of_many_connections_arrive_in_order(world: World) -> None:
    pairs = [world.connect() for _ in range(5)]
    sent = [[bytes([i]) * n for n in (3, 0, 70_000, 1, 200_000)] for i in range(5)]
    for (channel, _), messages in zip(pairs, sent, strict=True):
        for data in messages:
            channel.queue(Kind.WRITE, data=data)
        threading.Thread(target=channel.flush).start()
    for (_, recorder), messages in zip(pairs, sent, strict=True):
        assert recorder.wait(5) == messages
        assert recorder.went_on.wait(SOON)  # after the messages of a round


def test_a_message_in_pieces(world: World) -> None:
    channel, recorder = world.connect()
    for size in (10, 70_000):  # of both paths: through the buffer, and without a copy
        raw = struct.pack("<HHIQ5q", 1, Kind.WRITE, 0, size, 0, 0, 0, 0, 0) + bytes(size)
        for begin, end in ((0, 1), (1, 55), (55, 60), (60, len(raw) - 1), (len(raw) - 1, len(raw))):
            channel._sock.sendall(raw[begin:end])
            time.sleep(0.01)
    assert [len(data) for data in recorder.wait(2)] == [10, 70_000]


def test_an_error_ends_one_connection(world: World) -> None:
    (bad, ended), (good, recorder) = world.connect(), world.connect()
    bad.send(Kind.FILL)
    assert ended.ended.wait(SOON)
    good.send(Kind.WRITE, data=b"x")
    assert recorder.wait(1) == [b"x"]
    assert not recorder.ended.is_set()


def test_random_bytes_end_their_connections_only(world: World) -> None:
    good, recorder = world.connect()
    rng = random.Random(1)
    for n in range(50):
        channel, ended = world.connect()
        raw = rng.randbytes(rng.randrange(1, 300))
        if n % 2:  # a header that promises more bytes than there are
            size = rng.choice([1 << 20, 1 << 34, 1 << 36, (1 << 36) + 1, (1 << 64) - 1])
            raw = struct.pack("<HHIQ5q", 1, rng.randrange(99), 0, size, *range(5)) + raw
        channel._sock.sendall(raw)
        channel.close()
        assert ended.ended.wait(SOON)
    good.send(Kind.WRITE, data=b"x")
    assert recorder.wait(1) == [b"x"]


class Held(Recorder):
    """Takes a message once the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def take(self, message: Message) -> None:
        self.begun.set()
        assert self.goes_on.wait(SOON)


def test_close_ends_a_connection_that_has_just_come(world: World) -> None:
    held = Held()
    channel, _ = world.connect(held)
    channel.send(Kind.WRITE, data=b"x")
    assert held.begun.wait(SOON)
    _, late = world.connect()
    closing = threading.Thread(target=world.reactor.close)
    closing.start()
    while not world.reactor._closed:
        time.sleep(0.001)
    held.goes_on.set()
    closing.join()
    assert held.ended.is_set() and late.ended.is_set()


def test_a_connection_that_comes_after_the_end_is_ended(world: World) -> None:
    world.reactor.close()
    channel, late = world.connect()
    assert late.ended.is_set()
    assert channel._sock.recv(1) == b""


def test_close_ends_all_connections(world: World) -> None:
    _, recorder = world.connect()
    world.reactor.close()
    world.reactor.close()
    assert recorder.ended.is_set()
    assert not world.reactor._thread.is_alive()
