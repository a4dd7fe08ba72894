"""Selection of a repository's files by `user/repo:quant`.

A model is one GGUF file or several files of a split model. Image projectors (mmproj) and importance
matrices (imatrix) are GGUF files but not models. Knows no network and no disk.
Tested by tests/model/test_hub_files.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from ...base.errors import DownloadError, RequestError
from ...base.units import size_text

DEFAULT_QUANT: Final = "Q4_K_M"
SHOWN: Final = 30  # most models listed in an error

REPO_LENGTH: Final = 96
_NAME: Final = re.compile(r"(\w[\w.-]*(?<=\w)/\w[\w.-]*(?<=\w))(?::([\w.-]+))?", re.ASCII)
_SPLIT: Final = re.compile(r"(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_QUANT: Final = re.compile(
    r"(?<![a-z0-9])(?:ud-)?"
    r"(?:(?:iq|q|tq)\d+(?:_(?:k|xxs|xs|s|m|l|xl|nl|\d))*|(?:mx|nv)fp\d+(?:_moe)?|(?:bf|fp?)(?:16|32))"
    r"(?![a-z0-9])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model as the user names it: a quant of a repository ("" for the default), or a file."""

    repo: str
    quant: str = ""
    file: str = ""

    def __str__(self) -> str:
        if self.file:
            return f"{self.repo}, {self.file}"
        return f"{self.repo}:{self.quant}" if self.quant else self.repo


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository."""

    name: str  # relative to the repository, with '/'
    size: int  # bytes
    digest: str = ""  # sha256; git's sha1 for a file stored in git
    path: Path | None = None  # in the cache, if it is cached


class Remote(NamedTuple):
    """A file on a server."""

    url: str
    name: str  # for messages
    source: str  # its repository, or its URL
    size: int  # bytes
    digest: str = ""  # as of a HubFile; "" if it is unknown


class Candidate(NamedTuple):
    """A model in a repository. `files` is incomplete if the repository lacks some."""

    label: str  # its quant in capitals; "" if the name has none
    files: tuple[HubFile, ...]  # in order
    n_files: int  # number of files of the complete model

    @property
    def name(self) -> str:
        return self.files[0].name

    @property
    def stem(self) -> str:
        """The name without folders, the number of the file and the suffix."""
        name = PurePosixPath(self.name).name
        return re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", name, flags=re.IGNORECASE)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def is_whole(self) -> bool:
        return len(self.files) == self.n_files


class SelectedFiles(NamedTuple):
    """The files of the selected model. The first one is the file to open."""

    files: tuple[HubFile, ...]
    note: str = ""  # a warning about the selection; "" if there is none


def parse_model(text: str, file: str = "") -> HubModel:
    """Parse `user/repo` or `user/repo:quant`.

    Raises:
        RequestError: the text has another form.
    """
    match = _NAME.fullmatch(text)
    if match is None or len(match[1]) > REPO_LENGTH or re.search(r"--|\.\.", match[1]):
        raise RequestError(f"{text!r}: must be USER/REPO or USER/REPO:QUANT on Hugging Face")
    return HubModel(match[1], match[2] or "", file)


def candidates(files: Iterable[HubFile]) -> list[Candidate]:
    """Return the models among the files of a repository, sorted by name."""
    split: dict[tuple[str, int], dict[int, HubFile]] = {}
    for file in files:
        if not _is_model(file.name):
            continue
        match = _SPLIT.fullmatch(file.name)
        stem, no, count = (
            (match["stem"], int(match["no"]), int(match["count"])) if match else (file.name, 1, 1)
        )
        split.setdefault((stem, count), {})[no] = file
    found = [
        Candidate(quant_of(stem), tuple(parts[no] for no in sorted(parts)), count)
        for (stem, count), parts in split.items()
    ]
    return sorted(found, key=lambda c: c.name)


def quant_of(name: str) -> str:
    """Return the quant in a path, in capitals; "" if there is none.

    This is the last quant in the file's name, else in the nearest folder's name.
    """
    stem = re.sub(r"\.gguf$", "", name, flags=re.IGNORECASE)
    for part in reversed(PurePosixPath(stem).parts):
        quants: list[str] = _QUANT.findall(part)
        if quants:
            return quants[-1].upper()
    return ""


def _is_model(name: str) -> bool:
    path = PurePosixPath(name.lower())
    if path.suffix != ".gguf" or "mmproj" in path.name:
        return False
    # a model's name may mention the imatrix that it was quantized with
    return "imatrix" not in path.name or bool(quant_of(path.name))


def choose(files: Sequence[HubFile], wanted: HubModel, place: str) -> SelectedFiles:
    """Select the files of the wanted model. `place` names the source of `files` in messages.

    Raises:
        DownloadError: no model matches; lists the available ones.
    """
    found = candidates(files)
    if not found:
        raise DownloadError(_no_models(files, wanted, place))
    if wanted.file:
        return _checked(_by_file(found, wanted, place), wanted, place)
    quant = wanted.quant or DEFAULT_QUANT
    matching = _by_quant(found, quant)
    if matching:
        note = ""
        if len(matching) > 1:
            note = (
                f"{place} has {len(matching)} models of {quant}: using {matching[0].name}; select "
                "another one with -hff FILE"
            )
        return _checked(matching[0], wanted, place, note)
    if wanted.quant:
        raise DownloadError(f"{place} has no {wanted.quant}; available: {listed(found)}")
    first = next((c for c in found if c.is_whole), found[0])
    note = f"{place} has no {quant}: using {first.name} ({size_text(first.size)})"
    return _checked(first, wanted, place, note)


def _by_file(found: list[Candidate], wanted: HubModel, place: str) -> Candidate:
    """Return the model with the wanted file. Its folder may be omitted if the name is unique."""
    exact = [c for c in found if wanted.file in (file.name for file in c.files)]
    if exact:
        return exact[0]
    name = wanted.file.lower()
    close = [
        c for c in found if name in (PurePosixPath(file.name).name.lower() for file in c.files)
    ]
    if len(close) == 1:
        return close[0]
    raise DownloadError(f"{place} has no model file {wanted.file}; available: {_names(found)}")


def _by_quant(found: list[Candidate], quant: str) -> list[Candidate]:
    """Return the models of a quant, the best match first."""
    quant = quant.upper()
    rules = (
        [c for c in found if c.label == quant],
        # a part of the name: UD-Q4_K_XL, or a quant unknown to _QUANT; Q4_K does not match Q4_K_M
        [c for c in found if re.search(rf"(?<![A-Z0-9]){re.escape(quant)}(?![A-Z0-9_])", _key(c))],
    )
    best = next((rule for rule in rules if rule), [])
    return sorted(best, key=lambda c: (not c.is_whole, c.name.count("/"), c.name))


def _key(candidate: Candidate) -> str:
    return re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", candidate.name, flags=re.IGNORECASE).upper()


def _checked(candidate: Candidate, wanted: HubModel, place: str, note: str = "") -> SelectedFiles:
    if not candidate.is_whole:
        raise DownloadError(
            f"{place} has {len(candidate.files)} of the {candidate.n_files} files of {wanted}, "
            f"such as {candidate.name}: the others are missing"
        )
    return SelectedFiles(candidate.files, note)


def listed(found: Sequence[Candidate]) -> str:
    """Return a list of models and sizes as text. A model is named by its quant if it is unique."""
    labels = [c.label for c in found]
    shown = [
        f"{c.label if c.label and labels.count(c.label) == 1 else c.name} ({size_text(c.size)})"
        for c in found[:SHOWN]
    ]
    return ", ".join(shown) + _more(found)


def _names(found: Sequence[Candidate]) -> str:
    return ", ".join(f"{c.name} ({size_text(c.size)})" for c in found[:SHOWN]) + _more(found)


def _more(found: Sequence[Candidate]) -> str:
    return f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""


def _no_models(files: Sequence[HubFile], wanted: HubModel, place: str) -> str:
    what = f"{place} has no GGUF model"
    if not files:
        return f"{what}: it is empty"
    largest = max(files, key=lambda file: file.size)
    return f"{what}, but {largest.name}, ...: GGUF files are often in a repository named ...-GGUF"
