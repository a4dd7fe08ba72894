"""Graph contexts: what all contexts of a model have in common.

A context opens the model's backends, reserves compute memory for its largest graphs, and keeps the
graphs that it has scheduled. Knows no batches, no sequences and no pool.
Tested by tests/model/test_context*.py and test_embed_context.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final, Self, TypeVar, cast

from ..alloc.buffer import Buffer, BufferType, Usage
from ..base.errors import ClosedError, LamellaError, OutOfMemoryError
from ..base.log import get_logger
from ..base.priority import lower_priority
from ..base.settings import NO_REUSE, NO_WARM_UP, STRICT
from ..graph.op import Op
from ..graph.tensor import Tensor
from ..sched.backend import Backend, Device, DeviceType
from ..sched.compute import EvalCallback, WriteLate
from ..sched.profile import Profiler
from ..sched.scheduled import ScheduledGraph
from ..sched.scheduler import ReservedSizes, Scheduler
from .graphs import StepGraph
from .kv_memory import KVRead, MemoryGroup
from .loader import LoadedModel
from .params import ContextParams
from .strict import report_unexpected

log = get_logger("context")

NORMS: Final = (Op.RMS_NORM, Op.NORM)

G = TypeVar("G", bound=StepGraph)


class GraphContext(ABC):
    """A loaded model with its backends, a scheduler and graphs.

    A model in measured memory needs `MeasuredBackend`s; then nothing is compiled or allocated.

    Attributes:
        n_ctx: tokens of the context.
        n_ubatch: the most tokens of a graph.
        n_seq_max: the most sequences of a graph.
        n_graphs_built: steps that needed a new graph.
        n_reused: steps that reused a graph.
        no_pipeline: the reason that steps run one after the other; "" if they are pipelined.
        in_flight: a step may still run. If it fails, a later call raises its error.
        strict: LAMELLA_STRICT was on when the context was opened.
    """

    n_ctx: int
    n_ubatch: int
    n_seq_max: int

    def __init__(
        self,
        model: LoadedModel,
        params: ContextParams,
        *,
        no_pipeline: str,
        reserved: ReservedSizes | None,
        open_backend: Callable[[Device], Backend],
    ) -> None:
        """
        Args:
            model: its placement determines the devices and the thread counts.
            params: sizes and KV types.
            no_pipeline: a reason to run steps one after the other; "" allows a pipeline.
            reserved: sizes that an equal context has reserved; saves measuring them again.
            open_backend: opens the backend of a device.

        Raises:
            OutOfMemoryError: memory or compute buffers do not fit; all memory is freed.
        """
        self.params = params
        self.model = model
        self.n_graphs_built = 0
        self.n_reused = 0
        self.closed = False
        self.no_pipeline = no_pipeline
        self.in_flight = False
        self.strict = bool(STRICT())
        self._reserved = reserved
        self._open_backend = open_backend
        self._graphs: dict[tuple[Any, int], StepGraph] = {}
        self._copy = 0  # index of the input copy that the next step uses
        self._backends: dict[Device, Backend] = {}
        self._scheduler: Scheduler | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    # --- what a context defines ---

    @property
    @abstractmethod
    def groups(self) -> Sequence[MemoryGroup]:
        """The groups of layers with keys and values, each with its pool."""

    @property
    def state_group(self) -> MemoryGroup | None:
        """The layers with states, and their slots; None: there are none."""
        return None

    @property
    def all_groups(self) -> Sequence[MemoryGroup]:
        """The groups with a pool, the one with slots is the last."""
        state = self.state_group
        return self.groups if state is None else (*self.groups, state)

    @property
    @abstractmethod
    def memory_buffers(self) -> Sequence[Buffer]:
        """The memory of sequences."""

    @abstractmethod
    def reads(self) -> Iterable[tuple[Device, KVRead]]:
        """Yield what attention of each layer reads of the pools, and the device that has it."""

    @abstractmethod
    def plan_graph(self, n_tokens: int, n_outputs: int, n_seqs: int = 1) -> ScheduledGraph:
        """Return the graph for a step of these sizes, as a request with defaults uses it."""

    @abstractmethod
    def _alloc(self) -> None:
        """Allocate the memory of sequences."""

    @abstractmethod
    def _free(self) -> None:
        """Free the memory of sequences. May be called again."""

    @abstractmethod
    def _reserved_graphs(self) -> Iterator[tuple[int, StepGraph]]:
        """Yield graphs that cover the largest memory need, the largest first, and their tokens."""

    @abstractmethod
    def _warm_up(self) -> None:
        """Compile graphs that cover all kernels, so that no request waits for a compiler."""

    # --- opening ---

    def _open(self) -> None:
        for device in self.model.devices:
            self._backends[device] = self._open_backend(device)
        self._alloc()
        if not self.no_pipeline:
            try:
                self._reserve(parallel=True)
            except OutOfMemoryError as e:
                self.no_pipeline = f"the pipeline's compute buffers do not fit: {e}"
                log.warning(f"ubatches run one after the other: {self.no_pipeline}")
                self._open_scheduler().free()
        if self.no_pipeline:
            self._reserve(parallel=False)
        if any(backend.compiles for backend in self._backends.values()):
            self._warm_up()

    def _reserve(self, parallel: bool) -> None:
        """Open a scheduler with compute memory that is large enough for every later graph."""
        backends = list(self._backends.values())
        op_offload = self.model.placement.params.op_offload is not False
        scheduler = Scheduler(
            backends, parallel=parallel, op_offload=op_offload, memory=self.model.memory
        )
        self._scheduler = scheduler
        known = self._reserved
        if known is not None and known.n_copies == scheduler.n_copies:
            scheduler.reserve_sizes(known)
            return
        for n_tokens, graph in self._reserved_graphs():
            self._pin(graph)
            self._set_threads(n_tokens)
            scheduler.reserve(graph.graph)

    # --- graphs ---

    def _pin(self, graph: StepGraph) -> None:
        """Pin nodes to backends before the graph is scheduled: the first norm of a device to its
        weight, as llama.cpp does. Else it follows the device before, and two rows are copied for a
        token instead of one: those before and after the norm."""
        scheduler, before = self._open_scheduler(), None
        backends = {b.device.buffer_type: b for b in reversed(self._backends.values())}
        for node in graph.graph.nodes:
            backend = _weights_backend(node, backends)
            if backend is None or backend is before:
                continue
            norm = node.src[0]
            is_first = before is not None and node.op is Op.MUL and norm.op in NORMS
            if is_first and backend.supports_op(norm):
                scheduler.set_tensor_backend(norm, backend)
            before = backend

    def _cached(self, params: Hashable, n_tokens: int, build: Callable[[], G]) -> G:
        """Return a scheduled graph: the cached one of these parameters if it can be reused."""
        scheduler, key = self._open_scheduler(), (params, self._copy)
        known = self._graphs.get(key)
        if known is not None:
            if known.can_reuse(scheduler):
                self.n_reused += 1
                return cast(G, known)
            report_unexpected(f"a graph for {params} was built again")
        graph = build()
        scheduler.reset()
        self._pin(graph)
        self._set_threads(n_tokens)
        before = self.n_bytes()
        graph.schedule(scheduler, self._copy)
        if self.n_bytes() != before:
            report_unexpected(f"compute memory grew from {before} to {self.n_bytes()} for {params}")
        if not NO_REUSE():
            self._graphs[key] = graph
        self.n_graphs_built += 1
        return graph

    @property
    def _runs_first(self) -> bool:
        """True if graphs must run before the first request: all layers are on devices whose first
        run is slow. With layers on others, these take longer."""
        return not NO_WARM_UP() and all(d.first_run_is_slow for d in self.model.layers)

    def _set_threads(self, n_tokens: int) -> None:
        """Set the number of threads that the backends' next plans may use."""
        params = self.model.placement.params
        n = params.n_threads if n_tokens == 1 else params.n_threads_batch
        for backend in self._backends.values():
            backend.set_n_threads(n)

    def _run(
        self,
        graph: StepGraph,
        set_inputs: Callable[[], None],
        write_late: WriteLate | None = None,
        *,
        goes_on: bool = False,
    ) -> None:
        """Set a graph's inputs and start to compute it. The caller must `synchronize`; if the
        pipeline `goes_on`, other graphs may follow first.

        `write_late` writes its late inputs; see `Scheduler.graph_compute_async`.
        """
        scheduler = self._open_scheduler()
        if self.strict and not self.in_flight:
            scheduler.poison()
        scheduler.wait_inputs(graph.scheduled)
        set_inputs()
        self._launch(graph, write_late, goes_on=goes_on)
        if goes_on:
            self._copy = (self._copy + 1) % scheduler.n_copies

    def _launch(
        self, graph: StepGraph, write_late: WriteLate | None = None, *, goes_on: bool = False
    ) -> None:
        """Start to compute a graph whose inputs are set; see `_run`."""
        scheduler = self._open_scheduler()
        scheduler.graph_compute_async(graph.scheduled, write_late, release_inputs=goes_on)
        self.in_flight = True

    def _synchronize_after_error(self) -> None:
        """Wait for all work in flight. Raises nothing: the first error counts, not what follows."""
        with suppress(LamellaError):
            self.synchronize()

    def lower_priority(self) -> None:
        """Lower the priority of the calling thread, which computes, and of its helpers."""
        lower_priority()
        for backend in self._backends.values():
            backend.lower_priority()

    def synchronize(self) -> None:
        """Wait until no step is in flight.

        Raises:
            BackendError: a device failed; all work in flight is lost.
        """
        self._copy, self.in_flight = 0, False  # without a pipeline, all graphs use copy 0
        self._open_scheduler().synchronize()

    # --- observing ---

    def set_profiler(self, profiler: Profiler | None) -> None:
        """Measure the time of later computations; None stops. See `sched.profile`."""
        self._open_scheduler().set_profiler(profiler)

    def set_eval_callback(self, callback: EvalCallback | None) -> None:
        """Call `callback` for nodes as they are computed; see `Scheduler.set_eval_callback`."""
        self._open_scheduler().set_eval_callback(callback)

    def buffer_bytes(self) -> dict[tuple[str, str], int]:
        """Return the allocated bytes of the model and this context, by buffer type and use.

        A use is "weights", "kv", "compute" or "work". Thread-safe. Empty after `close`.
        """
        scheduler = self._scheduler
        if self.closed or scheduler is None:
            return {}
        buffers = [*self.model.buffers, *self.memory_buffers, *scheduler.buffers()]
        found: dict[tuple[str, str], int] = {}
        for buffer in buffers:
            use = "kv" if buffer.usage is Usage.ANY else buffer.usage.value
            key = (buffer.buft.name, use)
            found[key] = found.get(key, 0) + buffer.size
        for buft, size in (own for device in self._backends for own in device.backend_memory):
            key = (buft.name, Usage.WORK.value)
            found[key] = found.get(key, 0) + size
        return found

    def reserved(self) -> ReservedSizes:
        """Return the reserved sizes, for the `reserved` of an equal context."""
        return self._open_scheduler().reserved()

    def n_bytes(self) -> int:
        """Return the bytes of compute and scratch memory on all devices."""
        scheduler = self._open_scheduler()
        return sum(scheduler.buffer_sizes()) + sum(scheduler.work_sizes())

    # --- closing ---

    def _open_scheduler(self) -> Scheduler:
        if self.closed or self._scheduler is None:
            raise ClosedError("the context was used after it was closed")
        return self._scheduler

    def close(self) -> None:
        """Free everything but the model. May be called again."""
        if self.closed:
            return
        self.closed = True
        self._graphs.clear()
        if self._scheduler is not None:
            with suppress(LamellaError):  # results in flight are not needed
                self._scheduler.synchronize()
        with ExitStack() as stack:  # runs in reverse order, and to the end even if one fails
            stack.callback(self._free)
            if self._scheduler is not None:
                stack.callback(self._scheduler.free)
            for backend in self._backends.values():
                stack.callback(backend.free)  # waits for work that uses the memory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _weights_backend(node: Tensor, backends: Mapping[BufferType, Backend]) -> Backend | None:
    """The backend that has weights of a node; None if there are none, or in the CPU's memory."""
    for src in node.src:
        if src.buffer is not None and src.buffer.usage is Usage.WEIGHTS:
            backend = backends.get(src.buffer.buft)
            if backend is not None and backend.device.type is not DeviceType.CPU:
                return backend
    return None
