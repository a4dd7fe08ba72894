"""The server's connections: how many, whose, and how long each may wait for its client.

There are places for `n_max` connections. The last `N_KEPT` are for clients that have none. When all
are taken, the client that holds the most loses the one that waits for it longest, so that one
client cannot keep the others out. A connection is closed if its client is late with the head of a
request (`N_HEAD_SECONDS`), sends none for long (`N_IDLE_SECONDS`), sends a body too slowly
(`N_BODY_BYTES` in each `N_BODY_SECONDS`), or if the request takes longer than `n_request_seconds`.
Knows neither sockets nor HTTP.
Tested by tests/server/test_connections.py.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from ..base.log import get_logger

log = get_logger("server")

N_HEAD_SECONDS: Final = 30.0  # from the accept, or a head's first byte, to its end
N_IDLE_SECONDS: Final = 620.0  # between requests; longer than proxies keep connections: up to 600
N_BODY_SECONDS: Final = 30.0
N_BODY_BYTES: Final = 16 * 1024
N_KEPT: Final = 8
N_TRIED: Final = 64  # clients with the most connections, of which one loses a connection

TIMEOUT: Final = "timeout"
NO_PLACE: Final = "too many connections"


class Peer(Protocol):
    """The open connection itself."""

    @property
    def is_receiving(self) -> bool:
        """True if the rest of a body is awaited and would be read."""

    @property
    def is_unread(self) -> bool:
        """True if the client does not read its reply."""

    def abort(self, reason: str) -> None:
        """Close the connection at once. `reason` is for the log."""


class Connection:
    """A connection's place in the table.

    Attributes:
        client: the name of its client, by address.
        peer: the connection.
        is_new: no whole head has arrived yet, or a part of the next one has.
        t_request: when its request began; None between requests.
        t_wait: since when it waits for its client: for a head, a request, or a part of a body.
        n_bytes: received since `t_wait`.
    """

    __slots__ = ("client", "is_new", "n_bytes", "peer", "t_request", "t_wait")

    def __init__(self, client: str, peer: Peer, now: float) -> None:
        self.client, self.peer = client, peer
        self.is_new = True
        self.t_request: float | None = None
        self.t_wait, self.n_bytes = now, 0


class _Client:
    """The connections of a client: all, and those without a request, the longest waiting first."""

    __slots__ = ("all", "idle")

    def __init__(self) -> None:
        self.all: dict[Connection, None] = {}
        self.idle: dict[Connection, None] = {}

    def longest_waiting(self) -> Connection | None:
        """One without a request, else one whose client sends or reads nothing."""
        waiting = (one for one in self.all if one.peer.is_receiving or one.peer.is_unread)
        return next(iter(self.idle), None) or next(waiting, None)


class Connections:
    """The table of all connections, from the accept until they are closed."""

    def __init__(
        self,
        n_max: int,
        n_request_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`n_request_seconds`: the longest time of a request; 0: no limit."""
        assert n_max > 0
        self.n_max, self.n_kept = n_max, min(N_KEPT, n_max // 8)
        self._n_request_seconds = n_request_seconds
        self._clock = clock
        self._clients: dict[str, _Client] = {}
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def admit(self, client: str, peer: Peer) -> Connection | None:
        """Give a new connection a place. Return None if there is none."""
        n_reserved = self.n_kept if client in self._clients else 0
        if self._n >= self.n_max - n_reserved and not self._make_place(client):
            log.warning(
                "all %d places for connections are taken (--max-connections): %s has none",
                *(self.n_max, client),
            )
            return None
        connection = Connection(client, peer, self._clock())
        mine = self._clients.setdefault(client, _Client())
        mine.all[connection] = mine.idle[connection] = None
        self._n += 1
        return connection

    def release(self, connection: Connection) -> None:
        """Free the connection's place. Does nothing the second time."""
        mine = self._clients.get(connection.client)
        if mine is None or connection not in mine.all:
            return
        del mine.all[connection]
        mine.idle.pop(connection, None)
        self._n -= 1
        if not mine.all:
            del self._clients[connection.client]

    def receive(self, connection: Connection, n_bytes: int) -> None:
        """Record bytes from the client."""
        if connection.t_request is None and not connection.is_new:
            connection.is_new, connection.t_wait, connection.n_bytes = True, self._clock(), 0
        connection.n_bytes += n_bytes

    @contextmanager
    def request(self, connection: Connection) -> Iterator[None]:
        """Within the block, the connection has a request."""
        mine = self._clients.get(connection.client, _Client())
        mine.idle.pop(connection, None)
        connection.t_request = connection.t_wait = self._clock()
        connection.is_new, connection.n_bytes = False, 0
        try:
            yield
        finally:
            connection.t_request, connection.t_wait, connection.n_bytes = None, self._clock(), 0
            if connection in mine.all:
                mine.idle[connection] = None

    def close_late(self) -> None:
        """Close the connections whose clients are late."""
        now = self._clock()
        late = [one for mine in self._clients.values() for one in mine.all if self._late(one, now)]
        for connection in late:
            self._close(connection, TIMEOUT)

    def _late(self, connection: Connection, now: float) -> bool:
        waited = now - connection.t_wait
        if connection.t_request is None:
            return waited >= (N_HEAD_SECONDS if connection.is_new else N_IDLE_SECONDS)
        if 0 < self._n_request_seconds <= now - connection.t_request:
            return True
        if not connection.peer.is_receiving:
            connection.t_wait, connection.n_bytes = now, 0
        elif waited >= N_BODY_SECONDS:
            n_bytes = connection.n_bytes
            connection.t_wait, connection.n_bytes = now, 0
            return n_bytes < N_BODY_BYTES
        return False

    def _make_place(self, client: str) -> bool:
        """Close a connection of a client that holds more than `client`, or of itself."""
        n_own = len(self._clients[client].all) if client in self._clients else 0
        largest = heapq.nlargest(N_TRIED, self._clients.items(), key=lambda item: len(item[1].all))
        for name, held in largest:
            if name != client and len(held.all) <= n_own:
                continue
            connection = held.longest_waiting()
            if connection is not None:
                self._close(connection, NO_PLACE)
                return True
        return False

    def _close(self, connection: Connection, reason: str) -> None:
        self.release(connection)
        connection.peer.abort(reason)
