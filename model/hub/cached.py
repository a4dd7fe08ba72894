"""The models in the caches: their names, the selection by a part of a name, and their removal.

There are two caches: that of Hugging Face's programs, and Lamella's own for files of other servers.
Sends no request. Tested by tests/model/test_hub_cached.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from ...base.errors import ModelFileError
from .files import DEFAULT_QUANT, Candidate, HubFile, candidates
from .find import cached_files
from .library import cache_folder, downloads

SHOWN: Final = 4  # most names in an error
MIN_PART: Final = 3  # characters of a part of a name
_PREFIX: Final = re.compile(r"^(https?://)?((www\.)?huggingface\.co/|hf\.co/)?")


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in a cache.

    Attributes:
        name: USER/REPO:QUANT, or the host and path of a URL. Commands take it as a model.
        quant: of its weights, in capitals; "" if its name has none.
        paths: its files, the one to open first.
        size: bytes of all files.
        modified: when it was downloaded, in seconds since 1970.
        repo: its repository; "" for a file of another server.
    """

    name: str
    quant: str
    paths: tuple[Path, ...]
    size: int
    modified: float
    repo: str = ""

    @property
    def path(self) -> Path:
        return self.paths[0]


def cached_models() -> list[CachedModel]:
    """Return all cached models, sorted by name."""
    found = [model for repo in _repos() for model in _models_of(repo)]
    return sorted((*found, *_downloaded()), key=lambda model: model.name.lower())


def _repos() -> Iterator[str]:
    for folder in cache_folder().glob("models--*--*"):
        _, user, repo = folder.name.split("--", 2)
        yield f"{user}/{repo}"


def _models_of(repo: str) -> Iterator[CachedModel]:
    found = candidates(cached_files(repo))
    labels = [c.label for c in found]
    for c in found:
        quant = c.label if c.label and labels.count(c.label) == 1 else c.stem
        yield _model(f"{repo}:{quant}", c, repo)


def _downloaded() -> Iterator[CachedModel]:
    folder = downloads()
    files = [
        HubFile(path.relative_to(folder).as_posix(), path.stat().st_size, path=path)
        for path in folder.rglob("*")
        if path.is_file()
    ]
    for c in candidates(files):
        if c.is_whole:
            yield _model(c.name, c)


def _model(name: str, found: Candidate, repo: str = "") -> CachedModel:
    paths = tuple(file.path for file in found.files if file.path is not None)
    return CachedModel(name, found.label, paths, found.size, paths[0].stat().st_mtime, repo)


# --- selection ---


def select(models: Sequence[CachedModel], name: str) -> CachedModel | None:
    """Return the model of a name, or of a part that no other name has. Case is ignored.

    A part begins where a word of the name begins, or is the begin of the file's name. It may end
    with a quant, as in part:Q8_0. Without one, the default quant of a repository comes first. A URL
    counts without its scheme.

    Raises:
        ModelFileError: several models match; lists them.
    """
    text = _PREFIX.sub("", name.lower())
    exact = [model for model in models if model.name.lower() == text]
    if exact:
        return exact[0]
    found = [model for model in models if _matches(model, text)]
    defaults = [model for model in found if model.quant == DEFAULT_QUANT]
    if len(found) > 1 and len({model.repo for model in found}) == 1 and len(defaults) == 1:
        found = defaults
    if len(found) > 1:
        raise ModelFileError(f"several cached models match {name!r}: {_names(found)}")
    return found[0] if found else None


def _matches(model: CachedModel, text: str) -> bool:
    part, _, quant = text.partition(":")
    if quant and model.quant.lower() != quant:
        return False
    if len(part) < MIN_PART:
        return False
    name = (model.repo or model.name).lower()
    is_part = re.search(rf"(?<![a-z0-9]){re.escape(part)}", name) is not None
    return is_part or model.path.name.lower().startswith(part)


def similar(models: Sequence[CachedModel], name: str) -> str:
    """Return the names of the models most like `name`, as text; "" if there are none."""
    last = name.replace("\\", "/").rpartition("/")[2].lower().removesuffix(".gguf")
    keys = {_short(model).lower(): model for model in models}
    close = get_close_matches(last, keys, n=SHOWN, cutoff=0.5)
    close += [key for key in keys if key not in close and last[:MIN_PART] in key]
    return _names([keys[key] for key in close])


def _short(model: CachedModel) -> str:
    return model.name.rpartition("/")[2].removesuffix(".gguf")


def _names(models: Iterable[CachedModel]) -> str:
    names = [model.name for model in models]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


# --- removal ---


def remove(model: CachedModel) -> int:
    """Remove a model from its cache. Files that other models use stay. Return the freed bytes.

    Raises:
        ModelFileError: a file cannot be removed.
    """
    try:
        return _remove_from_hub(model) if model.repo else _remove_download(model)
    except OSError as e:
        raise ModelFileError(f"{model.name} cannot be removed: {e}") from e


def _remove_from_hub(model: CachedModel) -> int:
    """Remove all versions of a model's files; the whole repository if nothing else is cached."""
    from huggingface_hub import scan_cache_dir  # noqa: PLC0415

    cache = scan_cache_dir(cache_folder())
    repos = [r for r in cache.repos if (r.repo_type, r.repo_id) == ("model", model.repo)]
    if not repos:
        raise ModelFileError(f"{model.name} cannot be removed: {cache_folder()} is damaged there")
    repo = repos[0]
    names = {_in_snapshot(path) for path in model.paths}
    files = [file for revision in repo.revisions for file in revision.files]
    old = [file for file in files if _in_snapshot(file.file_path) in names]
    if len(old) == len(files):
        plan = cache.delete_revisions(*(revision.commit_hash for revision in repo.revisions))
        plan.execute()
        return int(plan.expected_freed_size)
    used = {file.blob_path for file in files if file not in old}
    freed = 0
    for path in {file.file_path for file in old}:
        path.unlink()
    for blob, size in {file.blob_path: file.size_on_disk for file in old}.items():
        # a link may lead out of the cache
        if blob not in used and blob.is_relative_to(repo.repo_path.resolve()):
            blob.unlink(missing_ok=True)
            freed += size
    return freed


def _in_snapshot(path: Path) -> tuple[str, ...]:
    """Return the parts of a file's path below its snapshot's folder."""
    parts = path.parts
    last = len(parts) - 1 - parts[::-1].index("snapshots")
    return parts[last + 2 :]


def _remove_download(model: CachedModel) -> int:
    for path in model.paths:
        path.unlink()
    with suppress(OSError):  # a folder with other files stays
        for folder in model.path.relative_to(downloads()).parents:
            (downloads() / folder).rmdir()
    return model.size
