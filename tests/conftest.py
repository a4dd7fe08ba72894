"""The options of all tests, their order, and their environment."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from typing import Final

import pytest

# also in the processes that tests start; tests that feed NaN on purpose use STRICT.set(0)
os.environ.setdefault("LAMELLA_STRICT", "1")

# one of several test processes has one processor: threads by default would wait for each other
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("LAMELLA_ARG_THREADS", "1")  # processes that tests start
    pytest.MonkeyPatch().setattr("lamella.runtime.devices.default_threads", lambda: 1)

# a script's background jobs ignore Ctrl-C, and so would these tests and the processes they start
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# the files that take longest, the longest first: with several processes none must come last
SLOWEST: Final = (
    "tests/kernels/test_cpu_isa.py",
    "tests/kernels/test_cuda_compile.py",
    "tests/cuda/test_cuda_models.py",
    "tests/kernels/test_ops.py",
    "tests/runtime/test_plan_exact.py",
    "tests/runtime/test_fit.py",
    "tests/cuda/test_cuda_offload.py",
    "tests/cuda/test_cuda_memory.py",
    "tests/server/test_http_process.py",
    "tests/cli/test_serve.py",
    "tests/cli/test_plan.py",
    "tests/api/test_load.py",
    "tests/cli/test_explain_page.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cuda",
        action="store_true",
        help="run tests/cuda on this machine's NVIDIA GPUs, at real sizes, not on an emulated one",
    )
    parser.addoption(
        "--full",
        action="store_true",
        help="also run the tests marked `full`: further cases of large matrices",
    )
    parser.addoption(
        "--slowest-files",
        type=int,
        default=0,
        metavar="N",
        help="print the N test files that took longest",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    rank = {file: i for i, file in enumerate(SLOWEST)}
    items.sort(key=lambda item: rank.get(file_of(item.nodeid), len(rank)))
    if config.getoption("--full"):
        return
    full = [item for item in items if item.get_closest_marker("full")]
    config.hook.pytest_deselected(items=full)
    items[:] = [item for item in items if not item.get_closest_marker("full")]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    seconds: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[file_of(report.nodeid)] += report.duration
    if n := config.getoption("--slowest-files"):
        terminalreporter.section(f"slowest {n} test files")
        for file, duration in sorted(seconds.items(), key=lambda item: -item[1])[:n]:
            terminalreporter.line(f"{duration:6.1f} s  {file}")


def file_of(nodeid: str) -> str:
    return nodeid.split("::", 1)[0]
