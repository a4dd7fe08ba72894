"""A worker as a plain process, without Ray: for tests and benchmarks on one machine.

    with start_process("CPU", n_threads=1) as process:
        device = process.device("worker/CPU")

Tested by tests/kernels/test_remote_device.py.
"""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType
from typing import Self

from ...base.errors import DeviceLostError
from ..devices import open_device
from ..host import python_command
from .control import Control
from .device import RemoteDevice
from .wire import Address, new_secret
from .worker import Worker

LOCAL = "127.0.0.1"


class WorkerProcess:
    """A running worker. Leaving the block ends it."""

    def __init__(self, process: subprocess.Popen[bytes], secret: bytes, address: Address) -> None:
        self.process = process
        self.secret = secret
        self.address = address
        self._controls: list[Control] = []

    def device(self, name: str) -> RemoteDevice:
        """Connect to the worker. It serves one driver."""
        self._controls.append(Control(name, self.address, self.secret))
        return RemoteDevice(name, self._controls[-1])

    def close(self) -> None:
        """End the process, and wait for its end."""
        for control in self._controls:
            control.close()
        self.process.kill()  # a stopped one would not see a milder signal
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


def start_process(
    device: str, n_threads: int | None = None, secret: bytes | None = None
) -> WorkerProcess:
    """Start a worker for a device of this machine. Workers of one driver have the same secret.

    Raises:
        DeviceLostError: the process ended before it listened.
    """
    command = python_command("lamella.kernels.remote.process", device, n_threads or 0)
    assert command is not None, "Python is embedded"
    secret = secret or new_secret()
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(secret.hex().encode() + b"\n")
    process.stdin.close()
    with process.stdout:
        line = process.stdout.readline()
    if not line:
        raise DeviceLostError(f"the worker for {device} ended with status {process.wait()}")
    return WorkerProcess(process, secret, (LOCAL, int(line)))


def main(device: str, n_threads: int) -> None:
    """Lend a device to the driver whose secret is the first line of the input; print the port."""
    secret = bytes.fromhex(sys.stdin.readline())
    worker = Worker(open_device(device, n_threads or None), secret)
    sys.stdout.write(f"{worker.listen(LOCAL)[1]}\n")
    sys.stdout.flush()
    worker.wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
