"""Builders of matrix products and of attention over a paged KV pool."""

from __future__ import annotations

from ..op import AttnParams, Op
from ..tensor import Tensor
from ..types import KV_TYPES, GGMLType
from .check import is_matrix_type, require, require_float, require_type


def mul_mat(a: Tensor, b: Tensor) -> Tensor:
    """Products of rows of a and rows of b: a [k, n, x, y], b [k, m, i, j] -> F32 [n, m, i, j].

    x must divide i, and y must divide j: a is repeated over the batches of b.
    """
    rule = "ne[0] must be equal, and a.ne[2:] must divide b.ne[2:]"
    fits = (
        a.ne[0] == b.ne[0]
        and a.ne[2] > 0
        and a.ne[3] > 0
        and b.ne[2] % a.ne[2] == 0
        and b.ne[3] % a.ne[3] == 0
    )
    require(fits, "mul_mat", rule, a, b)
    _require_matrix("mul_mat", a, b)
    require_float("mul_mat", "b", b)
    return Tensor(GGMLType.F32, (a.ne[1], *b.ne[1:]), op=Op.MUL_MAT, src=(a, b))


def mul_mat_id(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    """Matrix products with experts chosen per token.

    Args:
        a: [k, n, n_expert].
        b: [k, x, n_tokens], where x divides n_used; with x = 1 all experts of a token get one row.
        ids: I32 [n_used, n_tokens], the experts of each token.

    Returns:
        F32 [n, n_used, n_tokens].
    """
    require_type("mul_mat_id", "ids", ids, GGMLType.I32)
    require_float("mul_mat_id", "b", b)
    flat = a.ne[3] == 1 and b.ne[3] == 1 and ids.ne[2] == 1 and ids.ne[3] == 1
    require(flat, "mul_mat_id", "a and b must have at most three dimensions, ids two", a, b, ids)
    require(a.ne[0] == b.ne[0], "mul_mat_id", "ne[0] must be equal", a, b)
    _require_matrix("mul_mat_id", a, b)
    tokens = ids.ne[1] == b.ne[2] and b.ne[1] > 0 and ids.ne[0] % b.ne[1] == 0
    rule = "ids.ne[1] must equal b.ne[2], and b.ne[1] must divide ids.ne[0]"
    require(tokens, "mul_mat_id", rule, b, ids)
    ne = (a.ne[1], ids.ne[0], b.ne[2])
    return Tensor(GGMLType.F32, ne, op=Op.MUL_MAT_ID, src=(a, b, ids))


def lora_a(a: Tensor, x: Tensor, scales: Tensor, parts: Tensor) -> Tensor:
    """The first product of LoRA adapters (arXiv 2106.09685), for the adapters of each token.

    The rows of a are those of several adapters. Row j belongs to part parts[j]: result j of token t
    is scales[parts[j], t] times the product of row j and x's row t. If the scale is 0, the result
    is 0, and the row is not read.

    Args:
        a: F32 [k, rank], the matrices A of all adapters.
        x: F32 [k, n_tokens].
        scales: F32 [n_parts, n_tokens].
        parts: I32 [rank].

    Returns:
        F32 [rank, n_tokens].
    """
    for what, t in (("a", a), ("x", x), ("scales", scales)):
        require_type("lora_a", what, t, GGMLType.F32)
        matrix = t.ne[2] == 1 and t.ne[3] == 1 and t.has_contiguous_rows
        require(matrix, "lora_a", f"{what} must be a matrix with contiguous rows", t)
    require_type("lora_a", "parts", parts, GGMLType.I32)
    require(a.ne[0] == x.ne[0], "lora_a", "ne[0] must be equal", a, x)
    require(scales.ne[1] == x.ne[1], "lora_a", "ne[1] must be equal", x, scales)
    vector = parts.is_contiguous and parts.n_dims == 1 and parts.ne[0] == a.ne[1]
    require(vector, "lora_a", "parts must be a vector of a.ne[1]", a, parts)
    ne = (a.ne[1], x.ne[1])
    return Tensor(GGMLType.F32, ne, op=Op.LORA_A, src=(a, x, scales, parts))


def lora_b(y: Tensor, b: Tensor, z: Tensor) -> Tensor:
    """The second product of LoRA adapters, added to y.

    Row t of the result is row t of y, plus z[j, t] times row j of b, for each j in ascending order
    for which z[j, t] is not 0. So a row keeps its bits if its row of z is 0.

    Args:
        y: F32 [n, n_tokens].
        b: F32 [n, rank], the columns of the matrices B of all adapters.
        z: F32 [rank, n_tokens], from `lora_a`.
    """
    for what, t in (("y", y), ("b", b), ("z", z)):
        require_type("lora_b", what, t, GGMLType.F32)
        matrix = t.ne[2] == 1 and t.ne[3] == 1 and t.has_contiguous_rows
        require(matrix, "lora_b", f"{what} must be a matrix with contiguous rows", t)
    require(y.ne[0] == b.ne[0], "lora_b", "ne[0] must be equal", y, b)
    fits = z.ne[0] == b.ne[1] and z.ne[1] == y.ne[1]
    require(fits, "lora_b", "z must be [b.ne[1], y.ne[1]]", y, b, z)
    return Tensor(GGMLType.F32, y.ne, op=Op.LORA_B, src=(y, b, z))


def flash_attn_ext(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pages: Tensor,
    seq: Tensor,
    pos: Tensor,
    begin: Tensor,
    end: Tensor,
    sinks: Tensor | None = None,
    *,
    page_size: int,
    scale: float,
    max_bias: float = 0.0,
    softcap: float = 0.0,
    n_swa: int = 0,
) -> Tensor:
    """Attention (arXiv 2205.14135) over a paged pool of keys and values (arXiv 2309.06180).

    Token t attends to a span of its sequence: the positions begin[t] <= j < end[t]. Causal
    attention has the span from 0 to pos[t] + 1, a sliding window of n positions that from
    max(0, pos[t] + 1 - n) on. The result for an empty span is zeros.

    The token's sequence is in row seq[t] of the page table. Position j is in cell
    pages[j // page_size, seq[t]] * page_size + j % page_size. Pages without a position of a span
    are not read; their numbers may be invalid. Heads share K and V in groups of
    n_head / n_head_kv. For attention to this step's own tokens, k and v must be the results of the
    SET_ROWS that wrote them.

    Args:
        q: F32 [head_dim, n_head, n_tokens].
        k: [head_dim * n_head_kv, n_cells], one of KV_TYPES.
        v: [head_dim_v * n_head_kv, n_cells], likewise. With one head of keys, it may be a view of
            their first elements (arXiv 2405.04434).
        pages: I32 [n_pages, n_seqs], the page table: numbers of pages in the pool.
        seq: I32 [n_tokens].
        pos: I32 [n_tokens], for ALiBi only.
        begin: I32 [n_tokens], at least 0.
        end: I32 [n_tokens], at least `begin`, at most n_pages * page_size.
        sinks: F32 [n_head], a score per head that joins the softmax's denominator (gpt-oss).
        page_size: cells in a page.
        scale: factor of the scores.
        max_bias: if above 0, ALiBi subtracts slope(head) * |j - pos[t]| from the scores.
        softcap: if above 0, scores are softcap * tanh(scores * scale / softcap).
        n_swa: if above 0, no span is longer. It determines sizes only, not results.

    Returns:
        F32 [head_dim_v, n_head, n_tokens].
    """
    op = "flash_attn_ext"
    n_head_kv = _n_head_kv(op, q, k, v)
    n_head, n_tokens = q.ne[1:3]
    whole = page_size > 0 and k.ne[1] % page_size == 0
    require(whole, op, f"the number of cells must be a multiple of page_size {page_size}", k)
    require_type(op, "pages", pages, GGMLType.I32)
    require(pages.ne[2] == 1 and pages.ne[3] == 1, op, "pages must be a matrix", pages)
    for what, t in (("seq", seq), ("pos", pos), ("begin", begin), ("end", end)):
        require_type(op, what, t, GGMLType.I32)
        vector = t.n_dims == 1 and t.ne[0] == n_tokens
        require(vector, op, f"{what} must be a vector of q.ne[2] = {n_tokens}", q, t)
    src: tuple[Tensor, ...] = (q, k, v, pages, seq, pos, begin, end)
    if sinks is not None:
        require_type(op, "sinks", sinks, GGMLType.F32)
        vector = sinks.n_dims == 1 and sinks.ne[0] == n_head
        require(vector, op, f"sinks must be a vector of q.ne[1] = {n_head}", q, sinks)
        src = (*src, sinks)
    require(n_swa >= 0, op, f"n_swa {n_swa} must not be negative", q)
    params = AttnParams(float(scale), float(max_bias), float(softcap), page_size, n_swa)
    ne = (v.ne[0] // n_head_kv, n_head, n_tokens)
    return Tensor(GGMLType.F32, ne, op=Op.FLASH_ATTN_EXT, params=params, src=src)


def _n_head_kv(op: str, q: Tensor, k: Tensor, v: Tensor) -> int:
    """The number of heads of keys and values. Rejects queries and pools that do not fit."""
    require_type(op, "q", q, GGMLType.F32)
    for what, pool in (("k", k), ("v", v)):
        require_type(op, what, pool, *KV_TYPES)
        require(pool.ne[2] == 1 and pool.ne[3] == 1, op, f"{what} must be a matrix", pool)
    head_dim, n_head = q.ne[:2]
    rule = "q must have three dimensions, ne[0] and ne[1] above 0"
    require(q.ne[3] == 1 and head_dim > 0 and n_head > 0, op, rule, q)
    n = k.ne[0] // head_dim
    shared = k.ne[0] % head_dim == 0 and n > 0 and n_head % n == 0
    require(shared, op, "k.ne[0] must be q.ne[0] times a divisor of n_head", q, k)
    rule = f"v must have {n} heads, like k"
    require(v.ne[0] > 0 and v.ne[0] % n == 0, op, rule, k, v)
    require(k.ne[1] == v.ne[1], op, "k and v must have the same number of cells", k, v)
    return n


def _require_matrix(op: str, a: Tensor, b: Tensor) -> None:
    rule = f"a must be a float or quantized type, not {a.type.name}"
    require(is_matrix_type(a.type), op, rule, a, b)
    require(not a.is_transposed, op, "a must not be transposed", a, b)
