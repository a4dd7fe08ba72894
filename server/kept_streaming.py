"""Streams of clients that send `X-Conversation-Id`, as llama-server's.

A task writes the events of the generation into a `KeptStream`, and the handler passes them on. If
the client disconnects, the handler stays until the generation ends, so that the request keeps its
place in all limits, in the log and when the server stops.
Tested by tests/server/test_http_kept_streams.py.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from ..base.errors import CancelledError, RequestError
from .bridge import Bridge, are_finished
from .clients import client_of
from .draining import RunningRequests
from .kept_streams import KeptStream
from .replies import Replies
from .state import STATE
from .streaming import (
    STREAM_HEADERS,
    end_bytes,
    failure_bytes,
    first_bytes,
    next_bytes,
    ping_seconds,
)
from .writing import write

CONVERSATION_HEADER: Final = "X-Conversation-Id"
N_ID_CHARS: Final = 256


def conversation_id(name: str, id: str) -> str:
    """An id that a client has sent. Raises RequestError if it is too long, or no plain text."""
    if len(id) > N_ID_CHARS or not id.isprintable():
        raise RequestError(
            f"{name} must have at most {N_ID_CHARS} printable characters, found {len(id)}"
        )
    return id


def keeps_stream(request: web.Request) -> bool:
    """True if the client may come back for the rest of its stream."""
    has_id = bool(request.headers.get(CONVERSATION_HEADER))
    return has_id and request.app[STATE].config.stream_timeout > 0


async def kept_stream(request: web.Request, bridge: Bridge, replies: Replies) -> web.StreamResponse:
    """Stream the events of a generation, which goes on if the client disconnects.

    Raises as `KeptStreams.keep`, and what the generation raises before its first event.
    """
    state = request.app[STATE]
    id = conversation_id(CONVERSATION_HEADER, request.headers[CONVERSATION_HEADER])
    writing: asyncio.Task[None] | None = None

    def stop() -> None:
        if writing is not None:
            writing.cancel()

    kept = state.streams.keep(client_of(request), id, replies.content_type, stop)
    writing = asyncio.create_task(_write_events(request, bridge, replies, kept))
    reader = Reader(request, kept)
    try:
        with state.streams.reading(kept):
            return await _pass_on(request, replies, reader)
    except (asyncio.CancelledError, ConnectionError):
        if state.running.is_cancelled:
            raise
        await wait_alone(writing, state.running)
        raise ConnectionResetError("the client is disconnected") from None
    finally:
        writing.cancel()
        state.streams.finish(kept)


async def _pass_on(request: web.Request, replies: Replies, reader: Reader) -> web.StreamResponse:
    """Pass a stream on to the client that has begun it. If the server stops, it is told so."""
    kept, running = reader.kept, request.app[STATE].running
    try:
        if not await kept.read(0):
            raise kept.error or CancelledError("the stream was stopped")
        return await reader.pass_on()
    except asyncio.CancelledError:
        stopping = running.cancelled_error()  # unless the client has disconnected
        if not kept.n_bytes:
            raise stopping from None
        kept.append(failure_bytes(request, replies, stopping))
        kept.end()
        return await reader.pass_on()


async def wait_alone(work: asyncio.Task[None], running: RunningRequests) -> None:
    """Wait until the work of a handler ends whose client has disconnected. Raises CancelledError if
    the server stops."""
    task = asyncio.current_task()
    assert task is not None, "a request has no task"
    task.uncancel()
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:  # an aborted connection tells so a little later
            if running.is_cancelled:
                raise
            task.uncancel()


async def _write_events(
    request: web.Request, bridge: Bridge, replies: Replies, kept: KeptStream
) -> None:
    """Write the events of a generation into its stream, until all choices are finished."""
    ping_s = ping_seconds(request, replies)
    try:
        kept.append(await first_bytes(bridge, replies, ping_s))
        while not are_finished(replies.choices):
            kept.append(await next_bytes(bridge, replies, ping_s))
        kept.append(end_bytes(replies))
    except Exception as error:
        if kept.n_bytes:
            kept.append(failure_bytes(request, replies, error))
        else:
            kept.error = error
    finally:
        kept.end()


class Reader:
    """Passes the bytes of a stream on to a client, from an offset on."""

    def __init__(self, request: web.Request, kept: KeptStream, offset: int = 0) -> None:
        self.kept = kept
        self._request = request
        self._offset = offset
        headers = {**STREAM_HEADERS, "Content-Type": kept.content_type}
        self._response = web.StreamResponse(headers=headers)

    async def pass_on(self) -> web.StreamResponse:
        """Write bytes until the end of the stream.

        Raises:
            ConnectionError: the client is disconnected, or has read so slowly that its next bytes
                are gone.
        """
        await self._response.prepare(self._request)
        try:
            while data := await self.kept.read(self._offset):
                await write(self._request, self._response, data)
                self._offset += len(data)
        except RequestError as error:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError(str(error)) from None
        await self._response.write_eof()
        return self._response
