"""Leases: one request each, and their ends."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from lamella.cluster import leases as module
from lamella.cluster.calls import LEASE_HEADER
from lamella.cluster.leases import Leases


class Held:
    """A handler that answers once the test says so."""

    def __init__(self) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: web.Request) -> web.Response:
        self.begun.set()
        await self.go_on.wait()
        return web.Response(text="done")


async def serving(leases: Leases, held: Held) -> TestClient[web.Request, web.Application]:
    app = web.Application(middlewares=[leases.middleware()])
    app.router.add_get("/", held.__call__)
    client = TestClient(TestServer(app))
    await client.start_server()
    return client


def with_secret(secret: str) -> dict[str, str]:
    return {LEASE_HEADER: secret}


def test_a_lease_is_for_one_request_and_ends_with_it() -> None:
    async def work() -> None:
        leases, held = Leases(), Held()
        client = await serving(leases, held)
        lent = leases.lend()
        secret = await anext(lent)
        end = asyncio.ensure_future(anext(lent, None))
        asking = asyncio.ensure_future(client.get("/", headers=with_secret(secret)))
        await held.begun.wait()
        again = await client.get("/", headers=with_secret(secret))
        assert again.status == 403
        assert not end.done()
        held.go_on.set()
        assert await (await asking).text() == "done"
        await asyncio.wait_for(end, 5)
        later = await client.get("/", headers=with_secret(secret))
        assert later.status == 403
        await client.close()

    asyncio.run(work())


@pytest.mark.parametrize("headers", [{}, with_secret(""), with_secret("0" * 32)])
def test_without_a_lease_nothing_is_answered(headers: dict[str, str]) -> None:
    async def work() -> int:
        leases = Leases()
        client = await serving(leases, Held())
        lent = leases.lend()
        await anext(lent)
        reply = await client.get("/", headers=headers)
        await lent.aclose()
        await client.close()
        return reply.status

    assert asyncio.run(work()) == 403


def test_a_request_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEGIN_S", 0.05)

    async def work() -> None:
        lent = Leases().lend()
        await anext(lent)
        assert await asyncio.wait_for(anext(lent, None), 5) is None

    asyncio.run(work())


def test_a_client_that_disconnects() -> None:
    async def work() -> None:
        leases, held = Leases(), Held()
        client = await serving(leases, held)
        lent = leases.lend()
        secret = await anext(lent)
        end = asyncio.ensure_future(anext(lent, None))
        asking = asyncio.create_task(client.get("/", headers=with_secret(secret)))
        await held.begun.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await client.close()  # and the server: its handlers end
        await asyncio.wait_for(end, 10)

    asyncio.run(work())
