"""The program behind `scripts/test`: chooses the tests and calls pytest in several processes.

Tested by tests/house/test_run_tests.py.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from house import ROOMS, ROOT, packages, read, relative_targets, room_of, room_sources

USAGE: Final = """scripts/test [--only] [ROOM ...] [--full] [--cuda] [pytest's arguments]

Run the tests: all, or those that a change in some rooms can break.

  scripts/test                    all tests
  scripts/test alloc sched        the tests of these rooms and of all rooms that import them
  scripts/test --only alloc       only the tests of this room
  scripts/test --full             all tests, with all cases of large matrices
  scripts/test --cuda             tests/cuda on this machine's GPU, at real sizes
  scripts/test -n 4 -k layers     four processes, and pytest's own options
  scripts/test tests/base/test_units.py -x

Rooms come before pytest's arguments. They are the folders in tests/: {rooms}.
By default there is one process per processor, and one more, as tests wait at times.
-n N or LAMELLA_TEST_PROCESSES sets another number;
-n 0 runs everything in this process, for a debugger."""

TESTS: Final = ROOT / "tests"
FOLDERS: Final = (*ROOMS, "agents", "cuda", "recipe", "house")  # folders in tests/

# how a test names a room, the program (`cli`) and a helper
ROOM: Final = re.compile(r"\blamella[./](\w+)|\b(?:from|import) lamella\b(?!\.)")
PROGRAM: Final = re.compile(r"(?:-m\W+|\bbin/)lamella\b(?!\.)")
HELPER: Final = re.compile(r"^\s*(?:from|import) (\w+)|\b(\w+)\.py\b", re.MULTILINE)


@cache
def room_imports() -> dict[str, set[str]]:
    """The rooms that each room imports."""
    found: dict[str, set[str]] = {room: set() for room in ROOMS}
    for path in room_sources():
        for node in ast.walk(ast.parse(read(path))):
            if isinstance(node, ast.ImportFrom) and node.level > 0:
                targets = relative_targets(node, packages(path))
                found[path.parts[0]] |= {room_of(target) for target in targets}
    return found


@cache
def helpers() -> dict[str, Path]:
    """The modules that tests import by bare names: all files in the folders on pytest's path."""
    pytest = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]
    folders = [*TESTS.iterdir(), *(ROOT / name for name in pytest["ini_options"]["pythonpath"])]
    return {file.stem: file for folder in folders for file in folder.glob("*.py")}


@cache
def rooms_of_file(file: Path) -> frozenset[str]:
    """The rooms that a test file names, directly or through its helpers.

    It may also name them in text: code or a command for another process.
    """
    rooms, files = set(), [file]
    for path in files:  # it grows
        text = path.read_text("utf-8")
        rooms |= {room_of(("lamella", name)) for name in ROOM.findall(text)}
        rooms |= {"cli"} if PROGRAM.search(text) else set()
        named = {name for pair in HELPER.findall(text) for name in pair}
        used = (helpers()[name] for name in named & helpers().keys())
        files += [helper for helper in used if helper not in files]
    return frozenset(rooms)


def affected(rooms: Iterable[str]) -> list[str]:
    """The tests that a change in these rooms can break, as folders and files.

    These are the tests of the rooms and of all rooms that import them, directly or not, and all
    other test files that use one of those rooms.
    """
    found = set(rooms)
    while more := {name for name, used in room_imports().items() if used & found} - found:
        found |= more
    changed = found & set(ROOMS)
    chosen = [f"tests/{name}" for name in FOLDERS if name in found]
    for folder in FOLDERS:
        if folder not in found and changed:
            files = sorted((TESTS / folder).glob("test_*.py"))
            # tests/house reads the sources of every room
            wanted = [f for f in files if folder == "house" or rooms_of_file(f) & changed]
            chosen += [file.relative_to(ROOT).as_posix() for file in wanted]
    return chosen


def default_processes() -> int:
    """One for each processor, and one more: tests also wait, for servers and other processes."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) + 1
    return (os.cpu_count() or 1) + 1


def distribution(arguments: Sequence[str]) -> list[str]:
    """Arguments that make pytest use several processes. None if the caller names a single file."""
    files = [a for a in arguments if ".py" in a and not a.startswith("-")]
    if len(files) == 1 or "--pdb" in arguments or "-s" in arguments:
        return []
    # distribute whole files: their tests share models and kernels. tests/conftest.py orders them
    how = ["--dist=loadfile", "--no-loadscope-reorder"]
    if any(re.match(r"-n|--numprocesses", a) for a in arguments):
        return how
    n = os.environ.get("LAMELLA_TEST_PROCESSES", "") or str(default_processes())
    return [*how, f"-n{n}"]


def pytest_arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments of pytest, from the arguments of scripts/test.

    Raises:
        SystemExit: the arguments request help, or --only has no room.
    """
    parser = argparse.ArgumentParser(
        usage=USAGE.format(rooms=" ".join(FOLDERS)), add_help=False, allow_abbrev=False
    )
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--only", action="store_true")
    parser.add_argument("--cuda", action="store_true")
    flags, rest = parser.parse_known_args(arguments)
    if flags.help:
        parser.print_usage()
        raise SystemExit
    n_rooms = next((i for i, a in enumerate(rest) if a not in FOLDERS), len(rest))
    rooms, rest = rest[:n_rooms], rest[n_rooms:]
    if flags.only and not rooms:
        parser.error(f"--only needs a room: {' '.join(FOLDERS)}")
    if flags.cuda:
        return ["--cuda", *(f"tests/{room}" for room in rooms or ["cuda"]), *rest]
    chosen = [f"tests/{room}" for room in rooms] if flags.only else affected(rooms)
    return [*distribution(rest), *chosen, *rest]


def main() -> None:
    arguments = pytest_arguments(sys.argv[1:])
    os.chdir(ROOT)
    # the tests start many processes, which must not compile the sources each time
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments])


if __name__ == "__main__":
    main()
