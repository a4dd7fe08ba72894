"""Measuring: the sizes and decisions of real backends, without memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from null_machine import inp, weight

from lamella.alloc import BufferType, HostBufferType, Usage, alloc_tensors
from lamella.alloc.memory import REAL_MEMORY, MeasuredMemory, Memory, NullBuffer
from lamella.graph import Graph, ops
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.sim import SimDevice
from lamella.sched import Backend, Scheduler
from lamella.sched.measured import MeasuredBackend

TERABYTE = 1 << 40
CPU, GPU = CpuDevice(2), SimDevice("SIM0")


def graph_of(n_tokens: int) -> Graph:
    x = inp(256, n_tokens, name="x")
    y = ops.mul_mat(weight(GPU.buffer_type, 256, 64), ops.mul(x, x))
    return Graph(ops.mul_mat(weight(CPU.buffer_type, 64, 32), y).set_output())


def reserved(backends: Sequence[Backend], memory: Memory) -> tuple[list[int], list[int], int]:
    scheduler = Scheduler(backends, memory=memory)
    scheduler.reserve(graph_of(64))
    scheduled = scheduler.alloc_graph(graph_of(1))
    return scheduler.buffer_sizes(), scheduler.work_sizes(), scheduled.n_splits


def test_measured_sizes_equal_those_of_real_backends() -> None:
    real = reserved([GPU.init_backend(), CPU.init_backend()], REAL_MEMORY)
    memory = MeasuredMemory()
    measured = reserved([MeasuredBackend(GPU, memory), MeasuredBackend(CPU, memory)], memory)
    assert measured == real
    assert real[2] == 2
    assert all(real[0])
    assert all(isinstance(buffer, NullBuffer) for buffer in memory.buffers)


def test_any_size_is_measured_and_no_memory_is_used() -> None:
    buft = HostBufferType("CPU", capacity=100)
    memory = MeasuredMemory()
    kept = memory.alloc_buffer(buft, TERABYTE)
    kept.usage = Usage.WORK
    memory.alloc_buffer(buft, TERABYTE)  # not referenced: gone at once
    other = memory.alloc_buffer(HostBufferType("other"), 5)
    other.free()
    assert {(b.buft.name, b.size) for b in memory.buffers if not b.freed} == {("CPU", TERABYTE)}
    assert buft.used == 0


def test_buffers_have_disjoint_addresses() -> None:
    memory = MeasuredMemory()
    a, b = (memory.alloc_buffer(HostBufferType(), TERABYTE) for _ in range(2))
    assert a.address + TERABYTE <= b.address or b.address + TERABYTE <= a.address


def test_measured_tensors_are_placed_like_real_ones() -> None:
    def places(memory: Memory) -> tuple[list[tuple[int, Usage]], list[int]]:
        tensors = [inp(n, name=f"x{n}") for n in (4, 100, 60)]
        buft = HostBufferType(max_size=512)
        buffers = alloc_tensors(tensors, buft, Usage.WEIGHTS, memory)
        assert all(isinstance(b, NullBuffer) == (memory is not REAL_MEMORY) for b in buffers)
        return [(b.size, b.usage) for b in buffers], [t.offset for t in tensors]

    assert places(MeasuredMemory()) == places(REAL_MEMORY)


def test_the_backend_s_own_memory_is_measured() -> None:
    class Staged(CpuDevice):
        @property
        def backend_memory(self) -> Sequence[tuple[BufferType, int]]:
            return ((self.buffer_type, 1000), (self.buffer_type, 24))

    memory = MeasuredMemory()
    backend = MeasuredBackend(Staged(1), memory)
    assert sorted(b.size for b in memory.buffers if b.usage is Usage.WORK) == [24, 1000]
    with pytest.raises(AssertionError, match="opened to measure"):
        backend.graph_compute(graph_of(1))
