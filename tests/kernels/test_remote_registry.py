"""Names of remote devices, on a cluster that only the test knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from remote_workers import ToyNodes

from lamella.base.errors import DeviceLostError, UnknownDeviceError
from lamella.kernels.remote.device import RemoteDevice
from lamella.kernels.remote.registry import RemoteRegistry


@pytest.fixture
def nodes() -> Iterator[ToyNodes]:
    with ExitStack() as stack:
        yield ToyNodes(stack)


@pytest.fixture
def registry(nodes: ToyNodes) -> Iterator[RemoteRegistry]:
    registry = RemoteRegistry(nodes)
    yield registry
    for device in registry.devices():
        assert isinstance(device, RemoteDevice)
        device.control.close()


@pytest.mark.parametrize(
    "name", ["ray:one/cpu", "ray:host1/cpu", "ray:10.0.0.1/cpu", "ray:aaaaaa/cpu"]
)
def test_a_node_has_many_names(nodes: ToyNodes, registry: RemoteRegistry, name: str) -> None:
    (device,) = registry.find(name, ())
    assert device.name == "ray:one/CPU"
    assert nodes.started == ["one"]


def test_a_device_is_opened_once(nodes: ToyNodes, registry: RemoteRegistry) -> None:
    first = registry.find("ray:one/cpu", ())
    assert registry.find("ray:host1/cpu", ()) == first
    assert nodes.started == ["one"]
    assert list(registry.devices()) == first


def test_a_lost_device_is_opened_again(nodes: ToyNodes, registry: RemoteRegistry) -> None:
    (first,) = registry.find("ray:one/cpu", ())
    nodes.workers[0].close()
    (second,) = registry.find("ray:one/cpu", ())
    assert second is not first
    assert nodes.started == ["one", "one"]
    assert second.memory()[0] > 0
    assert list(registry.devices()) == [second]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ray:", "must be one of ray:NODE/CPU"),
        ("ray:one", "must be one of ray:NODE/CPU"),
        ("ray:one/", "must be one of"),
        ("ray:one/sim", "must be one of"),
        ("ray:one/cuda", "must be one of"),
        ("ray:three/cpu", r"no node has this name; nodes of the cluster: .*one \(aaaaaa\), two"),
        ("ray:aaaaa/cpu", "no node has this name"),  # too few characters of an id
        ("ray:host2/cpu", "2 nodes have this name"),
    ],
)
def test_wrong_names(nodes: ToyNodes, registry: RemoteRegistry, name: str, message: str) -> None:
    with pytest.raises(UnknownDeviceError, match=message):
        registry.find(name, ())
    assert nodes.started == []


def test_other_names_are_not_ours(nodes: ToyNodes, registry: RemoteRegistry) -> None:
    for name in ("cuda0", "sim", "cpu", "ray"):
        assert registry.find(name, ()) == ()


def test_a_worker_that_does_not_start_is_an_error(
    nodes: ToyNodes, registry: RemoteRegistry
) -> None:
    with pytest.raises(DeviceLostError, match="ray:one/CUDA0: no worker started"):
        registry.find("ray:one/cuda0", ())


def test_a_worker_that_cannot_be_reached_is_ended(
    nodes: ToyNodes, registry: RemoteRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise DeviceLostError("ray:one/CPU: no connection")

    with monkeypatch.context() as patch:
        patch.setattr("lamella.kernels.remote.registry.Control", fail)
        with pytest.raises(DeviceLostError, match="no connection"):
            registry.find("ray:one/cpu", ())
    assert nodes.ended == ["ray:one/CPU"]
    assert registry.find("ray:one/cpu", ()) == registry.devices()
    assert nodes.ended == ["ray:one/CPU"]
