"""Finds a model's file for the URL of a GGUF file, in Lamella's cache or on its server.

A download is resumed after an interruption if the server's file is unchanged. It is renamed to its
final name once its size is right. All files of a split model are downloaded. Tested by
tests/model/test_hub_urls.py.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from ...base.errors import DownloadError
from ...base.units import size_text
from ..gguf.foreign import describe
from .blobs import fetch, locked, respond
from .cached import DIGITS, partial_files
from .files import Remote
from .find import DownloadProgress
from .headers import fetch_header
from .library import downloads, explained, free_bytes, is_offline
from .names import cache_name

HEAD_BYTES: Final = 4096  # of a file, to recognize what is not a model
_SHARD: Final = re.compile(r"-00001-of-(\d{5})(?=\.gguf)", re.IGNORECASE)


class Shown(NamedTuple):
    """A file as its server describes it."""

    file: Remote
    version: str  # changes with the file


def find_cached_url(url: str) -> Path | None:
    """Return the path of a downloaded model's (first) file, or None. Sends no request."""
    paths = [_path(one) for one in _all_urls(url)]
    return paths[0] if all(path.is_file() for path in paths) else None


def find_url(
    url: str, *, offline: bool = False, on_progress: DownloadProgress | None = None
) -> Path:
    """Return the path of a model's (first) file, after a download of missing files.

    Raises:
        DownloadError: the model is not available; names the cause and a remedy.
    """
    found = find_cached_url(url)
    if found is None:
        _check_online(url, offline)
        _download([_look(one) for one in _all_urls(url)], on_progress)
        found = _path(url)
    return found


def find_url_header(url: str, folder: Path, *, offline: bool = False) -> Path:
    """Return the path of a file that has at least the model's header.

    This is the downloaded file if there is one. Else the first bytes are downloaded into `folder`.

    Raises:
        DownloadError: the model is not available; names the cause and a remedy.
    """
    found = find_cached_url(url)
    if found is not None:
        return found
    _check_online(url, offline)
    for no, one in enumerate(_all_urls(url)):
        fetch_header(_look(one).file, folder / _path(one).name, no)
    return folder / _path(url).name


def _check_online(url: str, offline: bool) -> None:
    if offline or is_offline():
        why = "offline mode" if offline else "offline mode: HF_HUB_OFFLINE is set"
        raise DownloadError(f"{why}; the cache {downloads()} has no file of {url}")


def _all_urls(url: str) -> list[str]:
    """Return the URLs of all files of a model, the first one first."""
    match = _SHARD.search(url)
    if match is None:
        return [url]
    return [_SHARD.sub(f"-{i:05d}-of-{match[1]}", url) for i in range(1, int(match[1]) + 1)]


def _path(url: str) -> Path:
    """Return the path of a URL's file in the cache."""
    return downloads().joinpath(*cache_name(url).split("/"))


def _look(url: str) -> Shown:
    """Request the first bytes of a file: it must be a GGUF file of known size.

    Raises:
        DownloadError: the server refuses, the network fails, or the file is no GGUF file.
    """
    with explained(url, downloads()), respond(url, f"bytes=0-{HEAD_BYTES - 1}") as response:
        head = b""
        for chunk in response.iter_raw():
            head += chunk
            if len(head) >= HEAD_BYTES:
                break
        found = response.headers
    total = found.get("Content-Range", "").rpartition("/")[2] or found.get("Content-Length", "")
    if not head.startswith(b"GGUF"):
        size = int(total) if total.isdigit() else len(head)
        raise DownloadError(f"{url} is not a GGUF file: {describe(head[:HEAD_BYTES], size)}")
    if not total.isdigit():
        raise DownloadError(f"{urlsplit(url).netloc} does not report the size of {url}")
    version = f"{found.get('ETag', '')} {found.get('Last-Modified', '')} {total}"
    return Shown(Remote(url, _path(url).name, url, int(total)), version)


def _download(shown: list[Shown], on_progress: DownloadProgress | None) -> None:
    total, before = sum(one.file.size for one in shown), 0
    _check_disk_space(shown)

    def on_bytes(n: int) -> None:
        if on_progress is not None:
            on_progress(before + n, total, shown[0].file.name)

    on_bytes(0)
    for one in shown:
        path = _path(one.file.url)
        with explained(one.file.source, path.parent), locked(_lock(path), one.file):
            if not path.is_file():  # another process may have downloaded it
                _remove_other_versions(path, _partial(one))
                fetch(one.file, path, _partial(one), on_bytes)
        on_bytes(one.file.size)
        before += one.file.size


def _lock(path: Path) -> Path:
    name = path.relative_to(downloads()).as_posix()
    return downloads() / ".locks" / f"{hashlib.sha256(name.encode()).hexdigest()[:DIGITS]}.lock"


def _partial(one: Shown) -> Path:
    """Return the path of a partial file. It names the version."""
    path = _path(one.file.url)
    digest = hashlib.sha256(one.version.encode()).hexdigest()[:DIGITS]
    return path.with_name(f"{path.name}.{digest}.incomplete")


def _remove_other_versions(path: Path, partial: Path) -> None:
    """Remove partial files of earlier versions."""
    for old in partial_files(path):
        if old != partial:
            old.unlink(missing_ok=True)


def _check_disk_space(shown: list[Shown]) -> None:
    missing = sum(
        one.file.size - _n_bytes(_partial(one))
        for one in shown
        if not _path(one.file.url).is_file()
    )
    free = free_bytes(downloads())
    if missing > free:
        raise DownloadError(
            f"{shown[0].file.name} needs {size_text(missing)} more in {downloads()}, "
            f"{size_text(free)} are free: free some space or set another folder (--cache-dir)"
        )


def _n_bytes(path: Path) -> int:
    """Return the size of a file, 0 if another process has just renamed it."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
