"""Places for connections, and how long they may wait, with a clock of the test's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lamella.server.connections import (
    N_BODY_BYTES,
    N_BODY_SECONDS,
    N_HEAD_SECONDS,
    N_IDLE_SECONDS,
    NO_PLACE,
    TIMEOUT,
    Connection,
    Connections,
)


class Peer:
    def __init__(self) -> None:
        self.is_receiving = self.is_unread = False
        self.closed = ""

    def abort(self, reason: str) -> None:
        assert not self.closed
        self.closed = reason


class World:
    """A table, its clock, and all connections that were admitted."""

    def __init__(self, n_max: int = 100, n_request_seconds: float = 0.0) -> None:
        self.now = 1000.0
        self.table = Connections(n_max, n_request_seconds, lambda: self.now)
        self.peers: dict[Connection, Peer] = {}

    def open(self, client: str) -> Connection | None:
        peer = Peer()
        connection = self.table.admit(client, peer)
        if connection is not None:
            self.peers[connection] = peer
        return connection

    def opened(self, client: str, n: int = 1) -> list[Connection]:
        found = [self.open(client) for _ in range(n)]
        assert None not in found
        return [one for one in found if one is not None]

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.table.close_late()

    def closed(self, connection: Connection) -> str:
        return self.peers[connection].closed

    @contextmanager
    def request(self, connection: Connection) -> Iterator[None]:
        with self.table.request(connection):
            yield


@pytest.fixture
def world() -> World:
    return World()


def test_a_silent_connection_is_closed(world: World) -> None:
    (silent,) = world.opened("a")
    world.wait(N_HEAD_SECONDS - 1)
    assert (world.closed(silent), len(world.table)) == ("", 1)
    world.wait(1)
    assert (world.closed(silent), len(world.table)) == (TIMEOUT, 0)


def test_a_head_that_drips_is_closed(world: World) -> None:
    (first, later) = world.opened("a", 2)
    with world.request(later):
        pass
    world.wait(N_IDLE_SECONDS - 1)
    assert (world.closed(first), world.closed(later)) == (TIMEOUT, "")
    for _ in range(int(N_HEAD_SECONDS)):
        assert world.closed(later) == ""
        world.table.receive(later, 1)
        world.wait(1)
    assert world.closed(later) == TIMEOUT


def test_an_idle_connection_is_kept_longer(world: World) -> None:
    (one,) = world.opened("a")
    for _ in range(3):
        with world.request(one):
            world.wait(10 * N_IDLE_SECONDS)  # a long reply
        world.wait(N_IDLE_SECONDS - 1)
        assert world.closed(one) == ""
    world.wait(1)
    assert world.closed(one) == TIMEOUT


def test_a_body_needs_a_rate(world: World) -> None:
    slow, fast, paused = world.opened("a", 3)
    with world.request(slow), world.request(fast), world.request(paused):
        world.peers[slow].is_receiving = world.peers[fast].is_receiving = True
        for _ in range(4):
            world.table.receive(fast, N_BODY_BYTES)
            if world.closed(slow) == "":
                world.table.receive(slow, N_BODY_BYTES - 1)
            world.wait(N_BODY_SECONDS)
    assert [world.closed(one) for one in (slow, fast, paused)] == [TIMEOUT, "", ""]


def test_the_time_that_the_server_takes_is_not_the_clients(world: World) -> None:
    (one,) = world.opened("a")
    with world.request(one):
        for _ in range(5):
            world.peers[one].is_receiving = False
            world.wait(N_BODY_SECONDS)
            world.peers[one].is_receiving = True
            world.wait(N_BODY_SECONDS - 1)
    assert world.closed(one) == ""


def test_a_request_takes_too_long() -> None:
    world = World(n_request_seconds=60)
    (one,) = world.opened("a")
    for seconds, closed in ((59, ""), (60, TIMEOUT)):
        with world.request(one):
            world.wait(seconds)
        assert world.closed(one) == closed


def test_the_client_with_the_most_connections_loses_its_oldest() -> None:
    world = World(n_max=10)
    many = world.opened("many", 8)
    world.opened("few", 2)
    (new,) = world.opened("new")
    assert [world.closed(one) for one in many] == [NO_PLACE] + [""] * 7
    assert len(world.table) == 10
    with world.request(many[1]):
        world.opened("other")
    assert [world.closed(one) for one in many] == [NO_PLACE, "", NO_PLACE] + [""] * 5
    # back from its request, it waits the shortest time
    world.opened("another")
    assert [bool(world.closed(one)) for one in many] == [True, False, True, True] + [False] * 4
    assert world.closed(new) == ""


def test_a_client_replaces_its_own_when_it_has_the_most() -> None:
    world = World(n_max=4)
    one, *_ = world.opened("a", 4)
    world.opened("a", 1)
    assert world.closed(one) == NO_PLACE
    assert len(world.table) == 4


def test_connections_with_requests_stay() -> None:
    world = World(n_max=2)
    one, other = world.opened("a", 2)
    with world.request(one), world.request(other):
        assert world.open("a") is None
        assert world.open("b") is None
        world.peers[other].is_unread = True
        assert world.open("b") is not None
    assert (world.closed(one), world.closed(other)) == ("", NO_PLACE)


def test_a_small_client_does_not_lose_to_a_larger_one() -> None:
    world = World(n_max=4)
    large = world.opened("large", 3)
    (small,) = world.opened("small")
    with world.request(large[0]), world.request(large[1]), world.request(large[2]):
        assert world.open("large") is None
    assert world.closed(small) == ""


def test_the_last_places_are_for_new_clients() -> None:
    world = World(n_max=80)
    assert world.table.n_kept == 8
    connections = world.opened("a", 72)
    blocks = [world.request(one) for one in connections]
    for block in blocks:
        block.__enter__()
    assert world.open("a") is None
    assert all(world.open(f"client {i}") is not None for i in range(8))
    assert len(world.table) == 80
    for block in blocks:
        block.__exit__(None, None, None)


def test_places_are_freed_once(world: World) -> None:
    one, other = world.opened("a", 2)
    world.table.release(one)
    world.table.release(one)
    assert len(world.table) == 1
    with world.request(other):
        world.table.release(other)  # its client disconnects
    assert len(world.table) == 0
    world.wait(10 * N_IDLE_SECONDS)
    assert world.closed(other) == ""
