"""Files that are written at once or not at all.

    with replacing(path) as file:
        file.write(data)

`write_file` writes all of a file that the user has named.

Tested by tests/base/test_replacing.py.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from .errors import RequestError

N_NAME: Final = 48  # characters of the path's name in that of the new file


@contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """Yield a new file, which replaces `path` at the end of the block.

    Until then it lies beside `path`, as `.NAME.*`. After an error or Ctrl-C, it is removed and an
    older file is as it was. A link stays: the file that it leads to is replaced. Without a `mode`,
    the file has that of the older one. A pipe or a device is written directly.

    Raises:
        OSError: the file cannot be written; nothing has changed.
    """
    older = _mode_of(path)
    if older is not None and not stat.S_ISREG(older):
        with path.open("wb") as file:
            yield file
        return
    if older is not None and not os.access(path, os.W_OK):  # the folder's mode would allow it
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    if mode is None and older is not None:
        mode = stat.S_IMODE(older)
    path = Path(os.path.realpath(path))
    fresh = path.with_name(f".{path.name[:N_NAME]}.{secrets.token_hex(8)}")
    try:
        with open(fresh, "xb", opener=None if mode is None else _private) as file:
            yield file
        if mode is not None:
            fresh.chmod(mode)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def write_file(path: Path, data: bytes) -> None:
    """Write a file, or replace one, see `replacing`.

    Raises:
        RequestError: it cannot be written; nothing has changed.
    """
    try:
        with replacing(path) as file:
            file.write(data)
    except OSError as e:
        raise RequestError(f"{path} cannot be written: {e.strerror or e}") from e


def _mode_of(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
