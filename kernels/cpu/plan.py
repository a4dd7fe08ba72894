"""Plans: a split's nodes compiled to a list of kernel calls over fixed addresses.

A plan holds one entry and one block of parameters for each call (`steps.py` says which, and where
threads wait for each other); running it is one native call.
Knows no backend: `address_of(node, tensor)` says where a tensor lies.
Tested by tests/kernels/test_cpu_plan.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from time import perf_counter_ns
from typing import Final

import numpy as np

from ...alloc.host import HostBufferType
from ...base.errors import BackendError
from ...graph.op import VIEW_OPS, Op
from ...graph.tensor import Tensor
from ...sched.backend import CallTime
from ..compute import Workspace
from ..plan.fusion import UseCounts, calls_in_order
from ..plan.steps import AddressOf, Step, Steps, depends
from ..plan.timing import Part, Timing, parts_of
from . import ops as _ops  # noqa: F401 - fill the tables
from . import packed as _packed  # noqa: F401
from .compiler.jit import Progress, load_all
from .params import ERROR, N_WORDS, PREPARED, WORK, Words, write_params
from .pool import BARRIER, ENTRY_WORDS, FN, LINE, ONE_THREAD, PARAMS_AT, POOL_KERNELS, ThreadPool
from .table import FUSERS, Call, find

OWN_MEMORY: Final = HostBufferType("CPU work buffer", alignment=LINE)  # of plans without a backend


class Plan:
    """Kernel calls ready to run. Keeps the memory that they use beside the tensors.

    Chains of nodes are fused if `use_counts`, those of the whole graph, are given.
    """

    def __init__(
        self,
        nodes: Sequence[Tensor],
        address_of: Callable[[Tensor, Tensor], int],
        n_threads: int,
        progress: Progress | None = None,
        use_counts: UseCounts | None = None,
        workspace: Workspace | None = None,
    ) -> None:
        steps = steps_of(nodes, address_of, use_counts)
        self.steps = steps.steps
        self._nodes = nodes
        kernels = (k for step in self.steps for k in step.call.kernels())
        load_all((*POOL_KERNELS, *kernels), progress)
        self.n_threads = n_threads
        scratch = Scratch(steps, n_threads)
        self.work_size = scratch.size
        self._work = (workspace or OWN_MEMORY.alloc_buffer)(scratch.size) if scratch.size else None
        begin = 0 if self._work is None else self._work.address
        self._error = np.zeros(1, np.int64)
        self._entries = np.zeros((len(self.steps), ENTRY_WORDS), np.int64)
        self._blocks = np.zeros((len(self.steps), N_WORDS), np.int64)
        waits = barriers(self.steps) if n_threads > 1 else [False] * len(self.steps)
        for i, step in enumerate(self.steps):
            block, entry = self._blocks[i], self._entries[i]
            write_params(block, step.node, step.tensors, step.call.params, address_of)
            scratch.write(begin, block, step)
            block[ERROR : ERROR + 2] = (self._error.ctypes.data, i + 1)
            entry[FN] = step.call.kernel.address
            entry[PARAMS_AT] = block.ctypes.data
            entry[ONE_THREAD] = step.call.one_thread
            entry[BARRIER] = waits[i]
        self._address = self._entries.ctypes.data

    def run(self, pool: ThreadPool) -> None:
        """Compute all nodes, on as many threads of a pool as the plan is for.

        Raises:
            BackendError: a kernel met an index outside its tensor.
        """
        pool.run(self._address, len(self.steps), self.n_threads)
        if self._error[0]:
            self._raise_error()

    def profile(self, pool: ThreadPool) -> Sequence[CallTime]:
        """As `run`; how long each call took, until the last thread was done with it."""
        entries = self._entries.copy()
        entries[:, BARRIER] = True  # so that a call's time is its own
        timing = Timing(self._parts)
        for first, end in timing.runs():
            timing.look(first)
            times = np.zeros(end - first + 1, np.int64)
            begin = perf_counter_ns()
            pool.run(entries[first:].ctypes.data, end - first, self.n_threads, times)
            timing.took(first, (times + (begin - times[0])).tolist())
        if self._error[0]:
            self._raise_error()
        return timing.calls()

    @cached_property
    def _parts(self) -> list[Part]:
        return parts_of(self._nodes, self.steps)

    def _raise_error(self) -> None:
        i = int(self._error[0]) - 1
        self._error[0] = 0
        node, value, limit = self.steps[i].node, *self._blocks[i, ERROR + 2 : ERROR + 4]
        raise BackendError(
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


def calls_of(node: Tensor) -> Sequence[Call]:
    """The kernel calls that compute a node; none for views, leafs and empty tensors."""
    if node.op in VIEW_OPS or node.op is Op.NONE or node.is_empty:
        return ()
    implementation = find(node)
    assert implementation is not None, f"{node!r} was supported"
    return implementation.calls(node)


def barriers(steps: Sequence[Step[Call]]) -> list[bool]:
    """For each step, whether all threads must have done those before it.

    They must if it depends on one of these since the last barrier, unless both run on thread 0
    alone.
    """
    found: list[bool] = []
    since: list[Step[Call]] = []
    for step in steps:
        waits = any(
            depends(step, earlier)
            for earlier in since
            if not (step.call.one_thread and earlier.call.one_thread)
        )
        if waits:
            since = []
        since.append(step)
        found.append(waits)
    return found


class Scratch:
    """What lies where in the scratch memory of a plan: what calls share, slots of prepared sources,
    what each thread has. `size` is in bytes."""

    def __init__(self, steps: Steps[Call], n_threads: int) -> None:
        calls = [step.call for step in steps.steps]
        shared = max((_lines(call.shared) for call in calls), default=0)
        self._work = max((_lines(call.work) for call in calls), default=0)
        ends = list(accumulate((_lines(slot.size) for slot in steps.slots), initial=shared))
        self._slots, self._threads = ends[:-1], ends[-1]
        self.size = self._threads + self._work * n_threads

    def write(self, begin: int, block: Words, step: Step[Call]) -> None:
        """Put the addresses into a step's block of parameters; the memory begins at `begin`."""
        block[WORK : WORK + 3] = (begin, begin + self._threads, self._work)
        for i, slot in enumerate(step.slots):
            block[PREPARED + i] = begin + self._slots[slot]


def _lines(n: int) -> int:
    # scratch memory of different threads lies in different cache lines
    return -(-n // LINE) * LINE
