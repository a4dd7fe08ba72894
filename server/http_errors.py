"""The one place that turns errors into HTTP: a status, and the body that llama-server's clients
expect.

    {"error": {"code": 400, "message": "...", "type": "invalid_request_error"}}

Handlers raise; `answer_errors` makes the response. Some APIs have their own bodies, see
server/error_shapes.py. Unexpected errors go to the log only, never to the client. Knows no request
body.
Tested by tests/server/test_http_errors.py.
"""

from __future__ import annotations

import asyncio
import logging
import math
from http import HTTPStatus
from typing import Final

from aiohttp import web
from aiohttp.compression_utils import HAS_BROTLI, HAS_ZSTD
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from ..base.errors import (
    CancelledError,
    ClientLimitError,
    ClosedError,
    ContextSizeError,
    DeviceLostError,
    OverloadedError,
    RequestError,
)
from ..base.log import get_logger
from .error_shapes import Body, shape_of
from .request_ids import REQUEST_ID
from .routes_missing import unknown_path
from .state import STATE, own_path

log = get_logger("server")
HTTP_LOG = get_logger("server.http")  # messages of aiohttp

# llama-server's names (tools/server/server-common.cpp, format_error_response)
TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    501: "not_supported_error",
    503: "unavailable_error",
}

# of bodies; aiohttp decodes br and zstd if their packages are installed
_OPTIONAL: Final = {"br": HAS_BROTLI, "zstd": HAS_ZSTD}
ENCODINGS: Final = ("gzip", "deflate", *(name for name, found in _OPTIONAL.items() if found))
N_RETRY_SECONDS: Final = 2  # after which a client may try again, if it is not known better
ERROR_MESSAGE: Final = web.ResponseKey("error_message", str)
ERROR_TYPE: Final = web.ResponseKey("error_type", str)

KEPT_HEADERS: Final = ("Accept-Encoding", "Allow", "WWW-Authenticate")  # of an exception


def error_body(status: int, message: str, *, type: str = "", **more: int) -> Body:
    """The documented error body. By default the status decides its `type`."""
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"code": status, "message": message, "type": type or kind, **more}}


def status_and_body(error: BaseException) -> tuple[int, Body]:
    """The status and body for an error. Logs the traceback of an unexpected error."""
    match error:
        case ContextSizeError(n_prompt_tokens=n_prompt_tokens, n_ctx=n_ctx):
            return 400, error_body(
                400,
                str(error),
                type="exceed_context_size_error",
                n_prompt_tokens=n_prompt_tokens,
                n_ctx=n_ctx,
            )
        case RequestError():
            return 400, error_body(400, str(error))
        case ClientLimitError():
            return 429, error_body(429, str(error))
        case OverloadedError() | ClosedError() | CancelledError() | DeviceLostError():
            return 503, error_body(503, str(error) or "the server is stopping")
        case web.HTTPException():
            return error.status, error_body(error.status, error.text or error.reason)
        case web.RequestPayloadError() | HttpProcessingError():
            return 400, error_body(400, "the body's encoding is invalid")
    log.error("a request failed: %s", error, exc_info=error)
    return 500, error_body(500, "internal error: the server's log has the details")


def error_response(error: BaseException, path: str = "", request_id: str = "") -> web.Response:
    """The response to a request that failed before anything was sent. `path` (without the
    server's prefix) and `request_id` are the request's."""
    status, body = status_and_body(error)
    headers = {"Retry-After": str(_retry_seconds(error))} if status in (429, 503) else {}
    if status == 501:
        headers["X-Should-Retry"] = "false"  # the packages of OpenAI and Anthropic obey it
    if isinstance(error, web.HTTPException):
        headers |= {name: error.headers[name] for name in KEPT_HEADERS if name in error.headers}
    shape = shape_of(path)
    if status == 503:
        status = shape.overloaded
    shaped = shape.body(error, body, request_id)
    response = web.json_response(shaped, status=status, headers=headers)
    response[ERROR_MESSAGE], response[ERROR_TYPE] = body["error"]["message"], body["error"]["type"]
    return response


def _retry_seconds(error: BaseException) -> int:
    """The seconds after which a client may try again."""
    known = error.retry_seconds if isinstance(error, OverloadedError) else 0
    return math.ceil(known) or N_RETRY_SECONDS


def unavailable(message: str) -> web.HTTPServiceUnavailable:
    """Status 503, for a request that may succeed later."""
    return web.HTTPServiceUnavailable(text=message)


def _is_unexpected(record: logging.LogRecord) -> bool:
    """False if a client disconnected, or sent invalid HTTP or an invalid body: aiohttp logs a
    traceback for each."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, ConnectionError | HttpProcessingError | web.RequestPayloadError)


HTTP_LOG.addFilter(_is_unexpected)


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware: turns every error of a handler into the documented body."""
    try:
        return await handler(request)
    except ConnectionError:
        raise  # the client has disconnected
    except asyncio.CancelledError:
        if request.writer.output_size > 0:
            raise  # a part of a reply that cannot report an error
        return _response_to(request, request.app[STATE].running.cancelled_error())
    except web.HTTPException as error:
        if error.status < HTTPStatus.BAD_REQUEST:
            raise
        if isinstance(error, web.HTTPNotFound) and error.text == _plain(error):
            paths = (resource.canonical for resource in request.app.router.resources())
            error.text = unknown_path(request, paths)
        elif error.text == _plain(error):
            error.text = f"{error.reason}: {request.method} {request.path:.200}"
        return _response_to(request, error)
    except Exception as error:
        return _response_to(request, error)


def _response_to(request: web.Request, error: BaseException) -> web.Response:
    """The response to a failed request. Raises ConnectionError if another one has begun, which is
    cut: no client takes it for whole."""
    response = error_response(error, own_path(request), request[REQUEST_ID])
    if request.writer.output_size > 0:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError(response[ERROR_MESSAGE])
    return response


def _plain(error: web.HTTPException) -> str:
    """aiohttp's text of an error that has no other."""
    return f"{error.status}: {error.reason}"
