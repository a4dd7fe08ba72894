"""Writes replies with a time limit, and disconnects clients that do not read them.

Knows no route. Tested by tests/server/test_listening.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from .state import STATE


class UnreadError(ConnectionError):
    """The client did not read its reply in time, and is disconnected."""


@asynccontextmanager
async def time_limit(request: web.Request) -> AsyncIterator[None]:
    """Within the block, write to the client for at most `--timeout` seconds.

    Raises:
        UnreadError: the time is over.
    """
    n_seconds = request.app[STATE].config.timeout
    try:
        async with asyncio.timeout(n_seconds):
            yield
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise UnreadError(f"the client did not read its reply within {n_seconds} s") from None


async def write_whole(request: web.Request, response: web.StreamResponse) -> None:
    """Write a reply. Does nothing after the end of a stream. Raises UnreadError."""
    async with time_limit(request):
        await response.prepare(request)
        await response.write_eof()
