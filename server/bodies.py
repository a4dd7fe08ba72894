"""Bodies of requests: read within limits, and handled in threads that leave cores to others.

A body that is too long is refused before it is read, and long ones have a limit together
(body_memory.py). Work on a body runs in a thread: bodies of similar size take turns, by client, and
beside running texts long bodies get a part of one core only. Work that reads stored texts counts
them as its body. Knows no route and no field.
Tested by tests/server/test_bodies.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler

from ..base.units import size_text
from .body_memory import HeldBody
from .clients import client_of
from .http_errors import ENCODINGS
from .request_log import record_body
from .state import STATE, Role, ServerState, generates, has_others_texts
from .threads import N_REST, N_REST_LONG, in_turn

Result = TypeVar("Result")

MIB: Final = 1024 * 1024
N_BYTES_LEAST: Final = MIB  # always allowed: a short context may get many texts, or a large schema
N_BYTES_MOST: Final = 16 * MIB  # unless --max-body says more
N_BYTES_LONG: Final = 64 * 1024  # shorter bodies do not count in `BodyMemory`
N_BYTES_LANES: Final = (16 * 1024, 256 * 1024)  # a body waits only for others of its size
# of a body whose request is refused: the time to read what is left, and the pause after each part,
# which has up to 256 KiB; also beside texts of others
N_DISCARD_SECONDS: Final = 2.0
PAUSE_SECONDS: Final = 0.002
PAUSE_SECONDS_OTHERS: Final = 0.05


@dataclass(frozen=True, slots=True)
class LongerWork(Generic[Result]):
    """The rest of work on a body, which reads as much as a body of `n_bytes`."""

    n_bytes: int
    rest: Callable[[], Result]


def work_of_size(
    n_body: int, n_stored: int, work: Callable[[], Result]
) -> Result | LongerWork[Result]:
    """Return `work()`, or the work itself if it has to wait for longer bodies than its own."""
    n_bytes = n_body + n_stored
    return work() if _lane(n_bytes) == _lane(n_body) else LongerWork(n_bytes, work)


async def work_on_body(
    request: web.Request, work: Callable[[bytes], Result | LongerWork[Result]]
) -> Result:
    """Return `work(body)`, called in a thread. The rest of `LongerWork` waits for its own size.

    Raises:
        HTTPRequestEntityTooLarge: the body is too long. HTTPRequestTimeout: it is late.
        HTTPUnsupportedMediaType: it has an unknown encoding, or is a form.
        OverloadedError: it has no room beside those of others. ClientLimitError: of this client.
    """
    with request.app[STATE].bodies.body(client_of(request)) as held:
        raw = await read_body(request, held)
        done = await in_lane(request, len(raw), partial(work, raw))
        if isinstance(done, LongerWork):
            return await in_lane(request, done.n_bytes, done.rest)
        return done


async def in_lane(request: web.Request, n_bytes: int, work: Callable[[], Result]) -> Result:
    """Return `work()`, called in a thread: it waits for work on bodies of similar size."""
    lane, rest = _lane(n_bytes), partial(_rest, request, _lane(n_bytes))
    return await in_turn(request.app[STATE].lanes[lane], client_of(request), work, rest=rest)


def _lane(n_bytes: int) -> int:
    return sum(n_bytes >= n_begin for n_begin in N_BYTES_LANES)


def _rest(request: web.Request, lane: int) -> float:
    """Seconds of rest for each second of work: texts wait for work on long bodies."""
    if not lane or not generates(request.app[STATE].model):
        return 0.0
    return N_REST_LONG if has_others_texts(request) else N_REST


@web.middleware
async def discard_rest(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware: reads what a handler has left of a body, slowly and in turns of clients. Many
    clients read no reply before they have sent all, and lose it if the connection is closed."""
    response = await handler(request)
    if not request.content.is_eof():
        state, client = request.app[STATE], client_of(request)
        with suppress(TimeoutError, web.RequestPayloadError):
            async with asyncio.timeout(N_DISCARD_SECONDS), state.discards.of(client):
                while await request.content.readany():
                    others = has_others_texts(request)
                    await asyncio.sleep(PAUSE_SECONDS_OTHERS if others else PAUSE_SECONDS)
    return response


def n_bytes_max(state: ServerState) -> int:
    """The most bytes of a body: what a prompt that fills the context can have, within limits."""
    if state.config.max_body:
        return state.config.max_body * MIB
    if state.role is Role.ROUTER:
        return N_BYTES_MOST  # the model's process knows its own limit
    if state.model is None:
        return N_BYTES_LEAST
    n_context = state.model.n_ctx * state.model.vocab.n_piece_bytes_max
    return min(max(n_context, N_BYTES_LEAST), N_BYTES_MOST)


async def read_body(request: web.Request, held: HeldBody) -> bytes:
    """The body. Raises as `work_on_body`."""
    state = request.app[STATE]
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", *ENCODINGS):
        raise web.HTTPUnsupportedMediaType(
            text=f"the body's encoding {encoding[:40]!r} is not one of {', '.join(ENCODINGS)}, "
            "identity",
            headers={"Accept-Encoding": ", ".join(ENCODINGS)},
        )
    if request.content_type.startswith("multipart/"):
        raise web.HTTPUnsupportedMediaType(
            text=f"the body must be JSON, found the content type {request.content_type[:80]!r}"
        )
    n_max = n_bytes_max(state)
    n_announced = request.content_length  # of the encoded body; None if it comes in chunks
    if n_announced is not None and n_announced > n_max:
        raise _too_long(n_announced, n_max)
    n_seconds = state.config.timeout
    try:
        async with asyncio.timeout(n_seconds):
            raw = await _read_parts(request, n_max, partial(state.bodies.grow, held))
    except TimeoutError:
        text = f"the body did not arrive within {n_seconds} s"
        raise web.HTTPRequestTimeout(text=text) from None
    record_body(request, raw)
    return raw


async def _read_parts(request: web.Request, n_max: int, grow: Callable[[int], None]) -> bytes:
    body = bytearray()
    while part := await request.content.readany():
        body += part
        if len(body) > n_max:
            raise _too_long(len(body), n_max)
        if len(body) > N_BYTES_LONG:
            grow(len(body))
    return bytes(body)


def _too_long(n_bytes: int, n_max: int) -> web.HTTPRequestEntityTooLarge:
    return web.HTTPRequestEntityTooLarge(
        n_max,
        n_bytes,
        text=f"the body has at least {size_text(n_bytes)}, the limit is {size_text(n_max)}: what "
        "the context can hold, or --max-body",
    )
