"""An event loop that finds mistakes: calls from other threads, and callbacks that block it.

Asyncio's debug mode does, too. But it keeps the stack of each task and callback, which takes a
fifth of a server's processor time. Tested by tests/server/test_checked_loop.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context
from threading import get_ident
from typing import Final, TypeVarTuple

PERIOD_S: Final = 0.25  # how often the loop looks at the clock

Args = TypeVarTuple("Args")


class CheckedLoop(asyncio.SelectorEventLoop):
    """Warns, in asyncio's log, if it was blocked for more than `longest` seconds."""

    def __init__(self, longest: float) -> None:
        super().__init__()
        self._longest = longest
        self._runner: int | None = None  # the thread
        self._beat(self.time())

    def run_forever(self) -> None:
        self._runner = get_ident()
        try:
            super().run_forever()
        finally:
            self._runner = None

    def call_soon(
        self, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> asyncio.Handle:
        self._check_thread_of_call()
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self._check_thread_of_call()
        return super().call_at(when, callback, *args, context=context)

    def _check_thread_of_call(self) -> None:
        if self._runner not in (None, get_ident()):
            raise RuntimeError("another thread must use call_soon_threadsafe")

    def _beat(self, due: float) -> None:
        late = self.time() - due
        if late > self._longest:
            logging.getLogger("asyncio").warning("the event loop was blocked for %.1f s", late)
        due = self.time() + PERIOD_S
        self.call_at(due, self._beat, due)
