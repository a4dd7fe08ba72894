"""The interface of kernels that compute in this process's memory: CPU and simulated devices.

A `Compute` compiles the nodes of a split into a `Program`. The device provides the memory and the
order of work. Knows no buffer types and no threads.
Tested by tests/kernels/test_cpu_device.py and tests/kernels/test_sim_backend.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ..alloc.buffer import Buffer, Bytes, buffer_of
from ..base.errors import BackendError
from ..graph.graph import Graph
from ..graph.tensor import Tensor
from ..sched.backend import CallTime, KeepAlive
from .plan.steps import AddressOf

MemoryOf = Callable[[Tensor, Tensor], Bytes]
Workspace = Callable[[int], Buffer]  # allocates scratch memory of at least this size


def address_of(node: Tensor, tensor: Tensor) -> int:
    """The address of an allocated tensor, for any node."""
    return buffer_of(tensor).address + tensor.offset


def unusable_memory(device: str, node: Tensor, tensor: Tensor) -> BackendError:
    """The error of a backend that cannot use the memory of a node's tensor."""
    return BackendError(
        f"{device} cannot run {node.op.name} for {node!r}: it cannot use {tensor!r} "
        f"in {buffer_of(tensor).buft.name}"
    )


class Program(Protocol):
    """Compiled nodes. Both methods compute the same bits and may raise BackendError."""

    def __call__(self) -> None:
        """Compute the nodes, in order."""

    def profile(self) -> Sequence[CallTime]:
        """Compute them call by call. Return the time of each call."""


class Compute(Protocol):
    """A set of kernels."""

    def supports(self, node: Tensor) -> bool:
        """True if there is a kernel for the node's op, types and layouts."""

    def optimize(self, graph: Graph) -> Sequence[KeepAlive]:
        """Reorder the nodes, and request that data stays alive: see `Backend.graph_optimize`."""

    def work_size(self, graph: Graph, address_of: AddressOf, n_threads: int | None = None) -> int:
        """Bytes of scratch memory that `compile` would request."""

    def set_n_threads(self, n: int | None) -> None:
        """Compile later programs for `n` threads; None: for all threads."""

    def compile(
        self, graph: Graph, memory_of: MemoryOf, workspace: Workspace | None = None
    ) -> Program:
        """Return a program that computes the graph's nodes in order at each call.

        `memory_of(node, tensor)` returns the memory of the buffer of `tensor`, which is the node or
        one of its sources. The memory must not move. Scratch memory comes from `workspace`; if it
        is None, the program allocates its own.
        """

    def lower_priority(self) -> None:
        """Lower the priority of background threads: see `Backend.lower_priority`."""

    def close(self) -> None:
        """Stop background threads. A second call does nothing."""


NewCompute = Callable[[], Compute]
