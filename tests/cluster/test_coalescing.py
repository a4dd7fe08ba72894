"""Streams whose bytes go in fewer messages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from virtual_time import run_virtual

from lamella.cluster import coalescing
from lamella.cluster.coalescing import Coalescing

START = {"type": "http.response.start", "status": 200, "headers": []}


def body(data: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def sent(
    steps: Sequence[Mapping[str, Any] | float], n_streams: int = 1, *, fails: bool = False
) -> list[tuple[float, bytes, bool]]:
    """When each body of a reply is sent, and what it is. Numbers are seconds to wait."""
    found: list[tuple[float, bytes, bool]] = []
    loop = asyncio.get_running_loop()
    begin = loop.time()

    async def app(scope: object, receive: object, send: Any) -> None:
        for step in steps:
            if isinstance(step, float):
                await asyncio.sleep(step)
            else:
                await send(step)

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            if fails and found:
                raise ConnectionResetError("gone")
            found.append((loop.time() - begin, message["body"], message.get("more_body", False)))

    app_of_many = Coalescing(app)
    app_of_many._n_streams = n_streams - 1
    await app_of_many({"type": "http"}, None, send)
    return found


def run(*steps: Mapping[str, Any] | float, n_streams: int = 1) -> list[tuple[float, bytes, bool]]:
    return run_virtual(sent([START, *steps], n_streams))


@pytest.fixture(autouse=True)
def long_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescing, "N_PER_S", 10)
    monkeypatch.setattr(coalescing, "GAP_MAX_S", 1.0)


def test_the_first_bytes_go_at_once_and_later_ones_together() -> None:
    parts = [body(bytes([c])) for c in b"abcdef"]
    found = run(*parts, 1.5, body(b"g"), body(b"h"), body(b"", more=False), n_streams=6)
    assert [data for _, data, _ in found] == [b"a", b"bcdef", b"g", b"h"]
    assert [seconds for seconds, *_ in found] == pytest.approx([0, 0.6, 1.5, 1.5])
    assert [more for *_, more in found] == [True, True, True, False]


def test_slow_bytes_do_not_wait() -> None:
    found = run(body(b"a"), 0.3, body(b"b"), 0.3, body(b"c", more=False))
    assert [data for _, data, _ in found] == [b"a", b"b", b"c"]
    assert [seconds for seconds, *_ in found] == pytest.approx([0, 0.3, 0.6])


def test_the_end_does_not_wait() -> None:
    found = run(body(b"a"), body(b"b"), body(b"c", more=False), n_streams=9)
    assert [(data, more) for _, data, more in found] == [(b"a", True), (b"bc", False)]
    assert found[1][0] == 0


def test_a_reply_in_one_part() -> None:
    assert [data for _, data, _ in run({"type": "http.response.body", "body": b"x"})] == [b"x"]


def test_a_client_that_is_gone() -> None:
    steps: list[Mapping[str, Any] | float] = [
        START,
        body(b"a"),
        body(b"b"),
        0.5,
        body(b"c"),
        body(b"d"),
    ]
    with pytest.raises(ConnectionResetError):
        run_virtual(sent(steps, fails=True))


@pytest.mark.parametrize("is_sleeping", [True, False])
def test_a_slow_client_holds_up_its_stream(is_sleeping: bool) -> None:
    """Whether the bytes wait for the end of a gap, or for those before them to be sent."""
    part, n_parts = bytes(10_000), 40
    n_given, n_got = 0, 0

    async def work() -> None:
        reads = asyncio.Semaphore(0)

        async def app(scope: object, receive: object, send: Any) -> None:
            nonlocal n_given
            await send(START)
            await send(body(b"first"))
            if not is_sleeping:
                await asyncio.sleep(0.15)  # longer than the gap
            for _ in range(n_parts):
                await send(body(part))
                n_given += len(part)
            await send(body(b"", more=False))

        async def send(message: Mapping[str, Any]) -> None:
            nonlocal n_got
            if message["type"] == "http.response.body" and message["body"] != b"first":
                await reads.acquire()
                n_got += len(message["body"])

        reply = asyncio.ensure_future(Coalescing(app)({"type": "http"}, None, send))
        await asyncio.sleep(0.5)
        assert n_given <= coalescing.N_WAITING_MAX + len(part)
        while not reply.done():
            reads.release()
            await asyncio.sleep(0.001)
            assert n_given - n_got <= 2 * (coalescing.N_WAITING_MAX + len(part))
        await reply

    run_virtual(work())
    assert n_got == n_parts * len(part)
