"""Passes requests on to the process of their model, and its replies back, byte by byte.

Bodies are not changed. Parts of replies are passed on as they come; if the client does not read,
the process waits. If the client disconnects, so does the router. If the process ends, its requests
get status 503, or an error event in a stream. Tested by tests/cli/test_serve_models.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import aiohttp
from aiohttp import web
from yarl import URL

from ...base.errors import LamellaError, UnavailableError
from ..bodies import in_lane, read_body
from ..broken_streams import ENDS, WholeEvents, failure_of
from ..clients import OWN_PREFIX, client_headers, client_of
from ..given import Given
from ..http_errors import error_body, status_and_body
from ..kept_streaming import keeps_stream, wait_alone
from ..ollama.keep_alive import FIELD as KEEP_ALIVE
from ..ollama.keep_alive import keep_seconds
from ..ollama.replies import now_text
from ..request_ids import ID_HEADER, REQUEST_ID
from ..request_log import record_of
from ..routes import json_response
from ..routes_streams import LOOKUP_PATH, STREAM_PATH, asked_id
from ..state import STATE, own_path
from ..writing import write
from .body import is_empty_in, model_in, scalar_in
from .child import N_GET_SECONDS, ORIGIN, Child
from .member import Member, State
from .router import ROUTER

OLLAMA_PREFIX: Final = "/api/"
CHAT_PATH: Final = "/api/chat"
GENERATING: Final = {CHAT_PATH: "messages", "/api/generate": "prompt"}  # and the field of the text
POLLS: Final = frozenset({"/metrics", "/status.json", "/slots"})  # of monitors and pages
N_PART_BYTES: Final = 256 * 1024  # of a body that is sent

# between two machines only (RFC 9110), or what the router itself answers for
_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te"),
        *("trailer", "transfer-encoding", "upgrade", "proxy-connection"),
    }
)
_NOT_SENT: Final = _HOP | {
    *("host", "content-length", "content-encoding", "expect", "authorization", "x-api-key"),
    *("cookie", "origin", ID_HEADER.lower()),
}
_NOT_RETURNED: Final = _HOP | {
    *("server", "date", "vary", ID_HEADER.lower(), "request-id"),
    *("access-control-allow-origin", "access-control-allow-credentials"),
}


async def forward_body(request: web.Request) -> web.StreamResponse:
    """Pass on a request whose body names the model.

    Raises:
        HTTPException: there is no such model, or it is not loaded and shall not be.
        UnavailableError: it cannot be loaded now, or its process has ended.
    """
    state = request.app[STATE]
    async with AsyncExitStack() as stack:
        # the body counts until the process has it
        with state.bodies.body(client_of(request)) as held:
            raw = await read_body(request, held)
            wishes = await in_lane(request, len(raw), partial(_wishes, own_path(request), raw))
            name = wishes.model or request.query.get("model")
            if name is None and _is_kept(request):
                return await _forward_to_owner(request)
            member = request.app[ROUTER].member(name)
            if wishes.only_unloads:
                request.app[ROUTER].fleet.release(member)
                return _unloaded(request, name or member.name)
            child = await _enter(stack, request, member, keep=wishes.keep)
            reply = await _send(stack, request, child, raw)
            del raw
        return await _pass_all_back(request, child, reply)


async def forward_named(
    request: web.Request, member: Member, raw: bytes, *, is_work: bool
) -> web.StreamResponse:
    """Pass on a request for a model, with its body. Raises as `forward_body`."""
    async with AsyncExitStack() as stack:
        child = await _enter(stack, request, member, is_work=is_work)
        return await _pass_back(request, child, await _send(stack, request, child, raw))


class _Wishes(NamedTuple):
    """What a body says to the router.

    Attributes:
        model: the name of the model.
        keep: ollama's `keep_alive` in seconds.
        only_unloads: it asks for nothing but to take the model out of memory.
    """

    model: str | None
    keep: float | None = None
    only_unloads: bool = False


def _wishes(path: str, raw: bytes) -> _Wishes:
    """Read what a body says to the router. Raises RequestError."""
    name = model_in(raw)
    if not path.startswith(OLLAMA_PREFIX):
        return _Wishes(name)
    keep = keep_seconds(Given(KEEP_ALIVE, scalar_in(raw, KEEP_ALIVE)))
    is_empty = path in GENERATING and all(is_empty_in(raw, key) for key in GENERATING.values())
    return _Wishes(name, keep, only_unloads=keep == 0 and is_empty)


def _unloaded(request: web.Request, name: str) -> web.Response:
    """The reply to a request that only unloads a model."""
    text = {"message": {"role": "assistant", "content": ""}}
    answer = text if own_path(request) == CHAT_PATH else {"response": ""}
    ended = {"created_at": now_text(), **answer, "done": True, "done_reason": "unload"}
    return json_response({"model": name, **ended})


async def forward_query(request: web.Request) -> web.StreamResponse:
    """Pass on a request without a body. `?model=` names the model. Raises as `forward_body`."""
    router = request.app[ROUTER]
    name = request.query.get("model")
    if name is None and _is_kept(request):
        return await _forward_to_owner(request)
    async with AsyncExitStack() as stack:
        child = await _enter(stack, request, router.member(name))
        return await _pass_back(request, child, await _send(stack, request, child, b""))


def _is_kept(request: web.Request) -> bool:
    """True for a request about a stored response or a kept stream: any model may have it."""
    is_stored = "/responses/" in request.path and "id" in request.match_info
    return is_stored or own_path(request) == STREAM_PATH


async def _forward_to_owner(request: web.Request) -> web.StreamResponse:
    """Pass on a request for something that a model keeps to the one that has it."""
    id = request.match_info.get("id") or asked_id(request)
    member = await _owner(request, id)
    if member is None:
        raise web.HTTPNotFound(text=f"no loaded model has {id[:200]!r}")
    async with AsyncExitStack() as stack:
        child = await _enter(stack, request, member)
        return await _pass_back(request, child, await _send(stack, request, child, b""))


async def _owner(request: web.Request, id: str) -> Member | None:
    """The loaded model that has a stored response, or a kept stream; None if none says so in time.
    All are asked at once, and the first that has it is enough."""

    async def asked(member: Member) -> Member | None:
        return member if await _has(request, member, id) else None

    asking = [asyncio.create_task(asked(member)) for member in _loaded(request)]
    try:
        for answer in asyncio.as_completed(asking):
            if (owner := await answer) is not None:
                return owner
        return None
    finally:
        for task in asking:
            task.cancel()


async def _has(request: web.Request, member: Member, id: str) -> bool:
    """True if a model has what `_is_kept` is about. A reply with a stream may be late, so it is
    looked up."""
    if own_path(request) != STREAM_PATH:
        path = f"/v1/responses/{quote(id, safe='')}"
        reply = await _asked(request, member, "HEAD", path, b"")
        return reply is not None and reply[0] == web.HTTPOk.status_code
    lookup = json.dumps({"conversation_ids": [id]}).encode()
    reply = await _asked(request, member, "POST", LOOKUP_PATH, lookup)
    if reply is None or reply[0] != web.HTTPOk.status_code:
        return False
    return any(entry["conversation_id"] == id for entry in json.loads(reply[1]))


async def lookup_streams(request: web.Request) -> web.StreamResponse:
    """Those of the given streams that the loaded models keep."""
    with request.app[STATE].bodies.body(client_of(request)) as held:
        raw = await read_body(request, held)
    found: list[Any] = []
    for status, body in await _asked_each(request, raw):
        if status != web.HTTPOk.status_code:  # the same of all: the request is wrong
            return web.Response(status=status, body=body, content_type="application/json")
        found += json.loads(body)
    return json_response(found)


async def stop_stream(request: web.Request) -> web.StreamResponse:
    """Stop a stream that a loaded model may keep."""
    asked_id(request)
    await _asked_each(request, b"")
    return web.Response(status=web.HTTPNoContent.status_code)


def _loaded(request: web.Request) -> Iterator[Member]:
    """The models that are loaded when their turn comes."""
    return (one for one in request.app[ROUTER].fleet if one.state is State.LOADED)


async def _asked_each(request: web.Request, raw: bytes) -> list[tuple[int, bytes]]:
    """The statuses and bodies of the short replies of all loaded models, but for those that do not
    reply."""
    path = _path(request)
    asked = (_asked(request, each, request.method, path, raw) for each in _loaded(request))
    return [reply for reply in await asyncio.gather(*asked) if reply is not None]


async def _asked(
    request: web.Request, member: Member, method: str, path: str, raw: bytes
) -> tuple[int, bytes] | None:
    """The status and the body of a short reply; None if the model has ended, or does not reply in
    time. It stays in memory no longer for that."""
    with suppress(UnavailableError, web.HTTPException, aiohttp.ClientError, OSError):
        async with asyncio.timeout(N_GET_SECONDS), AsyncExitStack() as stack:
            child = await _enter(stack, request, member, is_work=False)
            reply = await _send_to(stack, request, child, method, path, raw)
            return reply.status, await reply.read()
    return None


async def _enter(
    stack: AsyncExitStack,
    request: web.Request,
    member: Member,
    *,
    is_work: bool = True,
    keep: float | None = None,
) -> Child:
    """The process of a model, which stays until the end of the stack. A poll loads none."""
    router = request.app[ROUTER]
    if own_path(request) in POLLS and member.state is not State.LOADED:
        raise UnavailableError(f'the model "{member.name}" is {member.state.value}')
    if not router.loads(request):
        if member.state is State.FAILED:
            raise UnavailableError(member.error)
        if member.state is State.UNLOADED:
            raise web.HTTPBadRequest(
                text=f'the model "{member.name}" is not loaded: POST /models/load, or start the '
                "server without --no-models-autoload"
            )
    is_work = is_work and request.method not in ("GET", "HEAD")
    return await stack.enter_async_context(router.fleet.use(member, is_work=is_work, keep=keep))


async def _send(
    stack: AsyncExitStack, request: web.Request, child: Child, raw: bytes
) -> aiohttp.ClientResponse:
    """Send the request. Return the head of its reply. Raises UnavailableError."""
    return await _send_to(stack, request, child, request.method, _path(request), raw)


def _path(request: web.Request) -> str:
    """The path and the query of a request, without the server's prefix."""
    return request.rel_url.raw_path_qs.removeprefix(request.app[STATE].config.prefix)


