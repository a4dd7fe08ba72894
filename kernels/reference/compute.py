"""Compiling nodes for the reference kernels: each is bound to arrays over its memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...alloc.buffer import Bytes
from ...alloc.host import array_of
from ...graph.graph import Graph
from ...graph.op import VIEW_OPS, Op
from ...graph.tensor import Tensor
from ...sched.backend import KeepAlive
from . import KERNELS, supports_op


class ReferenceCompute:
    """Computes with NumPy; see `kernels.compute.Compute`."""

    def supports(self, node: Tensor) -> bool:
        return supports_op(node)

    def optimize(self, graph: Graph) -> Sequence[KeepAlive]:
        return ()

    def compile(
        self,
        nodes: Sequence[Tensor],
        memory_of: Callable[[Tensor, Tensor], Bytes],
        use_counts: Mapping[Tensor, int] | None = None,
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
