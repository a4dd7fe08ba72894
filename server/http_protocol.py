"""Malformed HTTP gets the documented error body too, not aiohttp's text.

aiohttp answers such a request itself, before any route or middleware. Its hooks for that are
private, so pyproject.toml allows only the versions of aiohttp that were tested. Knows no route.
Tested by tests/server/test_http_protocol.py.
"""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod, ContentEncodingError, LineTooLong

from .http_errors import ENCODINGS, HTTP_LOG, error_body
from .request_ids import ID_HEADER, new_request_id
from .request_log import log_malformed, one_line
from .state import STATE

N_MESSAGE_CHARS: Final = 200


class HttpRunner(web.AppRunner):
    """Runs an application. Handlers of clients that disconnect are cancelled."""

    async def _make_server(self) -> web.Server:
        plain = await super()._make_server()
        return _Server(
            plain.request_handler,
            has_request_log=self.app[STATE].config.request_log,
            request_factory=plain.request_factory,
            handler_cancellation=True,
            access_log=None,
            logger=HTTP_LOG,
        )


class _Server(web.Server):
    def __init__(self, handler: Any, *, has_request_log: bool, **options: Any) -> None:
        super().__init__(handler, **options)
        self.has_request_log = has_request_log

    def __call__(self) -> web.RequestHandler:
        return _Protocol(self, loop=self._loop, **self._kwargs)


class _Protocol(web.RequestHandler):
    __slots__ = ()

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
        if isinstance(self._manager, _Server) and self._manager.has_request_log:
            log_malformed(status, text, request_id)
        headers: dict[str, Any] = {"Server": "lamella", ID_HEADER: request_id}
        if status == 415:
            headers["Accept-Encoding"] = ", ".join(ENCODINGS)
        response = web.json_response(error_body(status, text), status=status, headers=headers)
        response.force_close()
        return response


def status_and_message(status: int, error: BaseException | None) -> tuple[int, str]:
    """The status and the message for an error of aiohttp's parser."""
    match error:
        case ContentEncodingError():
            return 415, f"the body's encoding is not one of {', '.join(ENCODINGS)}, identity"
        case LineTooLong():
            return 431, f"the path or a header is too long: the limit is {error.args[1]} bytes"
        case BadHttpMethod() if "HTTPS" in str(error):
            return 400, "this port speaks HTTP: use http://, or start the server with TLS"
    if status >= 500:
        return status, "internal error: the server's log has the details"
    cause = one_line(str(getattr(error, "message", "")).strip().partition("\n")[0])
    return status, f"malformed HTTP: {cause[:N_MESSAGE_CHARS].rstrip(':')}"
