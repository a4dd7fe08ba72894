"""Large blocks go back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

# blocks between small ones, so that a heap would keep their holes; the first raises glibc's limit
SCRIPT = """
from lamella.base.malloc import return_large_blocks
from lamella.base.process_limits import used_bytes
if {is_on} and not return_large_blocks():
    raise SystemExit(77)
b"x" * (30 << 20)
before = used_bytes("VmRSS")
kept = []
for _ in range(10):
    blocks = [b"x" * (20 << 20) for _ in range(2)]
    kept += [bytes([i]) * 100_000 for i in range(10)]
    del blocks[0]
    kept.append(b"y" * 900_000)
    del blocks
print((used_bytes("VmRSS") - before) >> 20)
"""


def test_the_holes_of_large_blocks_do_not_stay() -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(is_on=True)],
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode == 77:
        pytest.skip("there is no glibc")
    assert run.returncode == 0, run.stderr
    assert 15 < int(run.stdout) < 40, "19 MB are kept"
