"""Download of one file into a cache: resumed after interruptions, and checked by its digest.

huggingface-hub restarts an interrupted download from the beginning and compares sizes only. Here a
partial file is `blobs/<digest>.incomplete`. It is renamed to `blobs/<digest>`, the library's path,
after its digest was checked. A file of another server has no digest: only its size is checked.
Tested by tests/model/test_hub.py and test_hub_urls.py.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from ...base.errors import DownloadError
from ...base.log import get_logger
from ...base.units import size_text
from .files import Remote
from .library import TEMPORARY, explained, headers, pause, settings

log = get_logger("hub")

OnBytes = Callable[[int], None]  # called with the number of bytes that the cache has of the file

TRIES: Final = 6  # tries in a row without new bytes, about half a minute
CHUNK: Final = 1 << 20
RESPONSE_MAX: Final = 40 << 30  # content delivery networks limit a response to 50 GB
N_ERROR_BYTES: Final = 64 << 10  # of the body of an error
BODY_HEADERS: Final = frozenset(("content-encoding", "content-length", "transfer-encoding"))


def incomplete(blob: Path) -> Path:
    """Return the path of a blob's partial file."""
    return blob.with_name(f"{blob.name}.incomplete")


def n_bytes_cached(blob: Path, size: int) -> int:
    """Return the number of bytes of a blob that the cache has."""
    for path in (blob, incomplete(blob)):
        if path.exists():
            return min(path.stat().st_size, size)
    return 0


def fetch_blob(file: Remote, blob: Path, lock: Path, on_bytes: OnBytes) -> None:
    """Download a file to `blob` and check it. Resumes a partial file.

    `lock` is the path of a lock against downloads by other processes.

    Raises:
        DownloadError: the server refuses, the network fails repeatedly, the disk is full, or the
            digest is wrong. A file with a wrong digest is removed.
    """
    with explained(file.source, blob.parent), locked(lock, file):
        if not blob.exists():
            fetch(file, blob, incomplete(blob), on_bytes)
    on_bytes(file.size)


