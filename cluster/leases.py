"""Leases of a replica: each lets one request reach its server, and says when that has ended.

The server listens on its machine's address, so that other machines reach it; without a lease it
answers nothing. A lease counts as a running request for Ray, from which its holder has it. Knows no
Ray. Tested by tests/cluster/test_leases.py.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from .calls import LEASE_HEADER

BEGIN_S: Final = 30.0  # a lease whose request has not come by then ends
N_SECRET_BYTES: Final = 16


class _Lent:
    """A lease that is not ended. Its request begins and ends in the server's thread."""

    __slots__ = ("begun", "ended", "is_used", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.begun, self.ended = asyncio.Event(), asyncio.Event()
        self.is_used = False

    def set(self, event: asyncio.Event) -> None:
        """Set an event, from the server's thread."""
        with suppress(RuntimeError):  # the loop is closed, as its holder is gone
            self.loop.call_soon_threadsafe(event.set)


class Leases:
    """The leases of a replica. `lend` runs in any event loop, `admit` in the server's."""

    def __init__(self) -> None:
        self._lent: dict[str, _Lent] = {}

    async def lend(self) -> AsyncGenerator[str]:
        """Yield the secret of a new lease; then wait until its request has ended, or has not come
        in time."""
        secret, lent = secrets.token_hex(N_SECRET_BYTES), _Lent()
        self._lent[secret] = lent
        try:
            yield secret
            with suppress(TimeoutError):
                await asyncio.wait_for(lent.begun.wait(), BEGIN_S)
            if lent.is_used:
                await lent.ended.wait()
        finally:
            del self._lent[secret]

    def middleware(self) -> Middleware:
        """Answers requests that have a lease. Each lease is for one request."""

        @web.middleware
        async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
            lent = self._lent.get(request.headers.get(LEASE_HEADER, ""))
            if lent is None or lent.is_used:
                raise web.HTTPForbidden(text="this server answers to its ingress only")
            lent.is_used = True
            lent.set(lent.begun)
            try:
                return await handler(request)
            finally:
                lent.set(lent.ended)

        return admit
