"""A real `lamella serve` to be attacked: started, watched from outside, and ended.

    with started(["-m", model, "-c", "4096"]) as server:
        server.port, server.rss_mb, server.n_files, server.log

Knows no request. Tested by tests/server/test_chaos.py.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

START_SECONDS: Final = 300.0  # the first start compiles kernels
END_SECONDS: Final = 30.0
MB: Final = 1024  # of the kernel's kB


class Server:
    """A running server process."""

    def __init__(self, process: subprocess.Popen[bytes], log_file: Path) -> None:
        self.process = process
        self.log_file = log_file
        self.port = 0

    @property
    def log(self) -> str:
        """All that the server has written to stderr."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    @property
    def status(self) -> int | None:
        """The exit status; None while the server runs."""
        return self.process.poll()

    @property
    def rss_mb(self) -> float:
        return self._kb("VmRSS") / MB

    @property
    def peak_mb(self) -> float:
        """The most memory since the start."""
        return self._kb("VmHWM") / MB

    @property
    def n_threads(self) -> int:
        return self._kb("Threads")

    @property
    def n_files(self) -> int:
        """Open descriptors."""
        return _n_files(self.process.pid)

    @property
    def children(self) -> dict[int, int]:
        """The processes that it has started and that run, with their open descriptors."""
        found = {}
        for path in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            for pid in map(int, path.read_text().split()):
                with suppress(OSError):  # it ends
                    found[pid] = _n_files(pid)
        return found

    @property
    def cpu_seconds(self) -> float:
        """Processor time since the start, of the server itself."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def wait_until_ready(self, seconds: float = START_SECONDS) -> None:
        """Wait for the line with the port. Raises SystemExit if the server ends or is late."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(r"listening on http://\S*?:(\d+)", self.log)):
            if self.status is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not start: {self.log[-2000:]}")
            time.sleep(0.05)
        self.port = int(found[1])

    def _kb(self, name: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
        return int(found[1]) if found else 0


def _n_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@contextmanager
def started(
    flags: Sequence[str],
    *,
    command: Sequence[str] = (sys.executable, "-m", "lamella.cli", "serve"),
    n_files: int | None = None,
    env: Mapping[str, str] | None = None,
    is_ready: bool = True,
) -> Iterator[Server]:
    """Start `lamella serve FLAGS` on a free port; kill it at the end if it still runs.

    `n_files` is its soft limit of descriptors. With `is_ready`, wait until it has its model.
    """

    with tempfile.TemporaryDirectory() as folder:
        log_file = Path(folder) / "stderr"
        with log_file.open("wb") as log:
            process = subprocess.Popen(
                [*command, "--port", "0", *flags],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, **(env or {})},
            )
        if n_files is not None:
            hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[1]
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (n_files, hard))
        server = Server(process, log_file)
        try:
            if is_ready:
                server.wait_until_ready()
            yield server
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
