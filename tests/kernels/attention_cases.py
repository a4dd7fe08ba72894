"""Nodes of attention, for the table of op cases."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, Final

import numpy as np
from op_case import (
    F16,
    FLOATS,
    Q8_0,
    OpCase,
    Tokens,
    numbers,
    weights,
)
from reference_run import Array, ids, leaf, normal

from lamella.graph import GGMLType, Tensor, ops
from lamella.graph.types import KV_TYPES

TABLE: Final = [[5, 0, 3], [2, 4, 1]]
SEQUENCE: Final = np.array([0, 1, 0, 1, 1])
PLACES: Final = np.array([95, 0, 31, 32, 50])


def _sparse_cases() -> Iterator[OpCase]:
    for type in (*FLOATS, Q8_0):
        yield OpCase(
            f"index_scores {type.name}",
            lambda t, type=type: index_scores(t, type, np.full(5, 96)),  # type: ignore[misc]
            limit=1e-10,
        )
    yield OpCase(
        "page_cells",
        lambda t: ops.page_cells(
            ids(np.arange(450).reshape(5, 90)[t] % 96), ids(TABLE), ids(SEQUENCE[t]), page_size=32
        ),
        limit=0,
    )
    for n in (1, 64):
        yield OpCase(
            f"index_scores 4096x{n}",
            _long_index_scores,
            n_tokens=n,
            limit=1e-10,
            timed=True,
        )


def attention_cases() -> Iterator[OpCase]:
    for head_dim in (8, 64, 80):
        for k, v in product((*FLOATS, Q8_0), repeat=2) if head_dim == 8 else ((F16, F16),):
            yield OpCase(
                f"flash_attn_ext {head_dim} {k.name} {v.name}",
                lambda t, d=head_dim, k=k, v=v: _attention(t, d, k, v),  # type: ignore[misc]
                axis=2,
                limit=1e-10,
            )
    for type in KV_TYPES:
        if type not in (*FLOATS, Q8_0):
            yield OpCase(
                f"flash_attn_ext 64 {type.name}",
                lambda t, type=type: _attention(t, 64, type, type),  # type: ignore[misc]
                axis=2,
                limit=1e-10,
            )
    kinds: dict[str, dict[str, Any]] = {
        "alibi": {"max_bias": 8.0},
        "softcap": {"softcap": 2.0},
        "both": {"max_bias": 4.0, "softcap": 1.5},
        "window": {"n_swa": 20},
        "window sinks softcap": {"n_swa": 33, "sinks": True, "softcap": 2.0},
        "not causal": {"end": 90},
        "not causal alibi": {"end": 90, "max_bias": 8.0},
    }
    for name, params in kinds.items():
        yield OpCase(
            f"flash_attn_ext {name}",
            lambda t, p=params: _attention(t, 32, F16, F16, **p),  # type: ignore[misc]
            axis=2,
            limit=1e-10,
        )
    for type in (*FLOATS, Q8_0):
        yield OpCase(
            f"flash_attn_ext latent {type.name}",
            lambda t, type=type: _latent_attention(t, 8, 64, 32, type),  # type: ignore[misc]
            axis=2,
            limit=1e-10,
        )
    yield OpCase(
        "flash_attn_ext latent 576",
        lambda t: _latent_attention(t, 8, 512, 64, F16),
        axis=2,
        limit=1e-10,
    )
    yield from _sparse_cases()
    for n in (1, 64):
        yield OpCase(
            f"flash_attn_ext latent 4096x{n}",
            lambda t: _latent_attention(t, 16, 512, 64, F16, np.arange(4032, 4096)),
            axis=2,
            n_tokens=n,
            limit=1e-10,
            timed=True,
        )
        yield OpCase(
            f"flash_attn_ext decode 4096x{n}",
            lambda t, n=n: _long_attention(t),  # type: ignore[misc]
            axis=2,
            n_tokens=n,
            limit=1e-10,
            timed=True,
        )
        yield OpCase(
            f"flash_attn_ext window 512 of 4096x{n}",
            lambda t, n=n: _long_attention(t, 512),  # type: ignore[misc]
            axis=2,
            n_tokens=n,
            limit=1e-10,
            timed=True,
        )


def _attention(
    t: Tokens,
    head_dim: int,
    k: GGMLType,
    v: GGMLType,
    *,
    end: int | None = None,
    sinks: bool = False,
    n_swa: int = 0,
    **params: Any,
) -> Tensor:
    n_kv = 4  # heads; 8 share them
    q = leaf(numbers(5, 8, head_dim)[t])
    pools = [
        leaf(normal(6 * 32, n_kv * head_dim, seed=5 + i), type) for i, type in enumerate((k, v))
    ]
    tokens = (SEQUENCE[t], PLACES[t], *_spans(PLACES[t], end, n_swa))
    args = (q, *pools, ids(TABLE), *map(ids, tokens))
    params |= {"scale": head_dim**-0.5, "sinks": leaf(np.arange(8) - 4) if sinks else None}
    return ops.flash_attn_ext(*args, page_size=32, n_swa=n_swa, **params)


def _spans(pos: Array, end: int | None, n_swa: int) -> tuple[Array, Array]:
    """The begin and end of each token's positions: a window of `n_swa`, or all before `end`."""
    begin = np.maximum(0, pos + 1 - n_swa) if n_swa else 0 * pos
    return begin, pos + 1 if end is None else np.full_like(pos, end)


