"""Compiled kernels kept on disk, in folders named after all that shapes them.

Each file is a digest, then the data: whoever loads machine code trusts what it is given. A folder
that cannot be used only costs time. Knows no compiler. Tested by tests/kernels/test_cpu_jit.py.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path
from time import time
from typing import Final

from ..base.log import get_logger

DIGEST_BYTES: Final = 32
DAY: Final = 24 * 3600  # seconds
KEPT_DAYS: Final = 30  # a folder of other kernels that nobody has used for so long is removed

log = get_logger("kernels")


def read(folder: Path, name: str) -> bytes | None:
    """What a file holds; None if it is not there, or is not what was written."""
    try:
        raw = (folder / name).read_bytes()
    except OSError:
        return None
    digest, data = raw[:DIGEST_BYTES], raw[DIGEST_BYTES:]
    return data if digest == _digest(name, data) else None


def write(folder: Path, name: str, data: bytes) -> None:
    """Keep data; where that cannot be done, it only costs the next start."""
    try:
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _remove_old(folder.parent)
        # in one step: another process may be reading, or writing the same
        with tempfile.TemporaryDirectory(dir=folder) as fresh:
            file = Path(fresh) / name
            file.write_bytes(_digest(name, data) + data)
            file.replace(folder / name)
    except OSError as e:  # no home folder, or a disk that is full or read-only
        _warn_once(f"compiled kernels cannot be kept, every start compiles them anew: {e}")


def mark_used(folder: Path) -> None:
    """Let the folder's time tell the day on which it was used."""
    try:
        if time() - folder.stat().st_mtime > DAY:
            os.utime(folder)
    except OSError:
        pass  # not ours: nobody removes it either


def _digest(name: str, data: bytes) -> bytes:
    # of the name too: a file renamed is not the kernel it says it is
    return hashlib.sha256(name.encode() + b"\0" + data).digest()


def _remove_old(parent: Path) -> None:
    """Remove the folders of other kernels, processors or versions that nobody uses any more."""
    for folder in parent.iterdir():
        unused = time() - folder.stat().st_mtime
        if re.fullmatch("[0-9a-f]{16}", folder.name) and unused > KEPT_DAYS * DAY:
            shutil.rmtree(folder, ignore_errors=True)


@cache
def _warn_once(text: str) -> None:
    log.warning(text)
