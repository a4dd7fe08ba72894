"""What the routes share: the model once it is there, and the settings the server was started with.

A server listens before its model is loaded; until then `ServerState.model` is None and requests
are answered 503. How a model comes about is the caller's business: it hands in `load`.
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
    port: int = option(8080, "--port", low=0, high=65535, help="port; 0 takes a free one")
    api_keys: Sequence[str] = option(
        (),
        "--api-key",
        parse=parse_names,
        metavar="KEY,...",
        help="keys, one of which every request must bring",
        default_text="",
    )
    metrics: bool = option(False, "--metrics", help="answer GET /metrics, for Prometheus")
    n_body_bytes_max: int = option(
        16 * 1024 * 1024, help="bytes of a request's body: several times the longest context"
    )


class ServerState:
    """The model of a running server, None until it is loaded."""

    def __init__(self, config: ServerConfig, model: Instance | None = None) -> None:
        self.config = config
        self.model = model

    async def load(self, load: Callable[[], Instance]) -> None:
        """Call `load` in a thread of its own; raises what it raises.

        A daemon thread, and none of a pool: a server told to stop does not wait for a model.
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
