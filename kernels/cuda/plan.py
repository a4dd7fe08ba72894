"""The CUDA plan: a split's nodes compiled to a list of kernel launches over fixed addresses.

Knows no backend: `address_of(node, tensor)` is the address of a tensor, `workspace(size)` that of
scratch memory. Tested by tests/kernels/test_cuda_plan.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...base.errors import BackendError
from ...graph.graph import Graph
from ...graph.tensor import Tensor
from ..plan.params import Words, write_params
from ..plan.steps import AddressOf, index_error
from ..plan.timing import Part, parts_of
from .driver import Address, Function, Gpu, Stream
from .kernel_set import KERNELS
from .library import Library
from .params import CALL, ERROR, N_WORDS, SCRATCH
from .table import Dim3

ALIGNMENT = 256  # alignment of scratch memory; kernels need 16 bytes


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch, ready to run."""

    function: Function
    grid: Dim3
    block: int
    shared_memory: int
    words: Words


class CudaPlan:
    """The launches that compute a graph's nodes, in order.

    A kernel that finds a bad index writes three words at `error`: the number of its call, the index
    and the limit. `numbers` gives the numbers of calls; plans with the same `error` share it.
    """

    def __init__(
        self,
        graph: Graph,
        address_of: AddressOf,
        library: Library,
        workspace: Callable[[int], Address],
        error: Address,
        numbers: Iterator[int],
    ) -> None:
        steps = KERNELS.steps_of(graph, address_of)
        self.steps = steps.steps
        self._all = graph.nodes
        library.load(step.call.kernel for step in self.steps)
        slots, self.work_size = steps.scratch_layout(ALIGNMENT)
        begin = workspace(self.work_size) if self.work_size else 0
        slots = [begin + slot for slot in slots]
        blocks = np.zeros((len(self.steps), N_WORDS), np.int64)
        self.launches: list[Launch] = []
        self._nodes: dict[int, Tensor] = {}  # by the number of the call
        for step, block in zip(self.steps, blocks, strict=True):
            call, number = step.call, next(numbers)
            self._nodes[number] = step.node
            write_params(block, step, address_of, slots)
            block[SCRATCH], block[ERROR], block[CALL] = begin, error, number
            function = library.function(call.kernel, call.shared_memory)
            self.launches.append(Launch(function, call.grid, call.block, call.shared_memory, block))

    def launch(self, gpu: Gpu, stream: Stream) -> None:
        """Submit all launches to a stream."""
        for i in range(len(self.launches)):
            self.launch_one(i, gpu, stream)

    def launch_one(self, i: int, gpu: Gpu, stream: Stream) -> None:
        """Submit the i-th launch to a stream."""
        one = self.launches[i]
        gpu.launch(one.function, one.grid, one.block, one.shared_memory, one.words, stream)

    @cached_property
    def parts(self) -> list[Part]:
        """The part of the profile that each launch computes."""
        return parts_of(self._all, self.steps)

    def error_of(self, call: int, value: int, limit: int) -> BackendError | None:
        """The error that a call reported; None if the call is not one of this plan."""
        node = self._nodes.get(call)
        return None if node is None else index_error(node, value, limit)


def work_size(graph: Graph, address_of: AddressOf) -> int:
    """Bytes of scratch memory that a plan needs."""
    return KERNELS.steps_of(graph, address_of).scratch_layout(ALIGNMENT).size
