"""Builders of sparse attention: which positions of a paged pool a token attends to.

DeepSeek Sparse Attention (DeepSeek-V3.2-Exp's report): an indexer rates all positions that a token
sees, and the token attends to the best ones.

    scores = index_scores(q, k, weights, pages, seq, end, ...)
    cells = page_cells(top_k(scores, n), pages, seq, ...)

`flash_attn_ext` with pages of one cell reads these cells: `cells` is its page table, and each token
is a sequence of its own.
"""

from __future__ import annotations

from ..op import IndexParams, Op, PageParams
from ..tensor import Tensor
from ..types import KV_TYPES, GGMLType
from .check import require, require_type

LOWEST = -3.4028234663852886e38  # the lowest finite score


def index_scores(
    q: Tensor,
    k: Tensor,
    weights: Tensor,
    pages: Tensor,
    seq: Tensor,
    end: Tensor,
    *,
    page_size: int,
    top_k: int,
) -> Tensor:
    """The scores of positions of a paged pool, [n_pages * page_size, n_tokens].

    That of position j < end[t] is the sum over heads h of weights[h, t] * max(0, q[:, h, t] · k of
    j). If end[t] is at most `top_k`, it is 0, as all positions are chosen. Positions from end[t] on
    have minus infinity, and the others at least LOWEST, also in place of NaN: they come first.

    Args:
        q: F32 [size, n_head, n_tokens].
        k: [size, n_cells], one of KV_TYPES: the keys that all heads have.
        weights: F32 [n_head, n_tokens].
        pages, seq, end: I32, see `flash_attn_ext`.
        page_size: cells in a page.
        top_k: the number of positions that a token attends to.
    """
    op = "index_scores"
    require_type(op, "q", q, GGMLType.F32)
    require_type(op, "k", k, *KV_TYPES)
    require_type(op, "weights", weights, GGMLType.F32)
    for what, t in (("q", q), ("k", k), ("weights", weights)):
        require(t.has_contiguous_rows, op, f"rows of {what} must be contiguous", t)
    require(q.ne[3] == 1, op, "q must have at most three dimensions", q)
    size, n_head, n_tokens = q.ne[:3]
    require(k.ne[0] == size and k.ne[2:] == (1, 1), op, f"k must be [{size}, n_cells]", q, k)
    fits = weights.ne == (n_head, n_tokens, 1, 1)
    require(fits, op, f"weights must be [{n_head}, {n_tokens}]", q, weights)
    whole = page_size > 0 and k.ne[1] % page_size == 0
    require(whole, op, f"the number of cells must be a multiple of page_size {page_size}", k)
    require(top_k > 0, op, f"top_k {top_k} must be above 0", q)
    _require_pages(op, pages, n_tokens, seq=seq, end=end)
    params = IndexParams(page_size, top_k)
    ne, src = (pages.ne[0] * page_size, n_tokens), (q, k, weights, pages, seq, end)
    return Tensor(GGMLType.F32, ne, op=Op.INDEX_SCORES, params=params, src=src)


def page_cells(positions: Tensor, pages: Tensor, seq: Tensor, *, page_size: int) -> Tensor:
    """The cells of a pool that have positions of each token's sequence, I32 [n, n_tokens].

    Args:
        positions: I32 [n, n_tokens], below n_pages * page_size.
        pages, seq: I32, see `flash_attn_ext`. Numbers of pages may be invalid; so are their cells.
        page_size: cells in a page.
    """
    op = "page_cells"
    require_type(op, "positions", positions, GGMLType.I32)
    matrix = positions.ne[2:] == (1, 1) and positions.has_contiguous_rows
    require(matrix, op, "positions must be a matrix with contiguous rows", positions)
    require(page_size > 0, op, f"page_size {page_size} must be above 0", positions)
    _require_pages(op, pages, positions.ne[1], seq=seq)
    params, src = PageParams(page_size), (positions, pages, seq)
    return Tensor(GGMLType.I32, positions.ne, op=Op.PAGE_CELLS, params=params, src=src)


def _require_pages(op: str, pages: Tensor, n_tokens: int, **vectors: Tensor) -> None:
    require_type(op, "pages", pages, GGMLType.I32)
    require(pages.ne[2:] == (1, 1), op, "pages must be a matrix", pages)
    for what, t in vectors.items():
        require_type(op, what, t, GGMLType.I32)
        vector = t.n_dims == 1 and t.ne[0] == n_tokens
        require(vector, op, f"{what} must be a vector of the {n_tokens} tokens", t)
