"""Requests that a request contains: they pass through the application as if a client had sent each.

Knows no route. Tested by tests/server/test_vertex.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import RawRequestMessage
from aiohttp.streams import StreamReader
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from .request_ids import ID_HEADER, REQUEST_ID

# of the outer request: who sends it
KEPT: Final = ("Authorization", "X-Api-Key", "Host", "Origin", "X-Forwarded-For")
N_LIMIT: Final = 2**16  # of aiohttp's reader, which does not matter: the body is there


class InnerReply(NamedTuple):
    """The reply to an inner request."""

    status: int
    content_type: str
    body: bytes


class _Collector(AbstractStreamWriter):
    """Keeps the body of a reply."""

    def __init__(self) -> None:
        self.body = bytearray()

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        self.body += chunk
        self.output_size += len(chunk)

    async def write_eof(self, chunk: bytes = b"") -> None:
        await self.write(chunk)

    async def drain(self) -> None:
        pass

    def enable_compression(self, encoding: str = "deflate", strategy: int | None = None) -> None:
        pass

    def enable_chunking(self) -> None:
        pass

    async def write_headers(self, status_line: str, headers: Mapping[str, Any]) -> None:
        self.output_size += 1


async def post(outer: web.Request, path: str, body: bytes) -> InnerReply:
    """Send a request of the same client to another path of the server. Return the whole reply.

    `path` has the server's prefix. Errors are replies, too.
    """
    loop = asyncio.get_running_loop()
    headers = CIMultiDict({name: outer.headers[name] for name in KEPT if name in outer.headers})
    headers["Content-Type"] = "application/json"
    headers["Content-Length"] = str(len(body))
    headers[ID_HEADER] = outer[REQUEST_ID]
    raw = tuple((name.encode(), value.encode()) for name, value in headers.items())
    message = RawRequestMessage(
        *("POST", path, outer.version, CIMultiDictProxy(headers), raw),
        *(False, None, False, False, URL.build(path=path)),
    )
    content = StreamReader(BaseProtocol(loop), N_LIMIT, loop=loop)
    content.feed_data(body)
    content.feed_eof()
    writer, task = _Collector(), asyncio.current_task()
    assert task is not None, "an inner request needs a task of its own"
    inner = web.Request(
        *(message, content, outer.protocol, writer, task, loop), remote=outer.remote
    )
    response = await outer.app._handle(inner)
    return InnerReply(response.status, response.content_type, bytes(writer.body))
