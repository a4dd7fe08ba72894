"""Shared by the tests of the house: the repository's folder, its rooms, its files, its imports."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]

# lowest first; a room imports from itself and from those before it. `api` is the package `lamella`
ROOMS = (
    *("base", "graph", "alloc", "sched", "kernels", "model"),
    *("runtime", "observe", "server", "cluster", "cli", "api"),
)


def repository_files(*, untracked: bool = False) -> list[PurePosixPath]:
    """Tracked files; with `untracked`, also new files that git does not ignore. Skips the test
    outside a checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--cached"]
    if untracked:
        command += ["--others", "--exclude-standard"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    files = {PurePosixPath(name) for name in run.stdout.split("\0") if name}
    return sorted(file for file in files if (ROOT / file).is_file())  # without deleted files


def room_sources() -> list[PurePosixPath]:
    """The Python files of all rooms that exist."""
    return sorted(
        PurePosixPath(file.relative_to(ROOT).as_posix())
        for room in ROOMS
        for file in (ROOT / room).rglob("*.py")
    )


def read(file: PurePosixPath) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def packages(path: PurePosixPath) -> tuple[str, ...]:
    """The package at which relative imports of a file start."""
    room, *inner = path.parent.parts
    return ("lamella", *inner) if room == "api" else ("lamella", room, *inner)


def room_of(module: tuple[str, ...]) -> str:
    """The room of a module name that starts with `lamella`. Other modules belong to `api`."""
    return module[1] if len(module) > 1 and module[1] in ROOMS else "api"


def relative_targets(node: ast.ImportFrom, package: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The modules that a relative import names; none if it leaves the package."""
    up = len(package) - (node.level - 1)
    base = package[: max(up, 0)] + tuple((node.module or "").split(".") if node.module else ())
    if up < 1:
        return []
    return [(*base, alias.name) for alias in node.names] if len(base) == 1 else [base]
