"""Kernel of flash_attn_ext (graph/ops/matrix.py): attention over a paged KV pool, token by token.

The reference of the other backends' kernels. Softmax is computed with all scores at once.

A token's bits depend only on its query, and on keys and values in the order of positions, not on
other tokens or on the places of pages. Tested by tests/kernels/test_reference_attention.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...graph import Tensor
from ...graph.op import AttnParams, Op
from ...graph.tensor import params_of
from .arrays import Array, F32Array, NumpyKernel, check_index, dot, read, store, to_f32
from .rows import alibi_slopes, softmax


def _flash_attn_ext(node: Tensor, dst: Array, srcs: Sequence[Array]) -> None:
    q = read(node, srcs, 0)[0]  # (n_tokens, n_head, head_dim)
    sinks = srcs[8][0, 0, 0] if len(srcs) > 8 else None
    result = np.zeros(dst.shape, np.float32)
    for t in range(len(q)):
        positions = _span(node, srcs, t)
        if positions.size == 0:
            continue
        cells = _cells(node, srcs, t, positions)
        k = to_f32(node.src[1].type, srcs[1][0, 0, cells])  # (n_kv, head_dim * n_head_kv)
        v = to_f32(node.src[2].type, srcs[2][0, 0, cells])
        distances = np.abs(positions - srcs[5][0, 0, 0, t]).astype(np.float32)
        result[0, t] = _attend(params_of(node, AttnParams), q[t], k, v, distances, sinks)
    store(node.type, dst, result)


def _span(node: Tensor, srcs: Sequence[Array], t: int) -> Array:
    """The positions that token t attends to."""
    seq, begin, end = (srcs[i][0, 0, 0, t : t + 1] for i in (4, 6, 7))
    check_index(node, "seq", seq, srcs[3].shape[2])
    n_positions = srcs[3].shape[3] * params_of(node, AttnParams).page_size
    check_index(node, "end", end, n_positions + 1)
    check_index(node, "begin", begin, int(end[0]) + 1)
    return np.arange(int(begin[0]), int(end[0]))


def _cells(node: Tensor, srcs: Sequence[Array], t: int, positions: Array) -> Array:
    """The cells of a span of positions of token t's sequence."""
    page_size = params_of(node, AttnParams).page_size
    # only the pages of these positions: other entries of the table may be invalid
    table = srcs[3][0, 0, srcs[4][0, 0, 0, t], positions // page_size].astype(np.int64)
    check_index(node, "page", table, srcs[1].shape[2] // page_size)
    cells: Array = table * page_size + positions % page_size
    return cells


def _attend(
    p: AttnParams, q: F32Array, k: F32Array, v: F32Array, distances: F32Array, sinks: Array | None
) -> F32Array:
    """One token: q (n_head, head_dim), k and v (n_kv, ...) -> (n_head, head_dim_v).

    `distances` of the keys' positions from the token's, [n_kv].
    """
    n_head, head_dim = q.shape
    n_kv, n_head_kv = len(k), k.shape[1] // head_dim
    keys = k.reshape(n_kv, n_head_kv, head_dim).transpose(1, 0, 2)
    values = v.reshape(n_kv, n_head_kv, -1).transpose(1, 2, 0)
    slopes = alibi_slopes(n_head, p.max_bias)
    result = np.empty((n_head, values.shape[1]), np.float32)
    for h in range(n_head):
        kv = h // (n_head // n_head_kv)
        scores = _capped(p, dot(keys[kv], q[h]))
        if p.max_bias > 0:
            scores = scores - slopes[h] * distances
        if sinks is not None:  # as if of one more position, whose value is 0
            scores = np.append(scores, sinks[h])
        result[h] = dot(values[kv], softmax(scores)[:n_kv])
    return result


def _capped(p: AttnParams, scores: F32Array) -> F32Array:
    if p.softcap <= 0:
        return scores * p.scale
    capped: F32Array = p.softcap * np.tanh(scores * (p.scale / p.softcap))
    return capped


KERNELS: Final[dict[Op, NumpyKernel]] = {Op.FLASH_ATTN_EXT: _flash_attn_ext}
