"""The CPU's plan: a split's nodes compiled to a list of kernel calls over fixed addresses.

A plan has an entry and a block of parameters for each step (`plan/steps.py`). One native call runs
it. Knows no backend: `address_of(node, tensor)` is the address of a tensor.
Tested by tests/kernels/test_cpu_plan.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from time import perf_counter_ns
from typing import Final

import numpy as np

from ...alloc.host import HostBufferType
from ...graph.graph import Graph
from ...sched.backend import CallTime, CompileProgress
from ..compute import Workspace
from ..plan.params import write_params
from ..plan.steps import AddressOf, Step, Steps, depends, index_error
from ..plan.timing import Part, Timing, parts_of
from .compiler.jit import load_all
from .kernel_set import KERNELS
from .params import ERROR, N_WORDS, WORK
from .pool import BARRIER, ENTRY_WORDS, FN, LINE, ONE_THREAD, PARAMS_AT, POOL_KERNELS, ThreadPool
from .table import CpuCall

OWN_MEMORY: Final = HostBufferType("CPU work buffer", alignment=LINE)  # for plans without a backend


class CpuPlan:
    """Kernel calls that are ready to run, and their scratch memory."""

    def __init__(
        self,
        graph: Graph,
        address_of: AddressOf,
        n_threads: int,
        progress: CompileProgress | None = None,
        workspace: Workspace | None = None,
    ) -> None:
        steps = KERNELS.steps_of(graph, address_of)
        self.steps = steps.steps
        self._nodes = graph.nodes
        kernels = (k for step in self.steps for k in step.call.kernels())
        load_all((*POOL_KERNELS, *kernels), progress)
        # sleeping threads are not woken for a plan that one thread computes
        is_alone = all(step.call.one_thread for step in self.steps)
        self.n_threads = 1 if is_alone else n_threads
        slots, shared = steps.scratch_layout(LINE)
        self.work_size = work_size(steps, n_threads)
        allocate = workspace or OWN_MEMORY.alloc_buffer
        self._work = allocate(self.work_size) if self.work_size else None
        begin = 0 if self._work is None else self._work.address
        scratch = begin, begin + shared, _thread_work(steps)
        slots = [begin + slot for slot in slots]
        self._error = np.zeros(1, np.int64)
        self._entries = np.zeros((len(self.steps), ENTRY_WORDS), np.int64)
        self._blocks = np.zeros((len(self.steps), N_WORDS), np.int64)
        waits = barriers(self.steps) if self.n_threads > 1 else [False] * len(self.steps)
        for i, step in enumerate(self.steps):
            block, entry = self._blocks[i], self._entries[i]
            write_params(block, step, address_of, slots)
            block[WORK : WORK + 3] = scratch
            block[ERROR : ERROR + 2] = (self._error.ctypes.data, i + 1)
            entry[FN] = step.call.kernel.address
            entry[PARAMS_AT] = block.ctypes.data
            entry[ONE_THREAD] = step.call.one_thread
            entry[BARRIER] = waits[i]
        self._address = self._entries.ctypes.data

    def run(self, pool: ThreadPool) -> None:
        """Compute all nodes on the plan's number of threads of a pool.

        Raises:
            BackendError: an index is outside its tensor.
        """
        pool.run(self._address, len(self.steps), self.n_threads)
        if self._error[0]:
            self._raise_error()

    def profile(self, pool: ThreadPool) -> Sequence[CallTime]:
        """Like `run`, but return the time of each call, which ends when its last thread ends."""
        entries = self._entries.copy()
        entries[:, BARRIER] = True  # so that the times of calls do not overlap
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
        value, limit = self._blocks[i, ERROR + 2 : ERROR + 4]
        raise index_error(self.steps[i].node, value, limit)


def barriers(steps: Sequence[Step[CpuCall]]) -> list[bool]:
    """True for each step that must wait until all threads have finished the steps before it.

    A step waits if it depends on a step since the last barrier, unless both run on thread 0 alone.
    """
    found: list[bool] = []
    since: list[Step[CpuCall]] = []
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


def work_size(steps: Steps[CpuCall], n_threads: int) -> int:
    """Bytes of scratch memory of a plan: shared by calls, slots, then each thread's own."""
    return steps.scratch_layout(LINE).size + _thread_work(steps) * n_threads


def _thread_work(steps: Steps[CpuCall]) -> int:
    """Bytes of a thread's own scratch memory, in whole cache lines, which threads do not share."""
    return max((-(-call.work // LINE) * LINE for call in steps.calls()), default=0)
