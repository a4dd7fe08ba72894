"""Turns of clients: a few may work at the same time, the others wait, one client after the other.

A client with many requests waits for itself, not the others for it. Knows no request and no work.
Tested by tests/server/test_turns.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """At most `n` turns at the same time, of which `n_each` belong to the same client.

    Belongs to one event loop.
    """

    def __init__(self, n: int = 1, n_each: int = 1) -> None:
        self._n, self._n_each = n, n_each
        self._n_busy = 0
        self._of_client: Counter[str] = Counter()
        # the clients that wait, the next one first, each with its requests in order
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def of(self, client: str) -> AsyncIterator[None]:
        """Wait for a turn of the client. It lasts until the end of the block."""
        await self.begin(client)
        try:
            yield
        finally:
            self.end(client)

    async def begin(self, client: str) -> None:
        """Wait for a turn of the client. It lasts until `end`."""
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(place)
        self._begin_next()
        try:
            await place
        except asyncio.CancelledError:
            self._forget(client, place)
            raise

    def end(self, client: str, n_rest_seconds: float = 0.0) -> None:
        """End a turn of the client. Its place stays empty for so many seconds more."""
        if n_rest_seconds > 0:
            asyncio.get_running_loop().call_later(n_rest_seconds, self._free, client)
        else:
            self._free(client)

    def _begin_next(self) -> None:
        """Begin turns while there is a place for one."""
        while self._n_busy < self._n:
            client = next((c for c in self._waiting if self._of_client[c] < self._n_each), None)
            if client is None:
                return
            places = self._waiting.pop(client)
            place = places.popleft()
            if places:
                self._waiting[client] = places  # behind all others
            if not place.cancelled():  # its request waits no more, but could not say so yet
                place.set_result(None)
                self._n_busy += 1
                self._of_client[client] += 1

    def _free(self, client: str) -> None:
        self._n_busy -= 1
        self._of_client[client] -= 1
        if not self._of_client[client]:
            del self._of_client[client]
        self._begin_next()

    def _forget(self, client: str, place: asyncio.Future[None]) -> None:
        """Remove a request that waits no more. Its turn may have just begun."""
        if not place.cancelled():
            self._free(client)
        elif place in (places := self._waiting.get(client, deque())):
            places.remove(place)
            if not places:
                del self._waiting[client]
