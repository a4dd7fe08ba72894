"""The bridge between the engine's thread and a coroutine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from fake_context import WAIT_S, FakeContext
from http_world import BOS, RunningServer, make_model, running

from lamella.base.errors import ClientLimitError, ContextSizeError, LamellaError
from lamella.runtime.engine.job import Result
from lamella.runtime.instance import Instance
from lamella.runtime.params import RequestParams
from lamella.runtime.text import Piece
from lamella.server.bridge import N_UNREAD_MAX, Bridge, Choice, Deliveries, Progress
from lamella.server.schema import GenerationBody
from lamella.server.tasks import GenerationTask

PROMPT = (BOS, 7, 8)


def choice(index: int = 0, n_predict: int = 5) -> Choice:
    given = {"temperature": 0, "ignore_eos": True, "n_predict": n_predict}
    return Choice(index, len(PROMPT), RequestParams.make(given))


def submit(bridge: Bridge, *choices: Choice) -> None:
    params = RequestParams.make({})
    task = GenerationTask(body=GenerationBody(), params=params, prompts=[PROMPT])
    bridge.submit(choices, task)


async def idle(model: Instance) -> None:
    """Wait until no job runs or waits. `call` runs between two steps, after their events."""
    engine = model.engine
    while await asyncio.to_thread(engine.call, lambda c: engine.n_running + engine.n_waiting):
        await asyncio.sleep(0.005)


def test_events_are_read_together() -> None:
    async def main() -> None:
        bridge = Bridge(model.engine, Deliveries(model.engine))
        submit(bridge, choice(0), choice(1))
        await idle(model)
        events = await bridge.events(WAIT_S)
        for i in (0, 1):
            *pieces, result = [item.event for item in events if item.choice == i]
            assert all(isinstance(piece, Piece) for piece in pieces)
            assert isinstance(result, Result)
        assert await bridge.events(0.01) == []

    model = make_model()
    asyncio.run(asyncio.wait_for(main(), WAIT_S))
    model.engine.close()


def test_events_already_read_do_not_wake_a_reader() -> None:
    async def main() -> None:
        deliveries = Deliveries(model.engine)
        bridge = Bridge(model.engine, deliveries)

        def post(n: int) -> None:
            bridge._post(0, Progress(n, 3))
            deliveries._send()

        post(1)
        await asyncio.sleep(0)  # the first wake-up has arrived, the second one has not
        post(2)
        assert len(await bridge.events(WAIT_S)) == 2
        events = asyncio.create_task(bridge.events(WAIT_S))
        await asyncio.sleep(0.01)
        assert not events.done()
        post(3)
        assert len(await events) == 1

    model = make_model()
    asyncio.run(asyncio.wait_for(main(), WAIT_S))
    model.engine.close()


def test_many_events_are_read_in_portions() -> None:
    async def main() -> None:
        bridge = Bridge(model.engine, Deliveries(model.engine))
        submit(bridge, choice(n_predict=50))
        await idle(model)
        portions = [await bridge.events(WAIT_S) for _ in range(2)]
        assert len(portions[0]) == 32
        *pieces, result = [item.event for portion in portions for item in portion]
        assert isinstance(result, Result)
        assert sum(len(piece.tokens) for piece in pieces if isinstance(piece, Piece)) == 50

    model = make_model()
    asyncio.run(asyncio.wait_for(main(), WAIT_S))
    model.engine.close()


def test_an_error_comes_alone_after_earlier_events() -> None:
    context = FakeContext()

    def fail(step: int) -> None:
        if step == 4:
            raise OSError("gone")

    async def main() -> None:
        bridge = Bridge(model.engine, Deliveries(model.engine))
        submit(bridge, choice())
        await idle(model)
        assert all(isinstance(item.event, Piece) for item in await bridge.events(WAIT_S))
        (last,) = await bridge.events(WAIT_S)
        assert isinstance(last.event, LamellaError)

    context.on_decode = fail
    model = make_model(context)
    asyncio.run(asyncio.wait_for(main(), WAIT_S))
    model.engine.close()


def test_the_engine_survives_a_closed_loop() -> None:
    context = FakeContext()
    in_step, go_on = threading.Event(), threading.Event()

    def wait(step: int) -> None:
        if step == 2:
            in_step.set()
            go_on.wait(WAIT_S)

    async def main() -> None:
        submit(Bridge(model.engine, Deliveries(model.engine)), choice())
        await asyncio.to_thread(in_step.wait, WAIT_S)

    context.on_decode = wait
    model = make_model(context)
    asyncio.run(main())
    go_on.set()
    asyncio.run(idle(model))
    assert len(context.steps) == 5  # the job ran to its end
    model.engine.close()


def test_close_cancels_jobs_submitted_before_an_error() -> None:
    context = FakeContext()
    in_step, go_on = threading.Event(), threading.Event()

    def wait(step: int) -> None:
        in_step.set()
        go_on.wait(WAIT_S)

    async def main() -> None:
        bridge = Bridge(model.engine, Deliveries(model.engine))
        prompts = [PROMPT, PROMPT * context.n_ctx]
        task = GenerationTask(body=GenerationBody(), params=RequestParams.make({}), prompts=prompts)
        with pytest.raises(ContextSizeError):
            bridge.submit([choice(0), choice(1)], task)
        assert in_step.wait(WAIT_S)
        bridge.close()
        go_on.set()
        await idle(model)

    context.on_decode = wait
    model = make_model(context, n_parallel=2)
    asyncio.run(asyncio.wait_for(main(), WAIT_S))
    assert len(context.steps) == 1
    model.engine.close()


@contextmanager
def full_queue(*, max_waiting: int = 64, max_client_waiting: int = 64) -> Iterator[RunningServer]:
    """A server with one job that runs and two that wait, as many as may."""
    context, go_on = FakeContext(), threading.Event()

    def wait(step: int) -> None:
        assert go_on.wait(WAIT_S)

    def model() -> Instance:
        return make_model(
            context,
            n_parallel=1,
            max_waiting=max_waiting,
            max_client_waiting=max_client_waiting,
        )

    context.on_decode = wait
    with (
        running(model) as server,
        ThreadPoolExecutor() as pool,
    ):
        replies = []
        for n_waiting, n_prompts in ((0, 1), (2, 2)):
            body = {"prompt": ["a"] * n_prompts, "n_predict": 1}
            replies.append(pool.submit(server.post, "/completion", body))
            while (server.model.engine.n_running, server.model.engine.n_waiting) != (1, n_waiting):
                time.sleep(0.005)
        yield server
        go_on.set()
        assert [reply.result().status for reply in replies] == [200, 200]
        assert server.ok("/completion", prompt="a", n_predict=1)


def test_too_many_waiting_generations_get_503() -> None:
    with full_queue(max_waiting=2) as server:
        reply = server.post("/completion", {"prompt": "a"})
        assert (reply.status, reply.error["type"]) == (503, "unavailable_error")
        assert int(reply.headers["retry-after"]) > 0


def test_too_many_waiting_generations_of_a_client_get_429() -> None:
    with full_queue(max_client_waiting=2) as server:
        reply = server.post("/completion", {"prompt": "a"})
        assert (reply.status, reply.error["type"]) == (429, "rate_limit_error")
        assert "2 generations of this client are waiting" in reply.error["message"]
        assert int(reply.headers["retry-after"]) > 0
        engine = server.model.engine
        with pytest.raises(ClientLimitError):
            engine.check_room("127.0.0.1")
        engine.check_room("another client")


@pytest.mark.parametrize(("n_all", "n_own"), [(3, 64), (64, 3)])
def test_a_request_that_never_fits_the_queue_is_refused(n_all: int, n_own: int) -> None:
    with running(lambda: make_model(max_waiting=n_all, max_client_waiting=n_own)) as server:
        for body in ({"prompt": ["a"] * 4}, {"prompt": "a", "n": 4}):
            reply = server.post("/v1/completions", body)
            assert reply.status == 400
            assert reply.error["message"] == "the request has 4 generations: at most 3 may wait"
        assert len(server.ok("/completion", prompt=["a"] * 3, n_predict=1)) == 3


def test_one_wake_up_per_step_for_all_bridges() -> None:
    context = FakeContext()

    async def main() -> None:
        deliveries = Deliveries(model.engine)
        bridges = [Bridge(model.engine, deliveries) for _ in range(3)]
        for bridge in bridges:
            submit(bridge, choice(n_predict=20))
        await idle(model)
        await asyncio.sleep(0)
        assert 0 < deliveries.n_wake_ups <= len(context.steps)  # fewer if the loop is slower
        for bridge in bridges:
            events = await bridge.events(WAIT_S)
            assert len(events) > 10 and isinstance(events[-1].event, Result)

    model = make_model(context)
    asyncio.run(asyncio.wait_for(main(), WAIT_S))
    model.engine.close()


@pytest.mark.parametrize("aside", [False, True])
def test_a_full_mailbox_pauses_its_own_text_until_it_is_read(aside: bool) -> None:
    """If the next step computes already, its token comes, too."""

    async def main() -> None:
        deliveries = Deliveries(model.engine)
        bridge, other = Bridge(model.engine, deliveries), Bridge(model.engine, deliveries)
        submit(bridge, choice(n_predict=300))
        while not bridge._paused:
            await asyncio.sleep(0.005)
        submit(other, choice(n_predict=40))
        found = [each for _ in range(2) for each in await other.events(WAIT_S)]
        while not isinstance(found[-1].event, Result):
            found += await other.events(WAIT_S)
        assert len(bridge._mailbox) == N_UNREAD_MAX + aside
        found = []
        while not found or not isinstance(found[-1].event, Result):
            found += await bridge.events(WAIT_S)
            assert len(bridge._mailbox) <= N_UNREAD_MAX + 1 + aside
        tokens = [t for each in found if isinstance(each.event, Piece) for t in each.event.tokens]
        assert len(tokens) == 300

    model = make_model(FakeContext(2048, aside=aside))
    asyncio.run(asyncio.wait_for(main(), WAIT_S))
    model.engine.close()
