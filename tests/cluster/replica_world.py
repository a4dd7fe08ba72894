"""A replica without Ray, and requests to it as the ingress sends them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from lamella.cluster.calls import Call, Head, Lease
from lamella.cluster.direct import Connections
from lamella.cluster.replica import Replica
from lamella.cluster.served import Served

T = TypeVar("T")


def call(path: str, body: Any = None, **headers: str) -> Call:
    raw = b"" if body is None else json.dumps(body).encode()
    return Call("GET" if body is None else "POST", path, list(headers.items()), raw)


async def reply_of(replica: Replica, call: Call) -> AsyncGenerator[Head | bytes]:
    """The reply to a request, over a lease. Afterwards the lease has ended."""
    connections, leases = Connections(), replica.lend()
    lease = await anext(leases)
    watch = asyncio.create_task(_end_of(leases))
    try:
        async with aclosing(connections.reply(call, lease, watch)) as items:
            async for item in items:
                yield item
        await asyncio.wait_for(watch, 10)
    finally:
        await connections.close()


async def _end_of(leases: AsyncIterator[Lease]) -> None:
    async for _ in leases:
        raise AssertionError("a second lease")


async def answer(replica: Replica, call: Call) -> tuple[Head, bytes]:
    """The whole reply to a request."""
    items = [item async for item in reply_of(replica, call)]
    assert isinstance(items[0], Head)
    return items[0], b"".join(item for item in items[1:] if isinstance(item, bytes))


def run(work: Callable[[Replica], Awaitable[T]], served: Served) -> T:
    """Do some work with a replica."""

    async def with_replica() -> T:
        replica = Replica(served, "r1")
        await replica.start()
        try:
            return await work(replica)
        finally:
            await replica.close()

    return asyncio.run(with_replica())
