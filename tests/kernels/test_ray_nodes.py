"""A model on the nodes of a real Ray cluster: two nodes on this machine, started by the test."""

from __future__ import annotations

import logging
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lamella
from lamella.base.background import begin
from lamella.base.errors import DeviceLostError, UnknownDeviceError
from lamella.kernels import devices
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.devices import find_devices
from lamella.kernels.remote import ray_nodes
from lamella.kernels.remote.device import RemoteDevice
from lamella.kernels.remote.ray_nodes import RayNodes
from lamella.kernels.remote.registry import RemoteRegistry
from lamella.model.shipped import shipped_model

REASON = "Ray is not installed: pip install 'lamella[ray]'"
ray = pytest.importorskip("ray", reason=REASON)
cluster_utils = pytest.importorskip("ray.cluster_utils", reason=REASON)

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(180)]

STORE: int = 80 << 20  # bytes of each node's object store


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_raylet_start_wait_time_s", "120")  # on a busy machine
    Path(tempfile.gettempdir(), "ray").mkdir(exist_ok=True)  # Ray writes the address there
    small = {"object_store_memory": STORE}
    cluster = cluster_utils.Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "node_name": "one", "include_dashboard": False, **small},
    )
    cluster.two = cluster.add_node(num_cpus=1, node_name="two", **small)
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    patch.undo()


@pytest.fixture(scope="module")
def registry(cluster: Any) -> Iterator[RemoteRegistry]:
    patch = pytest.MonkeyPatch()
    nodes = RayNodes(devices.open_device)
    registry = RemoteRegistry(nodes)
    patch.setattr(devices, "_remote", lambda: registry)
    yield registry
    for device in registry.devices():
        assert isinstance(device, RemoteDevice)
        device.control.close()
    patch.undo()


def names_and_text(*names: str) -> tuple[list[str], str]:
    """The devices in use, and a greedy text."""
    with lamella.load(shipped_model(), devices=names, n_ctx=256, n_threads=1) as model:
        used = [d.name for d in model.plan.devices if d.n_layers]
        return used, model.complete("Once upon a time", n_predict=16, temperature=0.0).text


def test_a_model_over_two_nodes_writes_the_same_text(registry: RemoteRegistry) -> None:
    used, text = names_and_text("ray:one/CPU", "ray:two/CPU")
    assert used == ["ray:one/CPU", "ray:two/CPU"]
    assert names_and_text("none") == (["CPU"], text)
    (device,) = find_devices(["ray:two/cpu"], CpuDevice(1))
    assert device.link is not None
    assert device.description == CpuDevice(1).description  # as many threads as the node has CPUs


def test_unknown_nodes_are_listed(registry: RemoteRegistry) -> None:
    with pytest.raises(UnknownDeviceError, match=r"'ray:x/cpu': no node has .*one \(.*two \("):
        find_devices(["ray:x/cpu"], CpuDevice(1))


def test_a_device_that_a_node_lacks(registry: RemoteRegistry) -> None:
    message = "ray:two/CUDA0: the node two does not have 1 CPUs and 1 GPU, or is gone"
    with pytest.raises(DeviceLostError, match=message):
        find_devices(["ray:two/cuda0"], CpuDevice(1))


def test_a_processor_that_others_use(
    registry: RemoteRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_devices(["ray:two/cpu"], CpuDevice(1))
    monkeypatch.setattr(ray_nodes, "START_SECONDS", 0.5)
    with pytest.raises(DeviceLostError, match=r"two/CPU: no worker started on two in 0\.5 s: "):
        RemoteRegistry(RayNodes(devices.open_device)).find("ray:two/cpu", ())


def test_a_killed_actor_is_lost_and_started_again(registry: RemoteRegistry) -> None:
    (before,) = find_devices(["ray:two/cpu"], CpuDevice(1))
    nodes = registry._nodes
    assert isinstance(nodes, RayNodes)
    ray.kill(nodes._actors["ray:two/CPU"])
    end = time.monotonic() + 30
    while not before.lost:
        assert time.monotonic() < end
        time.sleep(0.05)
    with pytest.raises(DeviceLostError, match="ray:two/CPU: the connection to its process was"):
        before.memory()
    (after,) = find_devices(["ray:two/cpu"], CpuDevice(1))
    assert after is not before
    assert after.memory()[0] > 0


def test_a_node_that_left_is_gone(cluster: Any, registry: RemoteRegistry) -> None:
    """The last test: the cluster has one node then."""
    find_devices(["ray:two/cpu"], CpuDevice(1))
    assert not devices.is_gone("ray:two/CPU")
    cluster.remove_node(cluster.two)
    end = time.monotonic() + 60
    while not devices.is_gone("ray:two/CPU"):
        assert time.monotonic() < end
        time.sleep(0.2)
    assert not devices.is_gone("ray:one/CPU")


def test_without_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise ConnectionError("none")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fail)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(UnknownDeviceError, match=r"there is no Ray cluster .*ray start --head"):
        RayNodes(devices.open_device).all()
    monkeypatch.setattr(ray_nodes, "_check_address", lambda address: None)
    monkeypatch.setenv("RAY_ADDRESS", "a:1")
    with pytest.raises(UnknownDeviceError, match=r"RAY_ADDRESS is a:1: .*RAY_AUTH_MODE=token"):
        RayNodes(devices.open_device).all()


def test_a_nonsense_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "nonsense")
    with pytest.raises(UnknownDeviceError, match=r"the Ray cluster: .* address .*: nonsense"):
        RayNodes(devices.open_device).all()


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a program that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_an_address_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, silent: str) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_nodes, "ANSWER_SECONDS", 0.2)
    for address in (silent, f"ray://{silent}", "127.0.0.1:1", "no.such.host.invalid:6379"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(UnknownDeviceError, match=f"RAY_ADDRESS is {address}: no cluster answ"):
            RayNodes(devices.open_device).all()


def test_an_address_of_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        begin(lambda: listener.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n"), "answer")
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(UnknownDeviceError, match=f"{address}: that is no Ray cluster"):
            RayNodes(devices.open_device).all()


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnknownDeviceError, match=r"Ray is not installed: pip install 'lamella"):
        RayNodes(devices.open_device).all()
