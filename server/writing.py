"""Writes replies with a time limit, and disconnects clients that do not read them.

Knows no route. Tested by tests/server/test_listening.py and test_http_long_replies.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

from aiohttp import web

from .clients import client_of
from .state import STATE, has_others_texts
from .threads import N_REST_LONG, in_turn


class UnreadError(ConnectionError):
    """The client did not read its reply in time, and is disconnected."""


@asynccontextmanager
async def time_limit(request: web.Request) -> AsyncIterator[None]:
    """Within the block, write to the client for at most `--write-timeout` seconds.

    Raises:
        UnreadError: the time is over.
    """
    n_seconds = request.app[STATE].config.write_timeout
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


async def write(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """Write a part of a reply. Raises UnreadError, ConnectionError."""
    if data:
        async with time_limit(request):
            await response.write(data)


async def json_reply(request: web.Request, pieces: Iterator[bytes]) -> web.StreamResponse:
    """A reply with the JSON text in `pieces`, which threads make in turns of clients. Beside texts
    of others, the replies of a client get a tenth of a core.

    A long one is written here, piece by piece, so that memory holds few of them. An error before
    the second piece gets an ordinary error response.
    """
    turns, client = request.app[STATE].writers, client_of(request)

    def rest() -> float:
        return N_REST_LONG if has_others_texts(request) else 0.0

    made = partial(in_turn, turns, client, rest=rest)
    first, second = await made(lambda: (next(pieces), next(pieces, b"")))
    if not second:
        return web.Response(body=first, content_type="application/json", charset="utf-8")
    response = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    await write(request, response, first)
    while second:
        await write(request, response, second)
        second = await made(lambda: next(pieces, b""))
    return response
