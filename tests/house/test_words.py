"""No file names a personal folder; texts use American spelling and no listed phrase."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePosixPath

from house import ROOT, repository_files

# absolute paths of personal folders; system folders (/usr, /etc) are the same everywhere
PERSONAL = re.compile(r"(?<![\w.$}])/(?:home|root|Users|work|mnt|tmp)/\w")
SPELLING = r"[Cc]entred|[Nn]eighbour|[Oo]ptimis|[Pp]enalis|[Qq]uantis|[Ss]ynchronis"
PHRASES = r'"""Whether |\b(?:[Aa]ny|[Nn]o|[Ss]ome)body\b|\b[Ww]hoever\b'
AVOIDED = re.compile(f"{SPELLING}|{PHRASES}")
TEXTS = (".cu", ".cuh", ".md", ".py")


def personal_lines(text: str) -> list[int]:
    return [i for i, line in enumerate(text.splitlines(), 1) if PERSONAL.search(line)]


def texts() -> Iterator[tuple[PurePosixPath, str]]:
    """The text files of the repository, without test data."""
    for file in repository_files():
        if file.parts[:2] != ("tests", "data"):
            with suppress(UnicodeDecodeError):  # a binary file
                yield file, (ROOT / file).read_text(encoding="utf-8")


def test_no_file_names_a_personal_folder() -> None:
    read = dict(texts())
    found = [f"{file}:{line}" for file, text in read.items() for line in personal_lines(text)]
    assert found == []
    assert len(read) > 20


def test_personal_folders_are_found() -> None:
    own, shared = "see /" + "home/me/model.gguf", "see docs/home/me.md and /usr/bin"
    assert personal_lines(f"first\n{own}\n{shared}") == [2]


# --- English ---


def avoided_words(text: str) -> list[str]:
    return [match[0] for match in AVOIDED.finditer(text)]


def test_texts_avoid_some_words() -> None:
    read = {
        file: text
        for file, text in texts()
        if file.suffix in TEXTS and file.parts[0] not in ("models", "tests")  # have data
    }
    found = {str(file): words for file, text in read.items() if (words := avoided_words(text))}
    assert found == {}
    assert len(read) > 20


def test_avoided_words_are_found() -> None:
    text = '"""Whether it fits."""  # Synchronise, nobody waits; whether it fits is unknown'
    assert avoided_words(text) == ['"""Whether ', "Synchronis", "nobody"]
