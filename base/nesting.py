"""Values of callers that are nested too deeply for functions that call themselves.

Python limits its stack, so such a value is an error of the caller, not of ours.
Tested by tests/base/test_limited_nesting.py and tests/server/test_nesting.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import RequestError


@contextmanager
def limited_nesting(what: str) -> Iterator[None]:
    """Handle a value of a caller within the block. `what` names it in the error.

    Raises:
        RequestError: it is nested too deeply.
    """
    try:
        yield
    except RecursionError:
        raise RequestError(f"{what} is nested too deeply") from None
