"""Stopping without lost work: new requests are refused, running ones get time, the rest are told.

    running = RunningRequests()
    with running.entered(): ...            # around each request
    await running.drain(5.0, now)          # refuse new ones, wait for the others
    running.cancel()                       # their handlers answer that the server is stopping

Knows no route and no engine: a request ends even if the engine hangs.
Tested by tests/server/test_draining.py and test_http_process.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from ..base.errors import CancelledError, ClosedError

STOPPING: Final = "the server is stopping"


class RunningRequests:
    """The requests that the server handles now. Used in the event loop only.

    Attributes:
        is_draining: no new work is taken.
        is_cancelled: all requests were cancelled.
    """

    def __init__(self) -> None:
        self.is_draining = False
        self.is_cancelled = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended = asyncio.Event()  # of a request

    @contextmanager
    def entered(self) -> Iterator[None]:
        """A request, in its own task."""
        task = asyncio.current_task()
        assert task is not None, "a request has no task"
        self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)
            self._ended.set()

    def check(self) -> None:
        """Raises ClosedError if no new work is taken."""
        if self.is_draining:
            raise ClosedError(STOPPING)

    async def drain(self, n_seconds: float, now: asyncio.Event) -> None:
        """Take no new work. Wait until no request runs, for at most `n_seconds`, or until `now`."""
        self.is_draining = True
        hurry = asyncio.create_task(now.wait())
        with suppress(TimeoutError):
            async with asyncio.timeout(n_seconds):
                while self._tasks and not hurry.done():
                    self._ended.clear()
                    ended = asyncio.create_task(self._ended.wait())
                    await asyncio.wait({ended, hurry}, return_when=asyncio.FIRST_COMPLETED)
                    ended.cancel()
        hurry.cancel()

    def cancel(self) -> None:
        """Cancel all requests. `cancelled_error` tells their handlers."""
        self.is_cancelled = True
        for task in self._tasks:
            task.cancel()

    def cancelled_error(self) -> CancelledError:
        """The error of a handler whose task was cancelled.

        Raises:
            asyncio.CancelledError: the client has disconnected, so there is none.
        """
        if not self.is_cancelled:
            raise asyncio.CancelledError
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        return CancelledError(STOPPING)
