"""The disk cache of compiled kernels. A folder's name is a key of everything that shapes them.

Each file has a digest before the data: a damaged file must never be loaded as machine code. An
unusable folder only costs time. Knows no compiler. Tested by tests/kernels/test_cpu_jit.py.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from time import sleep, time
from typing import IO, Final

from ..base.folders import REMEDY
from ..base.log import get_logger
from ..base.replacing import replacing

DIGEST_BYTES: Final = 32
DAY: Final = 24 * 3600  # seconds
WAIT_SECONDS: Final = 0.1  # between two attempts to lock a file
N_QUIET: Final = 50  # attempts before the log says what a start waits for
KEPT_DAYS: Final = 30  # a folder of other kernels is removed after so many days without use

log = get_logger("kernels")


def read(folder: Path, name: str) -> bytes | None:
    """The data of a file; None if the file is missing or damaged."""
    try:
        raw = (folder / name).read_bytes()
    except OSError:
        return None
    digest, data = raw[:DIGEST_BYTES], raw[DIGEST_BYTES:]
    return data if digest == _digest(name, data) else None


def write(folder: Path, name: str, data: bytes) -> None:
    """Write data to a file. A failure is only logged: the next start compiles again."""
    try:
        _make(folder)
        # in one step: another process may read or write the same file
        with replacing(folder / name) as file:
            file.write(_digest(name, data) + data)
    except OSError as e:  # a disk that is full or read-only
        _warn_once(f"kernels cannot be cached, so every start compiles them again: {e}; {REMEDY}")


@contextmanager
def one_process(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a folder, so that two processes do not compile the same kernels.

    Processes take turns, so that one which compiles again and again does not keep the others out.
    Calls `waiting()` repeatedly while another process has the lock. If the folder cannot be locked,
    no process waits.
    """
    tries = count()
    with ExitStack() as stack:
        try:
            _make(folder)
            with (folder / "turn").open("a") as turn:
                _wait_for(turn, tries, waiting)
                lock = stack.enter_context((folder / "lock").open("a"))
                _wait_for(lock, tries, waiting)
        except (OSError, ImportError):
            pass  # a read-only folder, or a disk or a system without locks
        yield


def _wait_for(file: IO[str], tries: Iterator[int], waiting: Callable[[], None]) -> None:
    while not _lock(file):
        if next(tries) == N_QUIET:
            log.warning(f"waiting for another process, which compiles: {file.name} is locked")
        waiting()
        sleep(WAIT_SECONDS)


def mark_used(folder: Path) -> None:
    """Set the folder's time of last use, at most once a day."""
    try:
        if time() - folder.stat().st_mtime > DAY:
            os.utime(folder)
    except OSError:
        pass  # another user's folder; we do not remove it either


def _make(folder: Path) -> None:
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _remove_old(folder.parent)


def _lock(file: IO[str]) -> bool:
    """Lock an open file until it is closed. Return False if another process has the lock."""
    import fcntl  # noqa: PLC0415 - not on every system

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _digest(name: str, data: bytes) -> bytes:
    # the name is included, so that a renamed file is not taken for another kernel
    return hashlib.sha256(name.encode() + b"\0" + data).digest()


def _remove_old(parent: Path) -> None:
    """Remove folders of other kernels, processors or versions that were not used for long."""
    for folder in parent.iterdir():
        unused = time() - folder.stat().st_mtime
        if re.fullmatch("[0-9a-f]{16}", folder.name) and unused > KEPT_DAYS * DAY:
            shutil.rmtree(folder, ignore_errors=True)


@cache
def _warn_once(text: str) -> None:
    log.warning(text)
