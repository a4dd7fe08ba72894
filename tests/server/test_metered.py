"""The processor time of coroutines."""

from __future__ import annotations

import asyncio
import time

import pytest

from lamella.server.metered import Metered


def work(n_seconds: float) -> None:
    """Use the processor for so long."""
    end = time.thread_time() + n_seconds
    while time.thread_time() < end:
        pass


async def metered(handling: Metered[str]) -> str:
    return await handling


def test_only_its_own_steps_count() -> None:
    async def one() -> str:
        work(0.02)
        await asyncio.sleep(0.05)
        work(0.02)
        return "done"

    async def others() -> None:
        for _ in range(5):
            work(0.02)
            await asyncio.sleep(0)

    async def both() -> tuple[str, float]:
        handling = Metered(one())
        result, _ = await asyncio.gather(metered(handling), others())
        return result, handling.n_seconds

    result, n_seconds = asyncio.run(both())
    assert result == "done"
    assert 0.04 <= n_seconds < 0.1


def test_errors_pass_in_both_directions() -> None:
    seen: list[str] = []

    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            work(0.01)
            seen.append("cancelled")
        await asyncio.sleep(0)
        raise ValueError("late")

    async def cancelled() -> float:
        handling = Metered(stubborn())
        task = asyncio.create_task(metered(handling))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(ValueError, match="late"):
            await task
        return handling.n_seconds

    assert asyncio.run(cancelled()) >= 0.01, "the step before the error counts"
    assert seen == ["cancelled"]
