"""The models in the caches: their names, the selection by a part of a name, and their removal.

There are two caches: that of Hugging Face's programs, and Lamella's own for files of other servers.
Sends no request. Tested by tests/model/test_hub_cached.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from ...base.errors import ModelFileError
from .files import DEFAULT_QUANT, Candidate, HubFile, HubModel, candidates
from .find import cached_files
from .library import cache_folder, downloads
from .names import cache_name, read_url

SHOWN: Final = 4  # most names in an error
MIN_PART: Final = 3  # characters of a part of a name
DIGITS: Final = 16  # of a version's digest, in the name of a partial file of a URL
_PARTIAL: Final = re.compile(rf"\.[0-9a-f]{{{DIGITS}}}\.incomplete$")


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
        is_partial: an interrupted download of a URL.
    """

    name: str
    quant: str
    paths: tuple[Path, ...]
    size: int
    modified: float
    repo: str = ""
    is_partial: bool = False

    @property
    def path(self) -> Path:
        return self.paths[0]


def cached_models(*, partial: bool = False) -> list[CachedModel]:
    """Return all cached models, sorted by name. `partial`: also interrupted downloads of URLs."""
    found = [model for repo in _repos() for model in _models_of(repo)]
    found += (model for model in _downloaded() if partial or not model.is_partial)
    return sorted(found, key=lambda model: model.name.lower())


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
    paths = [path for path in folder.rglob("*") if path.is_file()]
    paths.sort(key=lambda path: not _PARTIAL.search(path.name))  # a complete file wins
    files = [
        HubFile(
            _PARTIAL.sub("", path.relative_to(folder).as_posix()), path.stat().st_size, path=path
        )
        for path in paths
    ]
    for c in candidates(files):
        model = _model(c.name, c)
        is_partial = not c.is_whole or any(_PARTIAL.search(path.name) for path in model.paths)
        yield replace(model, is_partial=is_partial)


def _model(name: str, found: Candidate, repo: str = "") -> CachedModel:
    paths = tuple(file.path for file in found.files if file.path is not None)
    return CachedModel(name, found.label, paths, found.size, paths[0].stat().st_mtime, repo)


def partial_files(path: Path) -> list[Path]:
    """Return the partial files of a URL's file, of all its versions."""
    return list(path.parent.glob(f"{path.name}.{'[0-9a-f]' * DIGITS}*"))


# --- selection ---


def select(models: Sequence[CachedModel], name: str) -> CachedModel | None:
    """Return the model of a name, or of a part that no other name has. Case is ignored.

    A part begins where a word of the name begins, or is the begin of the file's name. It may end
    with a quant, as in part:Q8_0. Without one, the default quant of a repository comes first. A URL
    has the name of its file in the cache.

    Raises:
        ModelFileError: several models match; lists them. Or the name is an invalid URL.
        RequestError: the name is an invalid repository after hf://.
    """
    source = read_url(name)
    if isinstance(source, HubModel) and source.file:
        return next((model for model in models if _has_file(model, source)), None)
    text = (cache_name(source) if isinstance(source, str) else str(source or name)).lower()
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


def _has_file(model: CachedModel, wanted: HubModel) -> bool:
    file = tuple(wanted.file.split("/"))
    return model.repo.lower() == wanted.repo.lower() and file in map(_in_snapshot, model.paths)


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
    root = repo.repo_path.resolve()
    names = {_in_snapshot(path) for path in model.paths}
    files = [file for revision in repo.revisions for file in revision.files]
    old = [file for file in files if _in_snapshot(file.file_path) in names]
    # links may lead out of the cache
    outside = [file for file in old if not file.file_path.parent.resolve().is_relative_to(root)]
    blobs = {file.blob_path: file.size_on_disk for file in old if file not in outside}
    blobs = {path: n for path, n in blobs.items() if path.parent.resolve().is_relative_to(root)}
    if len(old) == len(files):
        # the library takes the versions of any repository
        alone = replace(cache, repos=frozenset((repo,)))
        alone.delete_revisions(*(revision.commit_hash for revision in repo.revisions)).execute()
        return sum(blobs.values())
    if outside:
        raise ModelFileError(
            f"{model.name} cannot be removed: {outside[0].file_path.parent} is a link to "
            f"{outside[0].file_path.parent.resolve()}, out of the cache"
        )
    used = {file.blob_path for file in files if file not in old}
    for path in {file.file_path for file in old}:
        path.unlink()
    freed = {path: size for path, size in blobs.items() if path not in used}
    for path in freed:
        path.unlink(missing_ok=True)
    return sum(freed.values())


def _in_snapshot(path: Path) -> tuple[str, ...]:
    """Return the parts of a file's path below its snapshot's folder."""
    parts = path.parts
    last = len(parts) - 1 - parts[::-1].index("snapshots")
    return parts[last + 2 :]


def _remove_download(model: CachedModel) -> int:
    for path in model.paths:
        whole = path.with_name(_PARTIAL.sub("", path.name))
        for one in {path, *partial_files(whole)}:
            one.unlink(missing_ok=True)
    with suppress(OSError):  # a folder with other files stays
        for folder in model.path.relative_to(downloads()).parents:
            (downloads() / folder).rmdir()
    return model.size
