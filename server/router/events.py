"""Changes of models, for the clients of GET /models/sse.

Knows no HTTP. Tested by tests/server/test_router_fleet.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

Event = dict[str, Any]

N_EVENTS_MAX: Final = 1000  # that a client has not read; then it gets no more


class Events:
    """Sends events to all who listen. Belongs to one event loop."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[Event | None]] = set()

    def send(self, model: str, event: str, **data: Any) -> None:
        """Send an event about a model; "*": about all."""
        found: Event = {"model": model, "event": event} | ({"data": data} if data else {})
        for queue in list(self._queues):
            if queue.qsize() < N_EVENTS_MAX:
                queue.put_nowait(found)
            else:
                self._queues.discard(queue)
                queue.put_nowait(None)

    def close(self) -> None:
        """End all."""
        for queue in self._queues:
            queue.put_nowait(None)

    @contextmanager
    def listening(self) -> Iterator[asyncio.Queue[Event | None]]:
        """The events from now on, until None."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._queues.add(queue)
        try:
            yield queue
        finally:
            self._queues.discard(queue)
