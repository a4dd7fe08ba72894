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
    """A random model with a vocabulary, in a folder of the test's."""
    path = folder / "tiny.gguf"
    if not path.exists():
        write_model(TINY["llama"], path)
    return path


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lamella(
    *args: object, stdin: str = "", terminal: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in this process, which is quicker. `terminal`: stderr is one."""
    out, errors, before = io.StringIO(), _Terminal() if terminal else io.StringIO(), sys.stdin
    logging.getLogger("lamella").handlers.clear()  # they know the stderr of an earlier run
    sys.stdin = io.StringIO(stdin)
    try:
        with redirect_stdout(out), redirect_stderr(errors):
            status = main(list(map(str, args)))
    except SystemExit as e:  # argparse ends the program
        status = int(e.code or 0)
    finally:
        sys.stdin = before
    return subprocess.CompletedProcess(
        list(map(str, args)), status, out.getvalue(), errors.getvalue()
    )
