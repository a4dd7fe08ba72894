"""Accepts connections, while there are places and files for them.

A few connections are accepted per turn of the event loop, so that running streams go on. Every one
has a place in the table of connections before its first byte, with TLS before the handshake. A
connection without a place gets a short reply. If the process has no file left, the server waits
before it accepts again.
Tested by tests/server/test_accepting.py.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from ..base.log import get_logger
from .clients import network_of
from .connections import N_HEAD_SECONDS, Connection, Connections, Peer

log = get_logger("server")

N_PER_TURN: Final = 16
N_PAUSE_SECONDS: Final = 1.0  # without files
N_SWEEP_SECONDS: Final = 1.0  # between two looks for late clients
N_READ_BYTES: Final = 65536  # of a refused client; unread bytes would drop the reply

OpenProtocol = Callable[[Connection], asyncio.Protocol]


class Acceptor:
    """Accepts connections of listening sockets, and closes those whose clients are late."""

    def __init__(
        self, connections: Connections, open_protocol: OpenProtocol, refuse: Callable[[], bytes]
    ) -> None:
        """`refuse`: makes the reply to a connection without a place."""
        self._connections = connections
        self._open_protocol = open_protocol
        self._refuse = refuse
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening: set[asyncio.Task[None]] = set()
        _spawn(self._sweep(), self._tasks)

    def start(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Accept from a listening socket. `close` closes it."""
        listener.setblocking(False)
        _spawn(self._accept(listener, tls), self._tasks)

    async def close(self) -> None:
        """Accept no more. Open connections stay."""
        for tasks in (self._tasks, self._opening):
            await asyncio.sleep(0)  # a task that is cancelled before it begins closes no socket
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(N_SWEEP_SECONDS)
            self._connections.close_late()

    async def _accept(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                for _ in range(N_PER_TURN):
                    try:
                        found, address = await loop.sock_accept(listener)
                    except ConnectionAbortedError:
                        continue
                    except OSError as error:  # no file, or no memory, for another connection
                        log.warning("cannot accept connections now: %s", error.strerror or error)
                        await asyncio.sleep(N_PAUSE_SECONDS)
                        continue
                    self._take(found, address, tls)
                await asyncio.sleep(0)

    def _take(self, found: socket.socket, address: Any, tls: ssl.SSLContext | None) -> None:
        name = network_of(address[0] if isinstance(address, tuple) else "")
        connection = self._connections.admit(name, _Opening(found))
        if connection is not None:
            _spawn(self._open(found, connection, tls), self._opening)
            return
        with found, suppress(OSError):
            if tls is None:
                with suppress(BlockingIOError):
                    found.recv(N_READ_BYTES)
                found.send(self._refuse())

    async def _open(
        self, found: socket.socket, connection: Connection, tls: ssl.SSLContext | None
    ) -> None:
        """Connect the protocol. Clients that disconnect or speak no TLS are no errors."""
        seconds = None if tls is None else N_HEAD_SECONDS
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._open_protocol(connection),
                found,
                ssl=tls,
                ssl_handshake_timeout=seconds,
            )
        except OSError:  # asyncio closes the socket
            self._connections.release(connection)
        except BaseException:
            self._connections.release(connection)
            raise


def _spawn(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
    """Begin a task that is in `tasks` until it ends."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


class _Opening(Peer):
    """A connection without a protocol, as during the handshake of TLS."""

    is_receiving = is_unread = False

    def __init__(self, found: socket.socket) -> None:
        self._socket = found

    def abort(self, reason: str) -> None:
        """End the connection: what reads it sees its end, and closes it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
