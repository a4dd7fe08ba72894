"""The command's standard streams: closed ones, and those that take nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from commands import LAMELLA, tiny_model
from prompt_toolkit.history import FileHistory, InMemoryHistory

from lamella.cli.chat import _history


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("streams"))


def shell(model: Path, redirect: str) -> subprocess.CompletedProcess[str]:
    """`lamella run` without a prompt of its own, as a shell starts it."""
    command = f'exec "$@" {redirect}'
    args = [*LAMELLA, "run", "-m", str(model), "-n", "3", "--temp", "0"]
    return subprocess.run(
        ["sh", "-c", command, "sh", *args],
        input="",
        text=True,
        capture_output=True,
        timeout=250,
        check=False,
    )


@pytest.mark.parametrize("redirect", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_empty_ones(model: Path, redirect: str) -> None:
    done = shell(model, redirect)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_one_line(model: Path) -> None:
    done = shell(model, ">/dev/full")
    assert done.returncode == 1
    assert done.stderr.endswith("lamella: error: [Errno 28] No space left on device\n")
    assert "Traceback" not in done.stderr


def test_a_history_that_cannot_be_kept_is_no_reason_not_to_talk(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert isinstance(_history(tmp_path / "file" / "history"), InMemoryHistory)
    assert isinstance(_history(tmp_path / "folder" / "history"), FileHistory)
