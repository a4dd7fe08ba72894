"""A server process for the tests of `lamella serve`."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commands import LAMELLA


class Server:
    """A running `lamella serve`, or another command that starts one."""

    def __init__(
        self, model: Path | None, *args: str, command: Sequence[str] = (*LAMELLA, "serve")
    ) -> None:
        flags = [] if model is None else ["-m", str(model)]
        self.process = subprocess.Popen(
            [*command, *flags, "--port", "0", *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.log: list[str] = []
        for line in self.process.stderr:
            self.log.append(line)
            if "listening on" in line:
                self.url = line.split()[-1]
                break

    def post(self, path: str, **body: Any) -> Any:
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data)
        with urllib.request.urlopen(request, timeout=250) as reply:
            return json.loads(reply.read())

    def stop(self) -> int:
        """Send SIGTERM. Return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=250)
        return self.process.returncode
