"""Running a scheduled graph: copies, waits, splits in order (ggml_backend_sched_compute_splits).

`hazards` orders all work that shares memory. When `compute_async` returns, the graph's inputs have
been copied or read, and the user may write them again. A graph that starts with nothing in flight
makes the same calls each time: they are recorded once, and then repeated. Tested by
tests/sched/test_waits.py and test_recorded.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final

import numpy as np

from ..alloc.buffer import Buffer, Bytes, Usage, buffer_of, tensor_copy
from ..alloc.host import HostBuffer, read_array
from ..alloc.layout import Layout
from ..base.errors import BackendError, LamellaError
from ..graph.tensor import Tensor
from .backend import Backend, Event
from .hazards import Hazards, Recorder
from .profile import Profiler, SplitRunner, TimedSplitRunner, UsedExperts
from .scheduled import Recorded, ScheduledGraph, ScheduledSplit, Transfer
from .split import Split

EvalCallback = Callable[[Tensor, bool], bool]
WriteLate = Callable[[], None]

AFTER_ONE: Final = (False, False)  # the key of recorded calls: no late inputs, none released


class Executor:
    """Runs scheduled graphs on the backends of one scheduler.

    `eval_callback`: see `Scheduler.set_eval_callback`. `profiler`, if not None, receives the times
    of copies and splits.
    """

    def __init__(self, backends: list[Backend], n_copies: int) -> None:
        self.backends = backends
        self.n_copies = n_copies
        self._recorder = Recorder()
        self.hazards = Hazards(backends, self._recorder)
        self._write_late: WriteLate | None = None
        self.eval_callback: EvalCallback | None = None
        self.profiler: Profiler | None = None
        # with several copies: the last use of each copy index on each backend
        self._copy_events: dict[Backend, list[Event | None]] = {
            b: [b.device.event_new() if n_copies > 1 else None for _ in range(n_copies)]
            for b in backends
        }
        self._followed: Event | None = None  # the end of the run that another one follows
        self._in_flight: Layout | None = None
        # True if graphs of several layouts are in flight: copies of different layouts may share
        # memory
        self._is_mixed = False

    def compute_async(
        self,
        graph: ScheduledGraph,
        write_late: WriteLate | None = None,
        *,
        release_inputs: bool = True,
    ) -> None:
        """Start all splits in order; asynchronous backends may still be working on return.

        `write_late`: see `Scheduler.graph_compute_async`. Without `release_inputs`, the caller must
        synchronize before the inputs are written.

        Raises:
            BackendError: a device failed; no work is in flight any more.
        """
        key = write_late is not None, release_inputs
        alone = self._in_flight is None and self.hazards.is_idle
        alone = alone and self.profiler is None and self.eval_callback is None
        self._write_late = write_late
        try:
            if alone and (recorded := graph.recorded.get(key)) is not None:
                self._in_flight = graph.layout
                for call in recorded.calls:
                    call()
                self.hazards.adopt(recorded.state)
                return
            if alone:
                self._recorder.begin()
            self._enter(graph)
            self._compute(graph)
            if release_inputs:
                self._release_inputs(graph)
            if (calls := self._recorder.end()) is not None:
                graph.recorded[key] = Recorded(calls, self.hazards.state())
        except BaseException:
            self._recorder.end()
            self._drain()
            raise
        finally:
            self._write_late = None  # it may keep a graph and its plans

    def can_follow(self, graph: ScheduledGraph) -> bool:
        """True if a run of `graph` can follow the one that is in flight, see `follow_async`. That
        must be a run of the same graph, and nothing else may be in flight."""
        if self.profiler is not None or self.eval_callback is not None or self._is_mixed:
            return False
        if self._in_flight is not graph.layout or AFTER_ONE not in graph.recorded:
            return False
        splits = [run.split for run in graph.runs]
        return len(splits) == 1 and splits[0].backend.graph_plan_feeds(splits[0].plan)

    def follow_async(self, graph: ScheduledGraph) -> None:
        """Start a graph behind its own last run, which may still compute. Both are on one backend,
        so nothing has to wait. See `Scheduler.follow_async`."""
        (run,) = graph.runs
        backend = run.split.backend
        try:
            if self._followed is None:
                self._followed = backend.device.event_new()
            assert self._followed is not None, f"{backend.name} has no events"
            backend.event_record(self._followed)
            for call in graph.recorded[AFTER_ONE].calls:
                call()
            self.hazards.used(backend, (*run.buffers, *(buffer_of(t.dst) for t in run.transfers)))
        except BaseException:
            self._drain()
            raise

    def wait_followed(self, graph: ScheduledGraph) -> None:
        """Wait for the run that another one follows.

        Raises:
            BackendError: a device failed; no work is in flight any more.
        """
        assert self._followed is not None, "no run follows another one"
        try:
            self._followed.synchronize()
            graph.runs[0].split.backend.check()
        except BaseException:
            self._drain()
            raise

    def wait_inputs(self, graph: ScheduledGraph) -> None:
        """Wait for work of other graphs in the buffers of this graph's inputs."""
        if self._is_mixed or self._in_flight not in (None, graph.layout):
            self.hazards.wait(None, {leaf.buffer for leaf in graph.inputs})

    def synchronize(self) -> None:
        """Wait for all backends.

        Raises:
            BackendError: a device failed; no work is in flight any more.
        """
        try:
            backends = self.hazards.backends  # of the others, all work is done
            if len(backends) > 1:
                for backend in backends:
                    backend.begin_synchronize()
            for backend in backends:
                backend.synchronize()
        except BaseException:
            self._drain()
            raise
        self._forget()

    def _drain(self) -> None:
        """Wait for all backends after a failure, and ignore further errors."""
        for backend in self.backends:
            with contextlib.suppress(LamellaError):
                backend.synchronize()
        self._forget()

    def _forget(self) -> None:
        self.hazards.synchronized()
        self._in_flight = None
        self._is_mixed = False

    def _enter(self, graph: ScheduledGraph) -> None:
        self._is_mixed |= self._in_flight not in (None, graph.layout)
        self._in_flight = graph.layout

    def _compute(self, graph: ScheduledGraph) -> None:
        late, call = self._write_late is not None, self._recorder.call
        runner = self._runner(graph)
        previous: Backend | None = None
        used_experts: UsedExperts = {}
        for run in graph.runs:
            backend = run.split.backend
            if run.reads_late and late:
                call(self._call_write_late)
                late = False
            for transfer in run.transfers:
                runner.transfer(transfer, run, graph.copy_index, used_experts)
            if previous is not None and not run.transfers:
                self.hazards.wait_for(backend, previous)
            self.hazards.wait(backend, run.buffers)
            if run.waits_ahead:
                call(backend.wait_copies_ahead)  # before starting the copies for the next split
            for transfer in run.ahead:
                runner.copy_ahead(transfer, run)
            go_on = runner.run_split(run.split)
            self.hazards.used(backend, run.buffers)
            event = self._copy_events[backend][graph.copy_index]
            if event is not None:
                call(backend.event_record, event)
            if not go_on:
                return
            previous = backend

    def _call_write_late(self) -> None:
        assert self._write_late is not None
        self._write_late()

    def _runner(self, graph: ScheduledGraph) -> SplitRunner:
        """This executor, or a wrapper that times it for the profiler."""
        if self.profiler is None:
            return self
        each_call = self.profiler.each_call and self.eval_callback is None
        return TimedSplitRunner(self, self.profiler, graph, each_call)

    def _release_inputs(self, graph: ScheduledGraph) -> None:
        """Wait for the work that reads graph inputs where the user writes them."""
        if self.n_copies == 1:
            # an input's memory may be reused after its last reader: wait for all work on its buffer
            self.hazards.wait(None, {leaf.buffer for leaf in graph.inputs})
            return
        for backend in {run.split.backend for run in graph.runs if run.reads_inputs}:
            event = self._copy_events[backend][graph.copy_index]
            if event is not None:
                self._recorder.call(event.synchronize)
            else:
                self.hazards.wait_for(None, backend)

    # --- copies ---

    def transfer(
        self,
        t: Transfer,
        run: ScheduledSplit,
        copy_index: int,
        used_experts: UsedExperts,
    ) -> int:
        """Make a copy for a split; return the number of bytes copied.

        `used_experts` caches the experts of the graph's MUL_MAT_ID nodes, by their ids tensor.
        """
        backend = run.split.backend
        source, target = buffer_of(t.src), buffer_of(t.dst)
        event = self._copy_events[backend][copy_index]
        if t.is_graph_input:
            # read at once: the user may overwrite it after `compute_async` returns
            self.hazards.wait(backend, (target,))
            if self._recorder.call(backend.set_input_async, t.src, t.dst):
                self.hazards.used(backend, (target,))
            else:
                self._copy_on_host(t, target, event)
        elif t.expert_node is not None:
            self.hazards.wait(backend, (target,))
            return self._copy_experts(t, t.expert_node, run, used_experts)
        else:
            touched = [b for b in (source, target) if b.usage is not Usage.WEIGHTS]
            if backend.device.link is not None:
                self._recorder.differs()  # a connection to another process may end
            self.hazards.wait(backend, touched)
            if self._recorder.call(backend.cpy_tensor_async, t.src_backend, t.src, t.dst):
                is_read = backend.reads_at_once and not t.src_backend.is_async
                self.hazards.copied(t.src_backend, backend, (target,) if is_read else touched)
            else:
                self.hazards.wait(None, (source,))
                self._copy_on_host(t, target, event)
        return t.src.nbytes

    def copy_ahead(self, t: Transfer, run: ScheduledSplit) -> int:
        """Copy weights for a later split into memory that is unused until then; return the number
        of bytes copied."""
        backend, target = run.split.backend, buffer_of(t.dst)
        self.hazards.wait(backend, (target,))
        self._recorder.call(backend.copy_ahead_async, t.src, t.dst)
        self.hazards.used(backend, (target,))
        return t.src.nbytes

    def _copy_on_host(self, t: Transfer, target: Buffer, event: Event | None) -> None:
        """Copy on the host when the copy's memory is free. The source is ready to read."""
        if event is not None and not self._is_mixed:
            # the copy has its own memory: wait only for its last reader
            self._recorder.call(event.synchronize)
        else:
            self.hazards.wait(None, (target,))
        self._recorder.call(tensor_copy, t.src, t.dst)

    def _copy_experts(
        self,
        t: Transfer,
        node: Tensor,
        run: ScheduledSplit,
        used_experts: UsedExperts,
    ) -> int:
        """Copy only the experts that `node` uses, consecutive experts as one; return the bytes."""
        self._recorder.differs()
        ids = node.src[2]
        ids = next((o.src for o in run.transfers if o.dst is ids), ids)
        if ids not in used_experts:
            self.hazards.wait(None, (buffer_of(ids),))
            used_experts[ids] = np.unique(read_array(ids)).tolist()
        size = t.src.nb[2]
        for first, last in _runs(used_experts[ids], t.src.ne[2], t):
            begin, end = first * size, (last + 1) * size
            run.split.backend.set_tensor_async(t.dst, _host_bytes(t.src, begin, end), begin)
        return len(used_experts[ids]) * size

    # --- nodes ---

    def run_split(self, split: Split) -> bool:
        """Compute the nodes of a split; return False if the eval callback stops the run."""
        callback, backend = self.eval_callback, split.backend
        if callback is None:
            self._recorder.call(backend.graph_plan_compute, split.plan)
            return True
        nodes, begin = split.graph.nodes, 0
        for i, node in enumerate(nodes):
            wanted = callback(node, True)
            if wanted or i == len(nodes) - 1:
                # compute it together with the unwanted nodes before it
                backend.graph_compute(split.graph.view(begin, i + 1))
                backend.synchronize()
                begin = i + 1
            if wanted and not callback(node, False):
                return False
        return True


def _runs(ids: Sequence[int], n_expert: int, t: Transfer) -> Iterator[tuple[int, int]]:
    """The runs of consecutive ids, as (first, last)."""
    if ids and not 0 <= ids[0] <= ids[-1] < n_expert:
        raise BackendError(f"{t.src!r}: experts {ids[0]}..{ids[-1]} must be in 0..{n_expert - 1}")
    for _, group in groupby(enumerate(ids), lambda pair: pair[1] - pair[0]):
        members = [i for _, i in group]
        yield members[0], members[-1]


def _host_bytes(t: Tensor, begin: int, end: int) -> Bytes:
    buffer = buffer_of(t)
    if isinstance(buffer, HostBuffer):
        return buffer.memory[t.offset + begin : t.offset + end]
    return buffer.get_tensor(t, begin, end - begin)
