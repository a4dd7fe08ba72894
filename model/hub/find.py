"""Finds a model's file for `user/repo:quant`, in the cache or on the hub.

`find_cached` sends no request. `find_model` sends one that lists the repository, so that a newer
version is found. If it fails, or in offline mode, the cached files are used. Tested by
tests/model/test_hub.py.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...base.errors import DownloadError
from ...base.log import get_logger
from ...base.replacing import replacing
from ...base.units import size_text
from .blobs import fetch_blob, n_bytes_cached
from .files import DEFAULT_QUANT, HubFile, HubModel, SelectedFiles, candidates, choose
from .library import (
    TOKEN,
    Listing,
    cache_folder,
    explained,
    free_bytes,
    is_offline,
    list_repo,
    remote,
    repo_folder,
)

log = get_logger("hub")

DownloadProgress = Callable[[int, int, str], None]  # bytes done, bytes in total, first file's name


def find_cached(wanted: HubModel) -> Path | None:
    """Return the path of a model's (first) file if the cache has the model, else None.

    Sends no request. Without a quant this is the default quant, or else the only cached model of
    the repository.
    """
    found = candidates(cached_files(wanted.repo))
    if wanted.file:
        named = [c for c in found if c.name == wanted.file]
    else:
        quant = (wanted.quant or DEFAULT_QUANT).upper()
        named = [c for c in found if quant in (c.label, c.stem.upper())]
        if len(found) == 1 and not named and not wanted.quant:
            named = found
            log.info(f"using {found[0].name}, the only cached model of {wanted.repo}")
    return named[0].files[0].path if len(named) == 1 else None


def find_model(
    wanted: HubModel, *, offline: bool = False, on_progress: DownloadProgress | None = None
) -> Path:
    """Return the path of a model's (first) file in the cache, after a download of missing files.

    Raises:
        DownloadError: the model is not available; names the cause and a remedy.
    """
    listing, choice = choose_model(wanted, offline)
    if listing is None or is_cached(wanted.repo, listing, choice):
        return first_path(wanted.repo, listing, choice)
    _download(wanted.repo, listing, choice, on_progress or (lambda done, total, name: None))
    return first_path(wanted.repo, listing, choice)


def choose_model(wanted: HubModel, offline: bool) -> tuple[Listing | None, SelectedFiles]:
    """Return the hub's listing and the selected files. The listing is None for cached files."""
    if offline or is_offline():
        why = "offline mode" if offline else "offline mode: HF_HUB_OFFLINE is set"
        return None, _log_note(_choose_cached(wanted, why))
    try:
        listing = list_repo(wanted.repo)
    except DownloadError as e:
        choice = _choose_cached(wanted, str(e))
        log.warning(f"{e}; using {choice.files[0].name} from the cache")
        return None, _log_note(choice)
    return listing, _log_note(choose(listing.files, wanted, wanted.repo))


def _log_note(choice: SelectedFiles) -> SelectedFiles:
    if choice.note:
        log.warning(choice.note)
    return choice


# --- the cache ---


def cached_files(repo: str) -> list[HubFile]:
    """Return a repository's model files in the cache, each in its newest version.

    The version of `main` is preferred, then the one downloaded last.
    """
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


def _choose_cached(wanted: HubModel, why: str) -> SelectedFiles:
    files = cached_files(wanted.repo)
    if not files:
        raise DownloadError(f"{why}; the cache {cache_folder()} has no model of {wanted.repo}")
    try:
        return choose(files, wanted, f"the cache of {wanted.repo}")
    except DownloadError as e:
        raise DownloadError(f"{why}; {e}") from None


def _main(folder: Path) -> str:
    """Return the commit of `main` at its last listing, or "" if the cache has none."""
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


def is_cached(repo: str, listing: Listing, choice: SelectedFiles) -> bool:
    """True if the cache has the hub's version of all files, with the right sizes."""
    paths = [(_snapshot_path(repo, listing.commit, file), file) for file in choice.files]
    return all(path.is_file() and path.stat().st_size == file.size for path, file in paths)


def first_path(repo: str, listing: Listing | None, choice: SelectedFiles) -> Path:
    """Return the path in the cache of the (first) file."""
    first = choice.files[0]
    if first.path is not None:
        return first.path
    assert listing is not None, f"{first.name} has neither a path nor a listing"
    return _snapshot_path(repo, listing.commit, first)


# --- the hub ---


def _download(
    repo: str, listing: Listing, choice: SelectedFiles, on_progress: DownloadProgress
) -> None:
    folder = repo_folder(repo)
    blobs = [folder / "blobs" / file.digest for file in choice.files]
    _remove_broken(repo, listing, choice, blobs)
    is_incomplete = _check_disk_space(repo, folder, choice, blobs) > 0
    total, before = sum(file.size for file in choice.files), 0

    def on_bytes(n: int) -> None:
        if is_incomplete:
            on_progress(before + n, total, choice.files[0].name)

    on_bytes(0)
    for file, blob in zip(choice.files, blobs, strict=True):
        lock = folder.parent / ".locks" / folder.name / f"{blob.name}.lock"  # the library's own
        fetch_blob(remote(repo, listing.commit, file), blob, lock, on_bytes)
        _link(repo, listing.commit, file)
        before += file.size
    _write_main(folder, listing.commit)


def _remove_broken(repo: str, listing: Listing, choice: SelectedFiles, blobs: list[Path]) -> None:
    """Remove cached files with a wrong size."""
    for file, blob in zip(choice.files, blobs, strict=True):
        for path in (blob, _snapshot_path(repo, listing.commit, file)):
            if path.is_file() and path.stat().st_size != file.size:
                log.warning(f"{path} was removed: its size is not that of {file.name}")
                path.unlink()


def _check_disk_space(repo: str, folder: Path, choice: SelectedFiles, blobs: list[Path]) -> int:
    """Return the number of missing bytes. Raises DownloadError if the disk has no room for them."""
    missing = sum(
        file.size - n_bytes_cached(blob, file.size)
        for file, blob in zip(choice.files, blobs, strict=True)
    )
    free = free_bytes(folder)
    if missing > free:
        raise DownloadError(
            f"{choice.files[0].name} of {repo} needs {size_text(missing)} more in {folder.parent}, "
            f"{size_text(free)} are free: free some space or set another folder (HF_HUB_CACHE)"
        )
    return missing


def _link(repo: str, commit: str, file: HubFile) -> None:
    """Let the library link a downloaded blob into the folder of its commit."""
    from huggingface_hub import hf_hub_download  # noqa: PLC0415

    with explained(repo):
        hf_hub_download(repo, file.name, revision=commit, token=TOKEN.get(), library_name="lamella")


def _write_main(folder: Path, commit: str) -> None:
    """Write the commit of `main`, which other programs use offline."""
    ref = folder / "refs" / "main"
    if _main(folder) == commit:
        return
    with suppress(OSError):  # optional
        ref.parent.mkdir(parents=True, exist_ok=True)
        with replacing(ref) as file:
            file.write(commit.encode())
