"""Limits of a process that does work which is not trusted, and may die of it.

    limit_this_process(cpu_seconds=1.0, wall_seconds=30.0, n_bytes=256 << 20)

The system ends the process, whatever its native code does. Windows has no such limits.
Tested by tests/base/test_process_limits.py.
"""

from __future__ import annotations

import signal
import sys


def limit_this_process(*, cpu_seconds: float, wall_seconds: float, n_bytes: int) -> None:
    """End this process if it computes or runs for longer, and refuse it more memory.

    `n_bytes` is beside the memory that it has now. It dumps no core.
    """
    if sys.platform == "win32":
        return
    import resource  # noqa: PLC0415 - not on every system

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if data := used_bytes("VmData"):
        resource.setrlimit(resource.RLIMIT_DATA, (data + n_bytes,) * 2)
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    signal.setitimer(signal.ITIMER_REAL, wall_seconds)


def took_long(status: int) -> bool:
    """Return True if a process with this exit status reached a limit of its time."""
    return sys.platform != "win32" and status in (-signal.SIGPROF, -signal.SIGALRM)


def used_bytes(field: str) -> int:
    """The bytes of memory of a kind that this process uses; 0 where the system does not tell."""
    try:
        with open("/proc/self/status") as status:
            [kib] = [int(line.split()[1]) for line in status if line.startswith(f"{field}:")]
    except (OSError, ValueError):
        return 0
    return kib << 10
