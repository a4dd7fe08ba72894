"""The bridge between the engine's thread and a coroutine."""

from __future__ import annotations

import asyncio
import threading

import pytest
from fake_context import WAIT_S, FakeContext
from http_world import BOS, make_model, running

from lamella.base.errors import LamellaError, OverloadedError
from lamella.model.sampling import SamplingParams
from lamella.runtime.engine.job import Result
from lamella.runtime.instance import Instance
from lamella.runtime.text import Piece
from lamella.server.bridge import Bridge, Choice, Progress
from lamella.server.schema import GenerationBody

PROMPT = (BOS, 7, 8)


def choice(index: int = 0) -> Choice:
    return Choice(index, len(PROMPT), SamplingParams(temperature=0))


def body(n_predict: int = 5) -> GenerationBody:
    return GenerationBody(n_predict=n_predict, ignore_eos=True)


async def settled(model: Instance) -> None:
    """Between two steps nobody has just left a place and is not told yet."""
    engine = model.engine
    while await asyncio.to_thread(engine.call, lambda c: engine.n_running + engine.n_waiting):
        await asyncio.sleep(0.005)


def test_what_happened_meanwhile_comes_in_one_go() -> None:
    async def main() -> None:
        bridge = Bridge(model.engine)
        bridge.submit([choice(0), choice(1)], [PROMPT], body())
        await settled(model)
        news = await bridge.news(WAIT_S)
        for i in (0, 1):
            *pieces, result = [report.event for report in news if report.index == i]
            assert all(isinstance(piece, Piece) for piece in pieces)
            assert isinstance(result, Result)
        assert await bridge.news(0.01) == []

    model = make_model()
    asyncio.run(asyncio.wait_for(main(), WAIT_S))
    model.engine.close()


def test_news_that_was_taken_wakes_nobody_again() -> None:
    async def main() -> None:
        bridge = Bridge(model.engine)
        bridge._say(0, Progress(1, 3))
        await asyncio.sleep(0)  # its wake-up has come, that of the next one has not
        bridge._say(0, Progress(2, 3))
        assert len(await bridge.news(WAIT_S)) == 2
        news = asyncio.create_task(bridge.news(WAIT_S))
        await asyncio.sleep(0.01)
        assert not news.done()
        bridge._say(0, Progress(3, 3))
        assert len(await news) == 1

    model = make_model()
    asyncio.run(asyncio.wait_for(main(), WAIT_S))
    model.engine.close()


def test_much_news_comes_in_portions() -> None:
    async def main() -> None:
        bridge = Bridge(model.engine)
        bridge.submit([choice()], [PROMPT], body(70))
        await settled(model)
        portions = [await bridge.news(WAIT_S) for _ in range(3)]
        assert [len(portion) for portion in portions[:2]] == [32, 32]
        *pieces, result = [report.event for portion in portions for report in portion]
        assert isinstance(result, Result)
        assert sum(len(piece.tokens) for piece in pieces if isinstance(piece, Piece)) == 70

    model = make_model()
    asyncio.run(asyncio.wait_for(main(), WAIT_S))
    model.engine.close()


def test_an_error_comes_alone_after_what_was_said_before_it() -> None:
    context = FakeContext()

    def fail(step: int) -> None:
        if step == 4:
            raise OSError("gone")

    async def main() -> None:
        bridge = Bridge(model.engine)
        bridge.submit([choice()], [PROMPT], body())
        await settled(model)
        assert all(isinstance(report.event, Piece) for report in await bridge.news(WAIT_S))
        (last,) = await bridge.news(WAIT_S)
        assert isinstance(last.event, LamellaError)

    context.on_decode = fail
    model = make_model(context)
    asyncio.run(asyncio.wait_for(main(), WAIT_S))
    model.engine.close()


def test_a_closed_loop_is_no_fault_of_the_engine() -> None:
    context = FakeContext()
    in_step, go_on = threading.Event(), threading.Event()

    def wait(step: int) -> None:
        if step == 2:
            in_step.set()
            go_on.wait(WAIT_S)

    async def main() -> None:
        Bridge(model.engine).submit([choice()], [PROMPT], body())
        await asyncio.to_thread(in_step.wait, WAIT_S)

    context.on_decode = wait
    model = make_model(context)
    asyncio.run(main())
    go_on.set()
    asyncio.run(settled(model))
    assert len(context.steps) == 5  # to its end
    model.engine.close()


def test_those_submitted_before_one_is_refused_are_cancelled_with_the_request() -> None:
    context = FakeContext()
    in_step, go_on = threading.Event(), threading.Event()

    def wait(step: int) -> None:
        in_step.set()
        go_on.wait(WAIT_S)

    async def main() -> None:
        bridge = Bridge(model.engine)
        with pytest.raises(OverloadedError):
            bridge.submit([choice(i) for i in range(9)], [PROMPT], body())
        assert in_step.wait(WAIT_S)
        bridge.close()
        go_on.set()
        await settled(model)

    context.on_decode = wait
    model = make_model(context, n_parallel=2, max_waiting=3)
    asyncio.run(asyncio.wait_for(main(), WAIT_S))
    assert len(context.steps) == 1
    model.engine.close()


def test_too_many_requests_are_told_to_come_again() -> None:
    context, go_on = FakeContext(), threading.Event()

    def wait(step: int) -> None:
        assert go_on.wait(WAIT_S)

    context.on_decode = wait
    with running(lambda: make_model(context, n_parallel=1, max_waiting=2)) as server:
        error = server.post("/completion", {"prompt": ["a"] * 9}).error
        assert (error["code"], error["type"]) == (503, "unavailable_error")
        go_on.set()
        asyncio.run(settled(server.model))  # those before the refused one have left
        assert server.ok("/completion", prompt="a", n_predict=1)
