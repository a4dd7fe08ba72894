"""KV contexts: what a context that decodes has besides its batches: a paged pool, and graphs.

Graphs are built for a few ubatch sizes and reused (llama-context.cpp, process_ubatch). Knows no
batches, and of a ubatch its sizes only. Tested by tests/model/test_context*.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from ..alloc.buffer import Buffer
from ..base.errors import RequestError, UnsupportedModelError
from ..graph.op import Op
from ..kernels.cpu.device import CpuBackend
from ..kernels.cpu.pool import ThreadPool
from ..sched.backend import Backend, Device
from ..sched.scheduled import ScheduledGraph
from ..sched.scheduler import ReservedSizes
from .batch import UBatch
from .graph_context import GraphContext
from .graphs import DecodeGraph, GraphParams, StepGraph, bucket, build_graph, params_of
from .kv_groups import make_pool
from .kv_memory import KVMemory, KVRead, MemoryGroup
from .kv_sequence import KVSequence
from .loader import LoadedModel
from .outputs import top_size, top_sizes
from .params import ContextParams
from .pipeline import why_no_pipeline
from .sampling import SamplingParams

F32Array = npt.NDArray[np.float32]

N_NOT_OFFLOADED: Final = 16  # tokens: a graph of the next size, 32, may be offloaded


class KVContext(GraphContext):
    """A graph context with a KV pool.

    Attributes:
        n_ctx_seq: the most positions of one sequence.
        n_vocab: the logits of an output.
        pool: the pages and slots of sequences.
        kv: the memory of the pool.
        keeps_hidden: it keeps the hidden states of a batch's tokens.
    """

    def __init__(
        self,
        model: LoadedModel,
        params: ContextParams | None = None,
        *,
        no_pipeline: str = "",
        reserved: ReservedSizes | None = None,
        open_backend: Callable[[Device], Backend] = lambda device: device.init_backend(),
        keeps_hidden: bool = False,
    ) -> None:
        """Arguments are those of `GraphContext`, and `keeps_hidden`.

        Raises:
            RequestError: an invalid parameter.
            UnsupportedModelError: the model computes embeddings only.
            OutOfMemoryError: the pool or the compute buffers do not fit; all memory is freed.
        """
        params = params or ContextParams()
        if not model.arch.generates:
            raise UnsupportedModelError(
                f"{model.path}: {model.hp.arch!r} computes embeddings, it does not generate text"
            )
        self.n_ctx = params.size(model.hp.n_ctx_train, model.arch.max_default_ctx())
        self._max_ctx = model.arch.max_ctx()
        self.n_ctx_seq = min(self.n_ctx, self._max_ctx or self.n_ctx)
        self.n_ubatch = min(params.n_batch, params.n_ubatch, self.n_ctx)
        self.n_seq_max = params.n_parallel
        self.n_vocab = model.hp.n_vocab
        self.pool = make_pool(model.hp.memory, params, self.n_ctx, self.n_ubatch)
        self.kv = KVMemory(model, params, self.pool)
        self.keeps_hidden = keeps_hidden or model.arch.n_hidden > 0
        self._hidden: list[F32Array] = []
        if self.keeps_hidden:
            no_pipeline = no_pipeline or "draft-mtp reads the hidden states of each ubatch"
        self._top_sizes = top_sizes(model.homes["output.weight"].device, self.n_vocab)
        super().__init__(
            model,
            params,
            no_pipeline=no_pipeline or why_no_pipeline(model),
            reserved=reserved,
            open_backend=open_backend,
        )

    @property
    def groups(self) -> Sequence[MemoryGroup]:
        return self.kv.groups

    @property
    def state_group(self) -> MemoryGroup | None:
        return self.kv.state_group

    @property
    def memory_buffers(self) -> Sequence[Buffer]:
        return self.kv.buffers

    def reads(self) -> Iterable[tuple[Device, KVRead]]:
        return self.kv.reads()

    def _alloc(self) -> None:
        self.kv.alloc()

    def _free(self) -> None:
        self.kv.free()

    def _reserved_graphs(self) -> Iterator[tuple[int, DecodeGraph]]:
        # masks and largest logits only add nodes, so this is the worst case
        n_top = max(self._top_sizes, default=0)
        for sizes in sorted(self._reserved_sizes(), reverse=True):
            for adapted in self._kinds:
                params = GraphParams(*sizes, n_top, masked=n_top > 0, adapted=adapted)
                yield sizes[0], self._build(params)

    def _reserved_sizes(self) -> Collection[tuple[int, int, int]]:
        """Return (tokens, outputs, sequences) of the graphs that cover the largest memory need.

        A small graph can need more than a large one. Devices leave small batches to the CPU, and
        attention over few tokens is split into partial sums, which need memory.
        """
        n, n_seqs = self.n_ubatch, self.n_seq_max
        few = [device.few_tokens for device in self._backends]
        if len(few) == 1 and few[0] is not None:
            m = max(m for m in _buckets(n) if m <= few[0])
            return {(n, n, n_seqs), (m, m, bucket(m, n_seqs)), (1, 1, 1)}  # 1 has its own threads
        sizes = {
            (m, m, bucket(k, n_seqs)) for m in _buckets(n) for k in range(1, min(m, n_seqs) + 1)
        }
        if len(self._backends) > 1 and not self._top_sizes:  # the CPU may compute few outputs
            sizes |= {(n, m, n_seqs) for m in _buckets(n)}
        return {(n, n, n_seqs), *sizes}

    def _warm_up(self) -> None:
        n_seqs = self.n_seq_max
        n_decode = max(min(self.n_ubatch, n_seqs), self.n_checked_max)
        for n_top in (0, *self._top_sizes):
            for adapted in self._kinds:
                self._warm_up_graph(GraphParams(1, 1, 1, n_top, adapted=adapted))
        if any(device.kernels_by_size for device in self._backends):
            for n in _buckets(self.n_ubatch):
                self._warm_up_graph(GraphParams(n, 1, 1))
                if n < 2 * n_decode:
                    self._warm_up_graph(GraphParams(n, n, bucket(n, n_seqs)))

    def _warm_up_graph(self, params: GraphParams) -> None:
        """Compile a graph. If its first run would be slow, run it with padding tokens."""
        before = self.n_graphs_built
        graph = self._graph_for(params)
        if self._runs_first and self.n_graphs_built > before:
            self._run(graph, lambda: graph.set_inputs(UBatch([], 0, 0, {})))
            self.synchronize()

    @property
    def _kinds(self) -> Sequence[bool]:
        """The kinds of graphs: without LoRA adapters, and with them if there are any."""
        return (False, True) if self.model.adapters.all else (False,)

    @property
    def is_on_host(self) -> bool:
        """True if the logits are in the processor's memory, not in a device's."""
        return not self._top_sizes

    @cached_property
    def n_checked_max(self) -> int:
        """The most tokens of a step that checks guesses. More could run on other devices (op
        offload) than a step of few, and their bits differ."""
        homes, cpu = self.model.homes, self.model.placement.cpu
        others = len(self._backends) > 1 and self.model.placement.params.op_offload is not False
        lent = any(
            home.device is cpu and home.buft not in cpu.extra_buffer_types
            for name, home in homes.items()
            if name != "token_embd.weight"  # its rows are few
        )
        return min(self.n_ubatch, N_NOT_OFFLOADED if others and lent else self.n_ubatch)

    @property
    def host_threads(self) -> ThreadPool | None:
        """The processor's threads for kernels; None if NumPy computes."""
        backends = (b for b in self._backends.values() if isinstance(b, CpuBackend))
        return next((backend.pool for backend in backends), None)

    def append(self, seq: KVSequence, n: int) -> None:
        """Reserve the next `n` positions of a sequence.

        Raises:
            RequestError: the model has no embeddings of so many positions.
            OutOfMemoryError: the pool has too few free pages; nothing has changed.
            BackendError: a ubatch in flight failed; nothing has changed.
        """
        end, most = seq.length + n, self._max_ctx
        if most is not None and end > most:
            raise RequestError(f"a sequence of {end} tokens: the model has {most} positions")
        if self.in_flight and seq.last_is_shared:
            self.synchronize()  # a ubatch in flight may write the cells to copy
        if copies := seq.append(n):
            self.kv.copy_cells(copies)

    def _params_of(self, ubatch: UBatch, n_top: int, masked: bool) -> GraphParams:
        sizes = (ubatch.n_tokens, ubatch.n_outputs, len(ubatch.seqs))
        limits = (self.n_ubatch, self.n_seq_max)
        adapted = bool(self.model.adapters.all) and ubatch.is_adapted
        return params_of(*sizes, n_top, masked, adapted, *limits)

    def _graph_for(self, params: GraphParams) -> DecodeGraph:
        """Return a scheduled graph of these sizes: the cached one if it can be reused."""
        return self._cached(params, params.n_tokens, lambda: self._build(params))

    def _known(self, params: GraphParams) -> DecodeGraph | None:
        """A graph of these sizes that is scheduled already; None if there is none."""
        graph = self._graphs.get((params, self._copy))
        if not isinstance(graph, DecodeGraph) or not graph.can_reuse(self._open_scheduler()):
            return None
        return graph

    def plan_graph(self, n_tokens: int, n_outputs: int, n_seqs: int = 1) -> ScheduledGraph:
        n = bucket(n_tokens, self.n_ubatch)
        n_top = top_size([SamplingParams().top_k], self._top_sizes) if self._top_sizes else 0
        params = GraphParams(n, bucket(n_outputs, n), bucket(n_seqs, self.n_seq_max), n_top)
        return self._graph_for(params).scheduled

    def _build(self, params: GraphParams) -> DecodeGraph:
        return build_graph(
            self.model,
            self.kv,
            params,
            self.pool,
            self.n_ctx,
            keeps_hidden=self.keeps_hidden,
        )

    def _pin(self, graph: StepGraph) -> None:
        """Also pin attention to the device of its pages, as any other would copy the whole pool."""
        super()._pin(graph)
        scheduler = self._open_scheduler()
        backends = {b.device.buffer_type: b for b in reversed(self._backends.values())}
        for node in graph.graph.nodes:
            if node.op in (Op.FLASH_ATTN_EXT, Op.INDEX_SCORES):
                backend = backends[node.src[1].root.buffer.buft]
                if backend.supports_op(node):
                    scheduler.set_tensor_backend(node, backend)


def _buckets(limit: int) -> list[int]:
    """Return all values of `bucket(n, limit)`, ascending."""
    return sorted({bucket(min(1 << i, limit), limit) for i in range(limit.bit_length() + 1)})
