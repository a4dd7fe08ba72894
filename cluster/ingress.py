"""The ingress: an ASGI application that passes requests on to replicas, and replies back.

It finds the model that a request names and the pages of its prompt, for the router. A request that
a replica loses before its first byte is run again elsewhere. A stream that breaks later ends with
an error, or goes on elsewhere if the request has `resume`. All else is the replica's: keys, limits
and routes. Knows no Ray: a `Target` calls replicas. Tested by tests/cluster/test_ingress.py.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Protocol
from urllib.parse import parse_qs, quote

from aiohttp import web

from ..base.errors import LamellaError, OverloadedError, RequestError
from ..base.log import get_logger
from ..base.nesting import limited_nesting
from ..server.bodies import N_BYTES_MOST
from ..server.broken_streams import ENDS, EVENTS, failure_of
from ..server.clients import ADDRESS_HEADER, OWN_PREFIX
from ..server.config import ServerConfig
from ..server.http_errors import error_response
from ..server.origins import check_host
from ..server.request_ids import ID_HEADER, sane_request_id
from ..server.router.body import model_in, value_at
from ..server.router.metrics import merged
from .bodies import IDENTITY, Bodies, Receive
from .calls import FINGERPRINT_HEADER, NOT_SENT, Call, Head, Headers, LostError, Reply
from .routing import Request
from .streams import PassedBytes, Resumed

log = get_logger("cluster")

Scope = Mapping[str, Any]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]

N_ATTEMPTS: Final = 3
N_BODY: Final = N_BYTES_MOST  # or --max-body; replicas have limits of their own
RESUME_S: Final = 30.0  # the longest time until another replica goes on with a stream
# the ingress knows the length, and its HTTP server adds the id of the request
NOT_PASSED: Final = frozenset({"content-length", ID_HEADER.lower(), FINGERPRINT_HEADER.lower()})
UNAVAILABLE: Final = (503, 529)
WITHOUT_BODY: Final = (204, 304)  # such replies have no length either

# what has its place in one replica, which a request cannot name
ONE_PLACE: Final = (
    ("/v1/responses/", "send all items with each request"),
    ("/responses/", "send all items with each request"),
    ("/v1/stream", 'send "resume": true with the request'),
    ("/slots/", "the replicas share prefixes by themselves"),
    ("/lora-adapters", '"lora" in requests'),
    ("/v1/chat/completions/control", '"reasoning_budget_tokens" in requests'),
    ("/chat/completions/control", '"reasoning_budget_tokens" in requests'),
)
WITHOUT_PLACE: Final = ("/v1/responses/input_tokens", "/responses/input_tokens")


class Target(Protocol):
    """A model with replicas."""

    @property
    def name(self) -> str: ...

    @property
    def prefix(self) -> str:
        """The prefix of its paths."""

    @property
    def n_body_max(self) -> int:
        """The bytes of the longest body that its options allow; 0: they do not say."""

    def prompt(self, path: str, headers: Mapping[str, str], body: bytes) -> Request:
        """What the router needs to know of a request. Runs in a thread."""

    def reply(self, call: Call) -> Reply:
        """The reply of a replica. Raises LostError; OverloadedError: there is none in time."""

    async def metrics(self) -> Sequence[tuple[str, str]]:
        """The metrics of all replicas, by their names."""

    async def close(self) -> None:
        """Close its connections."""


@dataclass(slots=True)
class Asked:
    """A request of a client.

    Attributes:
        path: without the server's prefix.
        id: of the request.
        wants_resume: a stream that breaks shall go on elsewhere.
    """

    path: str
    id: str
    call: Call
    target: Target
    wants_resume: bool = False


class Ingress:
    """Answers the requests to some models."""

    def __init__(self, targets: Sequence[Target], config: ServerConfig | None = None) -> None:
        """`config`: of the HTTP server before it; None: that has other limits, and other addresses
        than the models' options say."""
        self._config = config
        self._targets = {target.name: target for target in targets}
        self._first = targets[0]
        n_body = max(N_BODY, *(target.n_body_max for target in targets))
        self._bodies = Bodies(n_body, 0 if config is None else config.timeout)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an ASGI request."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        id = sane_request_id(headers.get(ID_HEADER.lower()))
        path = scope["path"].removeprefix(self._first.prefix)
        task, gone = asyncio.current_task(), None
        try:
            if self._config is not None and "host" in headers:
                check_host(headers["host"], self._config)
            body = await self._bodies.read(receive, _client(scope))
            if body is None:
                return  # the client is disconnected
            gone = asyncio.create_task(_gone(receive, task))
            # a long body takes time
            asked = await asyncio.to_thread(self._asked, scope, headers, path, id, body)
            if path == "/metrics" and "model" not in parse_qs(_query(scope)):
                await self._metrics(asked, send)
            elif path in ("/v1/models", "/models") and len(self._targets) > 1:
                await self._models(asked, send)
            else:
                await _Passing(asked, send).run()
        except (LamellaError, web.HTTPException) as error:
            await _send_error(send, error, path, id)
        except asyncio.CancelledError:
            if gone is None or not gone.done() or task is None or task.uncancel():
                raise  # of another cause
        finally:
            if gone is not None:
                gone.cancel()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        with suppress(asyncio.CancelledError):  # the second Ctrl-C
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
        for target in self._targets.values():
            await target.close()
        await send({"type": "lifespan.shutdown.complete"})

    def _asked(
        self, scope: Scope, headers: Mapping[str, str], path: str, id: str, body: bytes
    ) -> Asked:
        """Read a request. Raises RequestError, HTTPException."""
        method, raw_query = scope["method"], _query(scope)
        raw_path = scope.get("raw_path") or quote(scope["path"]).encode()
        if not raw_path.startswith(b"/"):
            raise web.HTTPBadRequest(text=f"the path {path:.200} must begin with /")
        body = self._bodies.decoded(body, headers.get("content-encoding", IDENTITY))
        _check_place(method, path, body)
        target = self._target(body if method == "POST" else b"", raw_query)
        wants, body = _resume(path, body) if value_at(body, b"resume") >= 0 else (False, body)
        prompt = Request()
        if method == "POST":
            prompt = target.prompt(path, headers, body)
        full = raw_path.decode("latin-1").partition("?")[0] + (raw_query and f"?{raw_query}")
        call = Call(method, full, _passed(scope, id), body, prompt, sent=() if wants else None)
        return Asked(path, id, call, target, wants)

    def _target(self, body: bytes, raw_query: str) -> Target:
        """The model that a request names. The only one needs no name."""
        if len(self._targets) == 1:
            return self._first
        name = model_in(body) or parse_qs(raw_query).get("model", [""])[0]
        if not name:
            return self._first
        found = self._targets.get(name) or self._targets.get(name.removesuffix(":latest"))
        if found is None:
            names = ", ".join(map(repr, self._targets))
            raise web.HTTPNotFound(text=f"model {name[:200]!r} not found; models are {names}")
        return found

    async def _models(self, asked: Asked, send: Send) -> None:
        """The lists of all models in one."""
        lists = []
        for target in self._targets.values():
            head, body = await _whole(target.reply(asked.call))
            if head.status != web.HTTPOk.status_code:
                await _send_whole(send, head.status, head.headers, body)
                return
            lists.append(json.loads(body))
        data = [one for found in lists for one in found["data"]]
        text = json.dumps({**lists[0], "data": data}).encode()
        await _send_whole(send, 200, [("Content-Type", "application/json")], text)

    async def _metrics(self, asked: Asked, send: Send) -> None:
        """The metrics of all replicas on one page, each with the labels of its replica."""
        head, body = await _whole(asked.target.reply(asked.call))
        if head.status == web.HTTPOk.status_code:  # metrics are on, and the client may see them
            pages = [
                ({"model": target.name, "replica": replica}, page)
                for target in self._targets.values()
                for replica, page in await target.metrics()
            ]
            body = "".join(merged(pages)).encode()
        await _send_whole(send, head.status, head.headers, body)


class NoneEqualError(LostError):
    """No other replica can go on with a stream."""


class _Passing:
    """Passes a request on until a replica has answered it."""

    def __init__(self, asked: Asked, send: Send) -> None:
        self._asked, self._send = asked, send
        self._has_begun = False  # the client has a part of the reply
        self._head: Head | None = None  # of the reply that the client gets
        self._resumed = Resumed() if asked.wants_resume else None

    async def run(self) -> None:
        """Answer the request. Raises LostError: it failed before the client had any of it."""
        call = self._asked.call
        for n_left in reversed(range(N_ATTEMPTS)):
            try:
                await self._attempt(is_last=n_left == 0)
                return
            except LostError as error:
                head = self._head
                log.warning("request %s: %s", self._asked.id, error)
                if not self._has_begun and n_left:
                    continue
                if not self._has_begun or head is None:
                    raise
                is_over = not n_left or isinstance(error, NoneEqualError)
                if self._resumed is None or head.content_type != EVENTS or is_over:
                    await self._break_off(head, error)
                    return
                self._resumed.begin_again()
                call.fingerprint, call.sent = head.get(FINGERPRINT_HEADER), self._resumed.tokens
                if not call.fingerprint:
                    await self._break_off(head, error)
                    return

    async def _attempt(self, *, is_last: bool) -> None:
        """Pass the reply of one replica on. Raises LostError."""
        passed: PassedBytes | None = None
        is_final = is_last or self._asked.call.method != "POST"
        async with aclosing(self._items()) as items:
            async for item in items:
                if isinstance(item, Head):
                    is_loss = item.status in UNAVAILABLE and not is_final
                    if is_loss or (self._has_begun and item.status != HTTPStatus.OK):
                        raise LostError(f"a replica has answered with status {item.status}")
                    if not self._has_begun:
                        self._head = item
                    passed = PassedBytes(item.content_type)
                elif passed is not None:
                    await self._write(passed.add(item))
        if passed is None:
            raise LostError("a replica has not answered")
        if self._resumed is not None and self._resumed.is_behind:
            raise LostError("another replica has not generated the same stream")
        rest = passed.rest()
        await self._begin(None if passed.is_stream else len(rest))
        await self._send({"type": "http.response.body", "body": rest})

    async def _items(self) -> Reply:
        """The reply. One that goes on with a stream must begin in time."""
        async with aclosing(self._asked.target.reply(self._asked.call)) as reply:
            if self._asked.call.fingerprint:
                try:
                    async with asyncio.timeout(RESUME_S):
                        first = await anext(reply)
                except (TimeoutError, StopAsyncIteration, OverloadedError):
                    raise NoneEqualError("no equal replica goes on with the stream") from None
                yield first
            async for item in reply:
                yield item

    async def _write(self, data: bytes) -> None:
        if self._resumed is not None and self._head is not None:
            data = self._resumed.add(data) if self._head.content_type == EVENTS else data
        if data:
            await self._begin(None)
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _begin(self, n_bytes: int | None) -> None:
        """Send the head, once. `n_bytes`: of the body, if it is known."""
        if self._has_begun:
            return
        head = self._head
        assert head is not None, "a reply begins with its head"
        self._has_begun = True
        headers = [(name, value) for name, value in head.headers if name.lower() not in NOT_PASSED]
        length = "" if n_bytes is None else str(n_bytes)
        if self._asked.call.method == "HEAD":
            length = head.get("Content-Length")  # that of the body that GET would get
        if length and head.status not in WITHOUT_BODY:
            headers.append(("Content-Length", length))
        await self._send(_start(head.status, headers))

    async def _break_off(self, head: Head, error: LostError) -> None:
        """End a stream with an error event, or line. A reply that is no stream is cut."""
        if head.content_type not in ENDS:
            raise ConnectionResetError(str(error))
        data = failure_of(self._asked.path, head.content_type, error, self._asked.id)
        await self._send({"type": "http.response.body", "body": data})


# --- requests ---


def _check_place(method: str, path: str, body: bytes) -> None:
    """Raises HTTPNotImplemented for what only one replica knows."""
    for begin, instead in ONE_PLACE:
        is_read = method in ("GET", "HEAD") and path == "/lora-adapters"
        if path.startswith(begin) and path not in WITHOUT_PLACE and not is_read:
            raise web.HTTPNotImplemented(
                text=f"{method} {path:.200} is not supported with --ray, as only one replica has "
                f"it: {instead}"
            )
    at = value_at(body, b"previous_response_id") if path.endswith("/responses") else -1
    if at >= 0 and not body.startswith((b"null", b'""'), at):
        raise web.HTTPNotImplemented(
            text='"previous_response_id" is not supported with --ray, as only one replica has the '
            "stored response: send all items with each request"
        )


def _resume(path: str, body: bytes) -> tuple[bool, bytes]:
    """Take `resume` out of a body, and make the stream one that can begin again: the same events on
    each replica. Raises RequestError."""
    try:
        with limited_nesting("the body"):
            found = json.loads(body)
    except ValueError:
        return False, body  # the replica says what is wrong
    if not isinstance(found, dict):
        return False, body
    wants = found.pop("resume", False)
    if wants not in (True, False, None):
        raise RequestError(f'"resume" must be true or false, found {str(wants)[:40]}')
    if wants:
        _check_repeatable(path, found)
        if found.get("seed") in (None, -1):
            found["seed"] = secrets.randbits(31)
        if path.endswith("/responses"):
            found["sse_ping_interval"] = -1  # its pings are numbered as events
    return bool(wants), json.dumps(found).encode()


def _check_repeatable(path: str, body: Mapping[str, Any]) -> None:
    """Check that the order of a stream's events does not depend on time. Raises RequestError."""
    if path.startswith("/api/"):
        raise RequestError('"resume" is for streams of events: ollama\'s API has lines')
    for name in ("n", "n_cmpl"):
        if body.get(name) not in (None, 1):
            raise RequestError(f'"resume" needs "{name}": 1, found {str(body[name])[:40]}')
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) > 1 and not any(isinstance(p, int) for p in prompt):
        raise RequestError(f'"resume" needs one prompt, found {len(prompt)}')
    if body.get("t_max_predict_ms") not in (None, 0, -1):
        raise RequestError('"resume" needs "t_max_predict_ms": 0: replicas take different times')
    if body.get("return_progress"):
        raise RequestError('"resume" needs "return_progress": false: replicas progress differently')


def _passed(scope: Scope, id: str) -> list[tuple[str, str]]:
    """The headers for the replica: the client's, its address and the request's id."""
    own = [(ADDRESS_HEADER, quote(_client(scope))), (ID_HEADER, id)]
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        lower = name.lower()
        is_ours = lower.startswith(OWN_PREFIX.lower()) or lower == ID_HEADER.lower()
        if lower not in NOT_SENT and not is_ours and value.isascii():
            own.append((name, value))
    return own


def _client(scope: Scope) -> str:
    """The address of the client; "" if it is not known."""
    return str((scope.get("client") or ("",))[0])


def _query(scope: Scope) -> str:
    found: bytes = scope.get("query_string", b"")
    return found.decode("latin-1")


async def _gone(receive: Receive, task: asyncio.Task[Any] | None) -> None:
    """Cancel the handler of a request when its client disconnects."""
    with suppress(Exception):
        while (await receive())["type"] != "http.disconnect":
            pass
    if task is not None:
        task.cancel()


# --- replies ---


def _start(status: int, headers: Headers) -> Mapping[str, Any]:
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    return {"type": "http.response.start", "status": status, "headers": raw}


async def _whole(reply: Reply) -> tuple[Head, bytes]:
    """A short reply. Raises LostError."""
    head, parts = None, []
    async for item in reply:
        if isinstance(item, Head):
            head = item
        else:
            parts.append(item)
    if head is None:
        raise LostError("a replica has not answered")
    return head, b"".join(parts)


async def _send_whole(send: Send, status: int, headers: Headers, body: bytes) -> None:
    kept = [(k, v) for k, v in headers if k.lower() not in NOT_PASSED]
    await send(_start(status, [*kept, ("Content-Length", str(len(body)))]))
    await send({"type": "http.response.body", "body": body})


async def _send_error(
    send: Send, error: LamellaError | web.HTTPException, path: str, id: str
) -> None:
    response = error_response(error, path, id)
    body = response.body if isinstance(response.body, bytes) else b""
    await _send_whole(send, response.status, [*response.headers.items()], body)
