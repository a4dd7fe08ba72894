"""The bodies of requests in memory: all together have a limit.

A body counts from its arrival until the work on it is done, while it waits for its turn too. If
there is no room for more, the client whose bodies have the most bytes loses the oldest of them: its
request ends with status 503. So one client cannot keep the others out, however slowly it sends. A
client that has the most itself gets 429. Knows no request. Belongs to one event loop.
Tested by tests/server/test_body_memory.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..base.errors import ClientLimitError, OverloadedError
from ..base.units import size_text


class HeldBody:
    """A body in memory. Made by `BodyMemory.body`."""

    __slots__ = ("client", "is_lost", "n_bytes", "task")

    def __init__(self, client: str, task: asyncio.Task[Any]) -> None:
        self.client = client
        self.n_bytes = 0
        self.is_lost = False  # others need its memory
        self.task = task  # which handles its request


class BodyMemory:
    """At most `n_max` bytes of bodies."""

    def __init__(self, n_max: int) -> None:
        self._n_max = n_max
        self._bodies: dict[HeldBody, None] = {}  # oldest first
        self._of_client: Counter[str] = Counter()  # bytes

    @property
    def n_bytes(self) -> int:
        """The bytes of all bodies."""
        return self._of_client.total()

    @contextmanager
    def body(self, client: str) -> Iterator[HeldBody]:
        """A body of a client, which is in memory until the end of the block. `grow` says its size.

        Raises:
            OverloadedError: another client needs its memory.
        """
        task = asyncio.current_task()
        assert task is not None, "a body has no task"
        held = HeldBody(client, task)
        self._bodies[held] = None
        try:
            yield held
        except asyncio.CancelledError:
            if not held.is_lost or task.uncancel():  # the client has disconnected, too
                raise
            raise OverloadedError(
                f"the server has no memory for this body: all together may have "
                f"{size_text(self._n_max)}, and this client's have the most"
            ) from None
        finally:
            self._forget(held)

    def grow(self, held: HeldBody, n_bytes: int) -> None:
        """Count a body with `n_bytes` so far.

        Raises:
            ClientLimitError: there is no room, and no client has more than this one.
        """
        n_more = n_bytes - held.n_bytes
        while self.n_bytes + n_more > self._n_max:
            self._make_room(held, n_more)
        if held in self._bodies:
            held.n_bytes += n_more
            self._of_client[held.client] += n_more

    def _make_room(self, held: HeldBody, n_more: int) -> None:
        """Take a body from the client that has the most."""
        client, n_bytes = max(self._of_client.items(), key=lambda item: item[1])
        n_own = self._of_client[held.client] + n_more
        if client == held.client or n_bytes <= n_own:
            raise ClientLimitError(
                f"the bodies of this client's requests have {size_text(n_own)}: there is no room "
                f"for more, as those of all clients may have {size_text(self._n_max)}"
            )
        other = next(one for one in self._bodies if one.client == client and one.n_bytes)
        self._forget(other)
        other.is_lost = True
        other.task.cancel()

    def _forget(self, held: HeldBody) -> None:
        if held in self._bodies:
            del self._bodies[held]
            self._of_client[held.client] -= held.n_bytes
            self._of_client += Counter()  # forgets clients with nothing
