"""Computing with compiled kernels: plans over host memory, run by a pool of threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...alloc.buffer import Bytes
from ...base.errors import TensorAccessError
from ...graph.op import VIEW_OPS, Op
from ...graph.tensor import Tensor
from .jit import Progress
from .plan import Plan
from .pool import ThreadPool
from .table import TABLE


class CpuCompute:
    """Computes on `n_threads` threads; see `kernels.compute.Compute`.

    `progress` is told which kernels are being compiled, if any are.
    """

    def __init__(self, n_threads: int, progress: Progress | None = None) -> None:
        self.n_threads = n_threads
        self._progress = progress
        self._pool: ThreadPool | None = None

    def supports(self, node: Tensor) -> bool:
        if node.op is Op.NONE or node.op in VIEW_OPS:
            return True
        implementation = TABLE.get(node.op)
        return implementation is not None and implementation.supports(node)

    def compile(
        self, nodes: Sequence[Tensor], memory_of: Callable[[Tensor, Tensor], Bytes]
    ) -> Callable[[], None]:
        def address_of(node: Tensor, tensor: Tensor) -> int:
            memory = memory_of(node, tensor)
            if tensor.offset + tensor.nbytes > memory.size:
                raise TensorAccessError(f"{tensor!r} leaves its memory of {memory.size} bytes")
            return int(memory.ctypes.data) + tensor.offset

        plan = Plan(nodes, address_of, self.n_threads, self._progress)
        pool = self._pool = self._pool or ThreadPool(self.n_threads)
        return lambda: plan.run(pool)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None
