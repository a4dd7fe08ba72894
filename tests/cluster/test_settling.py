"""The end of a lease whose request has a reply, though the replica does not know of its end.

python tests/cluster/test_settling.py    # what the test runs: Ray warns when it is imported
"""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from lamella.cluster.calls import Call, Head, Lease

N_REPLIED, N_GONE = 0.05, 0.6


class Leases:
    """A lease that does not end by itself."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self._given = False

    def __aiter__(self) -> Leases:
        return self

    async def __anext__(self) -> Lease:
        if self._given:
            await self.cancelled.wait()
            raise StopAsyncIteration
        self._given = True
        return Lease("one", "", "127.0.0.1", 1, "secret")

    def cancel(self) -> None:
        self.cancelled.set()


async def seconds_of(*, is_whole: bool) -> float:
    """The time until the lease of a request is cancelled, after its reply or without it."""
    from lamella.cluster import deployments  # noqa: PLC0415 - needs Ray

    vars(deployments).update(REPLIED_S=N_REPLIED, SETTLE_S=N_GONE, Prompts=lambda served: None)
    leases = Leases()
    lend = SimpleNamespace(remote=lambda routed: leases)
    handle: Any = SimpleNamespace(options=lambda stream: SimpleNamespace(lend=lend))
    config = SimpleNamespace(prefix="", max_body=1)
    served: Any = SimpleNamespace(name="a", config=config)
    target = deployments.HandleTarget(served, handle)

    async def reply(*_: object) -> Any:
        yield Head(431, [])
        yield b"too large"

    vars(target)["_connections"] = SimpleNamespace(reply=reply)
    items = target.reply(Call(method="GET", target="/"))
    assert await anext(items) == Head(431, [])
    if is_whole:
        assert [item async for item in items] == [b"too large"]
    else:
        await items.aclose()
    begin = asyncio.get_running_loop().time()
    await asyncio.wait_for(leases.cancelled.wait(), 20)
    return asyncio.get_running_loop().time() - begin


def main() -> None:
    for is_whole in (True, False):
        sys.stdout.write(f"{asyncio.run(seconds_of(is_whole=is_whole))}\n")


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")
def test_a_lease_ends_soon_after_its_reply() -> None:
    """A request that its server refuses before it looks for a lease counts as running until then.
    That of a client that is gone may go on for longer."""
    run = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, check=True, timeout=100
    )
    replied, gone = map(float, run.stdout.split())
    assert replied < N_GONE - 0.1
    assert gone > N_GONE - 0.1


if __name__ == "__main__":
    main()
