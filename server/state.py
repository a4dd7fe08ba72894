"""State that all routes share: the model, once it is loaded, and the server's options.

A server listens before its model is loaded. Until then `ServerState.model` is None and requests
get status 503. The caller provides `load`, the function that loads the model.
Tested by tests/server/test_http_app.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from aiohttp import web

from ..runtime.instance import EmbeddingInstance, Instance
from .bridge import Bridge, Deliveries
from .config import ServerConfig
from .grammars import GrammarQueue
from .responses.store import ResponseStore

ServedModel = Instance | EmbeddingInstance

N_BYTES_SIZES: Final = (64 * 1024, 1024 * 1024)  # a body waits only for others of its size


class LoadProgress:
    """What a loading model does now, as a text. Any thread may set or read it."""

    def __init__(self) -> None:
        self.text = ""

    def on_load(self, done: int, total: int) -> None:
        """Report that `done` of `total` bytes of weights are loaded."""
        self.text = f"loading weights, {100 * done // max(total, 1)}%"

    def on_compile(self, done: int, total: int, name: str, seconds: float) -> None:
        """Report that `done` of `total` kernels are compiled."""
        self.text = f"preparing: compiling kernels, {done} of {total}"


class ServerState:
    """The model of a running server, None until it is loaded."""

    def __init__(
        self,
        config: ServerConfig,
        model: ServedModel | None = None,
        progress: LoadProgress | None = None,
    ) -> None:
        self.config = config
        self.model = model
        self.grammars: GrammarQueue | None = None  # once a request has a grammar
        self.deliveries: Deliveries | None = None  # once a request generates a text
        self.controlled: dict[str, Bridge] = {}  # chats with `reasoning_control`, by reply id
        self.responses = ResponseStore()
        self.turns = [asyncio.Lock() for _ in range(len(N_BYTES_SIZES) + 1)]  # of bodies by size
        self.progress = progress or LoadProgress()

    async def load(self, load: Callable[[], ServedModel]) -> None:
        """Call `load` in a thread of its own. Raises what `load` raises.

        The thread is a daemon and belongs to no pool, so a stopping server does not wait for it.
        """
        loaded: Future[ServedModel] = Future()
        loaded.set_running_or_notify_cancel()

        def work() -> None:
            try:
                model = load()
                if isinstance(model, Instance):
                    model.engine.compiler.prepare()
                loaded.set_result(model)
            except BaseException as error:
                loaded.set_exception(error)

        threading.Thread(target=work, name="lamella-load", daemon=True).start()
        self.model = await asyncio.wrap_future(loaded)


STATE: Final = web.AppKey("state", ServerState)
