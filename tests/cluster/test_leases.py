"""Leases: one request each, and their ends."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from lamella.cluster import leases as module
from lamella.cluster.calls import LEASE_HEADER
from lamella.cluster.leases import Leases


async def serving(leases: Leases) -> TestClient[web.Request, web.Application]:
    async def wait(request: web.Request) -> web.Response:
        await asyncio.sleep(float(request.query["s"]))
        return web.Response(text="done")

    app = web.Application(middlewares=[leases.middleware()])
    app.router.add_get("/", wait)
    client = TestClient(TestServer(app))
    await client.start_server()
    return client


def with_secret(secret: str) -> dict[str, str]:
    return {LEASE_HEADER: secret}


def test_a_lease_is_for_one_request_and_ends_with_it() -> None:
    async def work() -> None:
        leases = Leases()
        client = await serving(leases)
        lent = leases.lend()
        secret = await anext(lent)
        end = asyncio.ensure_future(anext(lent, None))
        asking = asyncio.ensure_future(client.get("/?s=0.2", headers=with_secret(secret)))
        await asyncio.sleep(0.1)
        assert not end.done()
        again = await client.get("/?s=0", headers=with_secret(secret))
        assert again.status == 403
        assert await (await asking).text() == "done"
        await asyncio.wait_for(end, 5)
        later = await client.get("/?s=0", headers=with_secret(secret))
        assert later.status == 403
        await client.close()

    asyncio.run(work())


@pytest.mark.parametrize("headers", [{}, with_secret(""), with_secret("0" * 32)])
def test_without_a_lease_nothing_is_answered(headers: dict[str, str]) -> None:
    async def work() -> int:
        leases = Leases()
        client = await serving(leases)
        lent = leases.lend()
        await anext(lent)
        reply = await client.get("/?s=0", headers=headers)
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
        leases = Leases()
        client = await serving(leases)
        lent = leases.lend()
        secret = await anext(lent)
        end = asyncio.ensure_future(anext(lent, None))
        with pytest.raises(TimeoutError):
            await client.get(
                "/?s=30", headers=with_secret(secret), timeout=aiohttp.ClientTimeout(0.1)
            )
        await client.close()  # and the server: its handlers end
        await asyncio.wait_for(end, 10)

    asyncio.run(work())
