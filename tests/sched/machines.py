"""Machines of simulated devices with random delays, for the scheduler's tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lamella.alloc import BufferType
from lamella.graph import Op
from lamella.kernels.sim import SimBackend, SimBufferType, SimDevice
from lamella.sched import DeviceType

Delay = Callable[[], float]
Delays = Callable[[], Delay | None]  # makes a device's delay

OFFLOAD = (Op.MUL_MAT, Op.MUL_MAT_ID, Op.GET_ROWS)
NO_SOFT_MAX = tuple(op for op in Op if op not in (Op.SOFT_MAX, Op.ROPE, Op.ARGSORT))


@dataclass
class SimMachine:
    """Backends, highest priority first, and the buffer types that weights may use."""

    backends: list[SimBackend]
    homes: list[BufferType]


def single(delay: Delays) -> list[SimDevice]:
    return [SimDevice("CPU", DeviceType.CPU, delay=delay())]


def async_cpu(delay: Delays) -> list[SimDevice]:
    return [SimDevice("CPU", DeviceType.CPU, async_=True, delay=delay())]


def gpu_cpu(delay: Delays) -> list[SimDevice]:
    gpu = SimDevice("SIM0", ops=NO_SOFT_MAX, offload_ops=OFFLOAD, delay=delay())
    return [gpu, *single(delay)]


def gpu_async_cpu(delay: Delays) -> list[SimDevice]:
    return [SimDevice("SIM0", offload_ops=OFFLOAD, delay=delay()), *async_cpu(delay)]


def two_gpus_cpu(delay: Delays) -> list[SimDevice]:
    sim0 = SimDevice("SIM0", offload_ops=OFFLOAD, delay=delay())
    sim1 = SimDevice("SIM1", ops=NO_SOFT_MAX, delay=delay())
    return [sim0, sim1, *single(delay)]


def shared_memory(delay: Delays) -> list[SimDevice]:
    """Two asynchronous devices over one buffer type."""
    pool = SimBufferType("POOL")
    ops = (Op.MUL_MAT, Op.ADD, Op.RMS_NORM, Op.CONT)
    sim0 = SimDevice("SIM0", buffer_type=pool, ops=ops, offload_ops=OFFLOAD, delay=delay())
    sim1 = SimDevice("SIM1", buffer_type=pool, delay=delay())
    return [sim0, sim1, *single(delay)]


def accel_async_cpu(delay: Delays) -> list[SimDevice]:
    """An accelerator that uses the CPU's memory, both asynchronous."""
    (cpu,) = async_cpu(delay)
    blas = SimDevice(
        "BLAS",
        DeviceType.ACCEL,
        buffer_type=cpu.buffer_type,
        ops=(Op.MUL_MAT, Op.MUL, Op.UNARY),
        delay=delay(),
    )
    return [blas, cpu]


def host_reader(delay: Delays) -> list[SimDevice]:
    """A GPU that reads host memory in place, beside a synchronous CPU."""
    (cpu,) = single(delay)
    return [SimDevice("SIM0", reads=[cpu.buffer_type], ops=NO_SOFT_MAX, delay=delay()), cpu]


def eventless_gpus(delay: Delays) -> list[SimDevice]:
    """Two asynchronous devices without events, so that waits synchronize."""
    sims = [SimDevice(f"SIM{i}", events=False, delay=delay()) for i in (0, 1)]
    return [*sims, *single(delay)]


def copyless_gpus(delay: Delays) -> list[SimDevice]:
    """Two asynchronous devices that leave copies to the host."""
    sims = [
        SimDevice(f"SIM{i}", async_copies=False, offload_ops=OFFLOAD, delay=delay()) for i in (0, 1)
    ]
    return [*sims, *single(delay)]


MakeDevices = Callable[[Delays], list[SimDevice]]

MACHINES: tuple[MakeDevices, ...] = (
    single,
    async_cpu,
    gpu_cpu,
    gpu_async_cpu,
    two_gpus_cpu,
    shared_memory,
    accel_async_cpu,
    host_reader,
    eventless_gpus,
    copyless_gpus,
)


@contextmanager
def running(make: MakeDevices, seed: int | None = None) -> Iterator[SimMachine]:
    """A machine, freed at the end of the block. With a seed, some of its devices are slow, so that
    a missing wait shows."""
    rng = random.Random(seed)

    def delay() -> Delay | None:
        slow = seed is not None and rng.random() < 0.6
        return (lambda: rng.choice((0.0, 0.002))) if slow else None

    devices = make(delay)
    homes: list[BufferType] = []
    for device in devices:
        if device.buffer_type not in homes:
            homes.append(device.buffer_type)
    machine = SimMachine([device.init_backend() for device in devices], homes)
    try:
        yield machine
    finally:
        for backend in machine.backends:
            backend.free()