async def _send_to(
    stack: AsyncExitStack, request: web.Request, child: Child, method: str, path: str, raw: bytes
) -> aiohttp.ClientResponse:
    """Send a request with the headers of another one. Return the head of its reply.

    Raises:
        UnavailableError: the process has ended.
    """
    headers = _headers(request)
    data: bytes | AsyncIterator[bytes] | None = None
    if method not in ("GET", "HEAD"):
        headers["Content-Length"] = str(len(raw))
        data = raw if len(raw) <= N_PART_BYTES else _parts(raw)
    url = URL(ORIGIN + path, encoded=True)
    try:
        return await stack.enter_async_context(
            child.session.request(method, url, headers=headers, allow_redirects=False, data=data)
        )
    except (aiohttp.ClientError, OSError) as error:
        raise await _ended(child, error) from None


async def _parts(raw: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(raw), N_PART_BYTES):
        yield raw[begin : begin + N_PART_BYTES]


def _headers(request: web.Request) -> dict[str, str]:
    named = request.headers.get("Connection", "").lower().replace(" ", "").split(",")
    refused = _NOT_SENT.union(named)
    kept = {
        name: value
        for name, value in request.headers.items()
        if name.lower() not in refused and not name.lower().startswith(OWN_PREFIX.lower())
        if value.isascii()  # other bytes cannot be sent, and mean nothing to a model
    }
    return kept | client_headers(request) | {ID_HEADER: request[REQUEST_ID]}


