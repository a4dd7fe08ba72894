"""Shared by the HTTP tests of embeddings: servers over a fake embedding context.

A vector is a hash of the text's tokens, so a test can compute what the server must answer.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from http_world import HttpVocab, fake_plan
from open_params import open_params

from lamella.base.errors import ContextSizeError
from lamella.model.pooling import F32Array, Pooling
from lamella.model.vocab import Vocab
from lamella.runtime.embedder import Embedder
from lamella.runtime.instance import EmbeddingInstance
from lamella.runtime.params import EngineParams

N_OUT = 8
N_CTX = 64


class FakeEmbedContext:
    """Computes hashes. `on_embed` is called with the texts of each step."""

    def __init__(
        self, pooling: Pooling = Pooling.MEAN, *, n_out: int | None = None, n_ctx: int = N_CTX
    ) -> None:
        self.pooling = pooling
        self.n_out = n_out if n_out is not None else 1 if pooling is Pooling.RANK else N_OUT
        self.n_ctx_seq = n_ctx
        self.n_seq_max = 4
        self.n_graphs_built = self.n_reused = 0
        self.on_embed: Callable[[Sequence[Any]], None] = lambda _: None

    def check(self, text: Sequence[int], _: str) -> None:
        if len(text) > self.n_ctx_seq:
            raise ContextSizeError(len(text), self.n_ctx_seq)

    def lower_priority(self) -> None:
        pass

    def n_fitting(self, lengths: Sequence[int]) -> int:
        return min(len(lengths), self.n_seq_max)

    def embed(self, texts: Sequence[Any]) -> list[F32Array]:
        self.on_embed(texts)
        return [self.vector([int(token) for token in text]) for text in texts]

    def vector(self, tokens: Sequence[int]) -> F32Array:
        """[n_out], or [n_tokens, n_out] without pooling."""
        if self.pooling is Pooling.NONE:
            rows = [_hash(tokens[: i + 1], self.n_out) for i in range(len(tokens))]
            return np.stack(rows)
        return _hash(tokens, self.n_out)

    def buffer_bytes(self) -> dict[tuple[str, str], int]:
        return {("CPU", "weights"): 1000}


def _hash(tokens: Sequence[int], n: int) -> F32Array:
    random = np.random.default_rng(zlib.crc32(np.array(tokens, np.int64).tobytes()))
    return random.standard_normal(n).astype(np.float32) * 3


def make_embedder(
    context: FakeEmbedContext | None = None,
    vocab: HttpVocab | None = None,
    *,
    max_waiting: int = 64,
    max_client_waiting: int = 64,
    **given: Any,
) -> EmbeddingInstance:
    """A fake embedding model. `given` are options of the context."""
    fake = context or FakeEmbedContext(**given)
    embedder = Embedder(
        cast(Any, fake),
        EngineParams(max_waiting=max_waiting, max_client_waiting=max_client_waiting),
    )
    embedder.start()
    known = cast(Vocab, vocab or HttpVocab())
    return EmbeddingInstance(
        params=open_params("models/fake.gguf"),
        plan=fake_plan(),
        embedder=embedder,
        vocab=known,
        meta={"n_vocab": known.n_tokens, "n_params": 0},
    )


def unit(vector: F32Array) -> F32Array:
    """The vector with length 1."""
    length = np.sqrt((vector.astype(np.float64) ** 2).sum())
    return cast(F32Array, (vector / length).astype(np.float32))


def decoded(values: Sequence[float]) -> F32Array:
    """Numbers of JSON as float32."""
    return np.array(values, np.float64).astype(np.float32)
