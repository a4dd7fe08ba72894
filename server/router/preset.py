"""A model that a router may load, and the models of a folder.

Knows no flag and no process. Tested by tests/server/test_router_presets.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...base.errors import RequestError

SUFFIX: Final = ".gguf"
_SHARD: Final = re.compile(r"-(\d{5})-of-\d{5}$")
_OTHERS: Final = "mmproj"  # begins the names of files that are no models
N_STOP_SECONDS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A model and the flags of its process.

    Attributes:
        name: its name for clients.
        aliases: other names.
        source: the file, or the name of the model that is loaded; for people.
        flags: flags and values of its process.
        load_on_startup: load it when the server starts.
        stop_timeout: seconds to stop its process; then it is killed.
        sleep_idle_seconds: seconds without requests until it leaves the memory; -1: never.
        has_own_cache: its `-cram` is for it alone; else it is for all models together.
    """

    name: str
    aliases: tuple[str, ...] = ()
    source: str = ""
    flags: tuple[str, ...] = ()
    load_on_startup: bool = False
    stop_timeout: int = N_STOP_SECONDS
    sleep_idle_seconds: int = -1
    has_own_cache: bool = False


def find_models(folder: str) -> dict[str, Path]:
    """The GGUF files of a folder, by the models' names. A model of several files has a folder of
    its own, whose name is the model's.

    Raises:
        RequestError: the folder cannot be read.
    """
    try:
        entries = sorted(Path(folder).iterdir())
        found: dict[str, Path] = {}
        for entry in entries:
            if entry.is_dir():
                files = list(_first_files(sorted(entry.iterdir())))
                found |= {entry.name: files[0]} if len(files) == 1 else {_name(f): f for f in files}
        return found | {_name(file): file for file in _first_files(entries)}
    except OSError as error:
        raise RequestError(f"models_dir: {folder} cannot be read: {error.strerror}") from None


def _first_files(entries: Iterable[Path]) -> Iterator[Path]:
    """The files of models; of a split model, the first one."""
    for entry in entries:
        if entry.suffix.lower() != SUFFIX or entry.name.startswith((_OTHERS, ".")):
            continue
        shard = _SHARD.search(entry.stem)
        if entry.is_file() and (shard is None or int(shard[1]) == 1):
            yield entry


def _name(file: Path) -> str:
    return _SHARD.sub("", file.stem)


def check_names(presets: Iterable[Preset]) -> None:
    """Check that no name stands for two models.

    Raises:
        RequestError: it does; names both.
    """
    owners: dict[str, str] = {}
    for preset in presets:
        for name in {preset.name, *preset.aliases}:
            other = owners.setdefault(name, preset.name)
            if other != preset.name:
                raise RequestError(
                    f"the name {name!r} stands for two models, {other!r} and {preset.name!r}"
                )
