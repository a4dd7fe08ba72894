"""The options of all tests, and what they all run with."""

from __future__ import annotations

import os
import signal

import pytest

# also in the processes that tests start; who feeds NaN on purpose turns it off: STRICT.set(0)
os.environ.setdefault("LAMELLA_STRICT", "1")

# a script's background jobs ignore Ctrl-C, and so would these tests and the processes they start
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cuda",
        action="store_true",
        help="run tests/cuda on this machine's NVIDIA GPUs, at real sizes, not on a played one",
    )
