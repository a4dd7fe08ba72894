"""The HTTP server of `lamella serve --ray`: the ingress, in the process of the command.

So a reply passes one process between the replica and the client. Knows no Ray.
Tested by tests/cluster/test_http.py and test_ray.py.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from ..server.config import ServerConfig


class HttpServer(uvicorn.Server):
    """Serves an ASGI application until `stop`. Signals are for its caller."""

    def __init__(
        self, app: Callable[..., Any], config: ServerConfig, announce: Callable[[], object]
    ) -> None:
        """Call `announce` when it listens."""
        self._announce = announce
        tls = {"ssl_certfile": config.ssl_cert_file, "ssl_keyfile": config.ssl_key_file}
        super().__init__(
            uvicorn.Config(
                app,
                **(tls if config.ssl_cert_file else {}),  # type: ignore[arg-type]
                lifespan="off",
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
