"""The scheduler: decides where the nodes of a graph run, places the graph in memory, and runs it.

    scheduler = Scheduler([gpu, cpu])
    scheduler.reserve(largest_graph)
    scheduled = scheduler.alloc_graph(graph)
    ... write the inputs ...
    scheduler.graph_compute(scheduled)

Decisions are ggml's (ggml-backend.cpp, ggml_backend_sched_*), recorded with their causes. Does not
know any computing backend or model. Tested by tests/sched/test_scheduler.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ..alloc.buffer import UNLIMITED, Buffer, BufferType
from ..alloc.gallocr import GraphAllocator
from ..alloc.memory import REAL_MEMORY, Memory
from ..base.errors import SchedulingError
from ..base.log import debug_log, get_logger
from ..base.settings import DEBUG
from ..graph.graph import Graph
from ..graph.op import VIEW_OPS
from ..graph.tensor import Tensor
from .assignment import Assignment, BackendTable
from .backend import Backend, DeviceType
from .compute import EvalCallback, Executor, WriteLate
from .passes import assign_backends
from .profile import Profiler
from .scheduled import ScheduledGraph
from .split import Order, SplitGraph, build_order, pass5_split, pass6_graph_inputs

MAX_COPIES: Final = 4  # of graph inputs in a pipeline, which rotates through them
POISON: Final = 0xFF

log = get_logger("sched")


class ReservedSizes(NamedTuple):
    """The bytes that a scheduler reserved: of each chunk of its compute buffers, and of scratch
    memory, both by backend. They hold for `n_copies` copies of inputs."""

    n_copies: int
    compute: Sequence[Sequence[int]]
    work: Sequence[int]


class Scheduler:
    """Splits graphs over several backends.

    Args:
        backends: by priority, highest first; the last one is the CPU. Several may share a buffer
            type.
        buffer_types: for the tensors of each backend; None: each backend's default.
        parallel: rotate through 4 copies of every input, so that the next graph can start while
            this one still runs.
        op_offload: let backends take over ops whose weights are in host memory (`offload_op`).
        memory: where compute buffers are allocated.

    Raises:
        SchedulingError: there is no backend, the last one is not a CPU, a backend is given twice,
            or a backend cannot use its buffer type.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        buffer_types: Sequence[BufferType] | None = None,
        parallel: bool = False,
        op_offload: bool = True,
        memory: Memory = REAL_MEMORY,
    ) -> None:
        bufts = buffer_types
        if bufts is None:
            bufts = [b.device.buffer_type for b in backends]
        _check(backends, bufts)
        self.backends = list(backends)
        self.n_copies = MAX_COPIES if parallel else 1
        self._table = BackendTable(backends, bufts, op_offload)
        self._galloc = GraphAllocator(bufts, memory)
        self._executor = Executor(self.backends, self.n_copies)
        self._user: dict[Tensor, int] = {}
        self._next_copy = 0
        self._is_alloc = False
        for backend, buft in zip(self.backends, bufts, strict=True):
            debug_log(log, 1, _introduce(backend, buft))

    def set_tensor_backend(self, tensor: Tensor, backend: Backend) -> None:
        """Assign a tensor to a backend by hand, until `reset`.

        Raises:
            SchedulingError: the backend is not one of this scheduler's, or the tensor is a view: a
                view follows its source.
        """
        if tensor.op in VIEW_OPS:
            raise SchedulingError(
                f"{tensor!r} is a view and follows its source: assign {tensor.root!r} instead"
            )
        if backend not in self.backends:
            known = ", ".join(b.name for b in self.backends)
            raise SchedulingError(f"{tensor!r}: backend {backend.name} is not one of {known}")
        self._user[tensor] = self.backends.index(backend)

    def reset(self) -> None:
        """Forget the assignments by hand and the last graph. Scheduled graphs stay valid."""
        self._user.clear()
        self._is_alloc = False

    def reserve(self, graph: Graph) -> None:
        """Make compute buffers and scratch memory large enough for `graph`, which stays
        unallocated. Then `reset`.

        Raises:
            SchedulingError: like `alloc_graph`.
            OutOfMemoryError: like `alloc_graph`.
        """
        self.synchronize()
        try:
            parts, order = self._split(graph, 0)
            self._galloc.reserve(order.graph, order.node_ids, order.leaf_ids)
            self._place(parts, order)
            for split in parts.splits:
                split.backend.graph_reserve(split.graph)
        finally:
            graph.restore()
        self.reset()

    def reserve_sizes(self, sizes: ReservedSizes) -> None:
        """Make compute buffers and scratch memory as large as `sizes` of another scheduler.

        Raises:
            OutOfMemoryError: like `alloc_graph`.
        """
        self.synchronize()
        self._galloc.grow(sizes.compute)
        for backend, size in zip(self.backends, sizes.work, strict=True):
            if size:
                backend.workspace(size)

    def reserved(self) -> ReservedSizes:
        """The current sizes of compute buffers and scratch memory."""
        chunks = [[buffer.size for buffer in chunks] for chunks in self._galloc.buffers]
        return ReservedSizes(self.n_copies, chunks, self.work_sizes())

    def alloc_graph(self, graph: Graph, copy_index: int | None = None) -> ScheduledGraph:
        """Assign, split and place a graph, and let backends compile its splits into plans.

        The graph uses the copy `copy_index` of its inputs; None: the next one. A graph that was
        scheduled before is restored first, which ends its old ScheduledGraph. After an error, the
        graph is as it was before it was scheduled.

        Raises:
            SchedulingError: no backend supports an op, or a tensor is where its op cannot run.
            OutOfMemoryError: a compute buffer cannot grow; smaller graphs can still be scheduled.
            BackendError: a backend cannot compile its split, for instance because a node writes
                into memory that the backend cannot use.
        """
        if copy_index is None:
            copy_index = self._next_copy
        self._next_copy = (copy_index + 1) % self.n_copies
        try:
            parts, order = self._split(graph, copy_index)
            self._fit(order)
            scheduled = self._place(parts, order)
            for run in scheduled.runs:
                split = run.split
                # in a pipeline, inputs of several runs are in flight
                inputs = run.inputs if self.n_copies == 1 else []
                split.plan = split.backend.graph_plan_with_inputs(split.graph, inputs)
        except BaseException:
            graph.restore()
            raise
        self._is_alloc = True
        self._log(scheduled)
        return scheduled

    def is_current(self, scheduled: ScheduledGraph) -> bool:
        """True until one of its compute buffers moves or its graph is scheduled again."""
        if scheduled.owner is not self or scheduled.released:
            return False
        n_moves = self._galloc.n_moves
        if scheduled.n_moves != n_moves:  # since the last look
            now = self._galloc.generations
            if any(now[i] != then for i, then in scheduled.generations.items()):
                return False
            scheduled.n_moves = n_moves
        return True

    def wait_inputs(self, scheduled: ScheduledGraph) -> None:
        """Wait until the graph's inputs may be written: other graphs in flight may still use their
        memory. `graph_compute_async` has already waited for the graph's own last run."""
        self._executor.wait_inputs(scheduled)

    def may_write_inputs(self, scheduled: ScheduledGraph) -> bool:
        """True if a graph's inputs can be written now, though work may be in flight."""
        return not self._executor.hazards.is_used({leaf.buffer for leaf in scheduled.inputs})

    def can_follow(self, scheduled: ScheduledGraph) -> bool:
        """True if a run of the graph can follow its last one, the only work in flight, before the
        host knows the results of that."""
        return self.is_current(scheduled) and self._executor.can_follow(scheduled)

    def follow_async(self, scheduled: ScheduledGraph) -> None:
        """Start the graph behind its last run, with fed inputs; see `can_follow`. The results of
        the last run stay where they were, `Buffer.in_place`, until the graph follows again; those
        of this run have other memory.

        Raises:
            BackendError: a device failed; no work is in flight any more.
        """
        self._executor.follow_async(scheduled)

    def wait_followed(self, scheduled: ScheduledGraph) -> None:
        """Wait for the run before the last `follow_async` only. Raises as `synchronize`."""
        self._executor.wait_followed(scheduled)

    def graph_compute_async(
        self,
        scheduled: ScheduledGraph,
        write_late: WriteLate | None = None,
        *,
        release_inputs: bool = True,
    ) -> None:
        """Start computing. On return, the graph's inputs have been read and may be written again.
        With one copy, results may reuse their memory: read the results before writing inputs.

        Args:
            scheduled: the graph.
            write_late: writes the late inputs. It is called before the first split that needs one,
                while devices compute the splits before it. What it raises ends the run.
            release_inputs: False if the caller synchronizes before it writes inputs.

        Raises:
            SchedulingError: the graph is no longer valid: allocate it again.
            BackendError: a device failed.
        """
        if not self.is_current(scheduled):
            if scheduled.owner is not self:
                why = "belongs to another scheduler"
            elif scheduled.released:
                why = "was scheduled again"
            else:
                why = "is in a buffer that has moved"
            raise SchedulingError(f"graph {scheduled.graph.uid} {why}: allocate it again")
        self._executor.compute_async(scheduled, write_late, release_inputs=release_inputs)

    def graph_compute(self, scheduled: ScheduledGraph, write_late: WriteLate | None = None) -> None:
        """Compute, and wait until all work is done. Parameters and errors are those of
        `graph_compute_async`."""
        self.graph_compute_async(scheduled, write_late, release_inputs=False)
        self.synchronize()

    def synchronize(self) -> None:
        """Wait for all backends. After `reset`, the next graph then uses copy 0 again: graphs that
        are computed one at a time all use the same copy."""
        self._executor.synchronize()
        if not self._is_alloc:
            self._next_copy = 0

    def set_eval_callback(self, callback: EvalCallback | None) -> EvalCallback | None:
        """Set a callback that sees nodes as they are computed; return the previous one.

        `callback(node, True)` returns True to see the node. Then `callback(node, False)` is called
        when the node is computed, and returns False to stop the run.
        """
        before, self._executor.eval_callback = self._executor.eval_callback, callback
        return before

    def set_profiler(self, profiler: Profiler | None) -> None:
        """Time all later work; None: stop timing."""
        self._executor.profiler = profiler

    def buffer_sizes(self) -> list[int]:
        """The bytes of compute memory by backend; shared memory counts for its first backend."""
        return self._galloc.buffer_sizes()

    def work_sizes(self) -> list[int]:
        """The bytes of scratch memory by backend."""
        return [0 if b.work is None else b.work.size for b in self.backends]

    def buffers(self) -> list[Buffer]:
        """The compute and scratch buffers that are allocated now."""
        compute = [buffer for chunks in self._galloc.buffers for buffer in chunks]
        return compute + [work for b in self.backends if (work := b.work) is not None]

    def poison(self) -> None:
        """Wait for all work, then overwrite compute and scratch memory: floats become NaN, and
        integers become -1."""
        self.synchronize()
        for buffer in (b for chunks in self._galloc.buffers for b in chunks):
            buffer.clear(POISON)
        for backend in self.backends:
            if backend.work is not None:
                backend.work.clear(POISON)

    def free(self) -> None:
        """Wait for all work and free the compute memory; scheduled graphs become invalid."""
        self.synchronize()
        self._galloc.free()

    def _split(self, graph: Graph, copy_index: int) -> tuple[SplitGraph, Order]:
        graph.restore()
        assignment = assign_backends(Assignment(self._table, graph, self._user))
        parts = SplitGraph(assignment, self.n_copies, copy_index)
        pass6_graph_inputs(pass5_split(parts))
        return parts, build_order(parts)

    def _fit(self, order: Order) -> None:
        """Reserve again if the graph does not fit the layout, or a tensor changed its memory."""
        if self._galloc.needs_realloc(order.graph, order.node_ids, order.leaf_ids):
            self._executor.synchronize()  # work in flight may use a buffer that moves
            self._galloc.reserve(order.graph, order.node_ids, order.leaf_ids)

    def _place(self, parts: SplitGraph, order: Order) -> ScheduledGraph:
        parts.rewrites.placed = self._galloc.place_graph(order.graph)
        layout = self._galloc.layout
        assert layout is not None, "the graph was placed with it"
        generations = {i: self._galloc.generations[i] for i in layout.buffer_ids}
        return ScheduledGraph(parts, order, layout, generations, self)

    def _log(self, scheduled: ScheduledGraph) -> None:
        if DEBUG() >= 3:
            from .explain import describe  # noqa: PLC0415 - slow to import, rarely needed

            debug_log(log, 3, describe(scheduled))
            debug_log(log, 5, str(scheduled.graph))


def _introduce(backend: Backend, buft: BufferType) -> str:
    device = backend.device
    free, total = device.memory()
    room = "memory without a limit" if total == UNLIMITED else f"{free} of {total} bytes free"
    return f"{backend.name}: {device.description}; places tensors in {buft.name}; {room}"


def _check(backends: Sequence[Backend], bufts: Sequence[BufferType]) -> None:
    if not backends:
        raise SchedulingError("a scheduler needs at least one backend")
    if backends[-1].device.type is not DeviceType.CPU:
        raise SchedulingError(
            f"the last backend must be of type cpu, as fallback for all ops; "
            f"{backends[-1].name} is of type {backends[-1].device.type.value}"
        )
    if len(set(backends)) != len(backends):
        raise SchedulingError("a backend is given twice: open a second one on its device")
    if len(bufts) != len(backends):
        raise SchedulingError(f"{len(bufts)} buffer types for {len(backends)} backends")
    for backend, buft in zip(backends, bufts, strict=True):
        if not backend.supports_buft(buft):
            raise SchedulingError(f"{backend.name} cannot use the buffer type {buft.name}")
