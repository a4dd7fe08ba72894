"""Bodies of requests to the ingress: read within limits, and decoded.

The ingress looks for fields in them, so it decodes them: replicas get plain ones. Those that have
not arrived wholly have a limit together (server/body_memory.py). Knows no Ray and no field.
Tested by tests/cluster/test_ingress.py.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

from aiohttp import web

from ..base.errors import RequestError
from ..base.units import size_text
from ..server.bodies import MIB
from ..server.body_memory import BodyMemory
from ..server.clients import network_of
from ..server.state import N_LONGEST, N_MIB_BODIES

Receive = Callable[[], Awaitable[Mapping[str, Any]]]

IDENTITY: Final = "identity"
ENCODINGS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
INVALID: Final = "the body's encoding is invalid"


class Bodies:
    """Reads bodies of at most `n_max` bytes, each within `n_seconds`; 0: HTTP's server has a limit
    of its own. Belongs to one event loop."""

    def __init__(self, n_max: int, n_seconds: float) -> None:
        self.n_max = n_max
        self._n_seconds = n_seconds
        self._memory = BodyMemory(max(N_MIB_BODIES * MIB, N_LONGEST * n_max))

    async def read(self, receive: Receive, client: str) -> bytes | None:
        """The body of a request from an address; None if its client disconnects.

        Raises:
            HTTPRequestEntityTooLarge: it is too long. HTTPRequestTimeout: it is late.
            OverloadedError, ClientLimitError: it has no room beside others.
        """
        try:
            with self._memory.body(network_of(client)) as held:
                async with asyncio.timeout(self._n_seconds) if self._n_seconds else nullcontext():
                    return await self._read(receive, partial(self._memory.grow, held))
        except TimeoutError:
            text = f"the body did not arrive within {self._n_seconds:g} s"
            raise web.HTTPRequestTimeout(text=text) from None

    async def _read(self, receive: Receive, grow: Callable[[int], None]) -> bytes | None:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self.n_max:
                raise _too_long(self.n_max, len(body))
            grow(len(body))
            if not message.get("more_body", False):
                return bytes(body)

    def decoded(self, body: bytes, encoding: str) -> bytes:
        """A body without its encoding.

        Raises:
            RequestError: it has another one. HTTPUnsupportedMediaType: that is not known.
            HTTPRequestEntityTooLarge: the result is too long.
        """
        encoding = encoding.strip().lower()
        if encoding == IDENTITY or not body:
            return body
        if encoding not in ENCODINGS:
            known = ", ".join(ENCODINGS)
            raise web.HTTPUnsupportedMediaType(
                text=f"the body's encoding {encoding[:40]!r} is not one of {known}, {IDENTITY}",
                headers={"Accept-Encoding": known},
            )
        decoder = zlib.decompressobj(ENCODINGS[encoding])
        try:
            found = decoder.decompress(body, self.n_max + 1)
        except zlib.error:
            raise RequestError(INVALID) from None
        if len(found) > self.n_max:
            raise _too_long(self.n_max, len(found))
        if not decoder.eof or decoder.unused_data:
            raise RequestError(INVALID)
        return found


def _too_long(n_max: int, n_bytes: int) -> web.HTTPRequestEntityTooLarge:
    text = f"the body has more than {size_text(n_max)}"
    return web.HTTPRequestEntityTooLarge(n_max, n_bytes, text=text)
