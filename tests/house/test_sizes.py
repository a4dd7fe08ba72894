"""Files and functions are short, and each module begins with a docstring."""

from __future__ import annotations

import ast
from pathlib import PurePosixPath
from textwrap import indent

import pytest
from house import read, room_sources

FILE_LINES = 600
FUNCTION_LINES = 80


def faults(path: PurePosixPath, source: str) -> list[str]:
    """The faults of one file: lines above the limits, a missing docstring."""
    found = []
    n_lines = len(source.splitlines())
    if n_lines > FILE_LINES:
        found.append(f"{path}: {n_lines} lines, {FILE_LINES} at most")
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            n_lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if n_lines > FUNCTION_LINES:
                found.append(f"{path}: {node.name}() has {n_lines} lines, {FUNCTION_LINES} at most")
    empty_package = path.name == "__init__.py" and not source.strip()
    if not empty_package and not (ast.get_docstring(tree) or "").strip():
        found.append(f"{path}: no docstring at the top")
    return found


def test_sizes_and_headers() -> None:
    assert [fault for path in room_sources() for fault in faults(path, read(path))] == []


def function(n_lines: int, head: str = "def f():") -> str:
    return "\n".join([head, *["    x = 1"] * (n_lines - 1)])


HEADER = '"""A module."""\n'


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("x.py", HEADER + "x = 1\n" * 600, "601 lines, 600 at most"),
        ("__init__.py", HEADER + "x = 1\n" * 600, "601 lines"),
        ("x.py", HEADER + function(81), "f() has 81 lines, 80 at most"),
        ("x.py", HEADER + function(81, "async def g():"), "g() has 81 lines"),
        ("x.py", HEADER + "class A:\n" + indent(function(81), "    "), "f() has 81 lines"),
        ("x.py", "x = 1\n", "no docstring"),
        ("x.py", "", "no docstring"),
        ("x.py", '""""""\n', "no docstring"),
        ("x.py", "import os\n" + HEADER, "no docstring"),
        ("__init__.py", "from . import x\n", "no docstring"),
    ],
)
def test_faults_are_found(name: str, source: str, expected: str) -> None:
    found = faults(PurePosixPath("graph") / name, source)
    assert len(found) == 1, found
    assert expected in found[0]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("x.py", HEADER + "x = 1\n" * 599),
        ("x.py", HEADER + function(80)),
        ("__init__.py", ""),
        ("__init__.py", "\n"),
    ],
)
def test_files_within_the_limits_pass(name: str, source: str) -> None:
    assert faults(PurePosixPath("graph") / name, source) == []
