"""Turns the texts of a request into token ids for the embedder, each one checked.

Errors name the text. Knows vocabularies; knows no connection.
Tested by tests/server/test_http_embeddings.py and test_http_rerank.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ..base.errors import ContextSizeError, RequestError
from ..base.units import size_text
from ..model.pooling import Pooling
from ..runtime.instance import EmbeddingInstance
from .prompt_tokens import tokenize_parts
from .schema import Prompt
from .schema_embed import InputsBody, Named, RerankBody, TextsBody

N_VECTOR_BYTES_MAX: Final = 512 * 1024**2  # of one request
N_PAIR_TOKENS_MAX: Final = 1 << 24  # of one request: each pair has the query's tokens
SHORTEN: Final = 'shorten it, set "truncate": true'

Check = Callable[[], None]  # called before each text; raises an error to end early


def input_tokens(model: EmbeddingInstance, body: InputsBody, check: Check) -> list[Sequence[int]]:
    """The token ids of each text.

    Raises:
        RequestError: a text has no tokens, or one that the vocabulary lacks; or the request needs
            too much memory.
        ContextSizeError: a text is too long, and the request does not say to cut it.
    """
    named, n_max = body.named, _n_max(model, body)
    _check_memory(model, named, len(named.inputs))
    found: list[Sequence[int]] = []
    for i, parts in enumerate(named.inputs):
        check()
        found.append(_text_tokens(model, named.place(i), parts, n_max))
    if model.embedder.pooling is Pooling.NONE:
        _check_memory(model, named, sum(map(len, found)))
    return found


def pair_tokens(model: EmbeddingInstance, body: RerankBody, check: Check) -> list[Sequence[int]]:
    """The token ids of the query with each document. Raises as `input_tokens`."""
    named, n_max = body.named, _n_max(model, body)
    found: list[Sequence[int]] = []
    n_tokens = 0
    for i, (document,) in enumerate(named.inputs):
        check()
        tokens = model.pair_tokens(body.query, str(document), n_max=n_max)
        shorten = SHORTEN if n_max is None else "shorten the query"  # documents were cut
        _check_size(model, f'"query" with {named.place(i)}', tokens, shorten)
        n_tokens += len(tokens)
        if n_tokens > N_PAIR_TOKENS_MAX:
            raise RequestError(
                f'"query" with the first {i + 1} "{named.field}" has {n_tokens} tokens, one '
                f"request may have {N_PAIR_TOKENS_MAX}: send the documents in several requests"
            )
        found.append(tokens)
    return found


def _n_max(model: EmbeddingInstance, body: TextsBody) -> int | None:
    """Tokens after which a text is cut; None: longer texts than the context are refused."""
    return None if body.n_tokens_max is None else min(body.n_tokens_max, model.n_ctx)


def _text_tokens(
    model: EmbeddingInstance, place: str, parts: Prompt, n_max: int | None
) -> Sequence[int]:
    if not any(part != "" for part in parts):
        raise RequestError(f"{place} is empty: it must have at least one character or token")
    if len(parts) == 1 and isinstance(parts[0], str):
        tokens = model.tokens(parts[0], n_max=n_max)
    else:
        _check_ids(model.vocab.n_tokens, place, parts)
        tokens = tokenize_parts(model.vocab, parts)[:n_max]
    _check_size(model, place, tokens, SHORTEN)
    return tokens


def _check_ids(n_vocab: int, place: str, parts: Prompt) -> None:
    for part in parts:
        if isinstance(part, int) and not 0 <= part < n_vocab:
            raise RequestError(f"{place} has the token id {part!s:.20}: must be 0 to {n_vocab - 1}")


def _check_size(model: EmbeddingInstance, place: str, tokens: Sequence[int], shorten: str) -> None:
    if not tokens:
        raise RequestError(f"{place} is empty: it must have at least one token")
    if len(tokens) > model.n_ctx:
        raise ContextSizeError(len(tokens), model.n_ctx, place, shorten)


def _check_memory(model: EmbeddingInstance, named: Named, n_vectors: int) -> None:
    n_bytes = 4 * n_vectors * model.embedder.n_out
    if n_bytes > N_VECTOR_BYTES_MAX:
        raise RequestError(
            f'"{named.field}" needs {n_vectors} vectors of {size_text(n_bytes)}, one request may '
            f"have {size_text(N_VECTOR_BYTES_MAX)}: send the texts in several requests"
        )
