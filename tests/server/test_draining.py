"""Stopping: running requests get time, new work is refused, and each client is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from embed_world import FakeEmbedContext, make_embedder
from fake_context import WAIT_S, FakeContext
from http_world import Reply, RunningServer, make_model, running

from lamella.base.errors import ClosedError
from lamella.server import app
from lamella.server.config import ServerConfig
from lamella.server.draining import RunningRequests
from lamella.server.pace import RequestPace
from lamella.server.state import ServedModel


async def entered(requests: RunningRequests, end: asyncio.Event) -> str:
    with requests.entered():
        try:
            await end.wait()
        except asyncio.CancelledError:
            return str(requests.cancelled_error())
    return "ended"


async def start(requests: RunningRequests, end: asyncio.Event) -> asyncio.Task[str]:
    task = asyncio.create_task(entered(requests, end))
    await asyncio.sleep(0)
    return task


def test_running_requests_end_in_peace() -> None:
    async def main() -> None:
        requests, end = RunningRequests(), asyncio.Event()
        tasks = [await start(requests, end) for _ in range(2)]
        requests.check()
        drain = asyncio.create_task(requests.drain(WAIT_S, asyncio.Event()))
        await asyncio.sleep(0)
        with pytest.raises(ClosedError, match="the server is stopping"):
            requests.check()
        assert not drain.done()
        end.set()
        await drain
        assert await asyncio.gather(*tasks) == ["ended", "ended"]
        await requests.drain(WAIT_S, asyncio.Event())  # nothing runs: no wait

    asyncio.run(main())


@pytest.mark.parametrize("is_late", [False, True])
def test_the_rest_is_cancelled(is_late: bool) -> None:
    async def main() -> None:
        requests, now = RunningRequests(), asyncio.Event()
        task = await start(requests, asyncio.Event())
        if not is_late:
            now.set()
        await requests.drain(0.001 if is_late else WAIT_S, now)
        assert not task.done()
        requests.cancel()
        assert await task == "the server is stopping"

    asyncio.run(main())


def test_a_disconnected_client_is_no_error() -> None:
    async def main() -> None:
        task = await start(RunningRequests(), asyncio.Event())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


class Held:
    """Holds a step of the model until `go_on`."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __call__(self, _: object) -> None:
        self.reached.set()
        assert self.go_on.wait(WAIT_S)


def in_a_step(
    held: Held, server: RunningServer, path: str, body: object, replies: list[Reply]
) -> threading.Thread:
    """A request that is in a step of the model."""
    thread = threading.Thread(target=lambda: replies.append(server.post(path, body)))
    thread.start()
    assert held.reached.wait(WAIT_S)
    return thread


def go_on_after(request: threading.Thread, held: Held) -> None:
    request.join(WAIT_S)
    held.go_on.set()


def test_a_server_that_drains() -> None:
    context, held = FakeContext(), Held()
    context.on_decode = held
    replies: list[Reply] = []
    refused: list[Reply] = []
    config = ServerConfig(port=0, drain=int(WAIT_S), metrics=True)

    def then(server: RunningServer) -> None:
        while server.get("/health").status == 200:
            pass
        refused.append(server.get("/health"))
        refused.append(server.post("/completion", {"prompt": "b"}))
        refused.append(server.post("/tokenize", {"content": "b"}))
        assert server.get("/live").status == server.get("/metrics").status == 200
        held.go_on.set()

    with running(lambda: make_model(context), config, drains=True) as server:
        body = {"prompt": "a", "n_predict": 3, "ignore_eos": True}
        thread = in_a_step(held, server, "/completion", body, replies)
        watcher = threading.Thread(target=then, args=(server,))
        watcher.start()
    for each in (thread, watcher):
        each.join(WAIT_S)
    assert [reply.status for reply in replies] == [200]
    assert [reply.error["message"] for reply in refused] == ["the server is stopping"] * 3
    assert {reply.headers["retry-after"] for reply in refused} == {"2"}


def text_model(held: Held) -> ServedModel:
    context = FakeContext()
    context.on_decode = held
    return make_model(context)


def embedding_model(held: Held) -> ServedModel:
    context = FakeEmbedContext()
    context.on_embed = held
    return make_embedder(context)


@pytest.mark.parametrize(
    ("make", "path", "body"),
    [
        (text_model, "/completion", {"prompt": "a"}),
        (text_model, "/completion", {"prompt": "a", "stream": True}),
        (embedding_model, "/v1/embeddings", {"input": "a"}),
    ],
)
def test_clients_are_told_though_the_model_hangs(
    make: Callable[[Held], ServedModel],
    path: str,
    body: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "N_HANDLER_SECONDS", WAIT_S)  # for slow machines
    held = Held()
    replies: list[Reply] = []

    with running(lambda: make(held)) as server:
        request = in_a_step(held, server, path, body, replies)
        threading.Thread(target=go_on_after, args=(request, held)).start()
    assert replies[0].error == {
        "code": 503,
        "message": "the server is stopping",
        "type": "unavailable_error",
    }


def test_a_request_that_waits_for_its_pace_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "N_HANDLER_SECONDS", WAIT_S)
    waiting = threading.Event()
    replies: list[Reply] = []

    def delay(*_: object) -> float:
        waiting.set()
        return 10 * WAIT_S

    monkeypatch.setattr(RequestPace, "delay", delay)
    with running() as server:
        request = threading.Thread(target=lambda: replies.append(server.get("/props")))
        request.start()
        assert waiting.wait(WAIT_S)
    request.join(WAIT_S)
    assert [reply.status for reply in replies] == [503]
    assert replies[0].error["message"] == "the server is stopping"


def test_a_stream_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "N_HANDLER_SECONDS", WAIT_S)
    context, held = FakeContext(), Held()
    context.on_decode = lambda step: held(step) if step == 3 else None
    rest: list[bytes] = []
    with running(lambda: make_model(context)) as server:
        connection = server.connect()
        body = b'{"prompt": "a", "stream": true, "ignore_eos": true}'
        connection.request("POST", "/completion", body)
        response = connection.getresponse()
        assert response.status == 200
        assert held.reached.wait(WAIT_S)
        request = threading.Thread(target=lambda: rest.append(response.read()))
        request.start()
        threading.Thread(target=go_on_after, args=(request, held)).start()
    request.join(WAIT_S)
    connection.close()
    assert b'"message":"the server is stopping"' in rest[0].splitlines()[-2]
