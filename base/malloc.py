"""The C library's allocator: what is large goes back to the system as soon as it is free.

glibc keeps blocks apart that have at least 128 KiB, but raises that to the largest block that was
freed, up to 32 MiB (mallopt(3)). After a large request, large blocks would come from heaps, and the
holes that they leave would stay with the process. Knows no room.
Tested by tests/base/test_malloc.py.
"""

from __future__ import annotations

import ctypes
from typing import Final

N_BYTES_LARGE: Final = 1 << 20
_M_MMAP_THRESHOLD: Final = -3  # malloc.h


def return_large_blocks() -> bool:
    """Let freed blocks of `N_BYTES_LARGE` leave this process. False where there is no glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, N_BYTES_LARGE))
