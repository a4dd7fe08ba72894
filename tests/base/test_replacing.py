"""Files that are written at once or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from full_disk import full_disk

from lamella.base.replacing import replacing


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def write(path: Path, data: bytes, mode: int | None = None) -> None:
    with replacing(path, mode) as file:
        file.write(data)


def write_half(path: Path, error: type[BaseException]) -> None:
    with replacing(path) as file:
        file.write(b"new")
        raise error


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_new_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"long", b"new"):
        write(path, data)
        assert path.read_bytes() == data
        assert os.listdir(tmp_path) == ["file"]


def test_the_older_file_stays_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"older")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"older"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_older_file(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"older")
    with pytest.raises(error):
        write_half(path, error)
    assert path.read_bytes() == b"older"
    assert os.listdir(tmp_path) == ["file"]


def test_a_full_disk_leaves_the_older_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"older")
    with full_disk(3), pytest.raises(OSError, match="File too large"):
        write(path, b"a new one")
    assert path.read_bytes() == b"older"
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_stays(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"older")
    link.symlink_to("file")
    write(link, b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"


def test_the_mode_stays_unless_another_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, b"new")
    assert mode_of(path) == 0o640
    path.chmod(0o604)
    write(path, b"new")
    assert mode_of(path) == 0o604
    write(path, b"new", 0o600)
    assert mode_of(path) == 0o600


def test_a_file_that_may_not_be_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"older")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write any
    with pytest.raises(PermissionError, match="Permission denied"):
        write(path, b"new")
    assert path.read_bytes() == b"older"


def test_a_pipe_is_written_directly(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write(path, b"data")
    assert os.read(reading, 9) == b"data"
    os.close(reading)
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_what_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "none" / "file", b"")
    with pytest.raises(IsADirectoryError):
        write(tmp_path, b"")
    assert not os.listdir(tmp_path)


def test_long_names(tmp_path: Path) -> None:
    path = tmp_path / ("\N{GRINNING FACE}" * 63)
    write(path, b"new")
    assert path.read_bytes() == b"new"
