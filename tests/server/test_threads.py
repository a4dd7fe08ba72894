"""Work in threads, in turns of clients."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
from fake_context import WAIT_S

from lamella.base.errors import RequestError
from lamella.server.threads import N_REST, in_turn
from lamella.server.turns import Turns


def work(n_seconds: float) -> None:
    end = time.thread_time() + n_seconds
    while time.thread_time() < end:
        pass


def rests_of_two(n_rest: float) -> list[float]:
    """Seconds of rest after two turns of a client, with 20 ms of work each."""
    rests: list[float] = []

    class Noted(Turns):
        def end(self, client: str, n_rest_seconds: float = 0.0) -> None:
            rests.append(n_rest_seconds)
            super().end(client)

    async def both() -> None:
        turns = Noted(2)
        one = (in_turn(turns, "a", lambda: work(0.02), rest=lambda: n_rest) for _ in range(2))
        await asyncio.gather(*one)

    asyncio.run(both())
    return rests


def test_a_client_rests_after_its_turn() -> None:
    rests = rests_of_two(N_REST)
    assert len(rests) == 2 and all(N_REST * 0.02 <= rest < N_REST * 0.2 for rest in rests)
    assert rests_of_two(0.0) == [0.0, 0.0]


def test_results_and_errors_are_returned() -> None:
    async def one(work: Callable[[], int]) -> int:
        return await in_turn(Turns(), "a", work, rest=lambda: 0.0)

    assert asyncio.run(one(lambda: 7)) == 7
    with pytest.raises(ZeroDivisionError):
        asyncio.run(one(lambda: 1 // 0))


def test_an_error_leaves_nothing_to_the_collector() -> None:
    """Its traceback has frames, and these have the body."""

    class Body:
        pass

    def fail(_: Body) -> None:
        try:
            raise KeyError
        except KeyError:
            raise RequestError("bad") from None

    async def run() -> weakref.ref[Body]:
        body = Body()
        found = weakref.ref(body)
        with suppress(RequestError):
            await in_turn(Turns(), "a", partial(fail, body), rest=lambda: 0.0)
        return found

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(run())() is None
    finally:
        gc.enable()


def test_the_turn_goes_on_if_the_caller_is_cancelled() -> None:
    async def run() -> None:
        turns, begun, release = Turns(), threading.Event(), threading.Event()

        def wait() -> bool:
            begun.set()
            return release.wait(WAIT_S)

        first = asyncio.create_task(in_turn(turns, "a", wait, rest=lambda: 0.0))
        assert await asyncio.to_thread(begun.wait, WAIT_S)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.create_task(in_turn(turns, "b", lambda: True, rest=lambda: 0.0))
        await asyncio.sleep(0.05)
        assert not second.done(), "the thread of the first still works"
        release.set()
        assert await second

    asyncio.run(run())
