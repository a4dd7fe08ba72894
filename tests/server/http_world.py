"""Shared by the HTTP tests: a server in a thread over the fake context, and a plain HTTP client.

The server is the real one, on a free port, in a `CheckedLoop`. A callback that blocks the event
loop for long makes the test fail when the server is closed.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from checked_loop import CheckedLoop
from fake_context import PIECES, VOCAB, WAIT_S, FakeContext, FakeVocab
from open_params import open_params

from lamella.base.errors import RequestError
from lamella.model.chat.template import ChatTemplate
from lamella.model.context import Context
from lamella.model.vocab import FillTokens, Vocab
from lamella.runtime.displaced import Displaced
from lamella.runtime.engine.engine import Engine
from lamella.runtime.instance import EmbeddingInstance, Instance
from lamella.runtime.params import EngineParams
from lamella.runtime.plan import ModelPlan
from lamella.server.app import serve
from lamella.server.config import ServerConfig
from lamella.server.progress import LoadProgress
from lamella.server.state import ServedModel

assert VOCAB.n_tokens == len(PIECES)

BOS, BOS_TEXT = 1, "<s>"
N_BLOCKING_SECONDS = 5.0  # limit of one callback; long enough for a busy machine
THREAD = "test-server"  # the thread of the event loop


def eventually(check: Callable[[], bool]) -> None:
    """Wait until `check` returns True."""
    deadline = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.005)


class HttpVocab(FakeVocab):
    """The fake vocabulary with a BOS. Unknown characters are left out."""

    bos, eos, eot, unk = BOS, 2, None, 0
    add_bos, add_eos, add_sep, sep = True, False, False, None
    fill = FillTokens()

    def tokenize(self, text: str, add_special: bool = True, **_: bool) -> list[int]:
        tokens = super().tokenize(text)
        return [BOS, *tokens] if add_special else tokens

    def text(self, id: int) -> str:
        return {BOS: BOS_TEXT, 2: "</s>"}.get(id) or PIECES[id].decode("utf-8", "replace")

    def without_bos(self, text: str) -> str:
        return text.removeprefix(BOS_TEXT)

    def piece(self, id: int, special: bool = False, **_: bool) -> bytes:
        if not 0 <= id < self.n_tokens:
            raise RequestError(f"token {id}: must be 0 to {self.n_tokens - 1}")
        return self.text(id).encode() if special and id in (1, 2) else PIECES[id]

    def detokenize(self, ids: Sequence[int], special: bool = False, **_: bool) -> str:
        raw = b"".join(self.piece(id, special=special) for id in ids)
        return raw.decode("utf-8", "replace")


def make_model(
    context: FakeContext | None = None,
    vocab: HttpVocab | None = None,
    *,
    n_parallel: int = 4,
    max_waiting: int = 64,
    max_client_waiting: int = 64,
    defaults: Mapping[str, Any] | None = None,
) -> Instance:
    """A fake model. Each token of its texts depends on all tokens before."""
    known = cast(Vocab, vocab or HttpVocab())
    engine = Engine(
        cast(Context, context or FakeContext()),
        known,
        n_parallel=n_parallel,
        params=EngineParams(
            max_waiting=max_waiting, max_client_waiting=max_client_waiting, max_itl=-1
        ),
    )
    engine.start()
    return Instance(
        params=open_params("models/fake.gguf", n_parallel=n_parallel),
        plan=fake_plan(),
        engine=engine,
        vocab=known,
        chat=ChatTemplate(None),
        meta={"n_vocab": known.n_tokens, "n_params": 0},
        defaults=defaults or {},
    )


def fake_plan(decode: Sequence[Displaced] = (), prefill: Sequence[Displaced] = ()) -> ModelPlan:
    """A plan with displaced nodes and a device only."""
    graphs = {"decode": decode, "prefill": prefill}
    named = {name: SimpleNamespace(displaced=nodes) for name, nodes in graphs.items()}
    memory = tuple(SimpleNamespace(buffer_type=name) for name in ("CPU", "GPU"))
    cpu = SimpleNamespace(
        name="CPU", description="a processor", n_layers=3, capacity=1 << 30, memory=memory
    )
    devices = (cpu,)
    placement = SimpleNamespace(devices=())
    return cast(
        ModelPlan, SimpleNamespace(**named, devices=devices, placement=placement, draft=None)
    )


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def error(self) -> dict[str, Any]:
        """The error. Asserts the common shape of errors."""
        error = self.json["error"]
        assert error["code"] == self.status, error
        assert error["message"], error
        assert self.headers["content-type"].startswith("application/json")
        return cast(dict[str, Any], error)

    @property
    def events(self) -> list[Any]:
        """The events of a stream. [DONE] stays a text, pings are left out."""
        assert self.headers["content-type"] == "text/event-stream"
        frames = self.raw.decode().split("\n\n")
        assert frames.pop() == "", "the stream does not end with an empty line"
        data = [frame.removeprefix("data: ") for frame in frames if frame != ":"]
        return [text if text == "[DONE]" else json.loads(text) for text in data]


class RunningServer:
    """A server started by `running`."""

    def __init__(self, opened: ServedModel, port: int) -> None:
        self.opened = opened
        self.port = port

    @property
    def model(self) -> Instance:
        assert isinstance(self.opened, Instance)
        return self.opened

    @property
    def embedding_model(self) -> EmbeddingInstance:
        assert isinstance(self.opened, EmbeddingInstance)
        return self.opened

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)

    def call(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> Reply:
        """One request. `body` is sent as JSON unless it is bytes."""
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        with closing(self.connect()) as connection:
            connection.request(method, path, raw, headers or {})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read())

    def get(self, path: str, **headers: str) -> Reply:
        return self.call("GET", path, None, headers)

    def post(self, path: str, body: object) -> Reply:
        return self.call("POST", path, body)

    def ok(self, path: str, **body: object) -> Any:
        """The JSON reply of a request that must succeed."""
        reply = self.post(path, body)
        assert reply.status == 200, reply.raw
        return reply.json


@contextmanager
def running(
    load: Callable[[], ServedModel] = make_model,
    config: ServerConfig | None = None,
    progress: LoadProgress | None = None,
    drains: bool = False,
) -> Iterator[RunningServer]:
    """A server with a loaded model, see `listening`. Asserts at the end that nothing blocked its
    event loop."""
    models: list[ServedModel] = []

    def load_and_record() -> ServedModel:
        models.append(load())
        return models[-1]

    with listening(load_and_record, config, progress, drains) as port:
        yield RunningServer(models[0], port)


@contextmanager
def listening(
    load: Callable[[], ServedModel],
    config: ServerConfig | None = None,
    progress: LoadProgress | None = None,
    drains: bool = False,
) -> Iterator[int]:
    """Start a server and yield its port when it is ready. At the end, running requests get the time
    of `config` if it `drains`; else they are cancelled at once."""
    config = config or ServerConfig(port=0)
    addresses: list[str] = []
    ready = threading.Event()
    failed: list[BaseException] = []
    stops: list[Callable[[], object]] = []
    warnings = _AsyncioWarnings()

    def announce(address: str) -> None:
        addresses.append(address)
        ready.set()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        stops.append(lambda: loop.call_soon_threadsafe(stop.set))
        await serve(config, load, stop, announce, progress, None if drains else stop)

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: CheckedLoop(N_BLOCKING_SECONDS)) as runner:
                runner.run(main())
        except BaseException as error:
            failed.append(error)
        ready.set()

    thread = threading.Thread(target=run, name=THREAD)
    with warnings.recorded():
        thread.start()
        assert ready.wait(WAIT_S), "the server did not start"
        try:
            if failed:
                raise failed[0]
            yield int(addresses[0].rpartition(":")[2].partition("/")[0])
        finally:
            with suppress(RuntimeError):  # the server failed and its loop is closed
                stops[0]()
            thread.join(WAIT_S)
    assert not thread.is_alive(), "the server did not stop"
    assert failed == []
    assert warnings.texts == []


class _AsyncioWarnings(logging.Handler):
    """Records asyncio's warnings: a blocked loop, and exceptions that were never retrieved."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())

    @contextmanager
    def recorded(self) -> Iterator[None]:
        logger = logging.getLogger("asyncio")
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)
