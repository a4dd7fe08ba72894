"""The CPU: its device and backend.

    cpu = CpuDevice(n_threads=4)
    scheduler = Scheduler([cpu.init_backend()])

Tensors are in ordinary memory of the host. The backend is synchronous. Kernels are compiled ones,
or NumPy's with LAMELLA_NO_JIT. Tested by tests/kernels/test_cpu_device.py.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from ...alloc.buffer import BufferType, Bytes, buffer_of
from ...alloc.host import HostBuffer, HostBufferType
from ...base.errors import OutOfMemoryError
from ...base.settings import ISA, NO_JIT
from ...graph.graph import Graph
from ...graph.tensor import Tensor
from ...sched.backend import (
    Backend,
    CallTime,
    CompileProgress,
    Device,
    DeviceReport,
    DeviceType,
    KeepAlive,
)
from ..compute import Compute, Program, address_of, unusable_memory
from ..host import POLL, default_threads, free_memory, host_memory
from ..reference.compute import ReferenceCompute
from .ceiling import measure_read
from .compiler.isa import supported_isas
from .compiler.jit import cache_folder
from .compute import CpuCompute
from .ops.attention import MAX_TOKENS
from .packed.buffer import RepackBuffer, RepackBufferType
from .packed.formats import FORMATS
from .packed.prefetch import choose_distance, known_distance
from .pool import ThreadPool


class CpuDevice(Device):
    """This machine's processor.

    Args:
        n_threads: number of threads; by default one for each core that the process may use.
        progress: called while kernels are compiled on their first use.
        repack: pack weights into the layout of the fast kernels of matrix products.
        poll: how long threads spin for work before they sleep, 0..100.
    """

    name = "CPU"
    type = DeviceType.CPU
    few_tokens = MAX_TOKENS  # attention over few tokens needs memory for partial sums

    def __init__(
        self,
        n_threads: int | None = None,
        progress: CompileProgress | None = None,
        *,
        repack: bool = True,
        poll: int = POLL,
    ) -> None:
        self.n_threads = n_threads or default_threads()
        self.poll = poll
        self.description = f"{processor_name()}, {self.n_threads} threads"
        self.progress = progress
        self._buffer_type = CpuBufferType("CPU")
        self._support = self.new_compute()
        packs = repack and not NO_JIT()
        self._repack = (RepackBufferType(self.n_threads),) if packs else ()

    def new_compute(self, pool: ThreadPool | None = None) -> Compute:
        """The kernels of a new backend of this device, on the threads of `pool` or on new ones."""
        if NO_JIT():
            return ReferenceCompute()
        n_threads = self.n_threads if pool is None else min(self.n_threads, pool.n_threads)
        return CpuCompute(n_threads, self.progress, poll=self.poll, pool=pool)

    def memory(self) -> tuple[int, int]:
        return free_memory(), host_memory()[1]

    def bandwidth(self, n_threads: int) -> float | None:
        return None if NO_JIT() else measure_read(n_threads)

    def report(self) -> DeviceReport:
        isa = ISA() if ISA() not in ("", "0") else supported_isas()[0]
        types = [] if NO_JIT() else [type.name for type in FORMATS]
        folder = None if NO_JIT() else str(cache_folder())
        name, threads = processor_name(), "threads" if self.n_threads > 1 else "thread"
        facts = {
            "name": name,
            "n_threads": self.n_threads,
            "isa": isa,
            "packed_types": types,
            "kept": folder,
        }
        lines = [f"{name}, {self.n_threads} {threads}, {isa}"]
        if folder is None:
            lines.append(f"computes with NumPy ({NO_JIT.name})")
        else:
            known = known_distance()
            facts["prefetch"] = None if known is None else known._asdict()
            lines += [
                f"packs {len(types)} types of weights",
                "prefetches: not measured yet" if known is None else str(known),
                f"kernel cache: {folder}",
            ]
        return DeviceReport(facts, lines)

    def init_backend(self, pool: ThreadPool | None = None) -> CpuBackend:
        """A new backend, on the threads of another one's pool or on its own."""
        return CpuBackend(self, pool)

    @property
    def buffer_type(self) -> BufferType:
        return self._buffer_type

    @property
    def extra_buffer_types(self) -> Sequence[BufferType]:
        return self._repack

    def graph_optimize(self, graph: Graph) -> Sequence[KeepAlive]:
        return self._support.optimize(graph)

    def work_size(self, graph: Graph, n_threads: int | None = None) -> int:
        return self._support.work_size(graph, address_of, n_threads)

    def supports_op(self, op: Tensor) -> bool:
        return self._support.supports(op)

    def supports_buft(self, buft: BufferType) -> bool:
        return buft.is_host or buft in self._repack


class CpuBufferType(HostBufferType):
    """The host's memory. Refuses more than is free: the system would grant it, and later kill the
    process. Memory that other processes allocate and write later is unknown here."""

    def _alloc(self, size: int) -> HostBuffer:
        free = free_memory()
        if size > free:
            raise OutOfMemoryError(self.name, size, free)
        return super()._alloc(size)


class CpuBackend(Backend):
    """Computes synchronously, on the caller's thread and the threads of its pool."""

    device: CpuDevice

    def __init__(self, device: CpuDevice, pool: ThreadPool | None = None) -> None:
        super().__init__(device)
        if not NO_JIT():
            choose_distance()
        self._compute = device.new_compute(pool)

    def free(self) -> None:
        self._compute.close()
        super().free()

    def set_n_threads(self, n: int | None) -> None:
        super().set_n_threads(n)
        self._compute.set_n_threads(n)

    def lower_priority(self) -> None:
        self._compute.lower_priority()

    @property
    def pool(self) -> ThreadPool | None:
        """The threads that run kernels; None if NumPy computes."""
        return self._compute.pool if isinstance(self._compute, CpuCompute) else None

    def graph_compute(self, graph: Graph) -> None:
        self.graph_plan_create(graph)()

    def graph_plan_create(self, graph: Graph) -> Program:
        return self._compute.compile(graph, self._memory_of, self.workspace)

    def graph_plan_compute(self, plan: Program) -> None:
        plan()

    def graph_plan_profile(self, plan: Program) -> Sequence[CallTime]:
        return plan.profile()

    def _memory_of(self, node: Tensor, tensor: Tensor) -> Bytes:
        buffer = buffer_of(tensor)
        if not isinstance(buffer, HostBuffer | RepackBuffer):
            raise unusable_memory(self.name, node, tensor)
        return buffer.memory


def processor_name() -> str:
    """The processor's name as its maker gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()