async def _pass_back(
    request: web.Request, child: Child, reply: aiohttp.ClientResponse
) -> web.StreamResponse:
    """Pass on the reply. Raises ConnectionError if the client does not read it."""
    record = record_of(request)
    headers = _returned(reply.headers)
    response = web.StreamResponse(status=reply.status, headers=headers)
    record.is_hidden = True
    if reply.status >= web.HTTPBadRequest.status_code:
        record.kind = error_body(reply.status, "")["error"]["type"]
    await response.prepare(request)
    end = ENDS.get(response.content_type)
    whole = None if end is None else WholeEvents(end)
    try:
        while part := await _next_part(child, reply):
            await write(request, response, part if whole is None else whole.add(part))
    except UnavailableError as error:
        record.is_hidden = False
        await _break_off(request, response, error)
    except asyncio.CancelledError:
        await _break_off(request, response, request.app[STATE].running.cancelled_error())
    await response.write_eof()
    return response


async def _pass_all_back(
    request: web.Request, child: Child, reply: aiohttp.ClientResponse
) -> web.StreamResponse:
    """Pass on the reply. If the client will come back for its stream, the model stays until that
    ends. Raises as `_pass_back`."""
    state = request.app[STATE]
    try:
        return await _pass_back(request, child, reply)
    except (asyncio.CancelledError, ConnectionError):
        if keeps_stream(request) and not state.running.is_cancelled:
            rest = asyncio.create_task(_discard(reply, state.config.stream_timeout))
            await wait_alone(rest, state.running)
        raise


async def _discard(reply: aiohttp.ClientResponse, n_seconds: float) -> None:
    """Read the rest of a reply, for some time."""
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(n_seconds):
            while await reply.content.readany():
                pass


async def _next_part(child: Child, reply: aiohttp.ClientResponse) -> bytes:
    """The next part of a reply; empty at its end. Raises UnavailableError."""
    try:
        return await reply.content.readany()
    except (aiohttp.ClientError, OSError) as error:
        raise await _ended(child, error) from None


def _returned(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _NOT_RETURNED}


async def _ended(child: Child, cause: Exception) -> UnavailableError:
    """The error of a request whose connection broke. The process has ended, or is about to."""
    await child.settled()
    return child.ended_error(cause)


async def _break_off(
    request: web.Request, response: web.StreamResponse, error: LamellaError
) -> None:
    """End a stream that has begun with an error event, or line. A reply that is no stream is cut.

    Raises:
        ConnectionError: it was cut.
    """
    body = status_and_body(error)[1]
    record = record_of(request)
    record.end, record.kind = body["error"]["message"], body["error"]["type"]
    if response.content_type not in ENDS:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError(record.end)
    at, id = own_path(request), request[REQUEST_ID]
    await write(request, response, failure_of(at, response.content_type, error, id))
