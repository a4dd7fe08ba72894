"""Downloading one file into the cache: resumed where it was cut, and checked before it counts.

huggingface-hub starts an interrupted download from its beginning, and compares sizes only. Here a
part stays as `blobs/<digest>.incomplete`, and takes the place of `blobs/<digest>`, where the
library looks for it, once its digest is right: what lies there has been checked.
Tested by tests/model/test_hub.py.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from ...base.errors import DownloadError
from ...base.log import get_logger
from ...base.units import size_text
from .files import HubFile
from .library import PASSING, explained, headers, pause, settings

log = get_logger("hub")

OnBytes = Callable[[int], None]  # so many bytes of the file are there

TRIES: Final = 6  # in a row without a byte more: about half a minute
CHUNK: Final = 1 << 20
RESPONSE_MAX: Final = 40 << 30  # networks that deliver files have a limit, of 50 GB for one answer


def incomplete(blob: Path) -> Path:
    """Where the part of a blob lies that is there."""
    return blob.with_name(f"{blob.name}.incomplete")


def n_bytes_there(blob: Path, size: int) -> int:
    """Bytes that need no downloading."""
    for path in (blob, incomplete(blob)):
        if path.exists():
            return min(path.stat().st_size, size)
    return 0


def fetch_blob(repo: str, commit: str, file: HubFile, blob: Path, on_bytes: OnBytes) -> None:
    """Have `blob`, a file of a repository at a commit, whole and checked; goes on from what is
    there of it.

    Raises:
        DownloadError: the hub refuses, the network fails for long, the disk is full, or what came
            is not what the hub has: then it is removed.
    """
    with explained(repo, blob.parent):
        blob.parent.mkdir(parents=True, exist_ok=True)
        with _locked(blob, file):
            if not blob.exists():
                _Download(repo, commit, file, on_bytes).run(incomplete(blob))
                incomplete(blob).replace(blob)
    on_bytes(file.size)


@contextmanager
def _locked(blob: Path, file: HubFile) -> Iterator[None]:
    """One process at a time downloads a file, by the library's own locks."""
    from filelock import Timeout  # noqa: PLC0415
    from huggingface_hub.utils import WeakFileLock  # noqa: PLC0415

    repo = blob.parents[1]
    lock = repo.parent / ".locks" / repo.name / f"{blob.name}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        with WeakFileLock(lock, timeout=0.1):
            yield
            return
    except Timeout:
        log.warning(f"another process downloads {file.name}: waiting for it")
    with WeakFileLock(lock):
        yield


class _Download:
    """One file on its way; `n` bytes of it are there."""

    def __init__(self, repo: str, commit: str, file: HubFile, on_bytes: OnBytes) -> None:
        self._repo = repo
        self._commit = commit
        self._file = file
        self._on_bytes = on_bytes
        self._n = 0
        self._n_received = 0
        self._hash = _new_hash(file)

    def run(self, path: Path) -> None:
        with path.open("a+b") as out:
            self._read_what_is_there(out)
            self._receive_all(out)
        if self._hash.hexdigest() != self._file.digest:
            path.unlink()
            raise DownloadError(
                f"{self._file.name} of {self._repo} came damaged, and was removed: its digest is "
                f"{self._hash.hexdigest()}, the hub's {self._file.digest}; try again"
            )

    def _read_what_is_there(self, out: BinaryIO) -> None:
        out.seek(0)
        while chunk := out.read(CHUNK):
            self._count(chunk)
        if self._n > self._file.size:
            self._start_again(out)

    def _start_again(self, out: BinaryIO) -> None:
        out.truncate(0)
        self._n, self._hash = 0, _new_hash(self._file)

    def _count(self, chunk: bytes) -> None:
        self._hash.update(chunk)
        self._n += len(chunk)
        self._on_bytes(self._n)

    def _receive_all(self, out: BinaryIO) -> None:
        """Ask until all of it is here; give up after some tries in a row without a byte."""
        from huggingface_hub.errors import HfHubHTTPError, HTTPError  # noqa: PLC0415

        tried = 0
        while self._n < self._file.size:
            n_before, told = self._n_received, None
            error: Exception | None = None
            try:
                self._receive(out)
            except HfHubHTTPError as e:
                if e.response.status_code not in PASSING:
                    raise
                error, told = e, e.response.headers
            except HTTPError as e:  # the network
                error = e
            tried = 1 if self._n_received > n_before else tried + 1
            if tried >= TRIES:
                raise error or DownloadError(
                    f"the hub sends nothing of {self._file.name} behind {size_text(self._n)}"
                )
            if error is not None:
                log.info(f"cut at {size_text(self._n)} of {self._file.name}, trying again: {error}")
                time.sleep(pause(tried, told))

    def _receive(self, out: BinaryIO) -> None:
        """Ask once for what is missing, and write what comes."""
        limit = self._n + RESPONSE_MAX if self._n or self._file.size > RESPONSE_MAX else None
        with _ask(self._repo, self._commit, self._file, self._n, limit) as (start, chunks):
            if self._n != start:  # all of it again: some servers know no ranges
                self._start_again(out)
            for chunk in chunks:
                out.write(chunk)
                self._n_received += len(chunk)
                self._count(chunk)
                if self._n > self._file.size:
                    return


def fetch_start(repo: str, commit: str, file: HubFile, path: Path, n: int) -> None:
    """Have the first `n` bytes of a file in `path`; goes on from what is there. Nothing is checked.

    Raises:
        DownloadError: the hub refuses, the network fails, or the disk is full.
    """
    with explained(repo, path.parent), path.open("ab") as out:
        there = out.tell()
        if there >= n:
            return
        with _ask(repo, commit, file, there, n) as (start, chunks):
            extra = there - start  # a server that knows no ranges sends what is there too
            for chunk in chunks:
                new = chunk[max(0, extra) :][: n - there]
                out.write(new)
                extra -= len(chunk)
                there += len(new)
                if there == n:
                    return


@contextmanager
def _ask(
    repo: str, commit: str, file: HubFile, start: int, limit: int | None
) -> Iterator[tuple[int, Iterator[bytes]]]:
    """The bytes of a file from `start` up to `limit` (None: all), and where they really start."""
    from huggingface_hub import get_session, hf_hub_url  # noqa: PLC0415
    from huggingface_hub.utils import hf_raise_for_status  # noqa: PLC0415

    wanted = {**headers(), "Accept-Encoding": "identity"}
    if limit is not None:
        wanted["Range"] = f"bytes={start}-{min(file.size, limit) - 1}"
    url, timeout = hf_hub_url(repo, file.name, revision=commit), settings().HF_HUB_DOWNLOAD_TIMEOUT
    with get_session().stream("GET", url, headers=wanted, timeout=timeout) as answer:
        hf_raise_for_status(answer)
        range = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
        yield int(range[1]) if range else 0, answer.iter_raw()


def _new_hash(file: HubFile) -> hashlib._Hash:
    """What makes the digest of a file: sha256, or as git does for a file that is in git itself."""
    if len(file.digest) == 64:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
