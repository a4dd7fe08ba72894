"""A process that has imported what a model's process needs, and waits for its arguments.

    python -m lamella.cli.spare     # the first line of stdin: ["serve", "--router-socket", ...]

A router keeps one ready, so that a model's process need not import first, which takes longer than
to load a small model. It ends if stdin ends. Tested by tests/cli/test_serve_models.py and
test_imports.py.
"""

from __future__ import annotations

import gc
import json
import os
import sys

import llguidance
import numpy.random

from ..model.arch import decoder
from ..server import app
from . import serve
from .main import main as run_command

IMPORTED = (app, decoder, llguidance, numpy.random, serve)  # what takes long


def main() -> int:
    """Wait for the arguments and run them. Return the exit status."""
    gc.collect()
    gc.freeze()  # modules stay: the collector need not look at them while a model loads
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
