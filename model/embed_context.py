"""EmbedContext: computes the vectors of texts with a loaded model.

    context = EmbedContext(model, ContextParams())
    vectors = context.embed([tokens, more_tokens])     # float32 [n_out] each

A step takes whole texts, so there is no KV pool. A text's vector has the same bits alone and with
any others. Knows no characters and no requests. Not thread-safe.
Tested by tests/model/test_embed_context.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from ..alloc.buffer import Buffer, tensor_read, tensor_set
from ..base.errors import ContextSizeError, RequestError, UnsupportedModelError
from ..graph import GGMLType
from ..graph.tensor import Tensor
from ..sched.backend import Backend, Device
from ..sched.scheduled import ScheduledGraph
from ..sched.scheduler import ReservedSizes
from .arch import Architecture
from .context import Context
from .embed_graph import N_TEXTS, EmbedGraph, EmbedParams, HeadGraph
from .graph_context import GraphContext
from .graphs import StepGraph, bucket
from .kv_memory import KVRead, MemoryGroup
from .layer_memory import state_group
from .loader import LoadedModel
from .params import ContextParams, EmbeddingParams
from .pooling import Pooling
from .strict import have_nan, raise_nan

I32Array = npt.NDArray[np.int32]
F32Array = npt.NDArray[np.float32]

NO_PIPELINE: Final = "embeddings are computed one step at a time"


class EmbedContext(GraphContext):
    """A model ready to embed: its backends, scheduler and graphs.

    Attributes:
        n_ctx_seq: the most tokens of a text.
        n_step: the tokens of a step with several texts.
        pooling: how the rows of a text's tokens become a vector.
        n_out: elements of a vector, or scores of a pair of texts.
    """

    def __init__(
        self,
        model: LoadedModel,
        params: ContextParams | None = None,
        embedding: EmbeddingParams | None = None,
        *,
        no_pipeline: str = "",
        reserved: ReservedSizes | None = None,
        open_backend: Callable[[Device], Backend] = lambda device: device.init_backend(),
    ) -> None:
        """Arguments are those of `GraphContext`.

        Raises:
            RequestError: an invalid parameter, or a model without a classifier for `rank`.
            UnsupportedModelError: the model has layers with states.
            OutOfMemoryError: the compute buffers do not fit; all memory is freed.
        """
        params = params or ContextParams()
        arch = model.arch
        if state_group(model.hp.memory) is not None:
            raise UnsupportedModelError(
                f"{model.path}: embeddings of {model.hp.arch!r} are not supported, as its layers "
                "keep states"
            )
        self.pooling = pooling_of(arch, embedding or EmbeddingParams())
        row_pooling = self.pooling
        if row_pooling is Pooling.RANK:
            row_pooling = arch.classifier_pooling
        self._row_pooling = row_pooling
        n_head = 0 if self.pooling is Pooling.NONE else _n_head(model, self.pooling)
        self._has_head = n_head > 0
        if self.pooling is Pooling.RANK and not self._has_head:
            raise RequestError(
                f"{model.path}: pooling is rank, but the model has no classifier: the file lacks "
                "cls.weight and cls.output.weight, which converters write for rerankers only"
            )
        self.n_ctx = params.size(model.hp.n_ctx_train, arch.max_default_ctx(), n_parallel=1)
        self.n_ctx_seq = min(self.n_ctx, arch.max_ctx() or self.n_ctx)
        self.n_step = min(params.n_batch, params.n_ubatch, self.n_ctx)
        self.n_ubatch = max(self.n_ctx_seq, self.n_step)
        self.n_seq_max = min(N_TEXTS, self.n_step)
        self.n_out = n_head or model.hp.n_embd
        super().__init__(
            model,
            params,
            no_pipeline=no_pipeline or NO_PIPELINE,
            reserved=reserved,
            open_backend=open_backend,
        )

    # --- texts ---

    def check(self, text: Sequence[int], what: str = "the text") -> None:
        """Check that a text can be computed. `what` is its name in messages.

        Raises:
            RequestError: it is empty, or an id is invalid.
            ContextSizeError: it is longer than the context.
        """
        n_vocab = self.model.hp.n_vocab
        if len(text) == 0:
            raise RequestError(f"{what} has no tokens: it must have at least 1")
        for token in (min(text), max(text)):
            if not 0 <= token < n_vocab:
                raise RequestError(f"token {token} of {what}: must be 0 to {n_vocab - 1}")
        if len(text) > self.n_ctx_seq:
            raise ContextSizeError(len(text), self.n_ctx_seq, what, "shorten or truncate it")

    def n_fitting(self, lengths: Iterable[int]) -> int:
        """Return the number of texts, of these lengths and in this order, that one step takes."""
        n = n_tokens = 0
        for length in lengths:
            n_tokens += length
            if n == self.n_seq_max or (n and n_tokens > self.n_step):
                break
            n += 1
        return n

    def embed(self, texts: Sequence[I32Array]) -> list[F32Array]:
        """Return the vectors of texts, each an array of tokens; they must pass `check`.

        Returns:
            For each text float32 [n_out]; [n_tokens, n_embd] for `Pooling.NONE`.

        Raises:
            BackendError: a device failed.
            ClosedError: the context was closed.
        """
        pooled: list[F32Array] = []
        while len(pooled) < len(texts):
            rest = texts[len(pooled) :]
            pooled += self._step(rest[: self.n_fitting(map(len, rest))])
        return self._head(pooled) if self._has_head else pooled

    def _step(self, texts: Sequence[I32Array]) -> list[F32Array]:
        """Return the pooled rows of texts that fit into one graph."""
        row = self._row_pooling.row
        n_rows = len(texts) if row is not None else sum(map(len, texts))
        graph = self._graph_for(self._params_of(texts))
        try:
            self._run(graph, lambda: graph.set_inputs(texts, row))
            self.synchronize()
        except BaseException:
            self._synchronize_after_error()
            raise
        rows = _read(graph.rows, n_rows)
        if self.strict and have_nan(list(rows)):
            raise_nan(graph.scheduled, lambda finder: None)
        ends = np.cumsum([1 if row is not None else len(text) for text in texts])
        return [self._row_pooling.of(part) for part in np.split(rows, ends[:-1])]

    def _head(self, pooled: Sequence[F32Array]) -> list[F32Array]:
        """Return the results of the graph that follows pooling."""
        results: list[F32Array] = []
        for begin in range(0, len(pooled), self.n_seq_max):
            results.extend(self._scored(np.stack(pooled[begin : begin + self.n_seq_max])))
        return results

    def _scored(self, rows: F32Array) -> F32Array:
        """Return the results [n, n_out] of a head graph's rows [n, n_embd]."""
        graph = self._head_for(bucket(len(rows), self.n_seq_max))
        padded = np.resize(rows, (graph.rows.ne[1], rows.shape[1]))
        try:
            self._run(graph, lambda: tensor_set(graph.rows, padded))
            self.synchronize()
        except BaseException:
            self._synchronize_after_error()
            raise
        return _read(graph.result, len(rows))

    # --- graphs ---

    def _params_of(self, texts: Sequence[I32Array]) -> EmbedParams:
        n_tokens = step_bucket(sum(map(len, texts)), self.n_ubatch)
        return self._params(n_tokens, len(texts))

    def _params(self, n_tokens: int, n_texts: int) -> EmbedParams:
        n_seqs = 1 if n_texts == 1 else self.n_seq_max
        if self._row_pooling.row is None:
            return EmbedParams(n_tokens, n_tokens, n_seqs)
        return EmbedParams(n_tokens, bucket(n_texts, min(n_seqs, n_tokens)), n_seqs)

    def _graph_for(self, params: EmbedParams) -> EmbedGraph:
        return self._cached(params, params.n_tokens, lambda: self._build(params))

    def _head_for(self, n_texts: int) -> HeadGraph:
        return self._cached(("head", n_texts), n_texts, lambda: self._build_head(n_texts))

    def _build(self, params: EmbedParams) -> EmbedGraph:
        return EmbedGraph(self.model, params, self.n_ctx)

    def _build_head(self, n_texts: int) -> HeadGraph:
        return HeadGraph(self.model, n_texts, self.pooling)

    def plan_graph(self, n_tokens: int, n_outputs: int, n_seqs: int = 1) -> ScheduledGraph:
        return self._graph_for(self._params(step_bucket(n_tokens, self.n_ubatch), n_seqs)).scheduled

    def _reserved_graphs(self) -> Iterator[tuple[int, StepGraph]]:
        sizes = {(self.n_ubatch, 1), *self._usual_sizes()}
        for n_tokens, n_texts in sorted(sizes, reverse=True):
            yield n_tokens, self._build(self._params(n_tokens, n_texts))
        if self._has_head:
            yield self.n_seq_max, self._build_head(self.n_seq_max)

    def _usual_sizes(self) -> Sequence[tuple[int, int]]:
        """Return the tokens and texts of the smallest step and of a full one."""
        return (1, 1), (step_bucket(self.n_step, self.n_ubatch), self.n_seq_max)

    def _warm_up(self) -> None:
        for n_tokens, n_texts in self._usual_sizes():
            self._graph_for(self._params(n_tokens, n_texts))
        if self._has_head:
            self._head_for(1)
        if self._runs_first:
            self.embed([np.zeros(1, np.int32)])

    # --- memory: there is none between steps ---

    @property
    def groups(self) -> Sequence[MemoryGroup]:
        return ()

    @property
    def memory_buffers(self) -> Sequence[Buffer]:
        return ()

    def reads(self) -> Iterable[tuple[Device, KVRead]]:
        return ()

    def _alloc(self) -> None:
        pass

    def _free(self) -> None:
        pass


