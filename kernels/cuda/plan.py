"""The CUDA plan: a split's nodes compiled to a list of kernel launches over fixed addresses.

Steps that follow each other and do not depend on each other become one launch, if they have the
same kernel and it merges: the products of queries, keys and values, for example.
Knows no backend: `address_of(node, tensor)` is the address of a tensor, `workspace(size)` that of
scratch memory. Tested by tests/kernels/test_cuda_plan.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from ...base.errors import BackendError
from ...base.settings import NO_MERGE
from ...graph.cost import Cost
from ...graph.graph import Graph
from ...graph.tensor import Tensor
from ..plan.kernel_set import KernelSet
from ..plan.params import Words, write_params
from ..plan.steps import AddressOf, Step, depends, index_error
from ..plan.timing import Part, merged_part, parts_of
from .driver import Address, Function, Gpu, Stream
from .library import Library
from .params import CALL, ERROR, MAX_PARTS, N_BLOCKS, N_WORDS, SCRATCH
from .results import TO_HOST, Results, to_host
from .table import CudaCall, Dim3

ALIGNMENT = 256  # alignment of scratch memory; kernels need 16 bytes


Steps = Sequence[Step[CudaCall]]


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch, ready to run. It computes `n_steps` consecutive steps."""

    n_steps: int
    function: Function
    grid: Dim3
    block: int
    shared_memory: int
    words: Words

    def submit(self, gpu: Gpu, stream: Stream) -> None:
        """Give the launch to a stream."""
        gpu.launch(self.function, self.grid, self.block, self.shared_memory, self.words, stream)


class CudaPlan:
    """The launches that compute a graph's nodes, in order.

    The last launches copy `results`. A kernel that finds a bad index writes three words at `error`:
    the number of its call, the index and the limit. `numbers` gives the numbers of calls; plans
    with the same `error` share it.
    """

    def __init__(
        self,
        graph: Graph,
        kernels: KernelSet[CudaCall],
        address_of: AddressOf,
        library: Library,
        workspace: Callable[[int], Address],
        error: Address,
        numbers: Iterator[int],
        results: Results | None = None,
    ) -> None:
        steps = kernels.steps_of(graph, address_of)
        copied = results.tensors if results else ()
        self.n_steps = len(steps.steps)  # without the copies of results
        for result in copied:
            steps.add(result, to_host(result))
        self.steps = steps.steps
        self._all = graph.nodes
        library.load(step.call.kernel for step in self.steps)
        slots, self.work_size = steps.scratch_layout(ALIGNMENT)
        begin = workspace(self.work_size) if self.work_size else 0
        slots = [begin + slot for slot in slots]
        self.launches: list[Launch] = []
        self._nodes: dict[int, Tensor] = {}  # by the number of the call
        self._result_words: list[Words] = []  # of the launches that copy results
        for group in groups_of(self.steps):
            words = np.zeros((MAX_PARTS if len(group) > 1 else 1, N_WORDS), np.int64)
            for step, part in zip(group, words, strict=False):
                number = next(numbers)
                self._nodes[number] = step.node
                write_params(part, step, address_of, slots)
                part[SCRATCH], part[ERROR], part[CALL] = begin, error, number
                if results and step.call.kernel == TO_HOST:
                    part[0] = results.address_of(step.node)
                    self._result_words.append(part)
                part[N_BLOCKS] = step.call.grid[0]
            self.launches.append(_launch_of([step.call for step in group], words, library))

    def launch(self, gpu: Gpu, stream: Stream) -> None:
        """Submit all launches to a stream."""
        for i in range(len(self.launches)):
            self.launch_one(i, gpu, stream)

    def launch_one(self, i: int, gpu: Gpu, stream: Stream) -> None:
        """Submit the i-th launch to a stream."""
        self.launches[i].submit(gpu, stream)

    def move_results(self, n_bytes: int) -> None:
        """Let later launches copy results to another place, so many bytes on."""
        for words in self._result_words:
            words[0] += n_bytes

    @cached_property
    def parts(self) -> list[Part]:
        """The part of the profile that each launch computes."""
        steps = self.steps[: self.n_steps]
        parts = iter([*parts_of(self._all, steps), *map(_copy_part, self.steps[self.n_steps :])])
        return [merged_part(list(islice(parts, one.n_steps))) for one in self.launches]

    def error_of(self, call: int, value: int, limit: int) -> BackendError | None:
        """The error that a call reported; None if the call is not one of this plan."""
        node = self._nodes.get(call)
        return None if node is None else index_error(node, value, limit)


def _copy_part(step: Step[CudaCall]) -> Part:
    return Part("results", step.call.kernel.name, (step.node,), fixed=Cost(step.node.nbytes))


def groups_of(steps: Steps) -> Iterator[Steps]:
    """The steps of each launch: as many as can be merged."""
    group: list[Step[CudaCall]] = []
    for step in steps:
        if group and not (len(group) < MAX_PARTS and _may_join(step, group)):
            yield group
            group = []
        group.append(step)
    if group:
        yield group


def _may_join(step: Step[CudaCall], group: Steps) -> bool:
    one, first = step.call, group[0].call
    alike = (one.kernel, one.grid[1:], one.block) == (first.kernel, first.grid[1:], first.block)
    can_merge = one.kernel.merges and one.grid[2] == 1 and not NO_MERGE()
    return can_merge and alike and not any(depends(step, s) for s in group)


def _launch_of(calls: Sequence[CudaCall], words: Words, library: Library) -> Launch:
    first = calls[0]
    shared_memory = max(call.shared_memory for call in calls)
    kernel, grid = first.kernel, first.grid
    if len(calls) > 1:
        kernel, grid = kernel.merged, (max(call.grid[0] for call in calls), grid[1], len(calls))
    function = library.function(kernel, shared_memory)
    return Launch(len(calls), function, grid, first.block, shared_memory, words.reshape(-1))


def work_size(graph: Graph, kernels: KernelSet[CudaCall], address_of: AddressOf) -> int:
    """Bytes of scratch memory that a plan needs."""
    return kernels.steps_of(graph, address_of).scratch_layout(ALIGNMENT).size
