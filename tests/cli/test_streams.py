"""The command's standard streams: closed streams, and a full disk."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from commands import LAMELLA, tiny_model
from matrix import first
from prompt_toolkit.history import FileHistory, InMemoryHistory

from lamella.cli.chat_input import _history
from lamella.cli.main import main


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("streams"))


def shell(model: Path, redirect: str) -> subprocess.CompletedProcess[str]:
    """`lamella run` without a prompt, started by a shell with these redirections."""
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


@pytest.mark.parametrize("redirect", first(2, ["<&- >&- 2>&-", ">&-", "<&-", "2>&-"]))
def test_closed_streams(model: Path, redirect: str) -> None:
    done = shell(model, redirect)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_a_one_line_error(model: Path) -> None:
    done = shell(model, ">/dev/full")
    assert done.returncode == 1
    assert done.stderr.endswith("lamella: error: [Errno 28] No space left on device\n")
    assert "Traceback" not in done.stderr


def test_chat_works_without_a_history_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert isinstance(_history(tmp_path / "file" / "history"), InMemoryHistory)
    history = tmp_path / "folder" / "history"
    assert isinstance(_history(history), FileHistory)
    assert history.stat().st_mode & 0o777 == 0o600  # questions are private


def test_text_that_the_terminal_cannot_show_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    with pytest.raises(SystemExit):
        main(["--version"])  # prepares the streams
    sys.stdout.write("é")
    sys.stdout.flush()
    assert written.getvalue().endswith(b"?")
