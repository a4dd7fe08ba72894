"""Processes with limits end when they reach one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lamella.base.process_limits import took_long, used_bytes

SETUP = """
from lamella.base.process_limits import limit_this_process
limit_this_process(cpu_seconds={cpu}, wall_seconds={wall}, n_bytes=64 << 20)
"""
only_linux = pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")


def run(code: str, cpu: float = 60.0, wall: float = 120.0) -> subprocess.CompletedProcess[str]:
    program = SETUP.format(cpu=cpu, wall=wall) + code
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False
    )


@only_linux
@pytest.mark.parametrize(
    ("code", "limits"),
    [
        ("while True: pass", {"cpu": 0.1}),
        ("import time\nwhile True: time.sleep(9)", {"wall": 0.1}),
    ],
    ids=["computing", "waiting"],
)
def test_a_process_that_takes_too_long_ends(code: str, limits: dict[str, float]) -> None:
    assert took_long(run(code, **limits).returncode)


@only_linux
def test_a_process_gets_no_more_memory() -> None:
    done = run("bytearray(128 << 20)")
    assert "MemoryError" in done.stderr and not took_long(done.returncode)


def test_a_process_within_its_limits() -> None:
    done = run("print(len(bytearray(16 << 20)))")
    assert (done.returncode, done.stdout) == (0, f"{16 << 20}\n")


@only_linux
def test_used_memory() -> None:
    assert 1 << 20 < used_bytes("VmRSS") <= used_bytes("VmHWM")
    assert used_bytes("VmNothing") == 0
