"""Reports to sinks and observers. Their errors are logged: the engine goes on.

Tested by tests/runtime/test_engine_faults.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...base.errors import BackendError, LamellaError
from ...base.log import get_logger

T = TypeVar("T")

log = get_logger("engine")


def as_lamella_error(error: Exception) -> LamellaError:
    """The error that a sink gets for any error of a step."""
    if isinstance(error, LamellaError):
        return error
    wrapped = BackendError(f"the generation failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def report(callback: Callable[[T], None], end: T) -> None:
    """Report a job's end to its sink. The job has ended already, so an error is only logged."""
    try:
        callback(end)
    except Exception:
        log.exception("a sink raised")


class Observers:
    """Callbacks that the engine calls after its steps."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []
        self._faulty: set[int] = set()  # places of those whose error was logged

    def add(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def tell(self) -> None:
        """Call all. The first error of each is logged; it is called again all the same."""
        for i, callback in enumerate(self._callbacks):
            try:
                callback()
            except Exception:
                if i not in self._faulty:
                    self._faulty.add(i)
                    name = getattr(callback, "__qualname__", repr(callback))
                    log.exception("%s raised after a step; later errors are not logged", name)
