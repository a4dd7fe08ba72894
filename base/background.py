"""Work on a thread that nothing waits for at the end of the process.

Tested by tests/base/test_background.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def begin(work: Callable[[], T], name: str) -> Future[T]:
    """Call `work` on a thread called `name`. The future has its result or its error.

    The thread is a daemon and belongs to no pool, so a process that stops does not wait for it.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