def _long_attention(t: Tokens, n_swa: int = 0) -> Tensor:
    q = leaf(numbers(64, 32, 64)[t])
    k, v = weights(F16, 4096, 8 * 64), weights(F16, 4096, 8 * 64, seed=2)
    pages = ids(np.random.default_rng(1).permutation(128)[None])
    pos = np.arange(4032, 4096)[t]
    tokens = (pages, *map(ids, (0 * pos, pos, *_spans(pos, None, n_swa))))
    return ops.flash_attn_ext(q, k, v, *tokens, page_size=32, scale=0.125, n_swa=n_swa)


def index_scores(t: Tokens, type: GGMLType, end: Array, top_k: int = 20) -> Tensor:
    """Scores of the positions before `end` of each token."""
    q, w = leaf(numbers(5, 20, 64)[t]), leaf(numbers(5, 20, seed=3)[t])
    pool = leaf(normal(6 * 32, 96, seed=5), type)
    k = ops.view(pool, (64, pool.ne[1]), pool.nb, type.row_size(32))
    tokens = (ids(TABLE), ids(SEQUENCE[t]), ids(end[t]))
    return ops.index_scores(q, k, w, *tokens, page_size=32, top_k=top_k)


def _long_index_scores(t: Tokens) -> Tensor:
    q, w = leaf(numbers(64, 64, 128)[t]), leaf(numbers(64, 64, seed=3)[t])
    pages = ids(np.random.default_rng(1).permutation(128)[None])
    tokens = (pages, ids(0 * np.asarray(t)), ids(np.full(len(t), 4096)))
    return ops.index_scores(q, weights(F16, 4096, 128), w, *tokens, page_size=32, top_k=2048)


def _latent_attention(
    t: Tokens, n_head: int, rank: int, n_rot: int, type: GGMLType, pos: Array | None = None
) -> Tensor:
    """Values are the first `rank` elements of the keys, which all heads share."""
    n_cells = 4096 if pos is not None else 6 * 32
    seq, table = SEQUENCE, np.array(TABLE)
    if pos is not None:
        seq, table = 0 * pos, np.random.default_rng(1).permutation(128)[None]
    pos = PLACES if pos is None else pos
    k = leaf(normal(n_cells, rank + n_rot, seed=5), type)
    v = ops.view(k, (rank, n_cells), k.nb[:2])
    q = leaf(numbers(len(pos), n_head, rank + n_rot)[t])
    tokens = (ids(table), *map(ids, (seq[t], pos[t], *_spans(pos[t], None, 0))))
    return ops.flash_attn_ext(q, k, v, *tokens, page_size=32, scale=rank**-0.5)
