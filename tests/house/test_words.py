"""The repository speaks of the project alone, of no machine or tool it was written with."""

from __future__ import annotations

import pytest
from house import ROOT, repository_files

# in two pieces, or this file would be the first to be found
WORDS = ["/wo" + "rk/", "tmp/bash" + "_jobs", "as an " + "AI"]


def lines_with(word: str, text: str) -> list[int]:
    return [i for i, line in enumerate(text.splitlines(), 1) if word in line]


@pytest.mark.parametrize("word", WORDS)
def test_no_file_speaks_of_anything_else(word: str) -> None:
    found = []
    n_read = 0
    for file in repository_files():
        if file.parts[:2] == ("tests", "data"):
            continue
        try:
            text = (ROOT / file).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture or a model, no text
        n_read += 1
        found += [f"{file}:{line}: {word}" for line in lines_with(word, text)]
    assert found == []
    assert n_read > 20


def test_words_are_found() -> None:
    for word in WORDS:
        assert lines_with(word, f"first\nsee {word}main\nlast") == [2]
    assert lines_with("as an " + "AI", "as an aid\nas an " + "AI") == [2]