def context_type(
    arch: Architecture, params: EmbeddingParams
) -> Callable[..., Context | EmbedContext]:
    """Return the kind of context that a model is opened with. Raises as `embeds`."""
    return partial(EmbedContext, embedding=params) if embeds(arch, params) else Context


def embeds(arch: Architecture, params: EmbeddingParams) -> bool:
    """True if a model is opened to compute embeddings, not text.

    By default these are encoders, and models whose file names a pooling.

    Raises:
        UnsupportedModelError: text is wanted of an encoder.
    """
    if params.embeddings is None:
        named = params.pooling is not None or (arch.pooling or Pooling.NONE) is not Pooling.NONE
        return named or not arch.generates
    if not params.embeddings and not arch.generates:
        raise UnsupportedModelError(
            f"{arch.path}: {arch.hp.arch!r} computes embeddings, it does not generate text: "
            "use `lamella embed`, `lamella serve` or `Model.embed`"
        )
    return params.embeddings


def pooling_of(arch: Architecture, params: EmbeddingParams) -> Pooling:
    """Return the pooling that is set, else the file's; else the last token's for decoders, and the
    mean for encoders."""
    if params.pooling is not None:
        return params.pooling
    if arch.pooling is not None:
        return arch.pooling
    return Pooling.LAST if arch.generates else Pooling.MEAN


def step_bucket(n: int, limit: int) -> int:
    """Return the smallest size of a graph that is at least `n`: eight sizes for each doubling.

    `limit` is the largest size.
    """
    step = max((1 << (n - 1).bit_length()) // 16, 1)
    return min(-(-n // step) * step, limit)


def _n_head(model: LoadedModel, pooling: Pooling) -> int:
    """Return the elements of a result of the graph that follows pooling; 0: there is none."""
    row = Tensor(GGMLType.F32, (model.hp.n_embd, 1))
    result = model.arch.build_head(model.weights, row, pooling)
    return 0 if result is None else result.ne[0]


def _read(tensor: Tensor, n_rows: int) -> F32Array:
    """Return the first rows of a result, float32 [n_rows, n]."""
    rows = np.empty((n_rows, tensor.ne[0]), np.float32)
    tensor_read(tensor, rows.reshape(-1).view(np.uint8))
    return rows
