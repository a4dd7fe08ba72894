"""For the tests of the commands: `lamella` on a tiny model."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from tiny_models import TINY, write_model

from lamella.cli.main import main

LAMELLA = [sys.executable, "-m", "lamella.cli"]


def tiny_model(folder: Path) -> Path:
    """The path of a small random model with a vocabulary, in `folder`."""
    path = folder / "tiny.gguf"
    if not path.exists():
        write_model(TINY["llama"], path)
    return path


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lamella(
    *args: object, stdin: str = "", terminal: bool = False, typed: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, which is faster. `terminal`: stderr is a terminal. `typed`:
    stdin is a terminal, with this text."""
    out, errors, before = io.StringIO(), _Terminal() if terminal else io.StringIO(), sys.stdin
    logging.getLogger("lamella").handlers.clear()  # handlers hold the stderr of an earlier run
    sys.stdin = io.StringIO(stdin) if typed is None else _Terminal(typed)
    try:
        with redirect_stdout(out), redirect_stderr(errors):
            status = main(list(map(str, args)))
    except SystemExit as e:  # raised by argparse
        status = int(e.code or 0)
    finally:
        sys.stdin = before
    return subprocess.CompletedProcess(
        list(map(str, args)), status, out.getvalue(), errors.getvalue()
    )
