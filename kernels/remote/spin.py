"""Spinning: a thread looks again and again for what it waits for, before it sleeps.

    spin = Spin()
    while not (found := look()) and spin.goes_on(since):
        pass

A thread that wakes up on an idle core takes longer than a message. But a core that others need is
theirs: a thread that has to wait for it sleeps, and does not spin for a while. Tested by
tests/kernels/test_remote_spin.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

SECONDS: Final = 0.001  # most time to spin
BUSY_SECONDS: Final = 0.00005  # a core that comes back later has other users
PAUSE_SECONDS: Final = 0.1  # without spinning after that

_yield: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)


class Spin:
    """The spinning of one thread."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, let_run: Callable[[], None] = _yield
    ) -> None:
        self._clock = clock
        self._let_run = let_run
        self._not_before = 0.0

    def goes_on(self, since: float) -> bool:
        """Let others run for a moment. Return False if the thread, which waits since a time of the
        clock, shall sleep now."""
        begin = self._clock()
        if begin - since > SECONDS or begin < self._not_before:
            return False
        self._let_run()
        end = self._clock()
        if end - begin > BUSY_SECONDS:
            self._not_before = end + PAUSE_SECONDS
        return True
