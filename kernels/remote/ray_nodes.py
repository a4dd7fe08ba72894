"""Ray: it knows the nodes, starts a worker as an actor on a node, and ends it with the driver.

Tensors do not pass through Ray: a call of an actor takes 1 ms, a message of a worker 0.06 ms
(`scripts/bench remote --ray`). Tested by tests/kernels/test_ray_nodes.py.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

from ...base.background import begin
from ...base.errors import DeviceLostError, UnknownDeviceError
from ...base.settings import environment
from ...sched.backend import Device
from .registry import Node
from .wire import Address
from .worker import Worker

START_SECONDS: Final = 120.0  # most time until an actor lends its device
INSTALL: Final = "Ray is not installed: pip install 'lamella[ray]'"
ANSWER_SECONDS: Final = 5.0  # most time to connect to a cluster, and for its first answer
_SETTINGS: Final = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # an empty frame of HTTP/2 (RFC 9113)
_HTTP2: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS
NO_CLUSTER: Final = (
    "there is no Ray cluster on this machine: start one with `ray start --head`. If there is one "
    "that demands a token, set RAY_AUTH_MODE=token"
)
REFUSED: Final = "it is refused, or nothing answers: RAY_AUTH_MODE=token uses the cluster's token"

OpenDevice = Callable[[str, int | None], Device]  # a device by name, and its threads


class WorkerActor:
    """An actor: it lends a device of its node for as long as it lives."""

    def __init__(self, open_device: OpenDevice, device: str, n_threads: int, secret: bytes) -> None:
        self._worker = Worker(open_device(device, n_threads), secret)

    def listen(self, host: str) -> Address:
        """Lend the device; return the address. The process ends with its driver, also if Ray on
        this node is gone and cannot end it."""
        begin(self._wait, "lamella-wait")
        return self._worker.listen(host)

    def _wait(self) -> None:
        self._worker.wait()
        os._exit(0)


class RayNodes:
    """The nodes of the Ray cluster that this process uses, or that runs on its machine.

    An actor takes all CPUs of its node, and computes on as many threads.
    """

    def __init__(self, open_device: OpenDevice) -> None:
        self._open_device = open_device
        self._actors: dict[str, Any] = {}  # by device: an actor ends when nothing refers to it

    def all(self) -> Sequence[Node]:
        return [_node(raw) for raw in _ray().nodes() if raw["Alive"]]

    def start(self, node: Node, device: str, secret: bytes, name: str) -> Address:
        ray = _ray()
        self.end(name)
        n_gpus = 0 if device == "cpu" else 1
        n_cpus = node.n_cpus if not n_gpus else min(1, node.n_cpus)
        actor = (
            ray.remote(WorkerActor)
            .options(
                num_cpus=n_cpus,
                num_gpus=n_gpus,
                scheduling_strategy=_on(node),
                # Ray would renumber the GPUs
                runtime_env={"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}},
            )
            .remote(self._open_device, device, max(n_cpus, 1), secret)
        )
        self._actors[name] = actor
        try:
            host, port = ray.get(actor.listen.remote(node.address), timeout=START_SECONDS)
        except Exception as e:  # Ray raises many kinds
            self.end(name)
            raise DeviceLostError(f"{name}: {_explained(e, node, n_cpus, n_gpus)}") from None
        return host, port

    def end(self, name: str) -> None:
        actor = self._actors.pop(name, None)
        if actor is not None:
            _ray().kill(actor, no_restart=True)


def _ray() -> Any:
    """Ray, connected to a cluster."""
    try:
        import ray  # noqa: PLC0415 - optional, and slow to import
    except ImportError:
        raise UnknownDeviceError(INSTALL) from None
    if not ray.is_initialized():
        address = environment("RAY_ADDRESS") or ""
        _check_address(address)
        try:
            ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError:
            why = f"RAY_ADDRESS is {address}: {REFUSED}" if address else NO_CLUSTER
            raise UnknownDeviceError(why) from None
        except (ValueError, RuntimeError) as e:  # a wrong RAY_ADDRESS, or another version of Ray
            raise UnknownDeviceError(f"cannot connect to the Ray cluster: {e}") from None
    return ray


def _check_address(address: str) -> None:
    """See if a cluster answers at RAY_ADDRESS. Ray itself asks for minutes.

    Raises:
        UnknownDeviceError: none does.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()) or environment("RAY_USE_TLS") not in (None, "0"):
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS) as sock:
            sock.sendall(_HTTP2)  # Ray speaks gRPC
            answer = sock.recv(len(_SETTINGS), socket.MSG_WAITALL)
    except (OSError, OverflowError) as e:
        raise UnknownDeviceError(f"RAY_ADDRESS is {address}: no cluster answers: {e}") from None
    if answer[3:] != _SETTINGS[3:]:
        raise UnknownDeviceError(f"RAY_ADDRESS is {address}: that is no Ray cluster")


def _on(node: Node) -> Any:
    from ray.util.scheduling_strategies import (  # noqa: PLC0415 - optional, and slow to import
        NodeAffinitySchedulingStrategy,
    )

    return NodeAffinitySchedulingStrategy(node.id, soft=False)


def _node(raw: dict[str, Any]) -> Node:
    return Node(
        raw["NodeID"],
        raw["NodeName"],
        raw["NodeManagerHostname"],
        raw["NodeManagerAddress"],
        int(raw["Resources"].get("CPU", 0)),
    )


def _explained(error: Exception, node: Node, n_cpus: int, n_gpus: int) -> str:
    wanted = f"{n_cpus} CPUs" + (f" and {n_gpus} GPU" if n_gpus else "")
    if type(error).__name__ == "GetTimeoutError":
        return (
            f"no worker started on {node.name} in {START_SECONDS:g} s: it needs {wanted} that no "
            "other actor has (`ray status` shows them)"
        )
    if type(error).__name__ == "ActorUnschedulableError":
        return f"the node {node.name} does not have {wanted}, or is gone"
    cause = getattr(error, "cause", None) or error
    text = ", ".join(line.strip() for line in str(cause).splitlines())
    return f"no worker started on {node.name}: {type(cause).__name__}: {text}"
