"""Computing with compiled kernels: plans over host memory, run by a pool of threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...base.errors import TensorAccessError
from ...base.settings import NO_FUSION
from ...graph.graph import Graph
from ...graph.op import VIEW_OPS, Op
from ...graph.tensor import Tensor
from ...sched.backend import CallTime, KeepAlive
from ..compute import MemoryOf, Workspace
from ..plan.fusion import UseCounts, optimize
from ..plan.steps import AddressOf
from .compiler.isa import target
from .compiler.jit import Progress
from .plan import Plan, Scratch, steps_of
from .pool import POLL, ThreadPool
from .table import FUSERS, find


@dataclass(frozen=True, slots=True)
class CpuProgram:
    """A plan and the threads that run it; see `kernels.compute.Program`."""

    plan: Plan
    pool: ThreadPool

    def __call__(self) -> None:
        self.plan.run(self.pool)

    def profile(self) -> Sequence[CallTime]:
        return self.plan.profile(self.pool)


class CpuCompute:
    """Computes on `n_threads` threads; see `kernels.compute.Compute`.

    `progress` is told which kernels are being compiled, if any are. Without `fuses` each node is
    computed by its own kernels; the bits are the same.
    """

    def __init__(
        self,
        n_threads: int,
        progress: Progress | None = None,
        *,
        fuses: bool = True,
        poll: int = POLL,
    ) -> None:
        target()  # tell at once if there is none
        self.n_threads = n_threads
        self._n_active = n_threads
        self._poll = poll
        self._progress = progress
        self._fuses = fuses
        self._pool: ThreadPool | None = None

    def supports(self, node: Tensor) -> bool:
        if node.op is Op.NONE or node.op in VIEW_OPS:
            return True
        implementation = find(node)
        return implementation is not None and implementation.supports(node)

    def set_n_threads(self, n: int | None) -> None:
        self._n_active = min(n or self.n_threads, self.n_threads)

    def optimize(self, graph: Graph) -> Sequence[KeepAlive]:
        return optimize(graph, FUSERS) if self._is_fusing() else ()

    def work_size(
        self,
        nodes: Sequence[Tensor],
        address_of: AddressOf,
        use_counts: UseCounts | None = None,
        n_threads: int | None = None,
    ) -> int:
        counts = use_counts if self._is_fusing() else None
        steps = steps_of(nodes, address_of, counts)
        return Scratch(steps, min(n_threads or self.n_threads, self.n_threads)).size

    def compile(
        self,
        nodes: Sequence[Tensor],
        memory_of: MemoryOf,
        use_counts: UseCounts | None = None,
        workspace: Workspace | None = None,
    ) -> CpuProgram:
        def address_of(node: Tensor, tensor: Tensor) -> int:
            memory = memory_of(node, tensor)
            if tensor.offset + tensor.nbytes > memory.size:
                raise TensorAccessError(f"{tensor!r} leaves its memory of {memory.size} bytes")
            return int(memory.ctypes.data) + tensor.offset

        counts = use_counts if self._is_fusing() else None
        plan = Plan(nodes, address_of, self._n_active, self._progress, counts, workspace)
        pool = self._pool = self._pool or ThreadPool(self.n_threads, self._poll)
        return CpuProgram(plan, pool)

    def _is_fusing(self) -> bool:
        return self._fuses and not NO_FUSION()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None
