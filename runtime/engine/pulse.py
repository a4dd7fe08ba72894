"""What a worker's thread shows of its steps, so that others can see if it still works.

    pulse.begin()                # on the thread, before a step
    pulse.failed(error)          # in a step: work on the device failed
    pulse.computed()             # in a step: the device has computed
    pulse.end()                  # after the step
    pulse.trouble(60.0)          # on any thread: "" or why no request can be answered

A step that is too old hangs. If several steps in a row fail, the device is lost: after most errors
of CUDA, only a new process can use it again. Knows no context and no jobs.
Tested by tests/runtime/test_pulse.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

N_FAILED_MAX: Final = 3  # failed steps in a row, after which a worker counts as dead


class Pulse:
    """The steps of one worker. Its thread writes, any thread reads: each field is one value.

    Attributes:
        n_failed: failed steps in a row. A step fails if there was an error and nothing was
            computed.
        n_failed_total: failed steps since the start.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.n_failed = self.n_failed_total = 0
        self._clock = clock
        self._t_begin: float | None = None  # of the running step
        self._cause = ""  # of the last failure
        self._death: str | None = None  # why the thread ended
        self._has_failed = self._has_computed = False  # in this step

    # --- for the worker's thread ---

    def begin(self) -> None:
        """A step begins."""
        self._has_failed = self._has_computed = False
        self._t_begin = self._clock()

    def failed(self, error: BaseException) -> None:
        """Work of this step failed."""
        self._cause, self._has_failed = _text(error), True

    def computed(self) -> None:
        """The device has computed in this step, also if a request fails later."""
        self._has_computed = True

    def end(self) -> None:
        """The step is over."""
        self._t_begin = None
        if self._has_computed:
            self.n_failed = 0
        elif self._has_failed:
            self.n_failed += 1
            self.n_failed_total += 1

    def died(self, error: BaseException | None) -> None:
        """The thread ends. `error`: its cause, if it is one."""
        self._t_begin = None
        self._death = "" if error is None else _text(error)

    # --- for any thread ---

    @property
    def seconds(self) -> float:
        """The age of the running step; 0 if none runs."""
        begin = self._t_begin
        return 0.0 if begin is None else max(self._clock() - begin, 0.0)

    def trouble(self, n_seconds_max: float) -> str:
        """Why no request can be answered; "" if they can. A step may take `n_seconds_max`."""
        if self._death is not None:
            return f"the engine has ended{self._death and f': {self._death}'}"
        seconds = self.seconds
        if seconds > n_seconds_max:
            return f"a step of the engine has run for {seconds:.0f} s, {n_seconds_max:g} s at most"
        if self.n_failed >= N_FAILED_MAX:
            return f"the last {self.n_failed} steps of the engine failed: {self._cause}"
        return ""


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
