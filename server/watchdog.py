"""The watchdog: ends a process whose engine is dead, so that a supervisor starts a new one.

    with watching(60, trouble):      # `trouble()` is "" or why no request can be answered
        ...

It counts its own ticks, not the clock. So a process that was stopped (SIGSTOP, a suspended machine)
has all its time again when it continues. It cannot end a process in which native code holds the
interpreter's lock: GET /live does not answer then. Knows no engine.
Tested by tests/server/test_watchdog.py and test_http_process.py.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ..base.background import begin
from ..base.log import get_logger

log = get_logger("server")

DEAD_STATUS: Final = 4  # of a process whose engine was dead
TICK_SECONDS: Final = 1.0
EXIT_TICK_SECONDS: Final = 0.1
N_REPORT_SECONDS: Final = 1.0  # to write why the process ends; a reader of the log may be paused


class Patience:
    """How long the trouble lasts, counted in ticks."""

    def __init__(self, n_seconds: float) -> None:
        self._n_seconds = n_seconds
        self._waited = 0.0

    def is_over(self, trouble: str, elapsed: float) -> bool:
        """Count a tick of `elapsed` seconds. Return True if the trouble has lasted too long."""
        # a tick that took much longer was not a tick: the process was stopped
        self._waited = self._waited + min(elapsed, 2 * TICK_SECONDS) if trouble else 0.0
        return self._waited >= self._n_seconds


def exit_after(n_seconds: float, status: int) -> None:
    """End the process by force with this status, unless it has ended before."""

    def wait() -> None:
        patience, before, is_over = Patience(n_seconds), time.monotonic(), False
        while not is_over:
            time.sleep(EXIT_TICK_SECONDS)
            now = time.monotonic()
            is_over = patience.is_over("the process has not ended", now - before)
            before = now
        os._exit(status)

    threading.Thread(target=wait, name="lamella-exit", daemon=True).start()


def end_process(cause: str, n_seconds: float) -> None:
    """End the process with `DEAD_STATUS`, without waiting for any thread."""
    begin(lambda: _report(cause, n_seconds), "lamella-last-words")
    time.sleep(N_REPORT_SECONDS)
    os._exit(DEAD_STATUS)


def _report(cause: str, n_seconds: float) -> None:
    log.critical(
        "--watchdog %g: the process ends with status %d: %s", n_seconds, DEAD_STATUS, cause
    )
    if sys.__stderr__ is not None:
        faulthandler.dump_traceback(sys.__stderr__)  # where the engine's thread hangs


@contextmanager
def watching(
    n_seconds: float,
    trouble: Callable[[], str],
    end: Callable[[str, float], None] = end_process,
) -> Iterator[None]:
    """Within the block, call `end` when `trouble` has lasted for `n_seconds`; 0: never."""
    stop = threading.Event()

    def watch() -> None:
        patience, before = Patience(n_seconds), time.monotonic()
        while not stop.wait(TICK_SECONDS):
            now = time.monotonic()
            cause = trouble()
            if patience.is_over(cause, now - before):
                end(cause, n_seconds)
                return
            before = now

    if n_seconds > 0:
        threading.Thread(target=watch, name="lamella-watchdog", daemon=True).start()
    try:
        yield
    finally:
        stop.set()
