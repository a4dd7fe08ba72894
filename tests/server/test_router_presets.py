"""INI files of presets, and the models of a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamella.base.errors import RequestError
from lamella.server.router.ini import read_ini
from lamella.server.router.preset import Preset, check_names, find_models

TEXT = """\
version = 1
; a comment
[*]
c = 4096   # of all

[org/model:Q8_0]
chat-template = chat#ml
 n-gpu-layers=9 ; a comment
empty =
"""


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "models.ini"
    path.write_text(text)
    return str(path)


def test_sections_keys_and_lines(tmp_path: Path) -> None:
    path = written(tmp_path, TEXT)
    shared, model = read_ini(path)
    assert (shared.name, model.name) == ("*", "org/model:Q8_0")
    assert [(e.key, e.value) for e in shared.entries] == [("version", "1"), ("c", "4096")]
    assert [(e.key, e.value) for e in model.entries] == [
        ("chat-template", "chat#ml"),
        ("n-gpu-layers", "9"),
        ("empty", ""),
    ]
    assert model.entries[1].place == f"{path}:8"
    assert model.place == f"{path}:6"


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("[a]\nno value\n", 2, "'no value' must be [NAME] or KEY = VALUE"),
        ("[a\n", 1, "'[a' must be"),
        ("[]\n", 1, "'[]' must be"),
        ("= 1\n", 1, "'= 1' must be"),
        ("[a]\nx = 1\n\n[a]\n", 4, "[a] is there twice"),
        ("[a]\nx = 1\nx = 2\n", 3, "x is there twice in [a]"),
    ],
)
def test_bad_lines(tmp_path: Path, text: str, line: int, complaint: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(RequestError) as caught:
        read_ini(path)
    assert str(caught.value).startswith(f"{path}:{line}: {complaint}")


def test_a_missing_file_and_one_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"none.ini cannot be read"):
        read_ini(str(tmp_path / "none.ini"))
    path = tmp_path / "bytes.ini"
    path.write_bytes(b"[a]\nx = \xff\n")
    with pytest.raises(RequestError, match=r"bytes.ini"):
        read_ini(str(path))


def test_models_of_a_folder(tmp_path: Path) -> None:
    for name in (
        "one.gguf",
        "TWO.GGUF",
        "notes.txt",
        "mmproj-x.gguf",
        "big-00001-of-00002.gguf",
        "big-00002-of-00002.gguf",
        "split/s-00001-of-00002.gguf",
        "split/s-00002-of-00002.gguf",
        "vision/vision.gguf",
        "vision/mmproj-F16.gguf",
        "several/a.gguf",
        "several/b.gguf",
        "empty/notes.txt",
        ".hidden.gguf",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    found = find_models(str(tmp_path))
    assert {name: str(path.relative_to(tmp_path)) for name, path in found.items()} == {
        "one": "one.gguf",
        "TWO": "TWO.GGUF",
        "big": "big-00001-of-00002.gguf",
        "split": "split/s-00001-of-00002.gguf",
        "vision": "vision/vision.gguf",
        "a": "several/a.gguf",
        "b": "several/b.gguf",
    }


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        find_models(str(tmp_path / "none"))


def test_names_and_aliases_stand_for_one_model() -> None:
    one = Preset(name="one", aliases=("first", "first"))
    check_names([one, Preset(name="two", aliases=("second",))])
    for other in (Preset(name="first"), Preset(name="two", aliases=("one",))):
        with pytest.raises(RequestError, match="stands for two models"):
            check_names([one, other])
