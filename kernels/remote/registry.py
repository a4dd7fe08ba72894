"""Devices of other machines by name: ray:NODE/CPU, ray:NODE/CUDA0.

NODE is a node of a Ray cluster: its name, host name, address, or the beginning of its id. A device
is opened once and shared by all its users; one that was lost is opened again when it is asked for.
Tested by tests/kernels/test_remote_registry.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from ...base.errors import DeviceLostError, UnknownDeviceError
from ...base.log import get_logger
from ...sched.backend import Device
from ..registry import Registry
from .control import Control
from .device import RemoteDevice
from .wire import Address, new_secret

log = get_logger("remote")

PREFIX: Final = "ray:"
NAMES: Final = "ray:NODE/CPU, ray:NODE/CUDA0 (a node of a Ray cluster)"
_NAME: Final = re.compile(r"ray:(?P<node>[^/]+)/(?P<device>cpu|cuda\d+)")
_ID_CHARS: Final = 6  # fewer characters of an id are no name


class Node(NamedTuple):
    """A machine of a cluster; `n_cpus` are those that the cluster may use."""

    id: str
    name: str
    host: str
    address: str
    n_cpus: int

    def is_named(self, name: str) -> bool:
        names = (self.name.lower(), self.host.lower(), self.address)
        return name in names or (len(name) >= _ID_CHARS and self.id.startswith(name))


class Nodes(Protocol):
    """The nodes of a cluster, and workers on them."""

    def all(self) -> Sequence[Node]:
        """The nodes that are alive.

        Raises:
            UnknownDeviceError: there is no cluster.
        """

    def start(self, node: Node, device: str, secret: bytes, name: str) -> Address:
        """Start a worker that lends a device of a node; return its address.

        Raises:
            DeviceLostError: it does not start.
        """

    def end(self, name: str) -> None:
        """End the worker that was started with a name, and free what it has of its node."""


class RemoteRegistry(Registry):
    """The devices of the nodes of a cluster."""

    name = "ray"
    by_default = False
    packages = ("ray",)

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._secret = new_secret()
        self._opened: dict[str, RemoteDevice] = {}
        self._asked: dict[str, RemoteDevice] = {}  # by the names that users gave

    def devices(self) -> Sequence[Device]:
        return [device for device in self._opened.values() if device.control.lost is None]

    def known_names(self) -> Sequence[str]:
        return (NAMES,)

    def find(self, name: str, found: Sequence[Device]) -> Sequence[Device]:
        if not name.startswith(PREFIX):
            return ()
        match = _NAME.fullmatch(name)
        if match is None:
            raise UnknownDeviceError(f"must be one of {NAMES}")
        node = self._node(match["node"])
        device = self._device(f"{PREFIX}{node.name}/{match['device'].upper()}", node)
        self._asked[name] = device
        return [device]

    def is_gone(self, name: str) -> bool:
        """True if `name` was found before, is lost, and cannot be opened again. Logs why."""
        known = self._asked.get(name)
        if known is None or known.control.is_alive():
            return False
        try:
            self.find(name, ())
        except (UnknownDeviceError, DeviceLostError) as e:
            log.warning(f"{known.name} is left out: {e}")
            return True
        return False

    def _node(self, name: str) -> Node:
        nodes = self._nodes.all()
        named = [node for node in nodes if node.is_named(name)]
        if len(named) != 1:
            many = f"{len(named)} nodes have" if named else "no node has"
            there = ", ".join(sorted(f"{n.name} ({n.id[:_ID_CHARS]})" for n in nodes))
            raise UnknownDeviceError(f"{many} this name; nodes of the cluster: {there}")
        return named[0]

    def _device(self, name: str, node: Node) -> RemoteDevice:
        known = self._opened.get(name)
        if known is None or not known.control.is_alive():
            if known is not None:
                known.control.close()
            device = name.rpartition("/")[2].lower()
            address = self._nodes.start(node, device, self._secret, name)
            try:
                known = RemoteDevice(name, Control(name, address, self._secret))
            except BaseException:  # such as a firewall between
                self._nodes.end(name)
                raise
            self._opened[name] = known
        return known
