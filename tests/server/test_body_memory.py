"""Bodies in memory: their limit, and who loses one if there is no room."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from contextlib import ExitStack, closing

import pytest
from fake_context import WAIT_S
from http_world import running

from lamella.base.errors import ClientLimitError, OverloadedError
from lamella.server.body_memory import BodyMemory
from lamella.server.config import ServerConfig


class World:
    """Bodies of clients, each held by a task until it is lost or ended."""

    def __init__(self, n_max: int) -> None:
        self.memory = BodyMemory(n_max)
        self._end = asyncio.Event()

    async def holds(self, client: str, n_bytes: int) -> asyncio.Task[str]:
        task = asyncio.create_task(self._hold(client, n_bytes))
        await asyncio.sleep(0)
        return task

    async def _hold(self, client: str, n_bytes: int) -> str:
        with self.memory.body(client) as held:
            self.memory.grow(held, n_bytes)
            await self._end.wait()
        return "done"

    async def ends(self, *tasks: asyncio.Task[str]) -> list[object]:
        """What became of each: "done", or the type of its error."""
        self._end.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        return [r if isinstance(r, str) else type(r) for r in results]


def in_loop(scenario: Callable[[], object]) -> None:
    async def main() -> None:
        result = scenario()
        assert asyncio.iscoroutine(result)
        await result

    asyncio.run(main())


def test_the_client_with_the_most_loses_its_oldest() -> None:
    async def scenario() -> None:
        world = World(100)
        tasks = [await world.holds("large", 30) for _ in range(3)]
        tasks.append(await world.holds("small", 20))
        assert world.memory.n_bytes == 80
        assert await world.ends(*tasks) == [OverloadedError, "done", "done", "done"]
        assert world.memory.n_bytes == 0

    in_loop(scenario)


def test_the_client_with_the_most_gets_no_more() -> None:
    async def scenario() -> None:
        world = World(100)
        tasks = [await world.holds("small", 40), await world.holds("large", 50)]
        tasks.append(await world.holds("large", 20))
        tasks.append(await world.holds("other", 60))
        expected = ["done", "done", ClientLimitError, ClientLimitError]
        assert await world.ends(*tasks) == expected

    in_loop(scenario)


def test_a_body_grows() -> None:
    async def scenario() -> None:
        memory = BodyMemory(100)
        with memory.body("a") as held:
            for n_bytes in (10, 60, 100):
                memory.grow(held, n_bytes)
                assert memory.n_bytes == n_bytes
            with pytest.raises(ClientLimitError, match="no room for more"):
                memory.grow(held, 101)
        assert memory.n_bytes == 0

    in_loop(scenario)


def test_a_client_that_disconnects_is_no_error() -> None:
    async def scenario() -> None:
        world = World(100)
        task = await world.holds("a", 10)
        task.cancel()
        assert await world.ends(task) == [asyncio.CancelledError]
        assert world.memory.n_bytes == 0

    in_loop(scenario)


def test_slow_bodies_stop_nobody() -> None:
    """Those of many clients, which send just as much as they must."""
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
    chunked = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with running() as server, ExitStack() as clients:
        for i in range(40):
            client = socket.create_connection(
                ("127.0.0.1", server.port), WAIT_S, (f"127.0.0.{2 + i // 2}", 0)
            )
            clients.enter_context(closing(client))
            client.sendall(head + b'{"content": "' + b"a" * 70_000)
        assert server.post("/tokenize", {"content": "a" * 100_000}).status == 200
        with closing(socket.create_connection(("127.0.0.1", server.port), WAIT_S)) as client:
            client.sendall(chunked + b'10\r\n{"content": "a"}\r\n0\r\n\r\n')
            assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_bodies_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamella.server.state.N_MIB_BODIES", 1)
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 700000\r\n\r\n"
    with running(config=ServerConfig(port=0)) as server, ExitStack() as clients:
        slow = [
            clients.enter_context(
                closing(
                    socket.create_connection(("127.0.0.1", server.port), WAIT_S, ("127.0.0.2", 0))
                )
            )
            for _ in range(2)
        ]
        for client in slow:
            client.sendall(head + b'{"content": "' + b"a" * 600_000)
        (refused,), _, _ = select.select(slow, [], [], WAIT_S)
        answer = refused.recv(4096)
        assert answer.startswith(b"HTTP/1.1 429")
        assert b"Retry-After" in answer
        slow.remove(refused)
        assert server.post("/tokenize", {"content": "a" * 500_000}).status == 200
        assert slow[0].recv(100).startswith(b"HTTP/1.1 503"), "it has given its memory to others"
