"""huggingface-hub, imported when it is used: what the hub has, and its errors in our words.

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
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from ...base.errors import DownloadError
from ...base.units import size_text
from .files import HubFile

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

T = TypeVar("T")

TRIES: Final = 3  # of one question
PASSING: Final = frozenset((408, 429, 500, 502, 503, 504))  # statuses that may be others soon
WAIT_S = 1.0  # before the second try; twice as long before each later one
ASK_TIMEOUT_S: Final = 15.0
TOKENS: Final = "https://huggingface.co/settings/tokens"


class Listing(NamedTuple):
    """What the hub has of a repository: all its files at one commit."""

    commit: str
    files: list[HubFile]


def settings() -> ModuleType:
    """The library's settings."""
    from huggingface_hub import constants  # noqa: PLC0415

    # else it asks the hub each day which programs there are, to tell it by which one it is called
    constants.HF_HUB_DISABLE_TELEMETRY = True
    return constants


def host() -> str:
    """The hub's name."""
    return urlsplit(settings().ENDPOINT).netloc or str(settings().ENDPOINT)


def is_offline() -> bool:
    """Whether the environment says that the hub must not be asked."""
    return bool(settings().HF_HUB_OFFLINE)


def cache_folder() -> Path:
    return Path(settings().HF_HUB_CACHE)


def repo_folder(repo: str) -> Path:
    """Where the cache keeps a repository."""
    from huggingface_hub.file_download import repo_folder_name  # noqa: PLC0415

    return cache_folder() / repo_folder_name(repo_id=repo, repo_type="model")


def headers() -> dict[str, str]:
    """What the hub wants with each request, the token too if there is one."""
    from huggingface_hub.utils import build_hf_headers  # noqa: PLC0415

    settings()
    found: dict[str, str] = build_hf_headers(
        library_name="lamella", library_version=version("lamella")
    )
    return found


def list_repo(repo: str) -> Listing:
    """All files of a repository.

    Raises:
        DownloadError: the hub cannot be asked, or has no such repository.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415

    api = HfApi(endpoint=settings().ENDPOINT, library_name="lamella")
    with explained(repo):
        try:
            info = patiently(
                lambda: api.model_info(repo, files_metadata=True, timeout=ASK_TIMEOUT_S)
            )
            files = [
                HubFile(s.rfilename, s.size or 0, s.lfs.sha256 if s.lfs else s.blob_id or "")
                for s in info.siblings or ()
            ]
        except (ValueError, TypeError, KeyError, AttributeError) as e:
            raise DownloadError(f"{host()} does not answer as the hub does: {e!r}") from e
    for found in (info.sha or "", *(file.digest for file in files)):
        if not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", found):  # they will be names of files
            raise DownloadError(f"{host()} does not answer as the hub does: {found!r} is no digest")
    return Listing(info.sha or "", [file for file in files if ".." not in file.name.split("/")])


def patiently(ask: Callable[[], T]) -> T:
    """The answer, asked for again where the hub says that it has trouble."""
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    for tried in range(1, TRIES):
        try:
            return ask()
        except HfHubHTTPError as e:
            if e.response.status_code not in PASSING:
                raise
            time.sleep(pause(tried, e.response.headers))
    return ask()


def pause(tried: int, headers: Any = None) -> float:
    """Seconds to wait before the next try, as the hub wants it if that is not too long."""
    wanted = str((headers or {}).get("Retry-After", ""))
    wait: float = WAIT_S * 2 ** (tried - 1)
    return max(wait, min(float(wanted), 30.0)) if wanted.isdigit() else wait


# --- errors ---


@contextmanager
def explained(repo: str, folder: Path | None = None) -> Iterator[None]:
    """Errors of the library, the network and the disk as one of ours that says what helps.

    Raises:
        DownloadError: any of them.
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
        raise DownloadError(_refusal(repo, e)) from e
    except OfflineModeIsEnabled as e:
        raise DownloadError(f"{repo}: the hub must not be asked: HF_HUB_OFFLINE is set") from e
    except (HTTPError, LocalEntryNotFoundError) as e:
        cause = e.__cause__ if isinstance(e, LocalEntryNotFoundError) and e.__cause__ else e
        raise DownloadError(f"{host()} cannot be reached: {_first_line(cause)}") from e
    except OSError as e:
        raise DownloadError(_disk(repo, e, folder)) from e


def _refusal(repo: str, e: HfHubHTTPError) -> str:
    """What an answer of the hub means."""
    from huggingface_hub import get_token  # noqa: PLC0415
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError  # noqa: PLC0415

    status, has_token = e.response.status_code, get_token() is not None
    said = str(e.response.headers.get("X-Error-Message") or e.server_message or "")
    if isinstance(e, GatedRepoError):
        then = (
            "the account of your token has no access yet"
            if has_token
            else f"then give a token of your account as HF_TOKEN, made at {TOKENS}"
        )
        return f"{repo} is gated: ask for access at {settings().ENDPOINT}/{repo}; {then}"
    if status == 401 and has_token and "credentials" in said.lower():
        return (
            f"{host()} refuses the token (HF_TOKEN, or that of `hf auth login`): it is wrong or "
            f"has expired; make another one at {TOKENS}, or do without one"
        )
    if isinstance(e, RepositoryNotFoundError) or status in (401, 404):
        what = f"{host()} has no repository {repo}"
        if has_token:
            return f"{what}, or it is private and your token may not read it"
        return f"{what}, or it is private: then it needs a token (HF_TOKEN)"
    told = f": {_first_line(said)}" if said else ""
    if status == 429:
        return f"{host()} has had too many requests from here, try again later (429){told}"
    if status >= 500:
        return f"{host()} has trouble, try again later (status {status}){told}"
    return f"{host()} refuses {repo} (status {status}){told}"


def _disk(repo: str, e: OSError, folder: Path | None) -> str:
    folder = folder or repo_folder(repo)
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk of {folder} is full, {size_text(free_bytes(folder))} are free: what was "
            "downloaded is kept, the same command goes on from there once there is room; "
            "HF_HUB_CACHE takes another folder"
        )
    return f"{repo} cannot be written into {folder}: {e.strerror or _first_line(e)}"


def free_bytes(folder: Path) -> int:
    """Bytes that are free where a folder lies or will lie."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _first_line(error: object) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
