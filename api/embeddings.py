"""The embedding methods of a model: vectors of texts, and scores of documents for a query.

Knows no HTTP. Tested by tests/api/test_embeddings.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from numbers import Integral
from reprlib import repr as shortened
from typing import Any, Literal, cast, overload

import numpy as np
import numpy.typing as npt

from .arguments import token_ids
from .base.errors import RequestError
from .base.utf8 import check_utf8
from .device_array import DeviceArray
from .model.pooling import Pooling
from .opened_model import OpenedModel
from .runtime.embedder import Vectors
from .runtime.instance import EmbeddingInstance

Text = str | Sequence[int] | npt.NDArray[np.integer[Any]]
Scores = list[tuple[int, float]]
F32Array = npt.NDArray[np.float32]


class EmbeddingMethods(OpenedModel):
    """The methods of embedding models and of rerankers."""

    @overload
    def embed(
        self,
        texts: Text | Iterable[Text],
        *,
        normalize: bool = True,
        truncate: bool = False,
        dimensions: int | None = None,
        device: Literal[False] = False,
    ) -> npt.NDArray[np.float32]: ...
    @overload
    def embed(
        self,
        texts: Text | Iterable[Text],
        *,
        normalize: bool = True,
        truncate: bool = False,
        dimensions: int | None = None,
        device: Literal[True],
    ) -> DeviceArray: ...
    def embed(
        self,
        texts: Text | Iterable[Text],
        *,
        normalize: bool = True,
        truncate: bool = False,
        dimensions: int | None = None,
        device: bool = False,
    ) -> npt.NDArray[np.float32] | DeviceArray:
        """The vectors of texts: float32 [n, n_embd]. One text gives one vector, [n_embd].

        >>> with lamella.load(embeddings=True) as embedder:  # any model can be loaded so
        ...     vectors = embedder.embed(["a little fox", "a small fox", "8 + 5 is 13"])
        ...     one = embedder.embed("a little fox")
        >>> vectors.shape, one.shape, bool((vectors[0] == one).all())
        ((3, 256), (256,), True)
        >>> similarities = vectors @ one  # cosines, as the vectors have length 1
        >>> bool(similarities[1] > similarities[2])
        True

        A text's vector has the same bits alone and among others. Calls from several threads take
        turns, and their texts share steps.

        Args:
            texts: texts or lists of token ids; or one of them. Tokens that mark the begin and end
                are added to texts, not to ids.
            normalize: make the length 1 (or that of the option `embd_normalize`). False: as
                computed.
            truncate: cut a text that is longer than the context.
            dimensions: keep the first elements only, before `normalize`. The model must be trained
                for that (Matryoshka).
            device: return a `DeviceArray`, a copy in the memory of the GPU that has the last layer.

        With the pooling `none`, the result is a list: an array [n_tokens, n_embd] for each text. A
        reranker's vectors are [n_labels], its scores, not normalized; `rerank` makes the pairs.

        Raises:
            RequestError: the model computes no embeddings, or an invalid argument.
            ContextSizeError: a text is too long, and `truncate` is off.
            OverloadedError: `max_waiting` requests wait already.
            ClosedError: the model is closed.
        """
        instance = self._embedding()
        items, is_one = _listed(texts)
        check_dimensions(instance, dimensions)
        if device and instance.embedder.pooling is Pooling.NONE:
            raise RequestError(
                "device: the pooling is none, so there is no single array of vectors"
            )
        vectors = _wait(_submit(instance, items, truncate))
        result = _result(instance, vectors, is_one, normalize, dimensions)
        if not device:
            return result
        last = instance.embedder.context.model.layers[-1]
        return DeviceArray._of(result, last.buffer_type)

    async def aembed(
        self,
        texts: Text | Iterable[Text],
        *,
        normalize: bool = True,
        truncate: bool = False,
        dimensions: int | None = None,
    ) -> npt.NDArray[np.float32]:
        """`embed` for coroutines: `vectors = await model.aembed(["a", "b"])`.

        If the task is cancelled, its texts that have not run are dropped.
        """
        instance = self._embedding()
        items, is_one = _listed(texts)
        check_dimensions(instance, dimensions)
        vectors = await _wait_async(lambda: _submit(instance, items, truncate))
        return await asyncio.to_thread(_result, instance, vectors, is_one, normalize, dimensions)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        truncate: bool = False,
    ) -> Scores:
        """The pairs (index, score) of documents, the best first: `for i, score in ...`.

        Scores are the model's, as llama-server's: most models have no limits for them. Equal scores
        are in the order of the documents.

        Args:
            query: the text that the documents are compared with.
            documents: texts.
            top_n: return the best ones only.
            truncate: cut a document that does not fit the context with the query.

        Raises:
            RequestError: the model is no reranker, or an invalid argument.
            ContextSizeError: a text is too long, and `truncate` is off.
            OverloadedError: `max_waiting` requests wait already.
            ClosedError: the model is closed.
        """
        instance = self._reranker()
        _check_top(top_n)
        return ranked(_wait(_submit_pairs(instance, query, documents, truncate)), top_n)

    async def arerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        truncate: bool = False,
    ) -> Scores:
        """`rerank` for coroutines.

        If the task is cancelled, its documents that have not run are dropped.
        """
        instance = self._reranker()
        _check_top(top_n)
        vectors = await _wait_async(lambda: _submit_pairs(instance, query, documents, truncate))
        return ranked(vectors, top_n)

    def _reranker(self) -> EmbeddingInstance:
        instance = self._embedding()
        if not instance.ranks:
            raise RequestError(
                "this model computes vectors, not scores: call model.embed, or load a reranker "
                "(a file without its pooling needs lamella.load(path, pooling='rank'))"
            )
        return instance


def check_dimensions(instance: EmbeddingInstance, dimensions: int | None) -> None:
    """Raise RequestError unless `dimensions` is at least 1 and at most the length of a vector."""
    n_out = instance.embedder.n_out
    if dimensions is not None and (type(dimensions) is not int or not 1 <= dimensions <= n_out):
        raise RequestError(f"dimensions is {dimensions!r}: must be 1 to {n_out}")


def ranked(vectors: Sequence[F32Array], top_n: int | None) -> Scores:
    """The best pairs (index, score), of the first element of each vector."""
    scores = np.array([vector[0] for vector in vectors], np.float32)
    order = np.argsort(-scores, kind="stable")[:top_n]
    return [(int(i), float(scores[i])) for i in order]


def _check_top(top_n: int | None) -> None:
    if top_n is not None and (type(top_n) is not int or top_n < 1):
        raise RequestError(f"top_n is {top_n!r}: must be at least 1")


# --- texts ---


def _listed(texts: object) -> tuple[list[object], bool]:
    """The texts as a list, and True if `texts` is one text: a string or token ids."""
    if isinstance(texts, str | bytes | bytearray | memoryview):
        return [texts], True
    if isinstance(texts, Mapping | Set) or not isinstance(texts, Iterable):
        raise RequestError(f"texts: {shortened(texts)} is not a text or a list of texts")
    items = list(texts)
    is_one = bool(items) and isinstance(items[0], Integral)
    return ([items], True) if is_one else (items, False)


def _submit(instance: EmbeddingInstance, items: Sequence[object], truncate: bool) -> Vectors:
    """Queue texts. Raises a RequestError that names an invalid text."""
    texts, n_max = [], instance.n_ctx if truncate else None
    for i, item in enumerate(items):
        what = "the text" if len(items) == 1 else f"text {i}"
        if isinstance(item, str):
            check_utf8(what, item)
            texts.append(instance.tokens(item, n_max=n_max))
        else:
            texts.append(token_ids(what, item)[:n_max])
    return instance.embedder.submit(texts)


def _submit_pairs(
    instance: EmbeddingInstance, query: str, documents: Sequence[str], truncate: bool
) -> Vectors:
    """Queue the query with each document. Raises as `_submit`."""
    if isinstance(documents, str) or not isinstance(documents, Iterable):
        raise RequestError(f"documents: {shortened(documents)} is not a list of texts")
    _check_text("the query", query)
    texts, n_max = [], instance.n_ctx if truncate else None
    for i, document in enumerate(documents):
        _check_text(f"document {i}", document)
        texts.append(instance.pair_tokens(query, document, n_max=n_max))
    return instance.embedder.submit(texts)


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise RequestError(f"{what}: {shortened(text)} is not a string")
    check_utf8(what, text)


# --- results ---


def _wait(future: Vectors) -> list[F32Array]:
    """The vectors. Ctrl-C drops the texts that have not run."""
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def _wait_async(submit: Callable[[], Vectors]) -> list[F32Array]:
    """Call `submit` on a thread, as it makes tokens of texts, and wait for the vectors."""
    cancelled = threading.Event()

    def start() -> Vectors:
        future = submit()
        if cancelled.is_set():
            future.cancel()
        return future

    try:
        return await asyncio.wrap_future(await asyncio.to_thread(start))
    except asyncio.CancelledError:
        cancelled.set()
        raise


def _result(
    instance: EmbeddingInstance,
    vectors: Sequence[F32Array],
    is_one: bool,
    normalize: bool,
    dimensions: int | None,
) -> F32Array:
    norm = None if normalize else -1
    cut = [vector[..., :dimensions] for vector in vectors]
    if is_one:
        return instance.normalized(cut[0], norm)
    if instance.embedder.pooling is Pooling.NONE:
        return cast(F32Array, [instance.normalized(rows, norm) for rows in cut])
    rows = np.stack(cut) if cut else np.empty((0, dimensions or instance.embedder.n_out))
    return instance.normalized(rows.astype(np.float32, copy=False), norm)
