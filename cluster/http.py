"""The HTTP server of `lamella serve --ray`: the ingress, in the process of the command.

So a reply passes one process between the replica and the client. Knows no Ray.
Tested by tests/cluster/test_http.py and test_ray.py.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import uvicorn

from ..server.config import ServerConfig
from ..server.request_ids import ID_HEADER, sane_request_id

App = Callable[..., Awaitable[None]]  # of ASGI
RAW_ID: Final = ID_HEADER.lower().encode()


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
                lifespan="on",
                ws="none",
                log_config=None,
                access_log=False,
                proxy_headers=False,  # replicas know which addresses to believe
                server_header=False,
                headers=[("Server", "lamella")],
                limit_concurrency=config.max_connections,
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
