"""A process that has imported what a model's process needs, and waits for its arguments.

    python -m lamella.cli.spare     # the first line of stdin: ["serve", "--router-socket", ...]

A router keeps one ready, so that a model's process need not import first, which takes longer than
to load a small model. It ends if stdin ends. Tested by tests/cli/test_serve_models.py.
"""

from __future__ import annotations

import json
import os
import sys

from ..server import app
from . import serve
from .main import main as run_command

IMPORTED = (app, serve)  # what takes long


def main() -> int:
    """Wait for the arguments and run them. Return the exit status."""
    line = read_line(0)
    return run_command(json.loads(line)) if line else 0


def read_line(descriptor: int) -> bytes:
    """The next line of a file, byte by byte: the link to the router reads what follows."""
    line = b""
    while byte := os.read(descriptor, 1):
        line += byte
        if byte == b"\n":
            return line
    return b""


if __name__ == "__main__":
    sys.exit(main())
