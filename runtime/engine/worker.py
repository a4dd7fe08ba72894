"""A thread that works until it is ended, and what waits for its end.

Knows no context and no jobs. Tested by tests/runtime/test_engine*.py and test_embedder.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from ...base.errors import ClosedError
from ...base.log import get_logger
from ...base.priority import show_thread_name
from .pulse import Pulse

log = get_logger("engine")

CLOSE_TIMEOUT_S: Final = 30.0  # time for the running step when the thread is ended


class Worker:
    """A daemon thread that calls `work` once. `work` tells `pulse` of its steps."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._name = name
        self.pulse = Pulse()
        self._work = work
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # guards the thread's start and end
        self._closed = False
        self._ended = False
        self._at_end: list[Callable[[], None]] = []

    @property
    def is_current(self) -> bool:
        """True on the thread itself."""
        return threading.current_thread() is self._thread

    @property
    def is_lost(self) -> bool:
        """True if the thread was started and runs no more, as in a forked child."""
        return self._thread is not None and not self._thread.is_alive()

    def start(self) -> None:
        """Start the thread.

        Raises:
            ClosedError: `end` was called.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the engine is closed and cannot be started")
            assert self._thread is None, "the engine was started twice"
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def end(self, stop: Callable[[], None], drain: Callable[[], None]) -> None:
        """Call `stop`, which makes `work` return, and wait for it. May be called twice.

        Without a thread, `drain` is called in place of `work`'s end.
        """
        with self._lock:
            self._closed = True
            stop()
            thread = self._thread
        if thread is None:
            drain()
        elif thread is not threading.current_thread():
            thread.join(CLOSE_TIMEOUT_S)
            if thread.is_alive():
                log.error("the engine's step did not end within %g s", CLOSE_TIMEOUT_S)

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call `callback` when no step can run any more: now, or on the thread after its end."""
        with self._lock:
            thread = self._thread
            runs = thread is not None and thread.is_alive() and not self._ended
            if runs:
                self._at_end.append(callback)
        if not runs:
            callback()

    def _run(self) -> None:
        show_thread_name()
        error: BaseException | None = None
        try:
            self._work()
        except BaseException as e:
            error = e
            raise
        finally:
            self.pulse.died(error)
            with self._lock:
                self._ended = True
            for callback in self._at_end:
                callback()
