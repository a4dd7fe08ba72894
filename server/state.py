"""State that all routes share: the model, once it is loaded, and the server's settings.

A server listens before its model is loaded. Until then `ServerState.model` is None and requests
get status 503. The caller provides `load`, the function that loads the model.
Tested by tests/server/test_http_app.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import ClassVar, Final

from aiohttp import web

from ..base.options import Options, option
from ..model.params import parse_names
from ..runtime.instance import Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(Options):
    """Where and how to listen."""

    title: ClassVar[str] = "server"

    host: str = option("127.0.0.1", "--host", metavar="ADDR", help="address to listen on")
    port: int = option(
        8080, "--port", low=0, high=65535, help="port to listen on; 0: any free port"
    )
    api_keys: Sequence[str] = option(
        (),
        "--api-key",
        parse=parse_names,
        env="$LLAMA_API_KEY",
        metavar="KEY,...",
        help="API keys; every request but GET /health needs one of them",
        default_text="",
    )
    metrics: bool = option(
        False,
        "--metrics",
        env="ENDPOINT_METRICS",
        help="enable GET /metrics, for Prometheus",
    )
    slots: bool = option(
        True,
        "--slots",
        off=("--no-slots",),
        env="ENDPOINT_SLOTS",
        help="enable GET /slots, the running requests",
    )
    request_log: bool = option(
        True, "--request-log", off=("--no-request-log",), help="log a line per request"
    )
    n_body_bytes_max: int = option(
        16 * 1024 * 1024, help="most bytes of a request's body: several times the longest context"
    )


class ServerState:
    """The model of a running server, None until it is loaded."""

    def __init__(self, config: ServerConfig, model: Instance | None = None) -> None:
        self.config = config
        self.model = model

    async def load(self, load: Callable[[], Instance]) -> None:
        """Call `load` in a thread of its own. Raises what `load` raises.

        The thread is a daemon and belongs to no pool, so a stopping server does not wait for it.
        """
        loaded: Future[Instance] = Future()
        loaded.set_running_or_notify_cancel()

        def work() -> None:
            try:
                loaded.set_result(load())
            except BaseException as error:
                loaded.set_exception(error)

        threading.Thread(target=work, name="lamella-load", daemon=True).start()
        self.model = await asyncio.wrap_future(loaded)


STATE: Final = web.AppKey("state", ServerState)
