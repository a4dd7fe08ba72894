"""A process that crashes: its stacks are on stderr, and it dumps no core unless asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of Unix")

PROGRAM = """
import faulthandler, os, resource, signal, time
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
from lamella.base.crashes import prepare_for_crashes

prepare_for_crashes()
print(resource.getrlimit(resource.RLIMIT_CORE)[0] in (0, hard) and
      ("all" if resource.getrlimit(resource.RLIMIT_CORE)[0] == hard else "none"), hard)

def here():
    os.kill(os.getpid(), signal.SIGUSR1)

here()
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
faulthandler._sigsegv()
"""


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_stacks_and_no_core() -> None:
    done = run()
    limit, hard = done.stdout.split()
    assert limit == "none" or hard == "0"
    assert done.returncode == -signal.SIGSEGV
    usr1, crash = done.stderr.split("Fatal Python error: Segmentation fault")
    assert "in here" in usr1
    assert "in <module>" in crash


def test_cores_if_asked() -> None:
    limit, _ = run(LAMELLA_CORE_DUMPS="1").stdout.split()
    assert limit == "all"
