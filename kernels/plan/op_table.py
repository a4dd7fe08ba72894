"""The table of a backend's ops: the nodes that it supports, and the calls that compute them.

    OPS = OpTable[CpuCall]()

    @OPS.implements(Op.NORM, Op.RMS_NORM, supports=has_whole_rows)
    def norms(node: Tensor) -> Sequence[CpuCall]: ...

Knows no kernels. Tested by tests/kernels/test_plan_kernel_set.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple

from ...graph.op import VIEW_OPS, Op
from ...graph.tensor import Tensor
from .calls import CallT

CallsOf = Callable[[Tensor], Sequence[CallT]]


class Implementation(NamedTuple, Generic[CallT]):
    """The implementation of an op: a test for supported nodes, and the calls of a node."""

    supports: Callable[[Tensor], bool]
    calls: CallsOf[CallT]


class OpTable(Generic[CallT]):
    """The implementations of a backend's ops."""

    def __init__(self) -> None:
        self.entries: dict[Op, Implementation[CallT]] = {}

    def implements(
        self, *ops: Op, supports: Callable[[Tensor], bool] = lambda node: True
    ) -> Callable[[CallsOf[CallT]], CallsOf[CallT]]:
        """Declare a function from a node to its calls as the implementation of `ops`."""

        def declare(calls: CallsOf[CallT]) -> CallsOf[CallT]:
            for op in ops:
                assert op not in self.entries, f"{op.name} is implemented twice"
                self.entries[op] = Implementation(supports, calls)
            return calls

        return declare

    def supports(self, node: Tensor) -> bool:
        """True if there are kernels for the node's op, types and layouts, or it needs none."""
        if not _is_computed(node):
            return True
        entry = self.entries.get(node.op)
        return entry is not None and entry.supports(node)

    def calls_of(self, node: Tensor) -> Sequence[CallT]:
        """The calls that compute a supported node; none for views, leafs and empty tensors."""
        if not _is_computed(node) or node.is_empty:
            return ()
        assert node.op in self.entries, f"{node!r} was supported"
        return self.entries[node.op].calls(node)


def _is_computed(node: Tensor) -> bool:
    return node.op is not Op.NONE and node.op not in VIEW_OPS
