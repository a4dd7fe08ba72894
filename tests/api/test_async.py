"""The twins for coroutines: they give the same texts, do not block the event loop, and cancel."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_models import N_CTX, WAIT_S, becomes_idle, tiny_file

import lamella
from lamella import AsyncTextStream, CancelledError, ClosedError, ContextSizeError, RequestError
from lamella.runtime.async_text import AsyncGeneration
from lamella.runtime.chat import Parser


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_file(tmp_path_factory)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[lamella.Model]:
    with lamella.load(path, n_ctx=N_CTX) as model:
        yield model


def test_twins_give_the_same_texts(model: lamella.Model) -> None:
    async def work() -> None:
        whole = await model.acomplete("a b", max_tokens=12, seed=1)
        assert whole.text == model.complete("a b", max_tokens=12, seed=1).text
        assert whole.usage.completion_tokens == 12
        stream = model.acomplete_stream("a b", max_tokens=12, seed=1)
        assert "".join([piece async for piece in stream]) == whole.text == stream.text
        assert (await stream.result()).tokens == whole.tokens
        answer = await model.achat("a", max_tokens=9, seed=2)
        assert answer.text == model.chat("a", max_tokens=9, seed=2).text
        pieces = [piece async for piece in model.achat_stream("a", max_tokens=9, seed=2)]
        assert pieces == list(model.chat_stream("a", max_tokens=9, seed=2))

    asyncio.run(work())


def test_many_tasks_give_the_same_texts_as_alone(model: lamella.Model) -> None:
    async def work() -> list[str]:
        tasks = [model.acomplete("abcde"[: 1 + i % 5], max_tokens=15, seed=i) for i in range(24)]
        return [whole.text for whole in await asyncio.gather(*tasks)]

    alone = [model.complete("abcde"[: 1 + i % 5], max_tokens=15, seed=i) for i in range(24)]
    assert asyncio.run(work()) == [whole.text for whole in alone]


def test_other_tasks_run_while_one_waits(model: lamella.Model) -> None:
    held, released = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        held.set()
        assert released.wait(WAIT_S), "the event loop was blocked"

    async def work() -> None:
        holder = asyncio.create_task(asyncio.to_thread(model._generator().engine.call, hold))
        await asyncio.to_thread(held.wait)  # now the engine does nothing
        waiting = asyncio.create_task(model.achat("a", max_tokens=3))
        for _ in range(10):
            await asyncio.sleep(0.001)
        assert not waiting.done()
        released.set()
        assert (await waiting).usage.completion_tokens
        await holder

    asyncio.run(work())


def test_a_stream_belongs_to_the_event_loop_that_began_it(model: lamella.Model) -> None:
    stream = model.acomplete_stream("a", max_tokens=9, seed=1)
    with asyncio.Runner() as first:
        begin = first.run(next_piece(stream))
        with pytest.raises(RequestError, match="another event loop began this stream: each loop"):
            asyncio.run(next_piece(stream))
        whole = first.run(stream.result())  # it goes on
    assert whole.text.startswith(begin)
    assert whole.usage.completion_tokens == 9
    assert asyncio.run(stream.result()) == whole


async def next_piece(stream: AsyncTextStream) -> str:
    return await anext(stream)


def test_cancelling_a_task_cancels_its_generation(model: lamella.Model) -> None:
    stream = model.acomplete_stream("a", ignore_eos=True)  # stays referenced

    async def work() -> None:
        for coroutine in (stream.result(), model.acomplete("a", ignore_eos=True)):
            task = asyncio.create_task(coroutine)
            while not model._generator().engine.n_running:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(becomes_idle, model)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await model.achat("a", ignore_eos=True)
        assert await asyncio.to_thread(becomes_idle, model)

    asyncio.run(work())


def test_cancelling_a_task_that_starts_a_generation(model: lamella.Model) -> None:
    entered, released, submitted = threading.Event(), threading.Event(), threading.Event()
    stream = model.acomplete_stream("a", ignore_eos=True)
    start = stream._start

    def slowly(loop: asyncio.AbstractEventLoop) -> tuple[Parser, AsyncGeneration]:
        entered.set()
        released.wait(WAIT_S)
        try:
            return start(loop)
        finally:
            submitted.set()

    stream._start = slowly

    async def work() -> None:
        task = asyncio.create_task(stream.result())
        await asyncio.to_thread(entered.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        released.set()
        assert await asyncio.to_thread(submitted.wait, WAIT_S)
        assert await asyncio.to_thread(becomes_idle, model)
        with pytest.raises(CancelledError, match="closed before its end"):
            await stream.result()

    asyncio.run(work())


def test_a_stream_has_one_reader_at_a_time(model: lamella.Model) -> None:
    async def work() -> None:
        stream = model.acomplete_stream("a b", max_tokens=12, seed=1)
        pieces = await asyncio.gather(*(anext(stream) for _ in range(3)), return_exceptions=True)
        first, *refused = pieces
        assert isinstance(first, str) and first == stream.text
        assert [str(error) for error in refused] == [
            "another task reads this stream: each task needs its own stream"
        ] * 2
        whole = model.complete("a b", max_tokens=12, seed=1)
        assert (await stream.result()).tokens == whole.tokens
        assert await asyncio.to_thread(becomes_idle, model)

    asyncio.run(work())


def test_leaving_a_stream_early(model: lamella.Model) -> None:
    async def work() -> None:
        async with model.achat_stream("a", ignore_eos=True) as stream:
            assert isinstance(stream, AsyncTextStream)
            async for _ in stream:
                break
        assert await asyncio.to_thread(becomes_idle, model)
        assert [piece async for piece in stream] == []
        with pytest.raises(CancelledError, match="closed before its end"):
            await stream.result()
        async for _ in model.achat_stream("a", ignore_eos=True):
            break  # nothing refers to the stream any more
        assert await asyncio.to_thread(becomes_idle, model)

    asyncio.run(work())


def test_errors_of_a_stream(model: lamella.Model, path: Path) -> None:
    with pytest.raises(RequestError, match="did you mean temperature"):
        model.achat_stream("a", temprature=1)  # type: ignore[call-arg]

    async def work() -> None:
        with pytest.raises(ContextSizeError):
            await model.acomplete([1] * N_CTX)
        closed = lamella.load(path)
        stream = closed.achat_stream("a")
        closed.close()
        with pytest.raises(ClosedError):
            await anext(stream)
        with pytest.raises(ClosedError):
            await closed.achat("a")

    asyncio.run(work())


def test_closing_the_model_ends_the_tasks(path: Path) -> None:
    async def work() -> None:
        model = lamella.load(path, n_ctx=100_000)
        tasks = [asyncio.create_task(model.achat("a", ignore_eos=True)) for _ in range(6)]
        engine = model._generator().engine
        while engine.n_running + engine.n_waiting < 6:  # more than run at once
            await asyncio.sleep(0.001)
        await asyncio.to_thread(model.close)
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(end) for end in ends} == {CancelledError}

    asyncio.run(work())


def test_in_a_running_loop_the_blocking_methods_work_too(model: lamella.Model) -> None:
    async def cell() -> str:  # of a notebook
        return model.complete("a", max_tokens=3, seed=1).text

    assert asyncio.run(cell()) == model.complete("a", max_tokens=3, seed=1).text
