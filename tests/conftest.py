"""The options of all tests."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cuda",
        action="store_true",
        help="run tests/cuda on this machine's NVIDIA GPUs, at real sizes, not on a played one",
    )
