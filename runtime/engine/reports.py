"""Reports of a job's end to its sink.

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
