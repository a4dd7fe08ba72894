"""Context: decodes batches of tokens with a loaded model, over a paged KV pool.

    context = Context(model, ContextParams(n_ctx=4096))
    seq = context.pool.new_sequence()
    context.append(seq, len(tokens))
    batch = Batch()
    batch.add(tokens, seq, 0, n_outputs=1)
    logits = context.decode(batch)        # float32 [n_outputs, n_vocab]

Graphs are built for a few ubatch sizes and reused (llama-context.cpp, process_ubatch). Not
thread-safe. Knows no text, no sampling and no requests. Tested by tests/model/test_context*.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress

import numpy as np
import numpy.typing as npt

from ..alloc.buffer import Usage
from ..base.errors import ClosedError, LamellaError, OutOfMemoryError, RequestError
from ..base.log import get_logger
from ..base.settings import NO_REUSE, STRICT
from ..graph.op import Op
from ..sched.backend import Backend, Device
from ..sched.compute import EvalCallback
from ..sched.profile import Profiler
from ..sched.scheduled import ScheduledGraph
from ..sched.scheduler import ReservedSizes, Scheduler
from .batch import Batch, UBatch, cut_batch
from .graphs import DecodeGraph, GraphParams, bucket, build_graph
from .kv_groups import make_pool
from .kv_memory import KVMemory, MemoryGroup
from .kv_sequence import KVSequence
from .loader import LoadedModel
from .outputs import Row, top_size, top_sizes
from .params import ContextParams
from .pipeline import why_no_pipeline
from .sampling import SamplingParams
from .strict import NanFinder, have_nan, raise_nan, report_unexpected

log = get_logger("context")

F32Array = npt.NDArray[np.float32]


class Context:
    """A model ready to decode: its backends, scheduler, KV pool and graphs.

    A model in measured memory needs `MeasuredBackend`s; then nothing is compiled or allocated.

    Attributes:
        n_ctx_seq: the most positions of one sequence.
        n_graphs_built: ubatches that needed a new graph.
        n_reused: ubatches that reused a graph.
        no_pipeline: the reason that ubatches run one after the other; "" if they are pipelined.
        in_flight: a ubatch may still run. If it fails, a later call raises its error.

    Args:
        model: its placement determines the devices of keys and values, and the thread counts.
        params: sizes and KV types.
        no_pipeline: a reason to run ubatches one after the other; "" allows a pipeline.
        reserved: sizes that an equal context has reserved; saves measuring them again.
        open_backend: opens the backend of a device.

    Raises:
        RequestError: an invalid parameter.
        OutOfMemoryError: the pool or the compute buffers do not fit; all memory is freed.
    """

    def __init__(
        self,
        model: LoadedModel,
        params: ContextParams | None = None,
        *,
        no_pipeline: str = "",
        reserved: ReservedSizes | None = None,
        open_backend: Callable[[Device], Backend] = lambda device: device.init_backend(),
    ) -> None:
        self.params = params or ContextParams()
        self.model = model
        self.n_ctx = self.params.size(model.hp.n_ctx_train, model.arch.max_default_ctx())
        self.n_ctx_seq = min(self.n_ctx, model.arch.max_ctx() or self.n_ctx)
        self.n_ubatch = min(self.params.n_batch, self.params.n_ubatch, self.n_ctx)
        self.n_seq_max = self.params.n_parallel
        self.n_vocab = model.hp.n_vocab
        self.pool = make_pool(model.hp.memory, self.params, self.n_ctx, self.n_ubatch)
        self.kv = KVMemory(model, self.params, self.pool)
        self._top_sizes = top_sizes(model.homes["output.weight"].device, self.n_vocab)
        self.n_graphs_built = 0
        self.n_reused = 0
        self.closed = False
        self.no_pipeline = no_pipeline or why_no_pipeline(model)
        self._reserved = reserved
        self._open_backend = open_backend
        self._graphs: dict[tuple[GraphParams, int], DecodeGraph] = {}
        self._copy = 0  # index of the input copy that the next ubatch uses
        self.in_flight = False
        self._backends: dict[Device, Backend] = {}
        self._scheduler: Scheduler | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        for device in self.model.devices:
            self._backends[device] = self._open_backend(device)
        self.kv.alloc()
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
        n_top = max(self._top_sizes, default=0)  # only adds nodes, so this is the worst case
        for sizes in sorted(self._reserved_sizes(), reverse=True):
            params = GraphParams(*sizes, n_top)
            graph = self._build(params)
            self._pin_attention(graph)
            self._set_threads(params.n_tokens)
            scheduler.reserve(graph.graph)

    def _reserved_sizes(self) -> Collection[tuple[int, int, int]]:
        """Return (tokens, outputs, sequences) of the graphs that cover the largest memory need.

        A small graph can need more than a large one. Devices leave small batches to the CPU, and
        attention over few tokens is split into partial sums, which need memory.
        """
        n, n_seqs = self.n_ubatch, self.n_seq_max
        sizes = {
            (m, m, bucket(k, n_seqs)) for m in _buckets(n) for k in range(1, min(m, n_seqs) + 1)
        }
        if len(self._backends) > 1 and not self._top_sizes:  # the CPU may compute few outputs
            sizes |= {(n, m, n_seqs) for m in _buckets(n)}
        return {(n, n, n_seqs), *sizes}

    def _warm_up(self) -> None:
        """Compile graphs that cover all kernels, so that no request waits for a compiler."""
        n_seqs = self.n_seq_max
        n_decode = min(self.n_ubatch, n_seqs)
        for n_top in (0, *self._top_sizes):
            self._graph_for(GraphParams(1, 1, 1, n_top))
        if any(device.kernels_by_size for device in self._backends):
            for n in _buckets(self.n_ubatch):
                self._graph_for(GraphParams(n, 1, 1))
                if n < 2 * n_decode:
                    self._graph_for(GraphParams(n, n, bucket(n, n_seqs)))

    @property
    def groups(self) -> Sequence[MemoryGroup]:
        """The groups of layers, each with its pool."""
        return self.kv.groups

    # --- decoding ---

    def append(self, seq: KVSequence, n: int) -> None:
        """Reserve the next `n` positions of a sequence.

        Raises:
            RequestError: the model has no embeddings of so many positions.
            OutOfMemoryError: the pool has too few free pages; nothing has changed.
            BackendError: a ubatch in flight failed; nothing has changed.
        """
        end, most = seq.length + n, self.model.arch.max_ctx()
        if most is not None and end > most:
            raise RequestError(f"a sequence of {end} tokens: the model has {most} positions")
        if self.in_flight and seq.last_is_shared:
            self.synchronize()  # a ubatch in flight may write the cells to copy
        self.kv.copy_cells(seq.append(n))

    def decode(self, batch: Batch) -> F32Array:
        """Compute a batch: write its keys and values, and return the logits of its outputs.

        In a pipeline, ubatches after the last one with an output may still run on return.

        Returns:
            float32 [n_outputs, n_vocab], in the order of the batch; a new array.

        Raises:
            BackendError: a device failed at this batch or at an earlier one in flight. All work in
                flight is lost.
            ClosedError: the context was closed.
        """
        self._open_scheduler()
        logits = np.empty((batch.n_outputs, self.n_vocab), np.float32)
        done = 0
        for ubatch in cut_batch(batch, self.n_ubatch, self.n_seq_max):
            self._read_logits(ubatch, logits[done : done + ubatch.n_outputs])
            done += ubatch.n_outputs
        return logits

    def synchronize(self) -> None:
        """Wait until no ubatch is in flight.

        Raises:
            BackendError: a device failed; all work in flight is lost.
        """
        self._copy, self.in_flight = 0, False  # without a pipeline, all graphs use copy 0
        self._open_scheduler().synchronize()

    def decode_rows(self, batch: Batch) -> list[Row]:
        """Compute a batch as `decode` does, and return a row for each output.

        A row may have only the largest logits, at least `n_top` of them, if the output has an
        `n_top` and its logits are in a device's memory.
        """
        if not self._top_sizes:
            return list(self.decode(batch))
        rows: list[Row] = []
        for ubatch in cut_batch(batch, self.n_ubatch, self.n_seq_max):
            n_tops = ubatch.n_tops
            n_top = top_size(n_tops, self._top_sizes)
            if n_top:
                graph = self._compute(ubatch, n_top)
                found = graph.outputs.read_rows(n_tops)
                self._check(found, ubatch, graph)
                rows += found
            else:
                logits = np.empty((ubatch.n_outputs, self.n_vocab), np.float32)
                self._read_logits(ubatch, logits)
                rows.extend(logits)
        return rows

    def _read_logits(self, ubatch: UBatch, logits: F32Array) -> None:
        """Compute a ubatch and write its logits into `logits` [n_outputs, n_vocab]."""
        graph = self._compute(ubatch)
        if len(logits):
            graph.outputs.read_logits(logits)
            self._check(logits, ubatch, graph)

    def _compute(self, ubatch: UBatch, n_top: int = 0) -> DecodeGraph:
        """Compute a ubatch and return its graph, which holds the outputs.

        Its sequences get pages in the pools of layers with windows, and give others back.
        In a pipeline, a ubatch without outputs may still run on return.
        """
        scheduler = self._open_scheduler()
        try:
            if self.pool.gives_back:
                _prepare(ubatch)
            graph = self._graph_for(self._params_of(ubatch, n_top))
            if STRICT() and not self.in_flight:
                scheduler.poison()
            scheduler.wait_inputs(graph.scheduled)
            graph.set_inputs(ubatch)
            scheduler.graph_compute_async(graph.scheduled)
            if ubatch.n_outputs or self.no_pipeline:
                self.synchronize()
            else:
                self._copy, self.in_flight = (self._copy + 1) % scheduler.n_copies, True
            return graph
        except BaseException:
            with suppress(LamellaError):  # raise the first error, not its consequences
                self.synchronize()
            raise

    def _check(self, rows: F32Array | list[Row], ubatch: UBatch, graph: DecodeGraph) -> None:
        """In strict mode, raise StrictError if the logits of a ubatch have a NaN."""
        if STRICT() and have_nan(rows):
            raise_nan(graph.scheduled, lambda finder: self._compute_again(graph, ubatch, finder))

    def _compute_again(self, graph: DecodeGraph, ubatch: UBatch, finder: NanFinder) -> None:
        """Compute a ubatch again, node by node. It writes the same values to the same cells."""
        scheduler = self._open_scheduler()
        scheduler.poison()
        graph.set_inputs(ubatch)
        before = scheduler.set_eval_callback(finder)
        try:
            scheduler.graph_compute(graph.scheduled)
        finally:
            scheduler.set_eval_callback(before)

    def _params_of(self, ubatch: UBatch, n_top: int) -> GraphParams:
        n_tokens = bucket(ubatch.n_tokens, self.n_ubatch)
        return GraphParams(
            n_tokens,
            bucket(max(ubatch.n_outputs, 1), n_tokens),
            bucket(len(ubatch.seqs), self.n_seq_max),
            n_top,
        )

    def _graph_for(self, params: GraphParams) -> DecodeGraph:
        """Return a scheduled graph of these sizes: the cached one if it can be reused."""
        scheduler, key = self._open_scheduler(), (params, self._copy)
        graph = self._graphs.get(key)
        if graph is not None and not NO_REUSE():
            if graph.can_reuse(scheduler):
                self.n_reused += 1
                return graph
            report_unexpected(f"a graph for {params} was built again")
        graph = self._build(params)
        scheduler.reset()
        self._pin_attention(graph)
        self._set_threads(params.n_tokens)
        before = self.n_bytes()
        graph.schedule(scheduler, self._copy)
        if self.n_bytes() != before:
            report_unexpected(f"compute memory grew from {before} to {self.n_bytes()} for {params}")
        self._graphs[key] = graph
        self.n_graphs_built += 1
        return graph

    def plan_graph(self, n_tokens: int, n_outputs: int, n_seqs: int = 1) -> ScheduledGraph:
        """Return the graph for a ubatch of these sizes with the default sampler."""
        n = bucket(n_tokens, self.n_ubatch)
        n_top = top_size([SamplingParams().top_k], self._top_sizes) if self._top_sizes else 0
        params = GraphParams(n, bucket(n_outputs, n), bucket(n_seqs, self.n_seq_max), n_top)
        return self._graph_for(params).scheduled

    def reserved(self) -> ReservedSizes:
        """Return the reserved sizes, for the `reserved` of an equal context."""
        return self._open_scheduler().reserved()

    def n_bytes(self) -> int:
        """Return the bytes of compute and scratch memory on all devices."""
        scheduler = self._open_scheduler()
        return sum(scheduler.buffer_sizes()) + sum(scheduler.work_sizes())

    def _build(self, params: GraphParams) -> DecodeGraph:
        return build_graph(self.model, self.kv.layers, params, self.pool, self.n_ctx)

    def _set_threads(self, n_tokens: int) -> None:
        """Set the number of threads that the backends' next plans may use."""
        params = self.model.placement.params
        n = params.n_threads if n_tokens == 1 else params.n_threads_batch
        for backend in self._backends.values():
            backend.set_n_threads(n)

    def _pin_attention(self, graph: DecodeGraph) -> None:
        """Pin attention to the device of its pages, as any other would copy the whole pool."""
        scheduler = self._open_scheduler()
        backends = {b.device.buffer_type: b for b in reversed(self._backends.values())}
        for node in graph.graph.nodes:
            if node.op is Op.FLASH_ATTN_EXT:
                backend = backends[node.src[1].root.buffer.buft]
                if backend.supports_op(node):
                    scheduler.set_tensor_backend(node, backend)

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
        buffers = [*self.model.buffers, *self.kv.buffers, *scheduler.buffers()]
        found: dict[tuple[str, str], int] = {}
        for buffer in buffers:
            use = "kv" if buffer.usage is Usage.ANY else buffer.usage.value
            key = (buffer.buft.name, use)
            found[key] = found.get(key, 0) + buffer.size
        for buft, size in (own for device in self._backends for own in device.backend_memory):
            key = (buft.name, Usage.WORK.value)
            found[key] = found.get(key, 0) + size
        return found

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
            stack.callback(self.kv.free)
            if self._scheduler is not None:
                stack.callback(self._scheduler.free)
            for backend in self._backends.values():
                stack.callback(backend.free)  # waits for work that uses the memory

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _prepare(ubatch: UBatch) -> None:
    """Get the pages of the sequences of a ubatch in pools with windows."""
    begins = dict[int, int]()
    for run in ubatch.runs:
        begin = begins.setdefault(id(run.seq), run.pos)
        run.seq.prepare(begin, run.pos + len(run.tokens))


def _buckets(limit: int) -> list[int]:
    """Return all values of `bucket(n, limit)`, ascending."""
    return sorted({bucket(min(1 << i, limit), limit) for i in range(limit.bit_length() + 1)})
