"""One connection of HTTP, over aiohttp's protocol: its place in the table of connections, limits,
and errors.

Malformed HTTP gets the documented error body too, not aiohttp's text. aiohttp answers such a
request itself, before any route or middleware. Its hooks for that are private, so pyproject.toml
allows only the versions of aiohttp that were tested. Knows no route.
Tested by tests/server/test_http_protocol.py and test_accepting.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import (
    BadHttpMessage,
    BadHttpMethod,
    ContentEncodingError,
    HttpProcessingError,
    LineTooLong,
)

from ..base.log import one_line
from .accepting import Acceptor
from .clients import passed_address
from .connections import Connection, Connections
from .http_errors import ENCODINGS, HTTP_LOG, N_RETRY_SECONDS, error_body
from .open_files import fit_to_files
from .request_ids import ID_HEADER, new_request_id
from .request_log import CLOSED, record_refused
from .state import STATE, Role, ServerState

N_MESSAGE_CHARS: Final = 200
NO_PLACE: Final = "the server has too many connections: try again later"
N_HEAD_BYTES: Final = 64 * 1024  # of the headers of a request


class HttpRunner(web.AppRunner):
    """Runs an application. Handlers of clients that disconnect are cancelled.

    Attributes:
        acceptor: accepts the connections, once the runner is set up.
    """

    acceptor: Acceptor

    async def cleanup(self) -> None:
        """Accept no more connections, and close the open ones."""
        await self.acceptor.close()
        await super().cleanup()

    async def _make_server(self) -> web.Server:
        plain = await super()._make_server()
        state = self.app[STATE]
        config = state.config
        n_files = 2 if state.role is Role.ROUTER else 1  # the second is to a model's process
        n_max = fit_to_files(config.max_connections, n_files)
        table = Connections(n_max, config.request_timeout)
        server = _Server(
            plain.request_handler,
            table,
            state,
            request_factory=_passed(plain.request_factory)
            if state.role in (Role.MEMBER, Role.REPLICA)
            else plain.request_factory,
            handler_cancellation=True,
            lingering_time=0,  # see `discard_rest`
            access_log=None,
            logger=HTTP_LOG,
        )
        self.acceptor = Acceptor(table, server.open_protocol, server.refuse)
        return server


def _passed(make: Callable[..., web.BaseRequest]) -> Callable[..., web.BaseRequest]:
    """Makes requests whose `remote` is the address of the router's client."""

    def make_passed(*args: Any, **options: Any) -> web.BaseRequest:
        request = make(*args, **options)
        return request.clone(remote=passed_address(request))

    return make_passed


class _Server(web.Server):
    def __init__(
        self, handler: Any, table: Connections, state: ServerState, **options: Any
    ) -> None:
        super().__init__(self._answer, **options)
        self._answer_app = handler
        self.table = table
        self.state = state

    def open_protocol(self, connection: Connection) -> asyncio.Protocol:
        return _Protocol(self, connection, loop=self._loop, **self._kwargs)

    def refuse(self) -> bytes:
        """The reply to a connection without a place. Counts and logs it."""
        status, request_id = HTTPStatus.SERVICE_UNAVAILABLE, new_request_id()
        record_refused(self.state, status, NO_PLACE, request_id)
        return short_reply(status, NO_PLACE, request_id, {"Retry-After": str(N_RETRY_SECONDS)})

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        protocol = cast(_Protocol, request.protocol)
        with self.table.request(protocol.connection):
            _check_headers(request)
            return cast(web.StreamResponse, await self._answer_app(request))


class _Protocol(web.RequestHandler):
    __slots__ = ("connection", "state", "table")

    def __init__(self, server: _Server, connection: Connection, **options: Any) -> None:
        super().__init__(server, **options)
        self.connection, self.table = connection, server.table
        self.state = server.state
        connection.peer = self

    @property
    def is_receiving(self) -> bool:
        """See `Peer`."""
        request = self._current_request
        is_paused = self._reading_paused or self._buffer_paused
        return request is not None and not is_paused and not request.content.is_eof()

    @property
    def is_unread(self) -> bool:
        """See `Peer`."""
        return self.writing_paused

    def abort(self, reason: str) -> None:
        """See `Peer`."""
        if self._current_request is not None:
            self._current_request[CLOSED] = reason
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Free the connection's place."""
        self.table.release(self.connection)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes. Refuse a head that has too many."""
        self.table.receive(self.connection, len(data))
        super().data_received(data)
        waiter = self._waiter  # for a whole head
        if waiter is None or waiter.done() or self.connection.n_bytes <= N_HEAD_BYTES:
            return
        if self.transport is not None:
            status, request_id = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, new_request_id()
            text = f"the headers are too long: the limit is {N_HEAD_BYTES} bytes"
            record_refused(self.state, status, text, request_id)
            self.transport.write(short_reply(status, text, request_id))
            self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The response to a malformed request. The connection is closed after it."""
        super().handle_error(request, status, exc, message)  # logs; raises if a response has begun
        status, text = status_and_message(status, exc)
        request_id = new_request_id()
        record_refused(self.state, status, text, request_id)
        headers: dict[str, Any] = {"Server": "lamella", ID_HEADER: request_id}
        if status == 415:
            headers["Accept-Encoding"] = ", ".join(ENCODINGS)
        body = error_body(status, text) | {"request_id": request_id}
        response = web.json_response(body, status=status, headers=headers)
        response.force_close()
        return response


class _ExpectError(HttpProcessingError):
    code = 417


def _check_headers(request: web.BaseRequest) -> None:
    """Check the headers that aiohttp handles before any route.

    Raises:
        HttpProcessingError: one of them is invalid.
    """
    expect = request.headers.get("Expect", "100-continue")
    if expect.lower() != "100-continue":
        raise _ExpectError(message=f"Expect must be 100-continue, found {expect!r}")
    if not request.headers.get("Host", "").isascii():
        raise BadHttpMessage("Host must be ASCII")


def short_reply(
    status: HTTPStatus, message: str, request_id: str, headers: Mapping[str, str] | None = None
) -> bytes:
    """The whole reply of a connection that is closed after it, with these `headers` too."""
    body = json.dumps(error_body(status, message) | {"request_id": request_id}).encode()
    fields = {
        "Server": "lamella",
        ID_HEADER: request_id,
        "Connection": "close",
        "Content-Type": "application/json; charset=utf-8",
        "Content-Length": str(len(body)),
        **(headers or {}),
    }
    lines = (f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} {status.phrase}\r\n{''.join(lines)}\r\n".encode() + body


def status_and_message(status: int, error: BaseException | None) -> tuple[int, str]:
    """The status and the message for an error of aiohttp's parser."""
    match error:
        case ContentEncodingError():
            return 415, f"the body's encoding is not one of {', '.join(ENCODINGS)}, identity"
        case LineTooLong():
            return 431, f"the path or a header is too long: the limit is {error.args[1]} bytes"
        case BadHttpMethod() if "HTTPS" in str(error):
            return 400, "this port speaks HTTP: use http://, or start the server with TLS"
    if isinstance(error, HttpProcessingError):
        status = error.code
    if status >= 500:
        return status, "internal error: the server's log has the details"
    cause = one_line(str(getattr(error, "message", "")).strip().partition("\n")[0])
    return status, f"malformed HTTP: {cause[:N_MESSAGE_CHARS].rstrip(':')}"
