"""The request log: one line per request, written when the request ends.

    POST /v1/chat/completions 200  in   812 (800 cached)  out   64  ttft   31 ms    52 tok/s  stop
    POST /v1/embeddings       200  in  2912 in 64 texts    412 ms   7068 tok/s

The line says how the request ended: `stop` or `length`, the error's message, that the client
disconnected, or `timeout` if it did not read the reply. `complete` or `incomplete` follows if the
texts had a grammar. With -v, the bodies of the request and the reply follow, shortened and without
keys.
Knows no route.
Tested by tests/server/test_request_log.py.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler

from ..base.log import get_logger, one_line
from .clients import ADDRESS_HEADER, KEY
from .http_errors import ERROR_MESSAGE, ERROR_TYPE, error_body
from .request_counts import Ended
from .request_ids import REQUEST_ID
from .request_record import RequestRecord
from .state import STATE, Role, ServerState
from .writing import UnreadError, write_whole

log = get_logger("server")

CLIENT_CLOSED: Final = 499  # nginx's status for a client that disconnects before the response
N_PATH_CHARS: Final = 200
N_BODY_CHARS: Final = 1000  # shown of each end of a body

# polls of monitors, logged with -v only, as are preflights and requests while the model loads
QUIET_PATHS: Final = ("/health", "/v1/health", "/live", "/metrics", "/status.json")
UI_FILES: Final = "/ui/"  # a page has many
SECRET: Final = re.compile(
    r'("[\w-]*(?:api_?-?key|access_token|authorization|password|secret)"\s*:\s*")(?:[^"\\]|\\.)+',
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class BodyText:
    """A log message: the body of a request or a reply."""

    of: str  # "request" or "reply"
    body: str

    def as_dict(self) -> dict[str, Any]:
        """The fields of the JSON line."""
        return {"message": f"{self.of} body", "body": self.body}

    def __str__(self) -> str:
        return f"  {self.of}: {self.body}"


RECORD: Final = web.RequestKey("record", RequestRecord)
CLOSED: Final = web.RequestKey("closed", str)  # why the server closed the connection


def record_of(request: web.Request) -> RequestRecord:
    """The record of a request that `log_requests` handles."""
    return request[RECORD]


def record_body(request: web.Request, body: bytes) -> None:
    """Record the body of a request, if bodies are logged."""
    if log.isEnabledFor(logging.DEBUG):
        record_of(request).body = body


@web.middleware
async def log_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware: writes the reply, and logs the request at its end."""
    path = request.rel_url.raw_path[:N_PATH_CHARS]
    record = request[RECORD] = RequestRecord(request.method, path, id=request[REQUEST_ID])
    response: web.StreamResponse | None = None
    try:
        response = await handler(request)
        record.status = response.status
        if ERROR_MESSAGE in response:
            record.end, record.kind = response[ERROR_MESSAGE], response[ERROR_TYPE]
        await write_whole(request, response)
        return response
    except UnreadError:
        record.status, record.end = record.status or 200, "timeout"
        record.kind = record.end
        raise
    except (asyncio.CancelledError, ConnectionError):
        is_gone = request.transport is None or request.transport.is_closing()
        gone = request.get(CLOSED, "client disconnected")
        record.end = gone if is_gone else "the server is stopping"
        record.kind = "disconnected" if is_gone else "stopping"
        has_begun = request.writer.output_size > 0
        if not has_begun:
            record.status = CLIENT_CLOSED if is_gone else 503
        record.status = record.status or 200
        raise
    finally:
        record.seconds = time.perf_counter() - record.t_start
        record.key = request[KEY].name if KEY in request else ""
        state = request.app[STATE]
        resource = request.match_info.route.resource
        _count(record, resource, state)
        if state.traces is not None and not _is_quiet(record, state):
            route = "" if resource is None else resource.canonical
            state.traces.add(record, route, request.headers)
        if state.role is Role.MEMBER and state.model is not None:
            record.model = state.model.alias
            record.is_hidden = ADDRESS_HEADER not in request.headers
        if state.config.request_log and not record.is_hidden:
            _write(record, response, state)


def _count(
    record: RequestRecord, resource: web.AbstractResource | None, state: ServerState
) -> None:
    """Count an ended request."""
    path = "other" if resource is None else resource.canonical.removeprefix(state.config.prefix)
    counts = state.counts
    counts.ended[Ended(path, record.status, record.kind)] += 1
    if record.choices:
        counts.add_work(record.seconds, record.n_prompt)
        counts.add_generation(record.ttft, record.n_predicted)
    elif record.n_texts:
        counts.add_work(record.seconds, record.n_text_tokens)


def record_refused(state: ServerState, status: int, message: str, id: str) -> None:
    """Count and log a request that is refused before it has a method and a path."""
    kind = error_body(status, message)["error"]["type"]
    state.counts.ended[Ended("-", status, kind)] += 1
    if state.config.request_log:
        log.info(RequestRecord("-", "-", status=status, end=message, kind=kind, id=id))


def _is_quiet(record: RequestRecord, state: ServerState) -> bool:
    """True for a poll of a monitor, a file of a page, a preflight, or a request before the model is
    loaded."""
    path = record.path.removeprefix(state.config.prefix)
    is_poll = state.model is None and record.status == 503  # until the model is loaded
    health = "" if state.vertex is None else state.vertex.health
    is_quiet = (
        path in (*QUIET_PATHS, health) or path.startswith(UI_FILES) or record.method == "OPTIONS"
    )
    return is_poll or is_quiet


def _write(record: RequestRecord, response: web.StreamResponse | None, state: ServerState) -> None:
    keys = [key.key for key in state.keys]
    is_quiet = _is_quiet(record, state)
    log.log(logging.DEBUG if is_quiet else logging.INFO, record)
    if is_quiet or not log.isEnabledFor(logging.DEBUG):
        return
    if record.body:
        log.debug(BodyText("request", shown(record.body, keys)))
    is_json = response is not None and response.content_type == "application/json"
    if is_json and isinstance(response, web.Response) and isinstance(response.body, bytes):
        log.debug(BodyText("reply", shown(response.body, keys)))
    for choice in record.choices if not isinstance(response, web.Response) else ():
        log.debug(BodyText("reply", shown(choice.text.encode(), keys)))


def shown(body: bytes, keys: Sequence[str]) -> str:
    """Both ends of a body as one line, without the values of `keys` and of fields with secrets."""

    def part(raw: bytes) -> str:
        text = SECRET.sub(r"\1***", raw.decode("utf-8", "replace"))
        for key in keys:
            text = text.replace(key, "***")
        return text

    # a margin, so that no key is cut in two before it is replaced
    n, margin = N_BODY_CHARS, 2 * N_BODY_CHARS
    if len(body) <= 2 * n:
        return one_line(part(body))
    cut = f" ... ({len(body)} bytes) ... "
    return one_line(part(body[:margin])[:n] + cut + part(body[-margin:])[-n:])
