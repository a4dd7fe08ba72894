"""A worker's own copy of a model's file: it reads the weights from there, never from the driver.

The copy is the file of the same path, or that of the hub's cache on the worker's machine, which is
downloaded if the driver's file is one of the hub. Size and a hash of both ends must be equal.
Tested by tests/kernels/test_remote_files.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

import numpy as np

from ...alloc.buffer import Bytes, FilePart
from ...base.errors import DownloadError, ModelFileError

END_BYTES: Final = 1 << 20  # bytes at each end of a file that are compared

Stamp = tuple[int, int, int]  # number, size and time of a file: those of another version differ


class FileIdentity(NamedTuple):
    """What a copy must have in common with the driver's file."""

    path: str
    n_bytes: int
    ends: str  # a hash of its first and last bytes


def identify(path: Path) -> FileIdentity:
    """The identity of a file.

    Raises:
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    digest = hashlib.sha256()
    with path.open("rb") as file:
        digest.update(file.read(END_BYTES))
        file.seek(max(0, size - END_BYTES))
        digest.update(file.read(END_BYTES))
    return FileIdentity(str(path), size, digest.hexdigest())


def own_copy(wanted: FileIdentity) -> Path:
    """This machine's copy of the driver's file; from the hub, if the driver's file is from there.

    Raises:
        ModelFileError: there is no copy, or it differs.
    """
    path = Path(wanted.path)
    if not path.exists():
        path = _from_hub(path)
    try:
        found = identify(path)
    except OSError as e:
        raise ModelFileError(f"{path}: {e.strerror or e}") from None
    if found[1:] != wanted[1:]:
        raise ModelFileError(
            f"{path}: differs from the driver's file: it has {found.n_bytes} bytes, the driver's "
            f"{wanted.n_bytes}" + (", with other contents" * (found.n_bytes == wanted.n_bytes))
        )
    return path


class Identities:
    """The identities of the driver's files. One that was replaced or written has a new one."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Stamp, FileIdentity]] = {}

    def of(self, path: Path) -> FileIdentity:
        """The identity of a file. Raises OSError: it cannot be read."""
        stamp = _stamp(path)
        known = self._known.get(path)
        if known is None or known[0] != stamp:
            known = self._known[path] = stamp, identify(path)
        return known[1]


class OwnCopies:
    """This machine's copies of the driver's files. One that was replaced or written is compared
    again."""

    def __init__(self) -> None:
        self._known: dict[FileIdentity, tuple[Stamp | None, Path]] = {}

    def of(self, wanted: FileIdentity) -> Path:
        """The copy of a file. Raises as `own_copy`."""
        known = self._known.get(wanted)
        if known is None or known[0] is None or known[0] != _stamp_or_none(known[1]):
            path = own_copy(wanted)
            known = self._known[wanted] = _stamp_or_none(path), path
        return known[1]


def _stamp(path: Path) -> Stamp:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _stamp_or_none(path: Path) -> Stamp | None:
    with suppress(OSError):
        return _stamp(path)
    return None


def _from_hub(path: PurePath) -> Path:
    """Download the file of a path in the hub's cache: .../models--OWNER--NAME/snapshots/REV/FILE.

    Raises:
        ModelFileError: it is no such path, or the download failed.
    """
    parts = path.parts
    i = next((i for i, part in enumerate(parts) if part.startswith("models--")), None)
    if i is None or len(parts) < i + 4 or parts[i + 1] != "snapshots":
        raise ModelFileError(
            f"{path}: this machine does not have the model: copy the file there, under the same "
            "path, or open the model from the hub (-hf)"
        )
    from huggingface_hub import hf_hub_download  # noqa: PLC0415 - slow to import

    repo = "/".join(parts[i].split("--")[1:])
    try:
        return Path(hf_hub_download(repo, "/".join(parts[i + 3 :]), revision=parts[i + 2]))
    except Exception as e:  # the library raises many kinds
        raise DownloadError(f"{repo}: {path.name}: {type(e).__name__}: {e}") from None


def read_parts(parts: Sequence[FilePart], begin: int, end: int) -> Bytes:
    """The bytes from `begin` to `end` of consecutive parts of files.

    Raises:
        ModelFileError: a file cannot be read, or is too short.
    """
    found = np.empty(end - begin, np.uint8)
    first = 0
    for part in parts:
        low, high = max(begin, first), min(end, first + part.n_bytes)
        if low < high:
            try:
                with part.path.open("rb", buffering=0) as file:
                    file.seek(part.offset + low - first)
                    _read_into(file, found[low - begin : high - begin])
            except (OSError, EOFError) as e:
                raise ModelFileError(f"{part.path}: {e}") from None
        first += part.n_bytes
    return found


def _read_into(file: Any, out: Bytes) -> None:
    view, n = out.data, 0
    while n < out.size:
        n_read = file.readinto(view[n:])
        if not n_read:
            raise EOFError(f"the file ends {out.size - n} bytes too early")
        n += n_read
