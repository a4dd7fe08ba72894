"""Turns of clients: order, places, rests, and requests that wait no more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lamella.server.turns import Turns


async def begun(turns: Turns, clients: str) -> list[asyncio.Task[None]]:
    """A task for each client that waits for a turn."""
    tasks = [asyncio.create_task(turns.begin(client)) for client in clients]
    await settle()
    return tasks


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_clients_take_turns_whatever_they_have() -> None:
    async def run() -> str:
        turns, order = Turns(), ""

        async def work(client: str) -> None:
            nonlocal order
            async with turns.of(client):
                order += client
                await asyncio.sleep(0)

        await asyncio.gather(*map(work, "aaaabbc"))
        return order

    assert asyncio.run(run()) == "aabcaba"  # the first turn began when only a was there


def test_one_client_has_some_of_the_places_only() -> None:
    async def run() -> None:
        turns = Turns(3, 2)
        a1, a2, a3, b1, b2 = await begun(turns, "aaabb")
        assert [t.done() for t in (a1, a2, a3, b1, b2)] == [True, True, False, True, False]
        turns.end("b")
        await settle()
        assert b2.done(), "a has its two places"
        assert not a3.done()
        turns.end("a")
        await a3

    asyncio.run(run())


def test_a_place_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        turns, calls = Turns(), list[tuple[Any, ...]]()
        await turns.begin("a")
        (b,) = await begun(turns, "b")
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "call_later", lambda *call: calls.append(call))
        turns.end("a", 2.5)
        await settle()
        ((n_seconds, free, *args),) = calls
        assert n_seconds == 2.5
        assert not b.done()
        free(*args)
        await b

    asyncio.run(run())


@pytest.mark.parametrize("has_turn", [False, True])
def test_a_request_that_waits_no_more_leaves_its_place(has_turn: bool) -> None:
    async def run() -> None:
        turns = Turns()
        await turns.begin("a")
        b, c = await begun(turns, "bc")
        if has_turn:
            turns.end("a")  # b's turn begins before its task runs
            b.cancel()
        else:
            b.cancel()
            turns.end("a")  # before b can say that it is cancelled
        await settle()
        assert b.cancelled()
        assert c.done()
        turns.end("c")
        await turns.begin("d")

    asyncio.run(run())
