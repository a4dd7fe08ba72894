"""The limit of open files: connections must fit under it.

Tested by tests/server/test_accepting.py.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Final

if sys.platform != "win32":
    import resource

from ..base.log import get_logger

log = get_logger("server")

N_OTHERS: Final = 128  # files that are not connections: models, logs, pipes to processes


def fit_to_files(n_connections: int, n_each: int = 1) -> int:
    """Raise the process's limit of open files for `n_connections` with `n_each` files, if it may be
    raised. Return how many connections fit, and warn if they are fewer."""
    if sys.platform == "win32":
        return n_connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = n_connections * n_each + N_OTHERS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return n_connections
    n_files = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    with suppress(OSError, ValueError):  # macOS has a lower limit than it reports
        resource.setrlimit(resource.RLIMIT_NOFILE, (n_files, hard))
        soft = n_files
    n_fit = min(n_connections, max(soft - N_OTHERS, soft // 2) // n_each)
    if n_fit < n_connections:
        log.warning(
            "at most %d connections, not %d: the limit of open files is %d (ulimit -n)",
            *(n_fit, n_connections, soft),
        )
    return n_fit
