"""No file names a personal folder."""

from __future__ import annotations

import re

from house import ROOT, repository_files

# absolute paths of personal folders; system folders (/usr, /etc) are the same everywhere
PERSONAL = re.compile(r"(?<![\w.$}])/(?:home|root|Users|work|mnt|tmp)/\w")


def personal_lines(text: str) -> list[int]:
    return [i for i, line in enumerate(text.splitlines(), 1) if PERSONAL.search(line)]


def test_no_file_names_a_personal_folder() -> None:
    found = []
    n_read = 0
    for file in repository_files():
        if file.parts[:2] == ("tests", "data"):
            continue
        try:
            text = (ROOT / file).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a binary file
        n_read += 1
        found += [f"{file}:{line}" for line in personal_lines(text)]
    assert found == []
    assert n_read > 20


def test_personal_folders_are_found() -> None:
    own, shared = "see /" + "home/me/model.gguf", "see docs/home/me.md and /usr/bin"
    assert personal_lines(f"first\n{own}\n{shared}") == [2]
