"""What a process leaves behind when native code ends it: stacks on stderr, and no core dump.

A core dump has all memory in it, also prompts and API keys, and is as large as the model. SIGUSR1
writes the stacks of all threads at any time. Tested by tests/base/test_crashes.py.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
from contextlib import suppress

from .settings import CORE_DUMPS


def prepare_for_crashes() -> None:
    """Report crashes of this process, and dump no core unless LAMELLA_CORE_DUMPS is set."""
    stderr = sys.__stderr__
    if stderr is not None:
        with suppress(OSError, ValueError):  # it is closed, or no file
            faulthandler.enable(stderr)
            if sys.platform != "win32":
                faulthandler.register(signal.SIGUSR1, stderr)
    if sys.platform != "win32" and not CORE_DUMPS():
        import resource  # noqa: PLC0415 - not on every system

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
