"""The event loop of the tests' servers: it finds what blocks it, and calls from other threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest
from checked_loop import CheckedLoop


def run(main: Coroutine[Any, Any, object], longest: float = 30.0) -> None:
    with asyncio.Runner(loop_factory=lambda: CheckedLoop(longest)) as runner:
        runner.run(main)


def test_what_blocks_it_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main(seconds: float) -> None:
        time.sleep(seconds)

    run(main(0.0))
    assert caplog.messages == []
    run(main(1.0), longest=0.2)
    (message,) = caplog.messages
    assert message.startswith("the event loop was blocked for ")


def test_other_threads_may_only_use_call_soon_threadsafe() -> None:
    async def main() -> None:
        loop, called = asyncio.get_running_loop(), asyncio.Event()
        for call in (lambda: loop.call_soon(called.set), lambda: loop.call_later(1, called.set)):
            with pytest.raises(RuntimeError, match="must use call_soon_threadsafe"):
                await asyncio.to_thread(call)
        await asyncio.to_thread(loop.call_soon_threadsafe, called.set)
        await called.wait()

    run(main())
