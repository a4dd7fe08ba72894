"""Builders of ops along rows: norms, softmax, rotary embedding, sorting, sums, masks."""

from __future__ import annotations

from typing import Final

from ..op import (
    DiagMaskParams,
    EpsParams,
    Op,
    RopeMode,
    RopeParams,
    SoftMaxParams,
    SortOrder,
    SortParams,
)
from ..tensor import Tensor
from ..types import GGMLType
from .check import require, require_type
from .data import view

MASK_BITS: Final = 32  # bits of a word of a mask


def norm(a: Tensor, eps: float) -> Tensor:
    """(a - mean) / sqrt(variance + eps) of each row (arXiv 1607.06450)."""
    return _norm(Op.NORM, a, eps)


def rms_norm(a: Tensor, eps: float) -> Tensor:
    """a / sqrt(mean of squares + eps) of each row (arXiv 1910.07467)."""
    return _norm(Op.RMS_NORM, a, eps)


def soft_max(
    a: Tensor, mask: Tensor | None = None, scale: float = 1.0, max_bias: float = 0.0
) -> Tensor:
    """softmax(a * scale + slope(head) * mask) of each row.

    Args:
        a: F32 [n_kv, n_tokens, n_head, n], contiguous.
        mask: F32 or F16 [n_kv, >= n_tokens, m, k], added to the scores; m must divide n_head, and k
            must divide n.
        scale: factor of a.
        max_bias: if above 0, the mask is scaled by each head's ALiBi slope (arXiv 2108.12409).
    """
    require_type("soft_max", "a", a, GGMLType.F32)
    require(a.is_contiguous, "soft_max", "a must be contiguous", a)
    params = SoftMaxParams(float(scale), float(max_bias))
    if mask is None:
        require(max_bias == 0, "soft_max", f"max_bias {max_bias} needs a mask", a)
        return Tensor(a.type, a.ne, op=Op.SOFT_MAX, params=params, src=(a,))
    require_type("soft_max", "mask", mask, GGMLType.F32, GGMLType.F16)
    require(mask.is_contiguous, "soft_max", "the mask must be contiguous", a, mask)
    fits = (
        mask.ne[0] == a.ne[0]
        and mask.ne[1] >= a.ne[1]
        and not mask.is_empty
        and a.ne[2] % mask.ne[2] == 0
        and a.ne[3] % mask.ne[3] == 0
    )
    rule = "the mask must have ne[0] of a, ne[1] of a or more, and divisors of a.ne[2:]"
    require(fits, "soft_max", rule, a, mask)
    return Tensor(a.type, a.ne, op=Op.SOFT_MAX, params=params, src=(a, mask))


