"""The routes that compute vectors and scores: OpenAI's, llama-server's, TEI's, Jina's, ollama's.

All are one flow: a thread parses the body, makes token ids and submits them to the embedder. Other
threads make the reply in pieces. When the handler ends, the embedder drops the texts that it has
not computed, also if the client disconnected.
Tested by tests/server/test_http_embeddings.py, test_http_rerank.py and test_ollama_routes.py.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from aiohttp import web

from ..base.errors import CancelledError, ClosedError, RequestError
from ..model.pooling import F32Array, Pooling
from ..runtime.embedder import Embedder
from ..runtime.instance import EmbeddingInstance
from . import replies_embed as replies
from .bodies import work_on_body
from .budget import Reservation
from .clients import client_of
from .cost import body_cost, embedding_cost
from .embed_inputs import input_tokens, pair_tokens
from .json_pieces import pieces
from .ollama.models import check_name
from .parsing import parse_body
from .prompts import check_model
from .request_log import record_of
from .routes import embedding_model, loaded_model
from .schema_embed import (
    EmbeddingBody,
    InputsBody,
    Named,
    OllamaEmbedBody,
    OllamaPromptBody,
    RerankBody,
    TeiEmbedBody,
)
from .state import STATE
from .writing import json_reply

N_BLOCK: Final = 256  # texts whose vectors are normalized together

Vectors = Sequence[F32Array]  # of each text: [n_out], or [n_tokens, n_out] without pooling


class Submission:
    """The texts of one request in the embedder. `submit` may run in any thread."""

    def __init__(self, embedder: Embedder, memory: Reservation) -> None:
        self._embedder = embedder
        self._memory = memory
        self._lock = threading.Lock()  # guards the two below
        self._future: Future[list[F32Array]] | None = None
        self._closed = False

    def check(self) -> None:
        """Raises CancelledError after `close`, ClosedError if the embedder is closed."""
        if self._closed:
            raise CancelledError("the client disconnected")
        if self._embedder.closed:
            raise ClosedError("the server is stopping")

    def submit(self, texts: Sequence[Sequence[int]], raw: bytes) -> None:
        """Submit the texts of a body. Raises as `Reservation.take` and `Embedder.submit`."""
        embedder = self._embedder
        is_pooled = embedder.pooling is not Pooling.NONE
        lengths = [len(text) for text in texts]
        vectors = embedding_cost(lengths, embedder.n_out, is_pooled=is_pooled)
        self._memory.take(body_cost(raw) + vectors)
        future = embedder.submit(texts, self._memory.client)
        with self._lock:
            self._future = future
            closed = self._closed
        if closed:  # the client disconnected while a thread made token ids
            future.cancel()

    async def vectors(self) -> Vectors:
        """Wait for the vectors of the submitted texts. Raises the embedder's errors."""
        assert self._future is not None, "nothing was submitted"
        return await asyncio.wrap_future(self._future)

    def close(self) -> None:
        """Drop the texts that are not computed."""
        with self._lock:
            self._closed = True
        if self._future is not None:
            self._future.cancel()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request whose texts are submitted.

    `reply` makes the JSON of its reply from the vectors and the number of tokens, in a thread.
    """

    named: Named
    n_tokens: int
    reply: Callable[[Vectors, int], Iterator[bytes]]

    def pieces(self, vectors: Vectors) -> Iterator[bytes]:
        """The reply in pieces. Raises HTTPInternalServerError before the first one."""
        for i, vector in enumerate(vectors):
            if not np.isfinite(vector).all():
                raise web.HTTPInternalServerError(
                    text=f"the model's vector of {self.named.place(i)} has NaN or infinity"
                )
        yield from pieces(self.reply(vectors, self.n_tokens))


# parses a body and submits its texts; runs in a thread
Preparation = Callable[[Submission, EmbeddingInstance, bytes], Prepared]


def prepare_openai(submission: Submission, model: EmbeddingInstance, raw: bytes) -> Prepared:
    body = parse_body(EmbeddingBody, raw)
    if not body.input:  # as in llama-server, `content` gets its own reply
        return _prepare(submission, model, body, raw, partial(_native_reply, model, body))
    _check_pooled(model)
    return _prepare(submission, model, body, raw, partial(_openai_reply, model, body))


def prepare_native(submission: Submission, model: EmbeddingInstance, raw: bytes) -> Prepared:
    body = parse_body(EmbeddingBody, raw)
    return _prepare(submission, model, body, raw, partial(_native_reply, model, body))


def prepare_tei(submission: Submission, model: EmbeddingInstance, raw: bytes) -> Prepared:
    body = parse_body(TeiEmbedBody, raw)
    _check_pooled(model)
    return _prepare(submission, model, body, raw, partial(_tei_reply, model, body))


def prepare_ollama(submission: Submission, model: EmbeddingInstance, raw: bytes) -> Prepared:
    body = parse_body(OllamaEmbedBody, raw)
    _check_pooled(model)
    check_name(model, body.model)
    reply = partial(_ollama_reply, model, body, time.perf_counter())
    return _prepare(submission, model, body, raw, reply)


def prepare_ollama_prompt(submission: Submission, model: EmbeddingInstance, raw: bytes) -> Prepared:
    body = parse_body(OllamaPromptBody, raw)
    _check_pooled(model)
    check_name(model, body.model)
    return _prepare(submission, model, body, raw, partial(_ollama_vector_reply, model, body))


def prepare_rerank(submission: Submission, model: EmbeddingInstance, raw: bytes) -> Prepared:
    body = parse_body(RerankBody, raw)
    check_model(model, body.model)
    texts = pair_tokens(model, body, submission.check)
    submission.submit(texts, raw)
    return Prepared(body.named, sum(map(len, texts)), partial(_rerank_reply, model, body))


def _prepare(
    submission: Submission,
    model: EmbeddingInstance,
    body: InputsBody,
    raw: bytes,
    reply: Callable[[Vectors, int], Iterator[bytes]],
) -> Prepared:
    check_model(model, body.model)
    _check_dimensions(model, body.dimensions)
    texts = input_tokens(model, body, submission.check)
    submission.submit(texts, raw)
    return Prepared(body.named, sum(map(len, texts)), reply)


def _check_pooled(model: EmbeddingInstance) -> None:
    if model.embedder.pooling is Pooling.NONE:
        raise RequestError(
            "this server makes a vector for each token (--pooling none): call POST /embedding, or "
            "start the server with another --pooling"
        )


def _check_dimensions(model: EmbeddingInstance, n: int | None) -> None:
    n_out = model.embedder.n_out
    if n is not None and n > n_out:
        raise RequestError(f'"dimensions" must be at most {n_out}, found {n}')
    if n is not None and model.embedder.pooling is Pooling.NONE:
        raise RequestError('"dimensions" needs pooling, this server has --pooling none')


def _blocks(model: EmbeddingInstance, body: InputsBody, vectors: Vectors) -> Iterator[F32Array]:
    """The vectors in blocks [n_texts, n_out], cut to `dimensions` and then normalized."""
    for begin in range(0, len(vectors), N_BLOCK):
        rows = np.stack(vectors[begin : begin + N_BLOCK])
        yield model.normalized(rows[:, : body.dimensions], body.norm)


def _openai_reply(
    model: EmbeddingInstance, body: EmbeddingBody, vectors: Vectors, n_tokens: int
) -> Iterator[bytes]:
    blocks = _blocks(model, body, vectors)
    name = body.model or model.alias
    return replies.openai_reply(blocks, is_base64=body.is_base64, model=name, n_tokens=n_tokens)


def _native_reply(
    model: EmbeddingInstance, body: EmbeddingBody, vectors: Vectors, _: int
) -> Iterator[bytes]:
    is_pooled = model.embedder.pooling is not Pooling.NONE
    blocks = _blocks(model, body, vectors) if is_pooled else iter(vectors)
    return replies.native_reply(blocks, is_pooled=is_pooled, is_base64=body.is_base64)


def _tei_reply(
    model: EmbeddingInstance, body: TeiEmbedBody, vectors: Vectors, _: int
) -> Iterator[bytes]:
    return replies.tei_reply(_blocks(model, body, vectors))


def _ollama_reply(
    model: EmbeddingInstance, body: InputsBody, t_start: float, vectors: Vectors, n_tokens: int
) -> Iterator[bytes]:
    n_seconds = time.perf_counter() - t_start
    name, blocks = body.model or model.alias, _blocks(model, body, vectors)
    return replies.ollama_reply(blocks, model=name, n_tokens=n_tokens, n_seconds=n_seconds)


def _ollama_vector_reply(
    model: EmbeddingInstance, body: InputsBody, vectors: Vectors, _: int
) -> Iterator[bytes]:
    return replies.ollama_vector_reply(_blocks(model, body, vectors))


def _rerank_reply(
    model: EmbeddingInstance, body: RerankBody, vectors: Vectors, n_tokens: int
) -> Iterator[bytes]:
    """llama-server's scores are the model's; TEI's are from 0 to 1, unless `raw_scores` is true.

    A model with several labels has probabilities already (Qwen3-Reranker): the first is the score.
    """
    scores = np.stack(vectors)[:, 0]
    is_raw = not body.is_tei if body.raw_scores is None else body.raw_scores
    if not is_raw and model.embedder.n_out == 1:
        scores = replies.sigmoid(scores)
    n_top = body.top_n or len(scores)
    if body.is_tei:
        return replies.tei_rerank_reply(scores, n_top, body.texts if body.return_text else None)
    texts = body.documents if body.return_documents else None
    name = body.model or model.alias
    return replies.rerank_reply(scores, n_top, texts, model=name, n_tokens=n_tokens)


async def _embed(prepare: Preparation, request: web.Request) -> web.StreamResponse:
    is_rank, is_native = prepare is prepare_rerank, prepare is prepare_native
    model = embedding_model(request, is_rank=is_rank, any_pooling=is_native)
    with (
        request.app[STATE].memory.reservation(client_of(request)) as memory,
        closing(Submission(model.embedder, memory)) as submission,
    ):
        prepared = await work_on_body(request, partial(prepare, submission, model))
        record = record_of(request)
        record.n_texts, record.n_text_tokens = len(prepared.named.inputs), prepared.n_tokens
        vectors = await submission.vectors()
        return await json_reply(request, prepared.pieces(vectors))


async def _tei(request: web.Request) -> web.StreamResponse:
    """TEI's POST /, which clients of Hugging Face call: vectors or scores, as the model makes."""
    model = loaded_model(request)
    is_ranker = isinstance(model, EmbeddingInstance) and model.ranks
    return await _embed(prepare_rerank if is_ranker else prepare_tei, request)


def _route(prepare: Preparation, *paths: str) -> list[web.RouteDef]:
    handler = partial(_embed, prepare)
    return [web.post(path, handler) for path in paths]


ROUTES: Final = (
    *_route(prepare_openai, "/v1/embeddings"),
    *_route(prepare_native, "/embeddings", "/embedding"),
    *_route(prepare_tei, "/embed"),
    *_route(prepare_ollama, "/api/embed"),
    *_route(prepare_ollama_prompt, "/api/embeddings"),
    web.post("/", _tei),
    *_route(prepare_rerank, "/rerank", "/reranking", "/v1/rerank", "/v1/reranking", "/v2/rerank"),
)
