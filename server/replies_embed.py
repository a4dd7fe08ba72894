"""The shapes of replies with vectors and scores: OpenAI's, llama-server's, TEI's, Jina's, ollama's.

A reply is an iterator of pieces of its JSON text: ten thousand vectors are many megabytes. Field
names are llama-server's (tools/server/server-common.cpp, format_embeddings_response_oaicompat and
format_response_rerank), and TEI's (router/src/http/types.rs).
Tested by tests/server/test_http_embeddings.py and test_http_rerank.py.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from ..base.json_floats import F32Array, json_row
from .replies import Json

Blocks = Iterable[F32Array]  # vectors [n, n_out], a block of texts after another


def openai_reply(blocks: Blocks, *, is_base64: bool, model: str, n_tokens: int) -> Iterator[bytes]:
    """POST /v1/embeddings: the vectors of texts with `n_tokens` tokens."""
    more: Json = {"encoding_format": "base64"} if is_base64 else {}
    yield b'{"object": "list", "data": ['
    for i, text in enumerate(_encoded(blocks, is_base64=is_base64)):
        head = json.dumps({"object": "embedding", "index": i, **more})[:-1].encode()
        yield b'%s%s, "embedding": %s}' % (b", " if i else b"", head, text)
    yield b"], " + _dumped({"model": model, "usage": usage(n_tokens)})[1:]


def native_reply(blocks: Blocks, *, is_pooled: bool, is_base64: bool) -> Iterator[bytes]:
    """POST /embedding: the vector of each text. Without pooling, a block has those of a text."""
    encode = partial(_encoded, is_base64=is_base64)
    if is_pooled:
        lists: Iterable[Iterable[bytes]] = ([text] for text in encode(blocks))
    else:
        lists = (encode([rows]) for rows in blocks)
    for i, texts in enumerate(lists):
        yield b'%s{"index": %d, "embedding": ' % (b", " if i else b"[", i)
        yield from _listed(texts)
        yield b"}"
    yield b"]"


def tei_reply(blocks: Blocks) -> Iterator[bytes]:
    """POST /embed: a list of vectors."""
    return _listed(_encoded(blocks, is_base64=False))


def ollama_reply(blocks: Blocks, *, model: str, n_tokens: int, n_seconds: float) -> Iterator[bytes]:
    """POST /api/embed: the vectors of texts with `n_tokens` tokens, made in `n_seconds`."""
    counts = {"total_duration": int(1e9 * n_seconds), "load_duration": 0}
    yield b'{"model": %s, "embeddings": ' % _dumped(model)
    yield from tei_reply(blocks)
    yield b", " + _dumped(counts | {"prompt_eval_count": n_tokens})[1:]


def ollama_vector_reply(blocks: Blocks) -> Iterator[bytes]:
    """POST /api/embeddings: the vector of the text; an empty one if there is no text."""
    text = next(_encoded(blocks, is_base64=False), b"[]")
    yield b'{"embedding": %s}' % text


def rerank_reply(
    scores: F32Array, n_top: int, texts: Sequence[str] | None, *, model: str, n_tokens: int
) -> Iterator[bytes]:
    """POST /rerank: the `n_top` highest scores [n], and their documents if `texts` are given."""
    yield b'{"model": %s, "object": "list", "results": ' % _dumped(model)
    yield from _listed(
        _dumped(
            {"index": i, "relevance_score": score}
            | ({} if texts is None else {"document": {"text": texts[i]}})
        )
        for i, score in _ranked(scores, n_top)
    )
    yield b", " + _dumped({"usage": usage(n_tokens)})[1:]


def tei_rerank_reply(scores: F32Array, n_top: int, texts: Sequence[str] | None) -> Iterator[bytes]:
    """TEI's reply of POST /rerank: a list."""
    return _listed(
        _dumped({"index": i, "score": score} | ({} if texts is None else {"text": texts[i]}))
        for i, score in _ranked(scores, n_top)
    )


def usage(n_tokens: int) -> Json:
    """The token counts of a request that generates nothing."""
    return {"prompt_tokens": n_tokens, "total_tokens": n_tokens}


def sigmoid(logits: F32Array) -> F32Array:
    """1 / (1 + exp(-x)), without overflow."""
    found: F32Array = np.exp(-np.logaddexp(0.0, -logits.astype(np.float64))).astype(np.float32)
    return found


def _encoded(blocks: Blocks, *, is_base64: bool) -> Iterator[bytes]:
    """Each vector as a JSON value: a list of numbers, or the base64 of little-endian float32."""
    for rows in blocks:
        if is_base64:
            yield from (b'"%s"' % b64encode(row.astype("<f4").tobytes()) for row in rows)
        else:
            yield from map(json_row, rows)


def _ranked(scores: F32Array, n_top: int) -> Iterator[tuple[int, float]]:
    """The indices and values of the highest scores, the highest first; of equal ones in order."""
    order = np.argsort(-scores, kind="stable")[:n_top]
    return zip(order.tolist(), json.loads(json_row(scores[order])), strict=True)


def _listed(texts: Iterable[bytes]) -> Iterator[bytes]:
    """A JSON list with these elements."""
    separator = b"["
    for text in texts:
        yield separator + text
        separator = b", "
    yield b"]" if separator == b", " else b"[]"


def _dumped(value: object) -> bytes:
    return json.dumps(value, allow_nan=False).encode()
