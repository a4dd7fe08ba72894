"""Kernel of flash_attn_ext (graph/ops/matrix.py): attention over a paged KV pool, token by token.

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
    result = np.empty(dst.shape, np.float32)
    for t in range(len(q)):
        cells = _cells(node, srcs, t)
        k = to_f32(node.src[1].type, srcs[1][0, 0, cells])  # (n_kv, head_dim * n_head_kv)
        v = to_f32(node.src[2].type, srcs[2][0, 0, cells])
        result[0, t] = _attend(params_of(node, AttnParams), q[t], k, v)
    store(node.type, dst, result)


def _cells(node: Tensor, srcs: Sequence[Array], t: int) -> Array:
    """The cells of positions 0..pos[t] of token t's sequence."""
    page_size = params_of(node, AttnParams).page_size
    pages, seq, pos = srcs[3][0, 0], srcs[4][0, 0, 0, t : t + 1], srcs[5][0, 0, 0, t : t + 1]
    check_index(node, "seq", seq, len(pages))
    check_index(node, "pos", pos, pages.shape[1] * page_size)
    j = np.arange(int(pos[0]) + 1)
    # only the pages of these positions: other entries of the table are undefined
    table = pages[seq[0], : j[-1] // page_size + 1].astype(np.int64)
    check_index(node, "page", table, srcs[1].shape[2] // page_size)
    cells: Array = table[j // page_size] * page_size + j % page_size
    return cells


def _attend(p: AttnParams, q: F32Array, k: F32Array, v: F32Array) -> F32Array:
    """One token: q (n_head, head_dim), k and v (n_kv, ...) -> (n_head, head_dim_v)."""
    n_head, head_dim = q.shape
    n_kv, n_head_kv = len(k), k.shape[1] // head_dim
    keys = k.reshape(n_kv, n_head_kv, head_dim).transpose(1, 0, 2)
    values = v.reshape(n_kv, n_head_kv, -1).transpose(1, 2, 0)
    slopes = alibi_slopes(n_head, p.max_bias)
    bias = np.arange(1 - n_kv, 1, dtype=np.float32)  # j - pos
    result = np.empty((n_head, values.shape[1]), np.float32)
    for h in range(n_head):
        kv = h // (n_head // n_head_kv)
        scores = _capped(p, dot(keys[kv], q[h]))
        if p.max_bias > 0:
            scores = scores + slopes[h] * bias
        result[h] = dot(values[kv], softmax(scores))
    return result


def _capped(p: AttnParams, scores: F32Array) -> F32Array:
    if p.softcap <= 0:
        return scores * p.scale
    capped: F32Array = p.softcap * np.tanh(scores * (p.scale / p.softcap))
    return capped


KERNELS: Final[dict[Op, NumpyKernel]] = {Op.FLASH_ATTN_EXT: _flash_attn_ext}
