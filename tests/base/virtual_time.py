"""An event loop whose time goes on only while all tasks wait, whatever the machine does."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Selector(selectors.DefaultSelector):
    """Waits for no time, and counts it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing would end this wait"
        found = super().select(0)
        if not found:
            self.now += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """For tasks that use no other thread and no connection."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run_virtual(work: Coroutine[Any, Any, Result]) -> Result:
    """As `asyncio.run`."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
