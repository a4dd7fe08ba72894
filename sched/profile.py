"""Timing: the time of each copy, split and kernel call of scheduled graphs.

    profiler = Profiler(each_call=True)
    scheduler.set_profiler(profiler)
    scheduler.graph_compute(scheduled)
    profiler.splits[0].calls[0].cost.n_bytes

With a profiler, all work runs one piece after another, as each copy and each split is waited for.
Without one, this code does not run. Times are nanoseconds of `time.perf_counter_ns`. Does not know
any computing backend or model. Tested by tests/sched/test_profile_splits.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Protocol

from ..graph.tensor import Tensor
from .backend import Backend, CallTime
from .scheduled import ScheduledGraph, ScheduledSplit, Transfer
from .split import Split

UsedExperts = dict[Tensor, list[int]]


@dataclass(frozen=True, slots=True)
class CopyTime:
    """A copy of `n_bytes` of a tensor to `device`, made before the split with the index `split`,
    for this split or a later one."""

    name: str
    from_device: str
    device: str
    n_bytes: int
    split: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SplitTime:
    """The split with the index `split`, without its copies. `calls` are its kernel calls, if they
    were timed and the device supports it."""

    graph: ScheduledGraph
    split: int
    device: str
    begin: int
    end: int
    calls: Sequence[CallTime]


class Profiler:
    """Collects the times of splits and copies; with `each_call`, of every kernel call too."""

    def __init__(self, *, each_call: bool = False) -> None:
        self.each_call = each_call
        self.splits: list[SplitTime] = []
        self.copies: list[CopyTime] = []

    def take(self) -> tuple[list[SplitTime], list[CopyTime]]:
        """Return the times since the last call."""
        taken = self.splits, self.copies
        self.splits, self.copies = [], []
        return taken


class SplitRunner(Protocol):
    """Makes the copies of a split and computes its nodes; implemented by `compute.Executor`."""

    def transfer(
        self, t: Transfer, run: ScheduledSplit, copy_index: int, used_experts: UsedExperts
    ) -> int: ...
    def copy_ahead(self, t: Transfer, run: ScheduledSplit) -> int: ...
    def run_split(self, split: Split) -> bool: ...


class TimedSplitRunner:
    """Wraps a runner: waits for each copy and split, and reports its time to a profiler.

    `each_call`: let devices compute a split one kernel call at a time.
    """

    def __init__(
        self, runner: SplitRunner, profiler: Profiler, graph: ScheduledGraph, each_call: bool
    ) -> None:
        self._runner = runner
        self._profiler = profiler
        self._graph = graph
        self._each_call = each_call
        self._index = {run.split: i for i, run in enumerate(graph.runs)}

    def transfer(
        self, t: Transfer, run: ScheduledSplit, copy_index: int, used_experts: UsedExperts
    ) -> int:
        begin = perf_counter_ns()
        n_bytes = self._runner.transfer(t, run, copy_index, used_experts)
        return self._copied(t, run, n_bytes, begin)

    def copy_ahead(self, t: Transfer, run: ScheduledSplit) -> int:
        begin = perf_counter_ns()
        n_bytes = self._runner.copy_ahead(t, run)
        return self._copied(t, run, n_bytes, begin)

    def _copied(self, t: Transfer, run: ScheduledSplit, n_bytes: int, begin: int) -> int:
        backend = run.split.backend
        _wait(t.src_backend, backend)
        names = t.src.name, t.src_backend.name, backend.name
        split, end = self._index[run.split], perf_counter_ns()
        self._profiler.copies.append(CopyTime(*names, n_bytes, split, begin, end))
        return n_bytes

    def run_split(self, split: Split) -> bool:
        backend, go_on = split.backend, True
        calls: Sequence[CallTime] = ()
        begin = perf_counter_ns()
        if self._each_call:
            calls = backend.graph_plan_profile(split.plan)
        else:
            go_on = self._runner.run_split(split)
        _wait(backend)
        end, index = perf_counter_ns(), self._index[split]
        self._profiler.splits.append(SplitTime(self._graph, index, backend.name, begin, end, calls))
        return go_on


def _wait(*backends: Backend) -> None:
    for backend in backends:
        backend.synchronize()
