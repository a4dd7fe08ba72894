"""The properties of simulated devices, and their memory."""

from __future__ import annotations

import time

import pytest

from lamella.alloc import HostBuffer, HostBufferType
from lamella.graph import GGMLType, Op, Tensor, ops
from lamella.kernels.sim import SimBackend, SimBufferType, SimDevice
from lamella.sched import DeviceType
from lamella.sched.backend import Caps


def leaf(*ne: int, type: GGMLType = GGMLType.F32) -> Tensor:
    return Tensor(type, ne, name="x")


def test_a_gpu_has_its_own_memory() -> None:
    gpu = SimDevice("SIM0", memory=2**30)
    assert (gpu.name, gpu.type) == ("SIM0", DeviceType.GPU)
    assert gpu.caps == Caps(async_=True, events=True, copy_ahead=True)
    assert isinstance(gpu.buffer_type, SimBufferType)
    assert (gpu.buffer_type.name, gpu.buffer_type.capacity) == ("SIM0", 2**30)
    assert "gpu" in gpu.description


def test_a_cpu_uses_host_memory() -> None:
    cpu = SimDevice("CPU", DeviceType.CPU)
    assert cpu.caps == Caps(async_=False, events=False, copy_ahead=False)
    assert isinstance(cpu.buffer_type, HostBufferType)
    assert cpu.buffer_type.is_host
    assert cpu.host_buffer_type is None
    assert cpu.event_new() is None


def test_pinned_host_memory() -> None:
    for type in (DeviceType.GPU, DeviceType.ACCEL):
        device = SimDevice("SIM0", type)
        pinned = device.host_buffer_type
        assert pinned is not None
        assert (pinned.name, pinned.is_host) == ("SIM0_Host", True)
        assert pinned is device.host_buffer_type  # one type, so that types can be compared
        assert isinstance(pinned.alloc_buffer(8), HostBuffer)


@pytest.mark.parametrize(
    ("async_", "events", "has_events"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_events_need_a_thread(async_: bool, events: bool, has_events: bool) -> None:
    device = SimDevice("SIM0", async_=async_, events=events)
    assert device.caps.async_ == async_
    assert device.caps.events == has_events
    assert (device.event_new() is not None) == has_events


def test_usable_memory() -> None:
    pool, other = SimBufferType("POOL"), SimBufferType("OTHER")
    host = HostBufferType("CPU")
    device = SimDevice("SIM0", buffer_type=pool, reads=[host])
    assert device.buffer_type is pool
    assert [device.supports_buft(b) for b in (pool, host, other)] == [True, True, False]
    assert not SimDevice("SIM1").supports_buft(device.buffer_type)


def test_supported_ops() -> None:
    x = leaf(4)
    everything = SimDevice("SIM0")
    little = SimDevice("SIM1", ops=[Op.SQR])
    nothing = SimDevice("SIM2", ops=[])
    square, doubled = ops.sqr(x), ops.scale(x, 2)
    assert everything.supports_op(square)
    assert everything.supports_op(doubled)
    assert little.supports_op(square)
    assert not little.supports_op(doubled)
    assert not nothing.supports_op(square)
    assert all(d.supports_op(x) for d in (everything, little, nothing))  # a leaf needs no kernel


def test_no_op_is_supported_without_a_kernel() -> None:
    table = leaf(32, 4, type=GGMLType.I32)
    converted = Tensor(GGMLType.F64, (32, 4), op=Op.CPY, src=[table, leaf(32, 4)])
    assert not SimDevice("SIM0").supports_op(converted)
    assert not SimDevice("SIM0", ops=[Op.CPY]).supports_op(converted)


def test_offloaded_ops() -> None:
    x = leaf(4)
    device = SimDevice("SIM0", offload_ops=[Op.SQR])
    assert device.offload_op(ops.sqr(x))
    assert not device.offload_op(ops.scale(x, 2))
    assert not SimDevice("SIM1").offload_op(ops.sqr(x))


# --- time ---


def test_copies_take_their_time() -> None:
    device = SimDevice("SIM0", bandwidth=4000)
    begin = time.perf_counter()
    device.spend(100)
    assert time.perf_counter() - begin >= 0.025


def test_work_takes_its_time() -> None:
    delays = iter([0.02, 0.0])
    device = SimDevice("SIM0", delay=lambda: next(delays), bandwidth=1e12)
    begin = time.perf_counter()
    device.spend()
    assert time.perf_counter() - begin >= 0.02
    device.spend()
    assert list(delays) == []  # called once for each piece of work


# --- backends ---


def test_a_device_opens_a_backend() -> None:
    device = SimDevice("SIM0")
    first, second = device.init_backend(), device.init_backend()
    assert isinstance(first, SimBackend)
    assert first is not second
    assert (first.device, first.name, first.is_async) == (device, "SIM0", True)
    assert not SimDevice("CPU", DeviceType.CPU).init_backend().is_async
    assert "SIM0" in repr(first)
    for backend in (first, second):
        backend.free()
        backend.free()  # twice is fine
