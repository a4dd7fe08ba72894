"""How a backend in memory of this process computes: it turns a split's nodes into a program.

A device, the CPU or a simulated one, brings the memory and the order of work; a `Compute` brings
the kernels. Knows no buffer types and no threads of its own.
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
Workspace = Callable[[int], Buffer]  # scratch memory of at least so many bytes


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
    """Compiled nodes. Both verbs compute them, to the same bits, and may raise BackendError."""

    def __call__(self) -> None:
        """Compute the nodes, in order."""

    def profile(self) -> Sequence[CallTime]:
        """Compute them call by call. Return the time of each call."""


class Compute(Protocol):
    """A set of kernels."""

    def supports(self, node: Tensor) -> bool:
        """Whether there is a kernel for the node's op, types and layouts."""

    def optimize(self, graph: Graph) -> Sequence[KeepAlive]:
        """Order the nodes, and ask to keep data: see `Backend.graph_optimize`."""

    def work_size(self, graph: Graph, address_of: AddressOf, n_threads: int | None = None) -> int:
        """Bytes of scratch memory that `compile` would ask for."""

    def set_n_threads(self, n: int | None) -> None:
        """Let programs compiled from now on run on `n` threads; None: on all."""

    def compile(
        self, graph: Graph, memory_of: MemoryOf, workspace: Workspace | None = None
    ) -> Program:
        """A program that computes the graph's nodes in order, as often as it is called.

        `memory_of(node, tensor)` is the flat memory of the buffer that `tensor`, the node or one
        of its sources, is in; it must not move. Scratch memory comes from `workspace`; without
        one the program has its own.
        """

    def close(self) -> None:
        """End the background work. A second call does nothing."""


NewCompute = Callable[[], Compute]
