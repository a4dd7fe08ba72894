"""What the tests of the house share: where the repository lies, its rooms and its files."""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]

# lowest first; a room imports from itself and from those before it. `api` is the package `lamella`
ROOMS = (
    *("base", "graph", "alloc", "sched", "kernels", "model"),
    *("runtime", "observe", "server", "cli", "api"),
)


def repository_files(*, untracked: bool = False) -> list[PurePosixPath]:
    """Tracked files, and new ones that git does not ignore. Skips the test outside a checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--cached"]
    if untracked:
        command += ["--others", "--exclude-standard"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    files = {PurePosixPath(name) for name in run.stdout.split("\0") if name}
    return sorted(file for file in files if (ROOT / file).is_file())  # not those just deleted


def room_sources() -> list[PurePosixPath]:
    """The Python files of all rooms that exist."""
    return sorted(
        PurePosixPath(file.relative_to(ROOT).as_posix())
        for room in ROOMS
        for file in (ROOT / room).rglob("*.py")
    )


def read(file: PurePosixPath) -> str:
    return (ROOT / file).read_text(encoding="utf-8")
