"""Kernels of graph/ops/sparse.py: scores of positions in a paged pool, and their cells.

Tested by tests/kernels/test_sparse.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...graph import Tensor
from ...graph.op import IndexParams, Op, PageParams
from ...graph.ops.sparse import LOWEST
from ...graph.tensor import params_of
from .arrays import Array, NumpyKernel, check_index, dot, read, store, to_f32


def _index_scores(node: Tensor, dst: Array, srcs: Sequence[Array]) -> None:
    page_size, top_k = params_of(node, IndexParams)
    q, weights = read(node, srcs, 0)[0], read(node, srcs, 2)[0, 0]  # (n_tokens, n_head, size or -)
    pages, seq, end = srcs[3][0, 0], srcs[4][0, 0, 0], srcs[5][0, 0, 0]
    check_index(node, "seq", seq, len(pages))
    check_index(node, "end", end, node.ne[0] + 1)
    scores = np.full((node.ne[1], node.ne[0]), -np.inf, np.float32)
    for t, n in enumerate(end):
        if n <= top_k:
            scores[t, :n] = 0
            continue
        positions = np.arange(n)
        table = pages[seq[t], positions // page_size].astype(np.int64)
        check_index(node, "page", table, srcs[1].shape[2] // page_size)
        k = to_f32(node.src[1].type, srcs[1][0, 0, table * page_size + positions % page_size])
        products = np.stack([np.maximum(dot(k, head), 0) for head in q[t]], axis=1)
        scores[t, :n] = np.fmax(dot(products, weights[t]), np.float32(LOWEST))
    store(node.type, dst, scores)


def _page_cells(node: Tensor, dst: Array, srcs: Sequence[Array]) -> None:
    page_size = params_of(node, PageParams).page_size
    positions, pages, seq = srcs[0][0, 0], srcs[1][0, 0], srcs[2][0, 0, 0]
    check_index(node, "position", positions, pages.shape[1] * page_size)
    check_index(node, "seq", seq, len(pages))
    table = pages[seq[:, None], positions // page_size]
    dst[0, 0] = table * page_size + positions % page_size


KERNELS: Final[dict[Op, NumpyKernel]] = {
    Op.INDEX_SCORES: _index_scores,
    Op.PAGE_CELLS: _page_cells,
}
