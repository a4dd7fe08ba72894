"""The program behind `scripts/test`: chooses the tests and calls pytest in several processes.

Tested by tests/house/test_run_tests.py.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import sys
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
  scripts/test tests/base/test_log.py -x

Rooms come before pytest's arguments. They are the folders in tests/: {rooms}.
By default there is one process per processor. -n N or LAMELLA_TEST_PROCESSES sets another number;
-n 0 runs everything in this process, for a debugger."""

TESTS: Final = ROOT / "tests"
FOLDERS: Final = (*ROOMS, "cuda", "recipe", "house")  # folders in tests/


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
def rooms_of_file(file: Path) -> frozenset[str]:
    """The rooms that a test file imports, directly or through its helpers."""
    modules = re.findall(r"^(?:from|import) ([\w.]+)", file.read_text("utf-8"), re.MULTILINE)
    ours = (module.split(".") for module in modules)
    rooms = {room_of(tuple(names)) for names in ours if names[0] == "lamella"}
    for module in modules:
        for helper in TESTS.glob(f"*/{module}.py"):
            rooms |= rooms_of_file(helper)
    return frozenset(rooms)


def affected(rooms: Iterable[str]) -> list[str]:
    """The tests that a change in these rooms can break, as folders and files.

    These are the tests of the rooms and of all rooms that import them, directly or not, and all
    other test files that import one of those rooms.
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
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
