"""A replica: a model with its engine and its HTTP server, which answers requests that have a lease.

All routes are the server's. It has a thread with an event loop of its own, as the caller's may be
another kind of loop. Knows no Ray: `deployments.py` makes an actor of it.
Tested by tests/cluster/test_replica.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import aclosing, suppress
from functools import partial
from hashlib import blake2b
from typing import TypedDict

from ..base.background import begin
from ..base.errors import ClosedError, UnavailableError
from ..base.log import get_logger
from ..model.context import Context
from ..runtime.instance import Instance
from ..runtime.open import open_model
from ..runtime.prefix_identity import keys_identity
from ..server.app import create_app, listening, without_pauses
from ..server.config import ServerConfig
from ..server.metrics import Metrics
from ..server.replies import SYSTEM_FINGERPRINT
from ..server.routes import METRICS
from ..server.state import Role, ServedModel, ServerState
from .calls import Lease
from .leases import Leases
from .prefixes import summary
from .routing import TEXT_WORK
from .served import Served

log = get_logger("cluster")


class Stats(TypedDict):
    """What a replica says about itself, for routers."""

    number: int
    pages: bytes
    work: int


class Replica:
    """A model that answers calls, from `start` to `close`."""

    def __init__(self, served: Served, id: str = "", host: str = "127.0.0.1") -> None:
        """`host`: the address on which it listens, for the ingress."""
        self._served = served
        self._id, self._host = id, host
        self._port: int | None = None  # while it serves
        self._leases = Leases()
        self.state = ServerState(_inner(served.config, host), role=Role.REPLICA)
        self._app = create_app(self.state)
        self._app.middlewares.insert(0, self._leases.middleware())
        self._serving: Future[None] | None = None
        self._stop: Callable[[], object] = _nothing  # once it serves
        self._n_stats = 0
        self._fingerprint = ""  # not known yet

    async def start(self) -> None:
        """Load the model and listen. Raises as `open_model` and `Served.opened_params`."""
        ready: Future[None] = Future()

        def serve() -> None:
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._serve(ready))

        self._serving = begin(serve, "lamella-http")
        try:
            await asyncio.wrap_future(ready)
        except BaseException:
            await self.close()
            raise

    async def _serve(self, ready: Future[None]) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        self._stop = partial(loop.call_soon_threadsafe, stop.set)
        try:
            async with listening(self.state, self._app) as runner:
                await self.state.load(partial(without_pauses, self._load))
                self._port = runner.addresses[0][1]
                ready.set_result(None)
                await stop.wait()
                await self.state.running.drain(self.state.config.drain, asyncio.Event())
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)

    def _load(self) -> ServedModel:
        params = self._served.opened_params()
        return open_model(params, defaults=self._served.defaults, prepare_grammars=True)

    async def close(self) -> None:
        """Refuse new work, give running requests `--drain` seconds, and free the model."""
        if self._serving is not None and not self._serving.done():
            with suppress(RuntimeError):  # the loop has just ended
                self._stop()
            with suppress(Exception):
                await asyncio.wrap_future(self._serving)
        self._port = None

    # --- requests ---

    async def lend(self) -> AsyncGenerator[Lease]:
        """Yield a lease for a request; then wait until the request has ended.

        Raises:
            ClosedError: the replica is not running.
        """
        if self._port is None:
            raise ClosedError(f"replica {self._id} is not running")
        async with aclosing(self._leases.lend()) as secrets:
            async for secret in secrets:
                yield Lease(self._id, self._fingerprint, self._host, self._port, secret)

    # --- news ---

    def check(self) -> None:
        """Raises UnavailableError if the engine can answer no request: GET /health is 503."""
        if trouble := self.state.engine_trouble:
            raise UnavailableError(f"replica {self._id}: {trouble}")

    async def stats(self) -> Stats:
        """What routers need to know. Waits for the end of the engine's step."""
        model = self.state.model
        self._n_stats += 1
        pages = b""
        if isinstance(model, Instance):
            engine = model.engine

            def read(_: Context) -> bytes:
                return summary(engine.prefixes.tree)

            with suppress(ClosedError):
                pages = await asyncio.to_thread(engine.call, read)
        return Stats(number=self._n_stats, pages=pages, work=self._work())

    def _work(self) -> int:
        """The tokens of prompts that are not evaluated, and `TEXT_WORK` for each text."""
        model = self.state.model
        if model is None:
            return 0
        worker = model.worker
        n_jobs = worker.n_running + worker.n_waiting
        counts = worker.counters
        n_each = (counts.n_prompt + counts.n_cached) // max(counts.n_prompts, 1)
        n_left = n_each * worker.n_waiting  # the engine's thread alone knows their prompts
        if isinstance(model, Instance):
            n_left += sum(max(job.n_prompt - job.n_evaluated, 0) for job in model.engine.running)
        return n_left + TEXT_WORK * n_jobs

    @property
    def kv_use(self) -> float:
        """The part of the most used pool that running requests have, from 0 to 1."""
        model = self.state.model
        if not isinstance(model, Instance):
            return 0.0
        pools = [group.pool for group in model.context.all_groups]
        return max((1 - pool.n_free / max(pool.n_pages, 1) for pool in pools), default=0.0)

    def metrics(self) -> bytes:
        """The page of GET /metrics."""
        found: Metrics = self._app[METRICS]
        return found.render()

    def fingerprint(self) -> str:
        """Equal in replicas that generate the same texts: the same weights, options, version,
        kernels, instruction set and placement. The first call reads the model's file."""
        model = self.state.model
        if not isinstance(model, Instance):
            return ""
        identity = keys_identity(model.context, model.params)
        options = self._served.params, sorted(model.defaults.items())
        text = repr((SYSTEM_FINGERPRINT, sorted(identity.items()), options))
        self._fingerprint = blake2b(text.encode(), digest_size=16).hexdigest()
        return self._fingerprint


def _inner(config: ServerConfig, host: str) -> ServerConfig:
    """The options of a server that only an ingress reaches. A stream has one replica, so none is
    kept for clients that come back."""
    return config.change(host=host, port=0, ssl_cert_file="", ssl_key_file="", stream_timeout=0)


def _nothing() -> None: ...