def rope(
    a: Tensor,
    pos: Tensor,
    freq_factors: Tensor | None = None,
    *,
    n_dims: int,
    mode: RopeMode = RopeMode.NORMAL,
    n_ctx_orig: int = 0,
    freq_base: float = 10000.0,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> Tensor:
    """Rotate the first `n_dims` elements of each head by its token's position (arXiv 2104.09864).

    Linear scaling is freq_scale = 1 / factor. YaRN is ext_factor > 0 (arXiv 2309.00071). llama3's
    scaling is `freq_factors`: each pair's frequency is divided by its factor.

    Args:
        a: F32 or F16 [head_dim, n_head, n_tokens, n].
        pos: I32 [n_tokens].
        freq_factors: F32 [>= n_dims / 2] or None.
    """
    require_type("rope", "a", a, GGMLType.F32, GGMLType.F16)
    require_type("rope", "pos", pos, GGMLType.I32)
    fits = pos.n_dims == 1 and pos.ne[0] == a.ne[2]
    require(fits, "rope", "pos must be a vector of a.ne[2] positions", a, pos)
    require(a.has_contiguous_rows, "rope", "rows must be contiguous", a)
    even = 0 < n_dims <= a.ne[0] and n_dims % 2 == 0
    require(even, "rope", f"n_dims {n_dims} must be even and at most ne[0]", a)
    require(freq_scale > 0, "rope", f"freq_scale {freq_scale} must be above 0", a)
    yarn = ext_factor == 0 or n_ctx_orig > 0
    require(yarn, "rope", f"YaRN (ext_factor {ext_factor}) needs n_ctx_orig above 0", a)
    src = [a, pos]
    if freq_factors is not None:
        require_type("rope", "freq_factors", freq_factors, GGMLType.F32)
        enough = freq_factors.ne[0] >= n_dims // 2
        rule = f"freq_factors must have at least {n_dims // 2} elements"
        require(enough, "rope", rule, freq_factors)
        src.append(freq_factors)
    params = RopeParams(
        n_dims,
        mode,
        n_ctx_orig,
        float(freq_base),
        float(freq_scale),
        float(ext_factor),
        float(attn_factor),
        float(beta_fast),
        float(beta_slow),
    )
    return Tensor(a.type, a.ne, op=Op.ROPE, params=params, src=src)


def argsort(a: Tensor, order: SortOrder = SortOrder.ASC) -> Tensor:
    """The indices (I32) that sort each row; equal values keep their order."""
    require_type("argsort", "a", a, GGMLType.F32)
    return Tensor(GGMLType.I32, a.ne, op=Op.ARGSORT, params=SortParams(order), src=(a,))


def argsort_top_k(a: Tensor, k: int) -> Tensor:
    """The indices (I32) of the k largest of each row, largest first: a view of an argsort."""
    _require_k("argsort_top_k", a, k)
    order = argsort(a, SortOrder.DESC)
    return view(order, (k, *a.ne[1:]), nb=order.nb)


def top_k(a: Tensor, k: int, mask: Tensor | None = None) -> Tensor:
    """The indices (I32) of the k largest of each row [k, ne1, ne2, ne3], without sorting the rest.

    The result is that of `argsort_top_k`: largest first, equal values by ascending index. ggml does
    not define the order, and has no mask.

    Args:
        a: F32.
        k: at most ne[0].
        mask: I32 [ceil(ne0 / 32), ne1, ne2, ne3], contiguous: a bit for each element, bit i % 32 of
            word i // 32. An element whose bit is 0 counts as NaN, so it comes after all others.
    """
    require_type("top_k", "a", a, GGMLType.F32)
    _require_k("top_k", a, k)
    src = [a]
    if mask is not None:
        require_type("top_k", "mask", mask, GGMLType.I32)
        words = -(-a.ne[0] // MASK_BITS)
        fits = mask.ne == (words, *a.ne[1:]) and mask.is_contiguous
        rule = f"the mask must be contiguous, with {words} words for each row of a"
        require(fits, "top_k", rule, a, mask)
        src.append(mask)
    return Tensor(GGMLType.I32, (k, *a.ne[1:]), op=Op.TOP_K, src=src)


def sum_rows(a: Tensor) -> Tensor:
    """The sum of each row: [1, ne1, ne2, ne3]."""
    require_type("sum_rows", "a", a, GGMLType.F32)
    return Tensor(a.type, (1, *a.ne[1:]), op=Op.SUM_ROWS, src=(a,))


def diag_mask_inf(a: Tensor, n_past: int) -> Tensor:
    """-inf where column i > n_past + row j: no token attends to a later one."""
    return _diag_mask(Op.DIAG_MASK_INF, a, n_past)


def diag_mask_zero(a: Tensor, n_past: int) -> Tensor:
    """0 where column i > n_past + row j."""
    return _diag_mask(Op.DIAG_MASK_ZERO, a, n_past)


def _diag_mask(op: Op, a: Tensor, n_past: int) -> Tensor:
    name = op.name.lower()
    require_type(name, "a", a, GGMLType.F32)
    require(n_past >= 0, name, f"n_past {n_past} must not be negative", a)
    return Tensor(a.type, a.ne, op=op, params=DiagMaskParams(n_past), src=(a,))


def _require_k(name: str, a: Tensor, k: int) -> None:
    require(0 < k <= a.ne[0], name, f"k {k} must be 1 to ne[0]", a)


def _norm(op: Op, a: Tensor, eps: float) -> Tensor:
    name = op.name.lower()
    require_type(name, "a", a, GGMLType.F32)
    require(a.has_contiguous_rows, name, "rows must be contiguous", a)
    require(eps >= 0, name, f"eps {eps} must not be negative", a)
    return Tensor(a.type, a.ne, op=op, params=EpsParams(float(eps)), src=(a,))
