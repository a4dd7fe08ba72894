"""The files of `lamella embed`: their numbers, and what an error leaves of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamella.base.errors import BackendError, RequestError
from lamella.base.json_floats import F32Array
from lamella.cli.embed_output import FORMATS, SHAPES, opened_output

VECTORS = list(np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32))
ROWS = [np.stack(VECTORS[:2]), np.stack(VECTORS[2:])]  # of tokens


def write(path: Path, vectors: list[F32Array], format: str | None = None) -> None:
    with opened_output(str(path), format) as output:
        output.write(vectors[:2])
        output.write(vectors[2:])


def interrupted(path: Path, vectors: list[F32Array], format: str) -> None:
    """Write vectors, then end with Ctrl-C."""
    with opened_output(str(path), format) as output:
        output.write(vectors)
        raise KeyboardInterrupt


def read(path: Path, format: str) -> list[Any]:
    """The vectors of a file, checked to be in order."""
    if format == "npy":
        return list(np.load(path))
    text = path.read_text()
    if format == "array":
        return list(json.loads(text))
    rows = (
        json.loads(text)["data"] if format == "json" else list(map(json.loads, text.splitlines()))
    )
    assert [row["index"] for row in rows] == list(range(len(rows)))
    return [row["embedding"] for row in rows]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("n", [0, 1, 5])
def test_all_bits_of_vectors(tmp_path: Path, format: str, n: int) -> None:
    path = tmp_path / "x"
    write(path, VECTORS[:n], format)
    found = np.array(read(path, format), np.float64).astype(np.float32)
    assert (found.ravel() == np.ravel(VECTORS[:n])).all()
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("format", SHAPES)
def test_vectors_of_tokens(tmp_path: Path, format: str) -> None:
    write(tmp_path / "x", ROWS, format)
    assert [np.shape(rows) for rows in read(tmp_path / "x", format)] == [(2, 3), (3, 3)]


def test_numpy_has_the_vectors_of_one_text_s_tokens(tmp_path: Path) -> None:
    write(tmp_path / "x.npy", ROWS[:1])
    assert (np.load(tmp_path / "x.npy") == ROWS[0]).all()
    with pytest.raises(RequestError, match="npy has one vector for each text"):
        write(tmp_path / "x.npy", ROWS)


def test_the_suffix_is_the_format(tmp_path: Path) -> None:
    write(tmp_path / "x.npy", VECTORS)
    assert np.load(tmp_path / "x.npy").dtype == np.float32
    write(tmp_path / "x.txt", VECTORS)
    assert len(read(tmp_path / "x.txt", "jsonl")) == 5


def test_a_numpy_file_is_valid_while_it_grows(tmp_path: Path) -> None:
    with opened_output(str(tmp_path / "x.npy"), None) as output:
        for n in (2, 4):
            output.write(VECTORS[n - 2 : n])
            assert (np.load(tmp_path / "x.npy.part") == VECTORS[:n]).all()


def test_npy_needs_a_file() -> None:
    with (
        pytest.raises(RequestError, match="format is npy: it needs -o FILE"),
        opened_output(None, "npy"),
    ):
        pass


@pytest.mark.parametrize("format", FORMATS)
def test_an_error_leaves_the_first_vectors_and_the_old_file(tmp_path: Path, format: str) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        interrupted(path, VECTORS[:4], format)
    assert path.read_text() == "old"
    assert len(read(tmp_path / "x.part", format)) == 4


@pytest.mark.parametrize("format", FORMATS)
def test_an_error_at_the_begin_leaves_nothing(tmp_path: Path, format: str) -> None:
    with pytest.raises(KeyboardInterrupt), opened_output(str(tmp_path / "x"), format):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    with (
        pytest.raises(RequestError, match="cannot be written: "),
        opened_output(str(tmp_path / "a" / "b"), None),
    ):
        pass
    write(Path("/dev/null"), VECTORS)


def test_numbers_that_json_lacks(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="not finite"):
        write(tmp_path / "x", [np.array([np.nan], np.float32)])
