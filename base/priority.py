"""The priority of threads: bulk work lets other programs go first.

Tested by tests/kernels/test_cpu_pool.py.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from typing import Final

NICE: Final = 19  # the lowest: all of an idle core, little of a busy one


def lower_priority(thread_id: int | None = None, nice: int = NICE) -> None:
    """Lower the priority of a thread, by default the caller's. Threads and processes that it starts
    inherit it.

    It is never raised again. Only Linux has priorities of threads; elsewhere, and in a sandbox that
    forbids it, nothing changes.
    """
    if sys.platform == "linux":
        id = threading.get_native_id() if thread_id is None else thread_id
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, id, max(nice, os.getpriority(os.PRIO_PROCESS, id)))
