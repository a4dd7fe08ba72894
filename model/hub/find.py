"""From `user/repo:quant` to a file on this disk: from the cache, else from the hub.

The hub is asked once what it has, so that a newer version is found; where that fails, or it must
not be asked, what the cache has is taken. Tested by tests/model/test_hub.py.
"""

from __future__ import annotations

import mmap
import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from ...base.errors import DownloadError, ModelFileError, UnsupportedModelError
from ...base.log import get_logger
from ...base.units import size_text
from ..gguf.header import read_header
from .blobs import fetch_blob, fetch_start, n_bytes_there
from .files import Choice, HubFile, HubModel, candidates, choose
from .library import (
    Listing,
    cache_folder,
    explained,
    free_bytes,
    is_offline,
    list_repo,
    repo_folder,
)

log = get_logger("hub")

DownloadProgress = Callable[[int, int, str], None]  # bytes there, bytes in all, the first file

HEADER_STEP: Final = 1 << 20  # what a header is tried with first; four times as much each time
HEADER_MAX: Final = 256 << 20


def find_model(
    wanted: HubModel, *, offline: bool = False, on_progress: DownloadProgress | None = None
) -> Path:
    """The model's file in the cache, of a split one the first; what is missing is downloaded.

    Raises:
        DownloadError: it cannot be had; says why, and what helps.
    """
    listing, choice = _choose(wanted, offline)
    if listing is None or _is_cached(wanted.repo, listing, choice):
        return _first(wanted.repo, listing, choice)
    _download(wanted.repo, listing, choice, on_progress or (lambda done, total, name: None))
    return _first(wanted.repo, listing, choice)


def find_header(wanted: HubModel, folder: Path, *, offline: bool = False) -> Path:
    """A file with at least the model's header: that of the cache, or the first bytes of those of
    the hub, written into `folder`.

    Raises:
        DownloadError: it cannot be had.
    """
    listing, choice = _choose(wanted, offline)
    if listing is None or _is_cached(wanted.repo, listing, choice):
        return _first(wanted.repo, listing, choice)
    for no, file in enumerate(choice.files):
        _fetch_header(wanted.repo, listing.commit, file, folder / Path(file.name).name, no)
    return folder / Path(choice.files[0].name).name


def _choose(wanted: HubModel, offline: bool) -> tuple[Listing | None, Choice]:
    """Which files are meant, and all that the hub has: None if those of the cache are taken."""
    if offline or is_offline():
        why = "--offline" if offline else "HF_HUB_OFFLINE is set"
        return None, _told(_choose_cached(wanted, f"the hub is not asked: {why}"))
    try:
        listing = list_repo(wanted.repo)
    except DownloadError as e:
        choice = _choose_cached(wanted, str(e))
        log.warning(f"{e}; {choice.files[0].name} is taken from the cache")
        return None, _told(choice)
    return listing, _told(choose(listing.files, wanted, wanted.repo))


def _told(choice: Choice) -> Choice:
    if choice.note:
        log.warning(choice.note)
    return choice


# --- the cache ---


def cached_files(repo: str) -> list[HubFile]:
    """The files of a repository that the cache has, each in its newest version: that of `main`,
    else the one that came last."""
    folder = repo_folder(repo)
    snapshots = [path for path in _entries(folder / "snapshots") if path.is_dir()]
    main = _main(folder)
    snapshots.sort(key=lambda path: (path.name != main, -path.stat().st_mtime))
    found: dict[str, HubFile] = {}
    for snapshot in snapshots:
        there = [
            HubFile(path.relative_to(snapshot).as_posix(), path.stat().st_size, path=path)
            for path in sorted(snapshot.rglob("*"))
            if path.is_file()
        ]
        taken = {file.name for file in found.values()}
        for candidate in candidates(there):
            # the files of a split model are of one version
            if candidate.is_whole and not taken & {file.name for file in candidate.files}:
                found.update((file.name, file) for file in candidate.files)
    return list(found.values())


def _choose_cached(wanted: HubModel, why: str) -> Choice:
    files = cached_files(wanted.repo)
    if not files:
        raise DownloadError(f"{why}; the cache {cache_folder()} has nothing of {wanted.repo}")
    try:
        return choose(files, wanted, f"the cache of {wanted.repo}")
    except DownloadError as e:
        raise DownloadError(f"{why}; {e}") from None


