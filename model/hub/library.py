"""Access to huggingface-hub, imported on first use: listings, and errors as DownloadError.

The library reads its own settings from the environment: HF_ENDPOINT, HF_TOKEN, HF_HOME,
HF_HUB_CACHE, HF_HUB_OFFLINE. Tested by tests/model/test_hub.py.
"""

from __future__ import annotations

import errno
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from ...base import folders
from ...base.errors import DownloadError
from ...base.units import size_text
from .files import HubFile, Remote

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

T = TypeVar("T")

TRIES: Final = 3  # of one request
TEMPORARY: Final = frozenset((408, 429, 500, 502, 503, 504))  # statuses worth another try
WAIT_S = 1.0  # before the second try; doubled before each later one
LIST_TIMEOUT_S: Final = 15.0
TOKEN: Final[ContextVar[str | None]] = ContextVar("token", default=None)
TOKENS: Final = "https://huggingface.co/settings/tokens"


class Listing(NamedTuple):
    """All files of a repository at one commit."""

    commit: str
    files: list[HubFile]


def settings() -> ModuleType:
    """Return the library's settings."""
    from huggingface_hub import constants  # noqa: PLC0415

    # without this, the library sends daily requests that report the calling program
    constants.HF_HUB_DISABLE_TELEMETRY = True
    return constants


def endpoint() -> str:
    """Return the hub's scheme and host, such as https://huggingface.co."""
    return str(settings().ENDPOINT).rstrip("/")


def host() -> str:
    """Return the hub's host name."""
    return urlsplit(endpoint()).netloc or endpoint()


@contextmanager
def using_token(token: str | None) -> Iterator[None]:
    """Send `token` to the hub inside a `with` block.

    None or blank: the token of HF_TOKEN or of a login.
    """
    before = TOKEN.set((token or "").strip() or None)
    try:
        yield
    finally:
        TOKEN.reset(before)


def has_token() -> bool:
    """True if requests to the hub carry a token."""
    from huggingface_hub import get_token  # noqa: PLC0415

    return (TOKEN.get() or get_token()) is not None


def _checked_token() -> str | None:
    """Return the token of `using_token`, if any. The library adds the token of the user.

    Raises:
        DownloadError: no header can have the token. The message does not show it.
    """
    from huggingface_hub import get_token  # noqa: PLC0415

    if not re.fullmatch("[!-~]*", TOKEN.get() or get_token() or ""):
        raise DownloadError(
            "the token (HF_TOKEN, or that of `hf auth login`) has a space or another character "
            "that no token has: copy it again"
        )
    return TOKEN.get()


def is_offline() -> bool:
    """True if HF_HUB_OFFLINE is set."""
    return bool(settings().HF_HUB_OFFLINE)


def cache_folder() -> Path:
    return Path(settings().HF_HUB_CACHE)


def downloads() -> Path:
    """Return Lamella's own folder, with the files of other servers."""
    return folders.cache_folder("downloads")


def repo_folder(repo: str) -> Path:
    """Return the cache's folder of a repository."""
    return cache_folder() / "--".join(("models", *repo.split("/")))


def headers(url: str) -> dict[str, str]:
    """Return the headers of a request. Only the hub gets the user's token."""
    from huggingface_hub.utils import build_hf_headers  # noqa: PLC0415

    found: dict[str, str] = build_hf_headers(
        token=_checked_token() if is_hub(url) else False,
        library_name="lamella",
        library_version=version("lamella"),
    )
    return found


def is_hub(url: str) -> bool:
    """True if the hub serves a URL. Its scheme counts: http would show a token to others."""
    return urlsplit(url)[:2] == urlsplit(endpoint())[:2]


def remote(repo: str, commit: str, file: HubFile) -> Remote:
    """Return the place of a repository's file at a commit."""
    from huggingface_hub import hf_hub_url  # noqa: PLC0415

    url = hf_hub_url(repo, file.name, revision=commit)
    return Remote(url, file.name, repo, file.size, file.digest)


