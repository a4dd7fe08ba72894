"""Which files of a repository are meant by `user/repo:quant`. Knows no network and no disk.

A model is one GGUF file, or several that were split; projectors of pictures (mmproj) and matrices
of importance (imatrix) are GGUF files too, but no models. Tested by tests/model/test_hub_files.py.
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
SHOWN: Final = 30  # most models that an error lists

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
    """What a user asks for: a quant of a repository ("": the default), or a file of it."""

    repo: str
    quant: str = ""
    file: str = ""

    def __str__(self) -> str:
        if self.file:
            return f"{self.repo}, {self.file}"
        return f"{self.repo}:{self.quant}" if self.quant else self.repo


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository: its name there with '/', its size in bytes, and what names and checks
    its content: a sha256, or git's sha1 of a small file. `path`: where it lies, if it is cached."""

    name: str
    size: int
    digest: str = ""
    path: Path | None = None


class Candidate(NamedTuple):
    """A model in a repository: `files` in order, `n_files` of which there should be."""

    label: str  # its quant in capitals; "" if the name has none
    files: tuple[HubFile, ...]
    n_files: int

    @property
    def name(self) -> str:
        return self.files[0].name

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def is_whole(self) -> bool:
        return len(self.files) == self.n_files


class Choice(NamedTuple):
    """The files of the model that is meant, the first one to be opened, and what to tell of it."""

    files: tuple[HubFile, ...]
    note: str = ""


def parse_model(text: str, file: str = "") -> HubModel:
    """`user/repo` or `user/repo:quant`.

    Raises:
        RequestError: it is of another form.
    """
    match = _NAME.fullmatch(text)
    if match is None or len(match[1]) > REPO_LENGTH or re.search(r"--|\.\.", match[1]):
        raise RequestError(f"{text!r}: must be USER/REPO or USER/REPO:QUANT, of Hugging Face")
    return HubModel(match[1], match[2] or "", file)


def candidates(files: Iterable[HubFile]) -> list[Candidate]:
    """The models among the files of a repository, by name."""
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
    """The quant that a name tells, in capitals: the last one of the file's, else of its folders."""
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
    # a model may be called after the matrix that helped to quantise it
    return "imatrix" not in path.name or bool(quant_of(path.name))


def choose(files: Sequence[HubFile], wanted: HubModel, place: str) -> Choice:
    """The files of the model that is meant; `place` is what has these files.

    Raises:
        DownloadError: there is none; lists those there are.
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
                f"{place} has {len(matching)} models of {quant}: {matching[0].name} is taken, "
                "another one by -hff FILE"
            )
        return _checked(matching[0], wanted, place, note)
    if wanted.quant:
        raise DownloadError(f"{place} has no {wanted.quant}; there are {listed(found)}")
    first = next((c for c in found if c.is_whole), found[0])
    note = f"{place} has no {quant}: {first.name} is taken, {size_text(first.size)}"
    return _checked(first, wanted, place, note)


def _by_file(found: list[Candidate], wanted: HubModel, place: str) -> Candidate:
    """The model of a file: any of its parts, or its name without folders if that is clear."""
    exact = [c for c in found if wanted.file in (file.name for file in c.files)]
    if exact:
        return exact[0]
    name = wanted.file.lower()
    close = [
        c for c in found if name in (PurePosixPath(file.name).name.lower() for file in c.files)
    ]
    if len(close) == 1:
        return close[0]
    raise DownloadError(f"{place} has no model file {wanted.file}; there are {_names(found)}")


def _by_quant(found: list[Candidate], quant: str) -> list[Candidate]:
    """The models of a quant, the likeliest first."""
    quant = quant.upper()
    rules = (
        [c for c in found if c.label == quant],
        # a part of a label (UD-Q4_K_XL), or no quant that is known: not the beginning of one
        [c for c in found if re.search(rf"(?<![A-Z0-9]){re.escape(quant)}(?![A-Z0-9_])", _key(c))],
    )
    best = next((rule for rule in rules if rule), [])
    return sorted(best, key=lambda c: (not c.is_whole, c.name.count("/"), c.name))


def _key(candidate: Candidate) -> str:
    return re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", candidate.name, flags=re.IGNORECASE).upper()


def _checked(candidate: Candidate, wanted: HubModel, place: str, note: str = "") -> Choice:
    if not candidate.is_whole:
        raise DownloadError(
            f"{place} has {len(candidate.files)} of the {candidate.n_files} files of {wanted}, "
            f"such as {candidate.name}: others are missing"
        )
    return Choice(candidate.files, note)


def listed(found: Sequence[Candidate]) -> str:
    """Models with their sizes: by quant where that tells them apart, else by file."""
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
    return f"{what}, but {largest.name}, ...: many models have one in a repository named ...-GGUF"
