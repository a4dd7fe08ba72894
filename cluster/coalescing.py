"""Fewer messages for many streams: each message of an ingress behind Ray Serve costs a millisecond.

A stream's bytes that follow others within a gap wait for its end, and go as one message. The gap
grows with the number of streams: a single one of a large model waits for nothing, and many share
about `N_PER_S` messages a second. A stream whose client is slow waits for it. Knows no Ray and no
route.
Tested by tests/cluster/test_coalescing.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

App = Callable[..., Awaitable[None]]  # of ASGI
Message = Mapping[str, Any]

N_PER_S: Final = 160  # messages of all streams
GAP_MAX_S: Final = 0.05
N_WAITING_MAX: Final = 64 * 1024  # bytes of a stream; then it waits for its client


class Coalescing:
    """An ASGI application that sends what another one sends, in fewer messages."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._n_streams = 0

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: App) -> None:
        """Answer an ASGI request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._n_streams += 1
        stream = _Stream(send, self.gap_s)
        try:
            await self._app(scope, receive, stream.send)
        finally:
            self._n_streams -= 1
            stream.forget()

    def gap_s(self) -> float:
        """Seconds between two messages of a stream."""
        return min(self._n_streams / N_PER_S, GAP_MAX_S)


class _Stream:
    """The messages of one reply."""

    def __init__(self, send: App, gap_s: Callable[[], float]) -> None:
        self._send, self._gap_s = send, gap_s
        self._waiting = bytearray()
        self._later: asyncio.Task[None] | None = None  # sends what waits
        self._is_sleeping = False  # it has not begun to
        self._t_next = 0.0

    async def send(self, message: Message) -> None:
        """Send a message, or let its bytes wait. Waits itself if too many do. Raises what sending
        what waited has raised."""
        if message["type"] != "http.response.body":
            await self._send(message)
            return
        body, is_last = message.get("body", b""), not message.get("more_body", False)
        is_full = len(self._waiting) + len(body) > N_WAITING_MAX
        later = self._later
        if later is not None and (is_last or is_full or later.done()):
            self._later = None
            if self._is_sleeping:
                later.cancel()
                self._is_sleeping = False
            else:
                await later
        self._waiting += body
        seconds = self._t_next - asyncio.get_running_loop().time()
        if is_last:
            await self._send({**message, "body": bytes(self._waiting)})
        elif self._later is None and (is_full or seconds <= 0):
            await self._send_waiting()
        elif self._later is None:
            self._is_sleeping = True
            self._later = asyncio.create_task(self._wait_and_send(seconds))

    def forget(self) -> None:
        """Send no more by itself."""
        if self._later is not None:
            self._later.cancel()

    async def _wait_and_send(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._is_sleeping = False
        while self._waiting:  # more may come while it is sent
            await self._send_waiting()

    async def _send_waiting(self) -> None:
        self._t_next = asyncio.get_running_loop().time() + self._gap_s()
        body, self._waiting = bytes(self._waiting), bytearray()
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
