"""All kernels of a backend: those of single ops, and those of chains of nodes.

    KERNELS = KernelSet(table_of, FUSERS)

    KERNELS.supports(node)
    KERNELS.optimize(graph)                # before memory is planned
    KERNELS.steps_of(graph, address_of)    # once addresses are known

A backend declares its kernels and compiles the steps. Everything between is here. Knows no kernels.
Tested by tests/kernels/test_plan_kernel_set.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from ...base.settings import NO_FUSION
from ...graph.graph import Graph
from ...graph.tensor import Tensor
from ...sched.backend import KeepAlive
from .calls import CallT
from .fusion import FusedCalls, Fusers, fused_calls, optimize
from .op_table import OpTable
from .steps import AddressOf, Steps


@dataclass(frozen=True, slots=True)
class KernelSet(Generic[CallT]):
    """The kernels of a backend. `table_of` returns the table for a node, `fusers` are the kernels
    of chains. LAMELLA_NO_FUSION disables chains."""

    table_of: Callable[[Tensor], OpTable[CallT]]
    fusers: Fusers[CallT]

    def supports(self, node: Tensor) -> bool:
        """True if there are kernels for the node's op, types and layouts."""
        return self.table_of(node).supports(node)

    def calls_of(self, node: Tensor) -> Sequence[CallT]:
        """The calls that compute a supported node alone, without fusion."""
        return self.table_of(node).calls_of(node)

    def optimize(self, graph: Graph) -> Sequence[KeepAlive]:
        """Reorder nodes, and request the data that chains need: see `Backend.graph_optimize`."""
        return () if NO_FUSION() else optimize(graph, self.fusers)

    def steps_of(self, graph: Graph, address_of: AddressOf) -> Steps[CallT]:
        """The steps that compute a graph whose tensors have addresses. Compiles nothing.

        `graph.use_counts` must be those of the whole graph, not of the split: a chain does not
        write a result that has no other reader.
        """
        if NO_FUSION():
            fused = FusedCalls[CallT]({}, set(), [])
        else:
            fused = fused_calls(graph, self.fusers, address_of)
        steps = Steps[CallT](address_of, fused.unsafe)
        for node in graph.nodes:
            if node not in fused.inner:
                for call in fused.calls.get(node) or self.calls_of(node):
                    steps.add(node, call)
        return steps
