"""`lamella archs`: the architectures that Lamella runs.

Tested by tests/cli/test_archs.py.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..model.arch import ARCHITECTURES, find_architecture


class Row(NamedTuple):
    """An architecture: its name in files, the models, and the paper or specification."""

    name: str
    models: str
    source: str


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "part", metavar="PART", nargs="?", default="", help="only lines with this part"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array")


def main(args: argparse.Namespace) -> int:
    """Print the architectures. Return the exit status: 1 if PART is in none."""
    found = [row for row in rows() if args.part.lower() in " ".join(row).lower()]
    if args.json:
        sys.stdout.write(json.dumps([row._asdict() for row in found]) + "\n")
        return 0
    if not found:
        sys.stderr.write(f"no architecture has {args.part!r}; `lamella archs` lists all\n")
        return 1
    widths = [max(map(len, column)) for column in zip(*found, strict=True)]
    for row in found:
        line = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        sys.stdout.write(line.rstrip() + "\n")
    return 0


def rows() -> Iterator[Row]:
    """Yield all architectures.

    A module has a line `NAME: models. Differences.` for each of its architectures. The first line
    of a class is its source.
    """
    for name in ARCHITECTURES:
        kind = find_architecture(name, Path())
        lines = (inspect.getdoc(inspect.getmodule(kind)) or "").splitlines()
        about = next((line for line in lines if line.startswith(f"{name}: ")), "")
        models = about.partition(": ")[2].partition(". ")[0].rstrip(".")
        yield Row(name, models, (kind.__doc__ or "").partition("\n")[0])
