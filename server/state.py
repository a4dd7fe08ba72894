"""What the routes share: the model once it is there, and the settings the server was started with.

A server listens before its model is loaded; until then `ServerState.model` is None and requests
are answered 503. How a model comes about is the caller's business: it hands in `load`.
Tested by tests/server/test_http_app.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from ..model.chat import ChatTemplate
from ..model.sampling import SamplingParams
from ..model.vocab import Vocab
from ..runtime.displaced import Displaced
from ..runtime.engine.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where and how to listen. Port 0 takes a free one; with `api_keys`, requests need one.
    `metrics`: tell GET /metrics.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()
    metrics: bool = False
    n_body_bytes_max: int = 16 * 1024 * 1024  # several times the longest context


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerModel:
    """A loaded model. `engine` has been started; the server closes it when it stops.

    `n_ctx` is what one request may use, in tokens; `n_parallel` how many run at once. `meta` is
    shown by /v1/models: vocab_type, n_vocab, n_ctx_train, n_embd, n_params, size (bytes).
    `sampling` holds the values for fields that a request leaves out. For the metrics: `displaced`
    nodes of the graphs "decode" and "prefill", and what gives the bytes that are allocated, by
    buffer type and usage; `buffer_bytes` is called from any thread.
    """

    engine: Engine
    vocab: Vocab
    chat: ChatTemplate
    alias: str
    path: str
    n_ctx: int
    n_parallel: int
    meta: Mapping[str, int | str] = field(default_factory=dict)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    displaced: Mapping[str, Sequence[Displaced]] = field(default_factory=dict)
    buffer_bytes: Callable[[], Mapping[tuple[str, str], int]] = dict


class ServerState:
    """The model of a running server, None until it is loaded."""

    def __init__(self, config: ServerConfig, model: ServerModel | None = None) -> None:
        self.config = config
        self.model = model

    async def load(self, load: Callable[[], ServerModel]) -> None:
        """Call `load` in a thread of its own; raises what it raises.

        A daemon thread, and none of a pool: a server told to stop does not wait for a model.
        """
        loaded: Future[ServerModel] = Future()
        loaded.set_running_or_notify_cancel()

        def work() -> None:
            try:
                loaded.set_result(load())
            except BaseException as error:
                loaded.set_exception(error)

        threading.Thread(target=work, name="lamella-load", daemon=True).start()
        self.model = await asyncio.wrap_future(loaded)


STATE: Final = web.AppKey("state", ServerState)
