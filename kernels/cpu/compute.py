"""Computes with compiled kernels: a pool of threads runs plans over host memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...alloc.buffer import Bytes
from ...base.errors import TensorAccessError
from ...graph.graph import Graph
from ...graph.tensor import Tensor
from ...sched.backend import CallTime, CompileProgress, KeepAlive
from ..compute import MemoryOf, Workspace
from ..host import POLL
from ..plan.steps import AddressOf
from .compiler.isa import target
from .kernel_set import KERNELS
from .plan import CpuPlan, work_size
from .pool import ThreadPool


@dataclass(frozen=True, slots=True)
class CpuProgram:
    """A plan and the threads that run it; see `kernels.compute.Program`."""

    plan: CpuPlan
    pool: ThreadPool

    def __call__(self) -> None:
        self.plan.run(self.pool)

    def profile(self) -> Sequence[CallTime]:
        return self.plan.profile(self.pool)


class CpuCompute:
    """Computes on `n_threads` threads; see `kernels.compute.Compute`.

    `progress` is called while kernels are compiled. `pool`: threads of another one, which closes
    them; None: it starts its own.
    """

    def __init__(
        self,
        n_threads: int,
        progress: CompileProgress | None = None,
        *,
        poll: int = POLL,
        pool: ThreadPool | None = None,
    ) -> None:
        target()  # raises if LAMELLA_ISA is invalid
        self.n_threads = n_threads
        self._n_active = n_threads
        self._poll = poll
        self._progress = progress
        self._pool, self._owns_pool = pool, pool is None

    def supports(self, node: Tensor) -> bool:
        return KERNELS.supports(node)

    def set_n_threads(self, n: int | None) -> None:
        self._n_active = min(n or self.n_threads, self.n_threads)

    def optimize(self, graph: Graph) -> Sequence[KeepAlive]:
        return KERNELS.optimize(graph)

    def work_size(self, graph: Graph, address_of: AddressOf, n_threads: int | None = None) -> int:
        steps = KERNELS.steps_of(graph, address_of)
        return work_size(steps, min(n_threads or self.n_threads, self.n_threads))

    def compile(
        self, graph: Graph, memory_of: MemoryOf, workspace: Workspace | None = None
    ) -> CpuProgram:
        addresses: dict[int, tuple[Bytes, int]] = {}  # by id: NumPy takes long for an address

        def address_of(node: Tensor, tensor: Tensor) -> int:
            memory = memory_of(node, tensor)
            if tensor.offset + tensor.nbytes > memory.size:
                raise TensorAccessError(f"{tensor!r} leaves its memory of {memory.size} bytes")
            if id(memory) not in addresses:
                addresses[id(memory)] = memory, int(memory.ctypes.data)
            return addresses[id(memory)][1] + tensor.offset

        plan = CpuPlan(graph, address_of, self._n_active, self._progress, workspace)
        return CpuProgram(plan, self.pool)

    @property
    def pool(self) -> ThreadPool:
        """The threads, started on the first use."""
        self._pool = self._pool or ThreadPool(self.n_threads, self._poll)
        return self._pool

    def lower_priority(self) -> None:
        """Let other programs go first on busy cores."""
        if self._pool is not None:
            self._pool.lower_priority()

    def close(self) -> None:
        if self._pool is not None and self._owns_pool:
            self._pool.close()
        self._pool = None