def _main(folder: Path) -> str:
    """The commit of `main` when something of it was last asked for."""
    try:
        return (folder / "refs" / "main").read_text("utf-8").strip()
    except OSError:
        return ""


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _snapshot_path(repo: str, commit: str, file: HubFile) -> Path:
    return repo_folder(repo).joinpath("snapshots", commit, *file.name.split("/"))


def _is_cached(repo: str, listing: Listing, choice: Choice) -> bool:
    """Whether the hub's version lies here. A file of another size is no file of the hub's."""
    paths = [(_snapshot_path(repo, listing.commit, file), file) for file in choice.files]
    return all(path.is_file() and path.stat().st_size == file.size for path, file in paths)


def _first(repo: str, listing: Listing | None, choice: Choice) -> Path:
    first = choice.files[0]
    if first.path is not None:
        return first.path
    assert listing is not None, "what the cache has lies somewhere"
    return _snapshot_path(repo, listing.commit, first)


# --- the hub ---


def _download(repo: str, listing: Listing, choice: Choice, on_progress: DownloadProgress) -> None:
    folder = repo_folder(repo)
    blobs = [folder / "blobs" / file.digest for file in choice.files]
    _remove_broken(repo, listing, choice, blobs)
    is_news = _check_room(repo, folder, choice, blobs) > 0
    total, before = sum(file.size for file in choice.files), 0

    def on_bytes(n: int) -> None:
        if is_news:
            on_progress(before + n, total, choice.files[0].name)

    on_bytes(0)
    for file, blob in zip(choice.files, blobs, strict=True):
        fetch_blob(repo, listing.commit, file, blob, on_bytes)
        _link(repo, listing.commit, file)
        before += file.size
    _remember_main(folder, listing.commit)


def _remove_broken(repo: str, listing: Listing, choice: Choice, blobs: list[Path]) -> None:
    """Files whose size shows that they are not what they are called."""
    for file, blob in zip(choice.files, blobs, strict=True):
        for path in (blob, _snapshot_path(repo, listing.commit, file)):
            if path.is_file() and path.stat().st_size != file.size:
                log.warning(f"{path} is no {file.name}: it has another size, and was removed")
                path.unlink()


def _check_room(repo: str, folder: Path, choice: Choice, blobs: list[Path]) -> int:
    """The bytes that are missing, for which there is room."""
    missing = sum(
        file.size - n_bytes_there(blob, file.size)
        for file, blob in zip(choice.files, blobs, strict=True)
    )
    free = free_bytes(folder)
    if missing > free:
        raise DownloadError(
            f"{choice.files[0].name} of {repo} needs {size_text(missing)} more in {folder.parent}, "
            f"{size_text(free)} are free: make room, or take another folder (HF_HUB_CACHE)"
        )
    return missing


def _link(repo: str, commit: str, file: HubFile) -> None:
    """Let the library put a blob that is there into its version's folder."""
    from huggingface_hub import hf_hub_download  # noqa: PLC0415

    with explained(repo):
        hf_hub_download(repo, file.name, revision=commit, library_name="lamella")


def _remember_main(folder: Path, commit: str) -> None:
    """Other programs that are offline look into the version that `main` was last."""
    ref = folder / "refs" / "main"
    if _main(folder) == commit:
        return
    with suppress(OSError):  # only a help for others
        ref.parent.mkdir(parents=True, exist_ok=True)
        new = ref.with_name(f"main.{uuid.uuid4().hex[:8]}")
        new.write_text(commit, "utf-8")
        os.replace(new, ref)


def _fetch_header(repo: str, commit: str, file: HubFile, path: Path, no: int) -> None:
    """The first bytes of a file, until its header is whole."""
    wanted = HEADER_STEP
    while True:
        n = min(wanted, file.size)
        fetch_start(repo, commit, file, path, n)
        if n == file.size or n >= HEADER_MAX or _has_header(path, no):
            return
        wanted *= 4


def _has_header(path: Path, no: int) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            read_header(str(path), data, no, header_only=True)
        except UnsupportedModelError:
            return True  # more of it does not help
        except ModelFileError:
            return False
    return True
