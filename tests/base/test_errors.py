"""The tree of errors: it matches the picture in its module, all classes are public, messages have
values."""

from __future__ import annotations

import inspect
import re

import pytest

import lamella
from lamella.base import errors

CLASSES = {
    name: cls
    for name, cls in inspect.getmembers(errors, inspect.isclass)
    if cls.__module__.startswith("lamella")
}
# `LamellaError`, `├── GraphError   text`, `│   └── BelowGraphError   text`
LINE = re.compile(r"(?P<branch>[ │├└─]*)(?P<name>\w+Error)\b")


def drawn_tree(picture: str) -> dict[str, str]:
    """Each class in the picture with its base class. The base of the root is Exception."""
    tree: dict[str, str] = {}
    path = ["Exception"]
    margin = None
    for line in picture.splitlines():
        if not (match := LINE.match(line)):
            continue
        margin = len(match["branch"]) if margin is None else margin
        depth = (len(match["branch"]) - margin) // 4
        path = path[: depth + 1]
        tree[match["name"]] = path[-1]
        path.append(match["name"])
    return tree


def test_drawn_tree_reads_branches() -> None:
    picture = """
    RootError
    ├── AError    text
    │   ├── BError
    │   │   └── CError  after DError, on no line of its own
    │   └── EError
    └── FError    text
        └── GError
    """
    assert drawn_tree(picture) == {
        "RootError": "Exception",
        "AError": "RootError",
        "BError": "AError",
        "CError": "BError",
        "EError": "AError",
        "FError": "RootError",
        "GError": "FError",
    }


def test_the_tree_matches_its_picture() -> None:
    bases = {name: [base.__name__ for base in cls.__bases__] for name, cls in CLASSES.items()}
    drawn = drawn_tree(errors.__doc__ or "")
    assert bases == {name: [base] for name, base in drawn.items()}
    assert drawn["LamellaError"] == "Exception"


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_is_public_and_documented(name: str) -> None:
    assert getattr(lamella, name) is CLASSES[name]
    assert name in lamella.__all__
    assert CLASSES[name].__doc__


def test_the_root_catches_all() -> None:
    for cls in CLASSES.values():
        assert issubclass(cls, lamella.LamellaError)
    # code that catches Python's own errors must not catch ours by accident
    for builtin in (ValueError, RuntimeError, MemoryError, OSError, KeyError):
        assert not any(issubclass(cls, builtin) for cls in CLASSES.values())


@pytest.mark.parametrize(
    ("free", "message"),
    [
        (512, "out of memory: CUDA0 cannot allocate 4096 bytes, 512 bytes are free"),
        (0, "out of memory: CUDA0 cannot allocate 4096 bytes, 0 bytes are free"),
        (None, "out of memory: CUDA0 cannot allocate 4096 bytes"),
    ],
)
def test_message_of_out_of_memory(free: int | None, message: str) -> None:
    error = lamella.OutOfMemoryError("CUDA0", 4096, free)
    assert (error.where, error.wanted, error.free) == ("CUDA0", 4096, free)
    assert str(error) == message


def test_out_of_memory_with_unknown_free_bytes() -> None:
    assert lamella.OutOfMemoryError("CPU", 1).free is None
