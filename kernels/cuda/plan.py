"""Plans: a split's nodes compiled to a list of kernel launches over fixed addresses.

Knows no backend: `address_of(node, tensor)` says where a tensor lies, the workspace where scratch
memory does. Tested by tests/kernels/test_cuda_plan.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from ...base.errors import BackendError
from ...graph.op import VIEW_OPS, Op
from ...graph.tensor import Tensor
from ..plan.fusion import UseCounts, calls_in_order
from ..plan.steps import AddressOf, Steps
from ..plan.timing import Part, parts_of
from . import ops as _ops  # noqa: F401 - fill the tables
from .driver import Address, Function, Gpu, Stream
from .library import Library
from .params import CALL, ERROR, N_WORDS, PREPARED, SCRATCH, Words, write_params
from .table import FUSERS, Call, Dim3, find

ALIGNMENT = 256  # of scratch memory: a kernel may read and write it in 16 bytes at a time

Workspace = Callable[[int], Address]  # device memory of so many bytes that the plan may keep


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch, ready to run."""

    function: Function
    grid: Dim3
    block: int
    shared_memory: int
    words: Words


class Plan:
    """The launches that compute some nodes, in order.

    Chains of nodes are fused if `use_counts`, those of the whole graph, are given. A kernel that
    meets a bad index reports it in three words at `error`, with its call's number: the next of
    `numbers`, which plans with the same words share.
    """

    def __init__(
        self,
        nodes: Sequence[Tensor],
        address_of: Callable[[Tensor, Tensor], Address],
        library: Library,
        workspace: Workspace,
        error: Address,
        numbers: Iterator[int],
        use_counts: UseCounts | None = None,
    ) -> None:
        steps = steps_of(nodes, address_of, use_counts)
        self.steps = steps.steps
        self._all = nodes
        library.load(k for step in self.steps for k in step.call.kernels())
        self.work_size, places = _places(steps)
        begin = workspace(self.work_size) if self.work_size else 0
        blocks = np.zeros((len(self.steps), N_WORDS), np.int64)
        self.launches: list[Launch] = []
        self._nodes: dict[int, Tensor] = {}  # by number of the call
        for i, step in enumerate(self.steps):
            call, block = step.call, blocks[i]
            write_params(block, step.node, step.tensors, call.params, address_of)
            number = next(numbers)
            self._nodes[number] = step.node
            block[SCRATCH], block[ERROR], block[CALL] = begin, error, number
            for j, slot in enumerate(step.slots):
                block[PREPARED + j] = begin + places[slot]
            function = library.function(call.kernel, call.shared_memory)
            self.launches.append(Launch(function, call.grid, call.block, call.shared_memory, block))

    def launch(self, gpu: Gpu, stream: Stream) -> None:
        """Give all launches to a stream."""
        for i in range(len(self.launches)):
            self.launch_one(i, gpu, stream)

    def launch_one(self, i: int, gpu: Gpu, stream: Stream) -> None:
        """Give the i-th launch to a stream."""
        one = self.launches[i]
        gpu.launch(one.function, one.grid, one.block, one.shared_memory, one.words, stream)

    @cached_property
    def parts(self) -> list[Part]:
        """What each launch computes."""
        return parts_of(self._all, self.steps)

    def error_of(self, call: int, value: int, limit: int) -> BackendError | None:
        """The error that a call has reported; None if it is not one of this plan."""
        node = self._nodes.get(call)
        if node is None:
            return None
        return BackendError(
            f"{node.op.name.lower()} {node!r}: index {value} must be at least 0 and below {limit}"
        )


def steps_of(
    nodes: Sequence[Tensor], address_of: AddressOf, use_counts: UseCounts | None = None
) -> Steps[Call]:
    """The calls that compute nodes, and what each of them touches; nothing is compiled."""
    steps = Steps[Call](address_of)
    for node, call in calls_in_order(nodes, calls_of, use_counts, FUSERS, address_of):
        steps.add(node, call)
    return steps


def work_size(
    nodes: Sequence[Tensor], address_of: AddressOf, use_counts: UseCounts | None = None
) -> int:
    """Bytes of scratch memory that a plan asks for."""
    return _places(steps_of(nodes, address_of, use_counts))[0]


def calls_of(node: Tensor) -> Sequence[Call]:
    """The kernel calls that compute a node; none for views, leafs and empty tensors."""
    if node.op in VIEW_OPS or node.op is Op.NONE or node.is_empty:
        return ()
    implementation = find(node)
    assert implementation is not None, f"{node!r} was supported"
    return implementation.calls(node)


def _places(steps: Steps[Call]) -> tuple[int, list[int]]:
    """Bytes of scratch memory in all, and where in it each slot begins; calls' own comes first."""
    own = max((_aligned(step.call.scratch) for step in steps.steps), default=0)
    ends = list(accumulate((_aligned(slot.size) for slot in steps.slots), initial=own))
    return ends[-1], ends[:-1]


def _aligned(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT
