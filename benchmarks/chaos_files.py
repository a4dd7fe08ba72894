"""The faults of `scripts/chaos` in model files.

Tested by tests/server/test_chaos.py.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Final

from chaos_server import Server, started
from chaos_world import Fault, World, ended

MOMENTS: Final = 6  # when a file is cut while it is read
MARKS: Final = ("Traceback", "Fatal Python error")


def _broken_models(world: World) -> None:
    raw = Path(world.model).read_bytes()
    broken = {"empty": b"", "noise": b"GGUF" + b"\xff" * 1000, "cut": raw[: len(raw) // 2]}
    broken["header"] = raw[:100]
    for name, each in broken.items():
        file = world.folder / f"{name}.gguf"
        file.write_bytes(each)
        with started(["-m", str(file)], is_ready=False) as server:
            _assert_refused(server, file)


def _assert_refused(server: Server, file: Path) -> None:
    """Assert that the server ends because of a file."""
    status = ended(server, f" with {file.name}")
    assert status == 1, f"{file.name}: the exit status is {status}: {server.log[-1000:]}"
    assert str(file) in server.log, f"{file.name}: {server.log}"
    assert not any(mark in server.log for mark in MARKS), server.log


def _shrinking_model(world: World) -> None:
    """A file is cut at several moments of a start, while the server is stopped."""
    n_refused = 0
    for moment in range(MOMENTS):
        file = world.folder / f"shrinking{moment}.gguf"
        shutil.copyfile(world.model, file)
        with started(["-m", str(file), "-c", "512"], is_ready=False) as server:
            while server.status is None and not _reads(server, file):
                time.sleep(0.0005)
            time.sleep(0.002 * moment)
            server.process.send_signal(signal.SIGSTOP)
            os.truncate(file, 4096)
            server.process.send_signal(signal.SIGCONT)
            while server.status is None and "listening" not in server.log:
                time.sleep(0.05)
            if server.status is None:  # all was read before
                server.wait_until_ready()
                world.check(server)
            else:
                _assert_refused(server, file)
                n_refused += 1
    assert n_refused, "each file was read before it was cut"


def _reads(server: Server, file: Path) -> bool:
    """True if the server has the file open."""
    try:
        opened = Path(f"/proc/{server.process.pid}/fd").iterdir()
        return any(os.readlink(each) == str(file) for each in opened)
    except OSError:  # it has ended, or has just closed one
        return False


FILES: Final = {
    "broken-models": Fault("status 1 and the file's name, no traceback", _broken_models),
    "shrinking-model": Fault(
        "a file cut while it is read: status 1 and its name, no traceback", _shrinking_model
    ),
}