def list_repo(repo: str) -> Listing:
    """Return all files of a repository.

    Raises:
        DownloadError: the hub cannot be reached or has no such repository.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415

    api = HfApi(endpoint=settings().ENDPOINT, token=_checked_token(), library_name="lamella")
    with explained(repo):
        try:
            info = with_retries(
                lambda: api.model_info(repo, files_metadata=True, timeout=LIST_TIMEOUT_S)
            )
            files = [
                HubFile(s.rfilename, s.size or 0, s.lfs.sha256 if s.lfs else s.blob_id or "")
                for s in info.siblings or ()
            ]
        except (ValueError, TypeError, KeyError, AttributeError) as e:
            raise DownloadError(f"{host()} sent an invalid response: {e!r}") from e
    for found in (info.sha or "", *(file.digest for file in files)):
        if not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", found):  # digests become file names
            raise DownloadError(f"{host()} sent an invalid response: {found!r} is not a digest")
    return Listing(info.sha or "", [file for file in files if ".." not in file.name.split("/")])


def with_retries(request: Callable[[], T]) -> T:
    """Return the result of `request`, repeated after a temporary error."""
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    for tried in range(1, TRIES):
        try:
            return request()
        except HfHubHTTPError as e:
            if e.response.status_code not in TEMPORARY:
                raise
            time.sleep(pause(tried, e.response.headers))
    return request()


def pause(tried: int, headers: Any = None) -> float:
    """Return the seconds to wait before the next try.

    A Retry-After header, limited to 30 s, can make the wait longer.
    """
    wanted = str((headers or {}).get("Retry-After", ""))
    wait: float = WAIT_S * 2 ** (tried - 1)
    return max(wait, min(float(wanted), 30.0)) if wanted.isdigit() else wait


# --- errors ---


@contextmanager
def explained(source: str, folder: Path | None = None) -> Iterator[None]:
    """Turn errors of the library, the network and the disk into DownloadError with a remedy.

    `source` is a repository of the hub or the URL of a file. Files are written into `folder`.
    """
    from huggingface_hub.errors import (  # noqa: PLC0415
        HfHubHTTPError,
        HTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    try:
        yield
    except HfHubHTTPError as e:
        raise DownloadError(_refusal(source, e)) from e
    except OfflineModeIsEnabled as e:
        raise DownloadError(f"{source} cannot be requested: HF_HUB_OFFLINE is set") from e
    except (HTTPError, LocalEntryNotFoundError) as e:
        cause = e.__cause__ if isinstance(e, LocalEntryNotFoundError) and e.__cause__ else e
        raise DownloadError(f"{_host_of(source)} cannot be reached: {_first_line(cause)}") from e
    except OSError as e:
        raise DownloadError(_disk(source, e, folder)) from e


def _host_of(source: str) -> str:
    return urlsplit(source).netloc or host()


def _refusal(source: str, e: HfHubHTTPError) -> str:
    """Return a message for an error response."""
    message = str(e.response.headers.get("X-Error-Message") or e.server_message or "")
    if not urlsplit(source).netloc:
        found = _refusal_of_repo(source, e, message)
        if found:
            return found
    status, server = e.response.status_code, _host_of(source)
    detail = f": {_first_line(message)}" if message else ""
    if status in (404, 410):
        return f"{server} has no such file: {source} (status {status})"
    if status == 429:
        return f"{server} received too many requests from here, try again later (429){detail}"
    if status >= 500:
        return f"{server} has a server error, try again later (status {status}){detail}"
    return f"{server} refuses {source} (status {status}){detail}"


def _refusal_of_repo(repo: str, e: HfHubHTTPError, message: str) -> str:
    """Return a message if a repository is missing or needs another token, else ""."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError  # noqa: PLC0415

    status = e.response.status_code
    if isinstance(e, GatedRepoError):
        then = (
            "the account of your token has no access yet"
            if has_token()
            else f"then set HF_TOKEN to a token of your account, made at {TOKENS}"
        )
        return f"{repo} is gated: request access at {settings().ENDPOINT}/{repo}; {then}"
    if status == 401 and has_token() and "credentials" in message.lower():
        return (
            f"{host()} rejects the token (HF_TOKEN, or that of `hf auth login`): it is wrong or "
            f"expired; make another one at {TOKENS}, or use none"
        )
    if isinstance(e, RepositoryNotFoundError) or status in (401, 404):
        what = f"{host()} has no repository {repo}"
        if has_token():
            return f"{what}, or it is private and your token cannot read it"
        return f"{what}, or it is private and needs a token (HF_TOKEN)"
    return ""


def _disk(source: str, e: OSError, folder: Path | None) -> str:
    folder = folder or repo_folder(source)
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk of {folder} is full, {size_text(free_bytes(folder))} are free: free some "
            "space and repeat the command to resume the download, or set another folder "
            f"({'--cache-dir' if urlsplit(source).netloc else 'HF_HUB_CACHE'})"
        )
    return f"{source} cannot be written into {folder}: {e.strerror or _first_line(e)}"


def free_bytes(folder: Path) -> int:
    """Return the free bytes on the disk of a folder, which need not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _first_line(error: object) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
