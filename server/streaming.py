"""Writes the events of a request to its connection as they come.

An `EventStream` is called by its bridge once per step, and writes to the transport at once: no task
runs for each token. If the client does not read, the connection's buffer fills up; then the stream
takes no more events, and the bridge pauses the generation. Other streams go on. A client that reads
nothing for `--write-timeout` seconds is disconnected.
Tested by tests/server/test_http_stream.py and test_http_slow_reader.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from aiohttp import HttpVersion11, web

from .bridge import Bridge, ChoiceEvent, apply_events, are_finished
from .http_errors import status_and_body
from .replies import Replies
from .request_ids import REQUEST_ID
from .request_log import record_of
from .sse import DONE
from .state import STATE
from .writing import time_limit

STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx: pass each event on immediately
}


def ping_seconds(request: web.Request, replies: Replies) -> float | None:
    """Seconds of silence before a ping; None: no pings."""
    given = replies.body.sse_ping_interval
    interval = request.app[STATE].config.sse_ping_interval if given is None else given
    return interval if interval > 0 else None


async def first_bytes(bridge: Bridge, replies: Replies, ping_s: float | None) -> bytes:
    """Wait for the first events, and return the begin of a stream. Raises as `next_bytes`."""
    events = await bridge.events(ping_s)
    begin = replies.bytes_of(replies.first_chunks())  # now the choices know what was cached
    return begin + _bytes_of(events, replies)


async def next_bytes(bridge: Bridge, replies: Replies, ping_s: float | None) -> bytes:
    """Wait for events. Return their bytes, or a ping. Raises LamellaError: a generation failed."""
    return _bytes_of(await bridge.events(ping_s), replies)


def _bytes_of(events: Sequence[ChoiceEvent], replies: Replies) -> bytes:
    if not events:
        return replies.ping_bytes()
    updates = apply_events(events, replies.choices)
    return b"".join(replies.told_frames(*update) for update in updates)


def end_bytes(replies: Replies) -> bytes:
    """The last bytes of a stream, after all choices are finished."""
    end = replies.bytes_of(replies.last_chunks())
    return end + DONE if replies.ends_with_done else end


def failure_bytes(request: web.Request, replies: Replies, error: BaseException) -> bytes:
    """The last bytes of a stream that fails. Record the error."""
    body = status_and_body(error)[1]
    record = record_of(request)
    record.end, record.kind = body["error"]["message"], body["error"]["type"]
    return replies.bytes_of(replies.failure(body, request[REQUEST_ID]))


class EventStream:
    """The events of one request. The head of its response must have been sent."""

    def __init__(
        self, request: web.Request, bridge: Bridge, replies: Replies, ping_s: float | None
    ) -> None:
        """`ping_s`: seconds of silence before a ping; None: no pings."""
        self._request = request
        self._transport, self._protocol = request.transport, request.protocol
        self._bridge = bridge
        self._replies = replies
        self._ping_s = ping_s
        self._loop = asyncio.get_running_loop()
        self._is_chunked = request.version >= HttpVersion11
        self._t_written = self._loop.time()
        # exists while events are written; True: all are, False: the client must read first
        self._stopped: asyncio.Future[bool] | None = None

    async def run(self) -> None:
        """Write events until all choices are finished.

        Raises:
            LamellaError: a generation failed.
            ConnectionError: the client is disconnected, or did not read in time.
        """
        self._bridge.on_events = self._on_events
        pings = None if self._ping_s is None else asyncio.create_task(self._ping(self._ping_s))
        try:
            while not await self._write_until_stopped():
                async with time_limit(self._request):
                    await self._request.writer.drain()
        finally:
            self._stopped = None
            if pings is not None:
                pings.cancel()

    async def _write_until_stopped(self) -> bool:
        """Return True at the end, False if the connection's buffer is full. Raises as `run`."""
        self._stopped = self._loop.create_future()
        self._on_events()
        return await self._stopped

    def _on_events(self) -> None:
        """Write new events."""
        if self._stopped is None or self._stopped.done():
            return
        frames, choices = self._replies.told_frames, self._replies.choices
        try:
            updates = apply_events(self._bridge.take(), choices)
            self._write(b"".join([frames(*update) for update in updates]))
        except Exception as error:
            self._stopped.set_exception(error)
            return
        if choices[0].result is not None and are_finished(choices):  # most requests have one
            self._stopped.set_result(True)
        elif self._protocol.writing_paused:
            self._stopped.set_result(False)
        elif self._bridge.has_events:
            self._loop.call_soon(self._on_events)

    def _write(self, data: bytes) -> None:
        if not data:
            return
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is disconnected")
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)
        self._t_written = self._loop.time()

    async def _ping(self, seconds: float) -> None:
        """Write a ping after each silence of `seconds`."""
        while True:
            silent = self._loop.time() - self._t_written
            if silent < seconds:
                await asyncio.sleep(seconds - silent)
            elif self._stopped is not None and not self._stopped.done():
                try:
                    self._write(self._replies.ping_bytes())
                except ConnectionError as error:
                    self._stopped.set_exception(error)
            else:  # the client does not read what there is
                await asyncio.sleep(seconds)
