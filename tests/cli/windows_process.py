"""`lamella` with the modules and functions of Python that Windows lacks removed.

    python windows_process.py doctor
    python windows_process.py plan FILE + serve --help    # several commands, until one fails

A simulation: no test runs on Windows. Packages of others are imported first, with all that they
find here.
"""

from __future__ import annotations

import asyncio  # noqa: F401
import mmap
import os
import sys

import rich.progress  # noqa: F401

POSIX_MODULES = ("fcntl", "resource", "termios", "tty", "pwd", "grp", "readline", "curses")
POSIX_CALLS = ("fork", "register_at_fork", "sched_getaffinity", "setsid", "killpg", "statvfs")


def become_windows() -> None:
    """Remove modules, functions and constants."""
    for name in POSIX_MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for name in POSIX_CALLS:
        if hasattr(os, name):
            delattr(os, name)
    for name in [name for name in dir(mmap) if name.startswith(("MADV_", "MAP_", "PROT_"))]:
        delattr(mmap, name)


if __name__ == "__main__":
    become_windows()
    from lamella.cli.main import main
    from lamella.kernels import host

    host.HAS_POSIX_THREADS = False  # type: ignore[misc]
    argv = sys.argv[1:]
    status = 0
    while "+" in argv and status == 0:
        end = argv.index("+")
        status, argv = main(argv[:end]), argv[end + 1 :]
    sys.exit(status or main(argv))
