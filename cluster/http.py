"""The HTTP server of `lamella serve --ray`: the ingress, in the process of the command.

So a reply passes one process between the replica and the client. Knows no Ray.
Tested by tests/cluster/test_http.py and test_ray.py.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..server.config import ServerConfig
from ..server.connections import N_HEAD_SECONDS
from ..server.open_files import fit_to_files
from ..server.request_ids import ID_HEADER, sane_request_id

HTTP_LOG: Final = logging.getLogger("uvicorn.error")

App = Callable[..., Awaitable[None]]  # of ASGI
RAW_ID: Final = ID_HEADER.lower().encode()
N_FILES: Final = 2  # of a connection: the second is to a replica
N_HEAD_BYTES: Final = 512 * 1024  # of a request; more than one read has
N_IDLE_SECONDS: Final = 75  # between requests; longer than most proxies keep connections: 60


def _is_unexpected(record: logging.LogRecord) -> bool:
    """False if a client disconnected, a reply is cut, or the second Ctrl-C ends it: uvicorn logs a
    traceback for each."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, ConnectionError | asyncio.CancelledError)


HTTP_LOG.addFilter(_is_unexpected)


def with_ids(app: App) -> App:
    """The application, whose requests have ids that are in their replies: as behind Ray Serve."""

    async def called(scope: Mapping[str, Any], receive: object, send: App) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == RAW_ID), None)
        id = sane_request_id(None if given is None else given.decode("latin-1")).encode()
        others = [pair for pair in scope["headers"] if pair[0] != RAW_ID]

        async def send_with_id(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"].append((RAW_ID, id))
            await send(message)

        await app({**scope, "headers": [*others, (RAW_ID, id)]}, receive, send_with_id)

    return called


class Protocol(HttpToolsProtocol):
    """A connection that ends if the head of a request comes late, or is long."""

    _n_head = 0  # bytes
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See uvicorn."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """See uvicorn."""
        self._have_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See uvicorn."""
        super().data_received(data)
        if self._late is None or self.transport.is_closing():
            return
        self._n_head += len(data)
        if self._n_head > N_HEAD_BYTES:
            self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        """See uvicorn."""
        super().on_message_begin()
        self._n_head = 0
        self._await_head()

    def on_headers_complete(self) -> None:
        """See uvicorn."""
        self._have_head()
        super().on_headers_complete()

    def _await_head(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(N_HEAD_SECONDS, self.timeout_keep_alive_handler)

    def _have_head(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class HttpServer(uvicorn.Server):
    """Serves an ASGI application until `stop`. Signals are for its caller."""

    def __init__(self, app: App, config: ServerConfig, announce: Callable[[], object]) -> None:
        """Call `announce` when it listens."""
        self._announce = announce
        tls = {"ssl_certfile": config.ssl_cert_file, "ssl_keyfile": config.ssl_key_file}
        super().__init__(
            uvicorn.Config(
                with_ids(app),
                **(tls if config.ssl_cert_file else {}),  # type: ignore[arg-type]
                http=Protocol,
                timeout_keep_alive=N_IDLE_SECONDS,
                lifespan="on",
                ws="none",
                log_config=None,
                log_level=logging.ERROR,  # not of each client that speaks no HTTP
                access_log=False,
                proxy_headers=False,  # replicas know which addresses to believe
                server_header=False,
                headers=[("Server", "lamella")],
                # it counts the new one
                limit_concurrency=1 + fit_to_files(config.max_connections, N_FILES),
                timeout_graceful_shutdown=config.drain,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See uvicorn."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        await super().startup(sockets)
        self._announce()

    def stop(self) -> None:
        """Let requests end, within `--drain` seconds; the second call ends them at once. Any thread
        may call this."""
        self.force_exit = self.should_exit
        self.should_exit = True

    def serve_on(self, listener: socket.socket) -> None:
        """Serve until `stop`."""
        self.run(sockets=[listener])
