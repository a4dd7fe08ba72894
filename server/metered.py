"""The processor time of a coroutine: that of its own steps, without the time in which it waits.

Knows no request. Tested by tests/server/test_metered.py.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Generator
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class Metered(Generic[Result]):
    """Await it, once, to run a coroutine.

    Attributes:
        n_seconds: the processor time that the coroutine has used so far.
    """

    def __init__(self, work: Awaitable[Result]) -> None:
        self.n_seconds = 0.0
        self._steps = work.__await__()

    def __await__(self) -> Generator[Any, Any, Result]:
        resume, value = self._steps.send, None
        while True:
            begin = time.thread_time()
            try:
                awaited = resume(value)
            except StopIteration as end:
                result: Result = end.value
                return result
            finally:
                self.n_seconds += time.thread_time() - begin
            try:
                value = yield awaited
                resume = self._steps.send
            except BaseException as error:  # a cancellation, for example: it is the coroutine's
                resume, value = self._steps.throw, error
