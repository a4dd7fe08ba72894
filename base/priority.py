"""Threads as the system sees them: their priority, as bulk work lets other programs go first, and
their names.

Tested by tests/kernels/test_cpu_pool.py.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
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


def show_process_name(name: str) -> None:
    """Show a name of this process in tools such as `top`: its first 15 characters. Only for
    Linux."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name.encode("ascii", "replace").decode()[:15])


def show_thread_name() -> None:
    """Show the name of the calling thread in tools such as `top -H`: its first 15 characters.

    Only for Linux. From Python 3.14 on, this is done already.
    """
    with suppress(OSError):
        thread = threading.current_thread()
        Path(f"/proc/self/task/{thread.native_id}/comm").write_text(thread.name[:15])
