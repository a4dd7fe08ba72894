"""The cache folder: where it is, and what replaces one that cannot be written."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lamella.base import folders
from lamella.base.folders import cache_folder
from lamella.base.settings import CACHE


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    caches = folders._problem, folders._temporary
    for cached in caches:
        cached.cache_clear()
    yield folder
    for cached in caches:
        cached.cache_clear()


def set_cache(monkeypatch: pytest.MonkeyPatch, folder: Path | str) -> None:
    monkeypatch.setenv(CACHE.name, str(folder))


def test_the_switch_wins_over_the_user_s_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CACHE.name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert cache_folder("kernels", "ab") == tmp_path / "user" / "lamella" / "kernels" / "ab"
    set_cache(monkeypatch, tmp_path / "mine")
    assert cache_folder("kernels", "ab") == tmp_path / "mine" / "kernels" / "ab"


def test_the_switch_reaches_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE.name, "")
    CACHE.put("/somewhere")
    assert os.environ[CACHE.name] == CACHE() == "/somewhere"


def test_a_temporary_folder_replaces_one_that_cannot_be_written(
    tmp_path: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").touch()
    set_cache(monkeypatch, tmp_path / "file")
    with caplog.at_level(logging.WARNING, "lamella"):
        found = {cache_folder("kernels", "ab").parent, cache_folder("kernels", "cd").parent}
    (only,) = found
    assert only.is_relative_to(temporary)
    (warning,) = caplog.messages  # only one
    for part in (str(tmp_path / "file"), str(only.parent), "compiled again", "--cache-dir"):
        assert part in warning
    assert only.parent.stat().st_mode & 0o777 == 0o700
    folders._temporary.cache_clear()
    assert cache_folder("kernels", "ab").parent == only  # the next process finds its kernels


def test_a_temporary_folder_of_another_user_is_not_used(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could hold another user's machine code."""
    (tmp_path / "file").touch()
    set_cache(monkeypatch, tmp_path / "file")
    theirs = temporary / f"lamella-{os.getuid()}"
    theirs.mkdir(mode=0o777)
    theirs.chmod(0o777)
    first = cache_folder("kernels")
    assert first.is_relative_to(temporary)
    assert not first.is_relative_to(theirs)
    theirs.rmdir()
    theirs.symlink_to(tmp_path)
    folders._temporary.cache_clear()
    assert not cache_folder("kernels").is_relative_to(theirs)


def test_an_existing_folder_is_used_even_if_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an image with compiled kernels."""
    set_cache(monkeypatch, tmp_path / "image")
    (tmp_path / "image" / "kernels" / "ab").mkdir(parents=True)
    monkeypatch.setattr(folders, "_problem", lambda root: "Read-only file system")
    assert cache_folder("kernels", "ab") == tmp_path / "image" / "kernels" / "ab"
    assert not cache_folder("kernels", "cd").is_relative_to(tmp_path / "image")


def test_no_folder_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    set_cache(monkeypatch, tmp_path / "file")

    def none() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    with caplog.at_level(logging.WARNING, "lamella"):
        assert cache_folder("kernels") == tmp_path / "file" / "kernels"
    assert "no temporary folder" in caplog.text


def test_a_user_without_a_home(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The home of an unknown user is "~": no such folder may appear here."""
    monkeypatch.delenv(CACHE.name, raising=False)
    monkeypatch.setattr(folders, "cache_root", lambda: Path("~/.cache/lamella"))
    assert cache_folder("kernels").is_relative_to(temporary)
    assert not Path("~").exists()