def fetch(file: Remote, path: Path, partial: Path, on_bytes: OnBytes) -> None:
    """Download a file to `partial` and rename it to `path`. The caller holds the lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _Download(file, on_bytes).run(partial)
    partial.replace(path)


@contextmanager
def locked(lock: Path, file: Remote) -> Iterator[None]:
    """Hold a lock, after a wait for another process that holds it."""
    from filelock import Timeout  # noqa: PLC0415
    from huggingface_hub.utils import WeakFileLock  # noqa: PLC0415

    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        with WeakFileLock(lock, timeout=0.1):
            yield
            return
    except Timeout:
        log.warning(f"waiting for another process that downloads {file.name}")
    with WeakFileLock(lock):
        yield


class _Download:
    """The download of one file."""

    def __init__(self, file: Remote, on_bytes: OnBytes) -> None:
        self._file = file
        self._on_bytes = on_bytes
        self._n = 0  # bytes that the cache has
        self._n_received = 0  # bytes received by this download
        self._hash = _new_hash(file)

    def run(self, path: Path) -> None:
        with path.open("a+b") as out:
            self._read_cached(out)
            self._receive_all(out)
        if self._n != self._file.size:
            path.unlink()
            raise DownloadError(
                f"{self._file.name} of {self._file.source} was removed: the server sent more than "
                f"{size_text(self._file.size)}; try again"
            )
        if self._file.digest and self._hash.hexdigest() != self._file.digest:
            path.unlink()
            raise DownloadError(
                f"{self._file.name} of {self._file.source} was damaged in the download and "
                f"removed: its digest is {self._hash.hexdigest()}, must be {self._file.digest}; "
                "try again"
            )

    def _read_cached(self, out: BinaryIO) -> None:
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
        """Send requests until the file is complete or TRIES in a row brought no bytes."""
        from huggingface_hub.errors import HfHubHTTPError, HTTPError  # noqa: PLC0415

        tried = 0
        while self._n < self._file.size:
            n_before, response_headers = self._n_received, None
            error: Exception | None = None
            try:
                self._receive(out)
            except HfHubHTTPError as e:
                if e.response.status_code not in TEMPORARY:
                    raise
                error, response_headers = e, e.response.headers
            except HTTPError as e:  # a network error
                error = e
            tried = 1 if self._n_received > n_before else tried + 1
            if tried >= TRIES:
                raise error or DownloadError(
                    f"the server sends no bytes of {self._file.name} after {size_text(self._n)}"
                )
            if error is not None:
                log.info(
                    f"interrupted at {size_text(self._n)} of {self._file.name}, trying again: "
                    f"{error}"
                )
                time.sleep(pause(tried, response_headers))

    def _receive(self, out: BinaryIO) -> None:
        """Send one request for the missing bytes and write the response."""
        limit = self._n + RESPONSE_MAX if self._n or self._file.size > RESPONSE_MAX else None
        with request(self._file, self._n, limit) as (start, chunks):
            if self._n != start:  # a server without support for ranges sends the whole file
                self._start_again(out)
            for chunk in chunks:
                out.write(chunk)
                self._n_received += len(chunk)
                self._count(chunk)
                if self._n > self._file.size:
                    return


def fetch_start(file: Remote, path: Path, n: int) -> None:
    """Download the first `n` bytes of a file to `path`, without a check. Resumes a partial file.

    Raises:
        DownloadError: the server refuses, the network fails, or the disk is full.
    """
    with explained(file.source, path.parent), path.open("ab") as out:
        done = out.tell()
        if done >= n:
            return
        with request(file, done, n) as (start, chunks):
            extra = done - start  # a server without support for ranges sends earlier bytes again
            for chunk in chunks:
                new = chunk[max(0, extra) :][: n - done]
                out.write(new)
                extra -= len(chunk)
                done += len(new)
                if done == n:
                    return


@contextmanager
def request(file: Remote, start: int, limit: int | None) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Request the bytes of a file from `start` to `limit` (None: to its end).

    Yields the position at which the response starts, and its chunks.
    """
    range = None if limit is None else f"bytes={start}-{min(file.size, limit) - 1}"
    with respond(file.url, range) as response:
        found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
        yield int(found[1]) if found else 0, response.iter_raw()


@contextmanager
def respond(url: str, range: str | None) -> Iterator[Any]:
    """Request a URL, or a range of its bytes. Yields the library's response, without its body.

    Raises the library's errors.
    """
    from huggingface_hub import get_session  # noqa: PLC0415

    wanted = {**headers(url), "Accept-Encoding": "identity"}
    if range is not None:
        wanted["Range"] = range
    timeout = settings().HF_HUB_DOWNLOAD_TIMEOUT
    with get_session().stream("GET", url, headers=wanted, timeout=timeout) as response:
        _raise_for_status(response)
        yield response


def _raise_for_status(response: Any) -> None:
    """Raise the library's error for a status. The library would read and decode all of the body, of
    which a few bytes may become gigabytes, and fail if it is not UTF-8."""
    from huggingface_hub.utils import hf_raise_for_status  # noqa: PLC0415

    if not response.is_success:
        is_plain = "content-encoding" not in response.headers
        begin = next(response.iter_raw(N_ERROR_BYTES), b"") if is_plain else b""
        text = begin.decode("utf-8", "replace").encode()
        about = {k: v for k, v in response.headers.items() if k not in BODY_HEADERS}
        kind, request = type(response), response.request
        response = kind(response.status_code, headers=about, content=text, request=request)
    hf_raise_for_status(response)


def _new_hash(file: Remote) -> hashlib._Hash:
    """Return the hash for a file's digest: sha256, or git's sha1 for a file stored in git."""
    if len(file.digest) == 64:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
