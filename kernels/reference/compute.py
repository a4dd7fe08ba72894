"""Programs of reference kernels: each kernel is bound to arrays over its node's memory."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any

from ...alloc.host import array_of
from ...graph.graph import Graph
from ...graph.op import VIEW_OPS, Op
from ...graph.tensor import Tensor
from ...sched.backend import CallTime, KeepAlive
from ..compute import MemoryOf, Workspace
from ..plan.steps import AddressOf
from ..plan.timing import Timing, node_part
from . import KERNELS, NumpyKernel, supports_op

Bound = tuple[
    NumpyKernel, Tensor, Any, list[Any]
]  # a kernel, its node, and arrays over their memory


class ReferenceProgram:
    """Kernels and their arrays; see `kernels.compute.Program`."""

    def __init__(self, bound: Sequence[Bound]) -> None:
        self._bound = bound

    def __call__(self) -> None:
        for kernel, node, dst, srcs in self._bound:
            kernel(node, dst, srcs)

    def profile(self) -> Sequence[CallTime]:
        timing = Timing([node_part(node) for _, node, _, _ in self._bound])
        for i, (kernel, node, dst, srcs) in enumerate(self._bound):
            timing.look(i)
            begin = perf_counter_ns()
            kernel(node, dst, srcs)
            timing.took(i, (begin, perf_counter_ns()))
        return timing.calls()


class ReferenceCompute:
    """Computes with NumPy; see `kernels.compute.Compute`."""

    def supports(self, node: Tensor) -> bool:
        return supports_op(node)

    def optimize(self, graph: Graph) -> Sequence[KeepAlive]:
        return ()

    def work_size(self, graph: Graph, address_of: AddressOf, n_threads: int | None = None) -> int:
        return 0

    def set_n_threads(self, n: int | None) -> None:
        pass

    def compile(
        self, graph: Graph, memory_of: MemoryOf, workspace: Workspace | None = None
    ) -> ReferenceProgram:
        return ReferenceProgram(
            [
                (
                    KERNELS[node.op],
                    node,
                    array_of(node, memory_of(node, node)),
                    [array_of(src, memory_of(node, src)) for src in node.src],
                )
                for node in graph.nodes
                if node.op not in VIEW_OPS and node.op is not Op.NONE
            ]
        )

    def lower_priority(self) -> None:
        """There are no threads."""

    def close(self) -> None:
        pass
