"""Streams of clients that send `X-Conversation-Id`, as llama-server's.

A task writes the events of the generation into a `KeptStream`, and the handler passes them on. If
the client disconnects, the handler stays until the generation ends, so that the request keeps its
place in all limits, in the log and when the server stops.
Tested by tests/server/test_http_kept_streams.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from aiohttp import web

from ..base.errors import CancelledError, RequestError
from .bridge import Bridge, are_finished
from .clients import client_of
from .draining import STOPPING, RunningRequests
from .kept_streams import KeptStream
from .replies import Replies
from .request_log import record_of
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
        bridge.close()  # now: the handler may wait for a client that does not read
        if writing is not None:
            writing.cancel()

    kept = state.streams.keep(client_of(request), id, replies.content_type, stop)
    writing = asyncio.create_task(_write_events(request, bridge, replies, kept))

    def tell_end(why: str = STOPPING) -> None:
        """Say to all readers why the stream ends before its generation."""
        if kept.n_bytes and not kept.is_done:
            kept.append(failure_bytes(request, replies, CancelledError(why)))
            kept.end()

    try:
        with state.streams.reading(kept):
            return await Reader(request, kept, when_stopping=tell_end).pass_on()
    except (asyncio.CancelledError, ConnectionError):
        if state.running.is_cancelled:
            raise
        n_seconds = state.config.request_timeout
        await wait_alone(
            writing, state.running, n_seconds and record_of(request).t_start + n_seconds
        )
        if not writing.done():
            tell_end(f"the request took longer than {n_seconds} s (--request-timeout)")
        raise ConnectionResetError("the client is disconnected") from None
    finally:
        if state.running.is_cancelled:
            tell_end()
        writing.cancel()
        state.streams.finish(kept)


async def wait_alone(
    work: asyncio.Task[None], running: RunningRequests, t_end: float = 0.0
) -> None:
    """Wait until the work of a handler ends whose client has disconnected, at most until `t_end` of
    `time.perf_counter`; 0: no limit. Raises CancelledError if the server stops."""
    task = asyncio.current_task()
    assert task is not None, "a request has no task"
    task.uncancel()
    while not work.done():
        n_seconds = t_end - time.perf_counter() if t_end else None
        if n_seconds is not None and n_seconds <= 0:
            return
        try:
            await asyncio.wait({work}, timeout=n_seconds)
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

    def __init__(
        self,
        request: web.Request,
        kept: KeptStream,
        offset: int = 0,
        when_stopping: Callable[[], None] = lambda: None,
    ) -> None:
        """`when_stopping` is called if the server stops: it ends the stream, unless others do."""
        self._kept = kept
        self._request = request
        self._offset = offset
        self._when_stopping = when_stopping
        headers = {**STREAM_HEADERS, "Content-Type": kept.content_type}
        self._response = web.StreamResponse(headers=headers)

    async def pass_on(self) -> web.StreamResponse:
        """Write bytes until the end of the stream. The response starts with the first of them.

        Raises:
            ConnectionError: the client is disconnected, or has read so slowly that its next bytes
                are gone.
            Exception: why the stream ended before its first byte.
        """
        try:
            return await self._write_rest()
        except asyncio.CancelledError:
            stopping = self._request.app[STATE].running.cancelled_error()  # or the client is gone
            self._when_stopping()
            if not self._kept.n_bytes:
                raise stopping from None
            return await self._write_rest()

    async def _write_rest(self) -> web.StreamResponse:
        data = await self._next()
        if not self._kept.n_bytes:
            raise self._kept.error or CancelledError("the stream was stopped")
        await self._response.prepare(self._request)
        while data:
            await write(self._request, self._response, data)
            self._offset += len(data)
            data = await self._next()
        await self._response.write_eof()
        return self._response

    async def _next(self) -> bytes:
        try:
            return await self._kept.read(self._offset)
        except RequestError as error:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError(str(error)) from None
