"""A replica: a model with its engine and its HTTP server, which listens on a unix socket.

All routes are the server's. A call is passed to it, and its reply back, byte by byte. The server
has a thread with an event loop of its own, as the caller's may be another kind of loop. Knows no
Ray: `deployments.py` makes an actor of it. Tested by tests/cluster/test_replica.py.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Final, TypedDict

import aiohttp
from yarl import URL

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
from .calls import FINGERPRINT_HEADER, NOT_RETURNED, REPLICA_HEADER, Call, Head, Reply
from .prefixes import summary
from .routing import TEXT_WORK
from .served import Served

log = get_logger("cluster")

ORIGIN: Final = "http://replica"
N_PART_BYTES: Final = 256 * 1024  # of a body that is sent


class Stats(TypedDict):
    """What a replica says about itself, for routers."""

    number: int
    pages: bytes
    work: int


class Replica:
    """A model that answers calls, from `start` to `close`."""

    def __init__(self, served: Served, id: str = "") -> None:
        self._served = served
        self._id = id
        self._folder = Path(tempfile.mkdtemp(prefix="lamella-replica-"))
        socket = str(self._folder / "http.sock")
        config = _on_socket(served.config, socket)
        self.state = ServerState(config, role=Role.REPLICA)
        self._app = create_app(self.state)
        self._serving: Future[None] | None = None
        self._stop: Callable[[], object] = _nothing  # once it serves
        self._socket = socket
        self._session: aiohttp.ClientSession | None = None
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
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(self._socket, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            auto_decompress=False,
        )

    async def _serve(self, ready: Future[None]) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        self._stop = partial(loop.call_soon_threadsafe, stop.set)
        try:
            async with listening(self.state, self._app):
                await self.state.load(partial(without_pauses, self._load))
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
        if self._session is not None:
            await self._session.close()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    # --- requests ---

    async def answer(self, call: Call) -> Reply:
        """Yield the head of the server's reply, and its bytes as they come.

        Raises:
            UnavailableError: the server has closed the connection.
        """
        if self._session is None:
            raise ClosedError("the replica is not running")
        url = URL(ORIGIN + call.target, encoded=True)
        data = None if call.method in ("GET", "HEAD") else _parts(call.body)
        headers = [*call.headers]
        if data is not None:
            headers.append(("Content-Length", str(len(call.body))))
        try:
            async with self._session.request(
                call.method, url, headers=headers, data=data, allow_redirects=False
            ) as reply:
                own = ((REPLICA_HEADER, self._id), (FINGERPRINT_HEADER, self._fingerprint))
                yield Head(reply.status, [*_returned(reply), *own])
                while part := await reply.content.readany():
                    yield part
        except (aiohttp.ClientError, OSError) as error:
            raise UnavailableError(f"replica {self._id} closed the connection: {error}") from None

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
        """Equal in replicas that generate the same texts: the same weights, version, kernels,
        instruction set and placement. The first call reads the model's file."""
        model = self.state.model
        if not isinstance(model, Instance):
            return ""
        identity = keys_identity(model.context, model.params)
        text = repr((SYSTEM_FINGERPRINT, sorted(identity.items()), sorted(model.defaults.items())))
        self._fingerprint = blake2b(text.encode(), digest_size=16).hexdigest()
        return self._fingerprint


def _on_socket(config: ServerConfig, socket: str) -> ServerConfig:
    """The options of a server that only an ingress reaches. A stream has one replica, so none is
    kept for clients that come back."""
    return config.change(host=socket, ssl_cert_file="", ssl_key_file="", stream_timeout=0)


def _nothing() -> None: ...


async def _parts(body: bytes) -> AsyncIterator[bytes]:
    for i in range(0, len(body), N_PART_BYTES):
        yield body[i : i + N_PART_BYTES]


def _returned(reply: aiohttp.ClientResponse) -> list[tuple[str, str]]:
    return [(k, v) for k, v in reply.headers.items() if k.lower() not in NOT_RETURNED]
