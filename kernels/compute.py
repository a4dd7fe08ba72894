"""How a backend computes: what turns a split's nodes into something that runs.

A device that lies in memory of this process, the CPU or a simulated one, brings the memory and the
order of work; a `Compute` brings the kernels. Knows no buffer types and no threads of its own.
Tested by tests/kernels/test_cpu_device.py and tests/kernels/test_sim_backend.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ..alloc.buffer import Buffer, Bytes, buffer_of
from ..graph.graph import Graph
from ..graph.tensor import Tensor
from ..sched.backend import CallTime, KeepAlive
from .plan.fusion import UseCounts
from .plan.steps import AddressOf

MemoryOf = Callable[[Tensor, Tensor], Bytes]
Workspace = Callable[[int], Buffer]  # scratch memory of at least so many bytes


def address_of(node: Tensor, tensor: Tensor) -> int:
    """Where an allocated tensor lies, whoever asks."""
    return buffer_of(tensor).address + tensor.offset


class Program(Protocol):
    """Compiled nodes. Both verbs compute them, to the same bits, and may raise BackendError."""

    def __call__(self) -> None:
        """Compute the nodes, in order."""

    def profile(self) -> Sequence[CallTime]:
        """Compute them call by call; how long each took."""


class Compute(Protocol):
    """A set of kernels."""

    def supports(self, node: Tensor) -> bool:
        """Whether there is a kernel for the node's op, types and layouts."""

    def optimize(self, graph: Graph) -> Sequence[KeepAlive]:
        """Order the nodes, and ask for data to be kept: see `Backend.graph_optimize`."""

    def work_size(
        self,
        nodes: Sequence[Tensor],
        address_of: AddressOf,
        use_counts: UseCounts | None = None,
        n_threads: int | None = None,
    ) -> int:
        """Bytes of scratch memory that `compile` would ask for."""

    def set_n_threads(self, n: int | None) -> None:
        """Let what is compiled from now on run on `n` threads; None: on all."""

    def compile(
        self,
        nodes: Sequence[Tensor],
        memory_of: MemoryOf,
        use_counts: UseCounts | None = None,
        workspace: Workspace | None = None,
    ) -> Program:
        """A program that computes `nodes` in order, as often as it is called.

        `memory_of(node, tensor)` is the flat memory of the buffer that `tensor`, the node or one
        of its sources, lies in; it must not move. `use_counts` are those of the whole graph: what
        is read by one node alone need not be written where that node is computed with it.
        Scratch memory comes from `workspace`; it is the program's own without.
        """

    def close(self) -> None:
        """End what computes in the background. Twice is fine."""
