"""The routes of streams that outlive their connections, as llama-server's.

    GET /v1/stream?conv_id=ID&from=N     the bytes from an offset on, and those that follow
    DELETE /v1/stream?conv_id=ID         stops the generation, and forgets the stream
    POST /v1/streams/lookup              which of these streams there are

Tested by tests/server/test_http_kept_streams.py.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from aiohttp import web
from pydantic import Field

from ..base.errors import RequestError
from .bodies import work_on_body
from .clients import client_of
from .kept_streaming import N_ID_CHARS, Reader, conversation_id
from .kept_streams import KeptStream
from .parsing import parse_body
from .routes import json_response
from .schema import Body
from .state import STATE

STREAM_PATH: Final = "/v1/stream"
LOOKUP_PATH: Final = "/v1/streams/lookup"
N_LOOKUP_MAX: Final = 1024
N_DIGITS: Final = 18  # of an offset


class LookupBody(Body):
    """POST /v1/streams/lookup: the ids that a client knows."""

    conversation_ids: list[Annotated[str, Field(max_length=N_ID_CHARS)]] = Field(
        max_length=N_LOOKUP_MAX
    )


def asked_id(request: web.Request) -> str:
    """The id in the query. Raises RequestError if there is none."""
    id = request.query.get("conv_id", "")
    if not id:
        raise RequestError('"conv_id" is missing in the query')
    return conversation_id('"conv_id"', id)


def _offset(request: web.Request) -> int:
    """The offset in the query. Raises RequestError."""
    given = request.query.get("from", "") or "0"
    if not (given.isascii() and given.isdigit()) or len(given) > N_DIGITS:
        raise RequestError(f'"from" must be a number of bytes, found {given:.40}')
    return int(given)


async def attach(request: web.Request) -> web.StreamResponse:
    """The bytes of a stream from an offset on, and those that follow."""
    streams, offset = request.app[STATE].streams, _offset(request)
    kept = streams.get(client_of(request), asked_id(request))
    if kept is None:
        raise web.HTTPNotFound(text="Stream not found or expired")
    kept.check(offset)
    with streams.reading(kept):
        return await Reader(request, kept, offset).pass_on()


async def stop(request: web.Request) -> web.Response:
    """End a generation and forget its stream. The reply is the same if there is none."""
    streams = request.app[STATE].streams
    kept = streams.get(client_of(request), asked_id(request))
    if kept is not None:
        streams.remove(kept)
    return web.Response(status=204)


async def lookup(request: web.Request) -> web.Response:
    """Those of the given streams that there are."""
    body = await work_on_body(request, lambda raw: parse_body(LookupBody, raw))
    found = request.app[STATE].streams.matching(client_of(request), set(body.conversation_ids))
    return json_response([_entry(kept) for kept in found])


def _entry(kept: KeptStream) -> dict[str, Any]:
    return {
        "conversation_id": kept.id,
        "is_done": kept.is_done,
        "total_bytes": kept.n_bytes,
        "started_at": int(kept.t_begin),
        "completed_at": int(kept.t_end),
    }


ROUTES: Final = (
    web.get(STREAM_PATH, attach, allow_head=False),  # a stream has no length
    web.delete(STREAM_PATH, stop),
    web.post(LOOKUP_PATH, lookup),
)
