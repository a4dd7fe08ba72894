"""Compiling nodes for the reference kernels: each is bound to arrays over its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...alloc.host import array_of
from ...graph.graph import Graph
from ...graph.op import VIEW_OPS, Op
from ...graph.tensor import Tensor
from ...sched.backend import KeepAlive
from ..compute import MemoryOf, Workspace
from ..fusion import UseCounts
from ..steps import AddressOf
from . import KERNELS, supports_op


class ReferenceCompute:
    """Computes with NumPy; see `kernels.compute.Compute`."""

    def supports(self, node: Tensor) -> bool:
        return supports_op(node)

    def optimize(self, graph: Graph) -> Sequence[KeepAlive]:
        return ()

    def work_size(
        self,
        nodes: Sequence[Tensor],
        address_of: AddressOf,
        use_counts: UseCounts | None = None,
        n_threads: int | None = None,
    ) -> int:
        return 0

    def set_n_threads(self, n: int | None) -> None:
        pass

    def compile(
        self,
        nodes: Sequence[Tensor],
        memory_of: MemoryOf,
        use_counts: UseCounts | None = None,
        workspace: Workspace | None = None,
    ) -> Callable[[], None]:
        bound = [
            (
                KERNELS[node.op],
                node,
                array_of(node, memory_of(node, node)),
                [array_of(src, memory_of(node, src)) for src in node.src],
            )
            for node in nodes
            if node.op not in VIEW_OPS and node.op is not Op.NONE
        ]

        def run() -> None:
            for kernel, node, dst, srcs in bound:
                kernel(node, dst, srcs)

        return run

    def close(self) -> None:
        pass
