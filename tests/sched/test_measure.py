"""Measuring: the sizes and decisions of real backends, without memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from null_machine import inp, weight

from lamella.alloc import BufferType, HostBufferType, Usage, alloc_tensors
from lamella.alloc.buffer import NullBuffer, measuring
from lamella.graph import Graph, ops
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.sim import SimDevice
from lamella.sched import Backend, Scheduler
from lamella.sched.measure import MeasuringBackend

TERABYTE = 1 << 40
CPU, GPU = CpuDevice(2), SimDevice("SIM0")


def graph_of(n_tokens: int) -> Graph:
    x = inp(256, n_tokens, name="x")
    y = ops.mul_mat(weight(GPU.buffer_type, 256, 64), ops.mul(x, x))
    return Graph(ops.mul_mat(weight(CPU.buffer_type, 64, 32), y).set_output())


def reserved(backends: Sequence[Backend]) -> tuple[list[int], list[int], int]:
    scheduler = Scheduler(backends)
    scheduler.reserve(graph_of(64))
    scheduled = scheduler.alloc_graph(graph_of(1))
    return scheduler.buffer_sizes(), scheduler.work_sizes(), scheduled.n_splits


def test_it_measures_what_real_backends_take() -> None:
    real = reserved([GPU.init_backend(), CPU.init_backend()])
    with measuring() as buffers:
        measured = reserved([MeasuringBackend(GPU), MeasuringBackend(CPU)])
        assert all(isinstance(buffer, NullBuffer) for buffer in buffers)
    assert measured == real
    assert real[2] == 2


def test_nothing_is_too_large_and_nothing_is_taken() -> None:
    buft = HostBufferType("CPU", capacity=100)
    with measuring() as buffers:
        kept = buft.alloc_buffer(TERABYTE)
        kept.usage = Usage.WORK
        buft.alloc_buffer(TERABYTE)  # which nobody keeps
        other = HostBufferType("other").alloc_buffer(5)
        other.free()
        assert {(b.buft.name, b.size) for b in buffers if not b.freed} == {("CPU", TERABYTE)}
    assert buft.used == 0


def test_addresses_are_apart() -> None:
    with measuring():
        a, b = (HostBufferType().alloc_buffer(TERABYTE) for _ in range(2))
    assert a.address + TERABYTE <= b.address or b.address + TERABYTE <= a.address


def test_afterwards_memory_is_real() -> None:
    with measuring():
        pass
    (buffer,) = alloc_tensors([inp(4, name="x")], HostBufferType())
    assert not isinstance(buffer, NullBuffer)


def test_memory_of_the_backend_s_own_is_measured() -> None:
    class Staged(CpuDevice):
        @property
        def backend_memory(self) -> Sequence[tuple[BufferType, int]]:
            return ((self.buffer_type, 1000), (self.buffer_type, 24))

    with measuring() as buffers:
        backend = MeasuringBackend(Staged(1))
        assert sorted(b.size for b in buffers if b.usage is Usage.WORK) == [24, 1000]
    with pytest.raises(AssertionError, match="opened to measure"):
        backend.graph_compute(graph_of(1))
