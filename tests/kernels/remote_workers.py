"""Workers in this process, on threads of their own, for tests of remote devices."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from lamella.base.errors import DeviceLostError
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.remote.control import Control
from lamella.kernels.remote.device import RemoteDevice
from lamella.kernels.remote.registry import Node
from lamella.kernels.remote.wire import Address, new_secret
from lamella.kernels.remote.worker import Worker
from lamella.sched.backend import Device


def has_ipv6() -> bool:
    """True if this machine has an IPv6 address of its own."""
    with suppress(OSError):
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        return True
    return False


class Workers:
    """Starts workers that have one secret, as those of one driver."""

    def __init__(self, stack: ExitStack) -> None:
        self.secret = new_secret()
        self.workers: list[Worker] = []
        self._stack = stack

    def lend(self, device: Device, name: str = "") -> RemoteDevice:
        """Lend a device over a connection; return the driver's side of it."""
        worker = Worker(device, self.secret)
        self.workers.append(worker)
        self._stack.callback(worker.close)
        name = name or f"ray:node{len(self.workers)}/{device.name}"
        control = Control(name, worker.listen("127.0.0.1"), self.secret)
        self._stack.callback(control.close)
        return RemoteDevice(name, control)


@contextmanager
def workers() -> Iterator[Workers]:
    with ExitStack() as stack:
        yield Workers(stack)


NODES = (
    Node("aaaaaa11", "one", "host1", "10.0.0.1", 2),
    Node("bbbbbb22", "two", "host2", "10.0.0.2", 2),
    Node("cccccc33", "10.0.0.2", "host2", "10.0.0.2", 2),
)


class ToyNodes:
    """Starts workers in this process."""

    def __init__(self, stack: ExitStack) -> None:
        self.nodes: Sequence[Node] = NODES
        self.started: list[str] = []
        self.ended: list[str] = []
        self.workers: list[Worker] = []
        self._stack = stack

    def all(self) -> Sequence[Node]:
        return self.nodes

    def start(self, node: Node, device: str, secret: bytes, name: str) -> Address:
        if device != "cpu":
            raise DeviceLostError(f"{name}: no worker started")
        self.started.append(node.name)
        self.workers.append(Worker(CpuDevice(1), secret))
        self._stack.callback(self.workers[-1].close)
        return self.workers[-1].listen("127.0.0.1")

    def end(self, name: str) -> None:
        self.ended.append(name)


def stop(pid: int) -> None:
    """Stop a process. Return once all its threads have stopped: on a busy machine, they may still
    work for a moment."""
    os.kill(pid, signal.SIGSTOP)
    for file in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # a thread may have ended
            while file.read_text().rpartition(")")[2].split()[0] != "T":
                time.sleep(0.001)
