"""Kernels of graph/ops/rows.py: norms, softmax, rotary embedding, sorting, sums and masks.

Sums are computed in float64, as in ggml, row by row: other rows cannot change a row's bits.
Tested by tests/kernels/test_reference_rows.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ...graph import Tensor
from ...graph.op import (
    DiagMaskParams,
    EpsParams,
    Op,
    RopeMode,
    RopeParams,
    SoftMaxParams,
    SortOrder,
    SortParams,
)
from ...graph.tensor import params_of
from .arrays import Array, F32Array, NumpyKernel, float_kernel, read, store, tile

F64Array = npt.NDArray[np.float64]


def softmax(x: F32Array) -> F32Array:
    """Softmax along the last axis. NaN for a row of -inf only, as in ggml."""
    e: F32Array = np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
    y: F32Array = e * (1 / _sum(e)).astype(np.float32)
    return y


def alibi_slopes(n_head: int, max_bias: float) -> F32Array:
    """The factor of each head's bias [n_head]: 1, or ALiBi's (arXiv 2108.12409) if max_bias > 0.

    Heads beyond the largest power of two take every second slope of twice as many, as in ggml.
    """
    if max_bias <= 0:
        return np.ones(n_head, np.float32)
    n = 1 << max(n_head, 1).bit_length() - 1  # n_head_log2: the largest power of two
    m0, m1 = 2 ** (-max_bias / n), 2 ** (-max_bias / 2 / n)
    slopes = [m0 ** (h + 1) if h < n else m1 ** (2 * (h - n) + 1) for h in range(n_head)]
    return np.array(slopes, np.float32)


def _sum(x: F32Array) -> F64Array:
    # converted first: sum(dtype=float64) adds in chunks whose size depends on the NumPy version
    total: F64Array = x.astype(np.float64).sum(axis=-1, keepdims=True)
    return total


def _mean(x: F32Array) -> F32Array:
    mean: F32Array = (_sum(x) / x.shape[-1]).astype(np.float32)
    return mean


def _sum_rows(_: Tensor, x: F32Array) -> F32Array:
    return _sum(x).astype(np.float32)


def _rms_norm(node: Tensor, x: F32Array) -> F32Array:
    y: F32Array = x * (1 / np.sqrt(_mean(x * x) + params_of(node, EpsParams).eps))
    return y


def _norm(node: Tensor, x: F32Array) -> F32Array:
    return _rms_norm(node, x - _mean(x))


def _soft_max(node: Tensor, x: F32Array, mask: F32Array | None = None) -> F32Array:
    p = params_of(node, SoftMaxParams)
    scores = x * p.scale
    if mask is not None:
        slopes = alibi_slopes(x.shape[1], p.max_bias)[:, None, None]
        # a mask may have more rows than there are tokens
        scores += slopes * tile(mask[:, :, : x.shape[2]], x.shape)
    return softmax(scores)


def _masked(node: Tensor, x: F32Array, value: float) -> F32Array:
    last = params_of(node, DiagMaskParams).n_past + np.arange(x.shape[-2])
    return np.where(np.arange(x.shape[-1]) > last[:, None], np.float32(value), x)


def _diag_mask_inf(node: Tensor, x: F32Array) -> F32Array:
    return _masked(node, x, -np.inf)


def _diag_mask_zero(node: Tensor, x: F32Array) -> F32Array:
    return _masked(node, x, 0.0)


def _argsort(node: Tensor, dst: Array, srcs: Sequence[Array]) -> None:
    x = read(node, srcs, 0)
    descending = params_of(node, SortParams).order is SortOrder.DESC
    dst[...] = _falling(x) if descending else np.argsort(x, axis=-1, kind="stable")


def _falling(x: F32Array) -> npt.NDArray[np.intp]:
    # sort the negative: reversing an ascending order would also reverse equal elements
    return np.argsort(-x, axis=-1, kind="stable")


def _top_k(node: Tensor, dst: Array, srcs: Sequence[Array]) -> None:
    x = read(node, srcs, 0)
    if len(srcs) > 1:
        bits = np.ascontiguousarray(srcs[1]).view(np.uint8)
        kept = np.unpackbits(bits, axis=-1, count=x.shape[-1], bitorder="little")
        x = np.where(kept, x, np.float32(math.nan))
    dst[...] = _falling(x)[..., : node.ne[0]]


def _rope(node: Tensor, dst: Array, srcs: Sequence[Array]) -> None:
    p = params_of(node, RopeParams)
    x = read(node, srcs, 0)  # (n, n_tokens, n_head, head_dim)
    factors = read(node, srcs, 2)[0, 0, 0] if len(srcs) > 2 else None
    cos, sin = _cos_sin(p, srcs[1][0, 0, 0], factors)
    half, n = p.n_dims // 2, p.n_dims
    pairs = {
        RopeMode.NORMAL: (slice(0, n, 2), slice(1, n, 2)),
        RopeMode.NEOX: (slice(0, half), slice(half, n)),
    }
    first, second = pairs[p.mode]
    x0, x1 = x[..., first], x[..., second]
    y = x.copy()  # elements from n_dims on do not change
    y[..., first] = x0 * cos - x1 * sin
    y[..., second] = x0 * sin + x1 * cos
    store(node.type, dst, y)


def _cos_sin(p: RopeParams, pos: Array, factors: F32Array | None) -> tuple[F32Array, F32Array]:
    # float64: an angle of 100,000, rounded to float32, would be off by up to 0.004
    i = np.arange(p.n_dims // 2)
    # (n_tokens, 1, n_dims / 2): all heads of a token rotate alike
    theta = pos.astype(np.float64)[:, None, None] * p.freq_base ** (-2.0 * i / p.n_dims)
    if factors is not None:
        theta = theta / factors[: len(i)]
    theta, scale = _yarn(p, theta)
    return (np.cos(theta) * scale).astype(np.float32), (np.sin(theta) * scale).astype(np.float32)


def _yarn(p: RopeParams, theta: F64Array) -> tuple[F64Array, float]:
    """Scaled angles, and the factor of cos and sin: YaRN as in ggml's rope_yarn (arXiv
    2309.00071)."""
    interpolated = p.freq_scale * theta
    if p.ext_factor == 0:
        return interpolated, p.attn_factor
    low = max(0.0, np.floor(_corr_dim(p, p.beta_fast)))
    high = min(p.n_dims - 1.0, np.ceil(_corr_dim(p, p.beta_slow)))
    ramp = (np.arange(p.n_dims // 2) - low) / max(0.001, high - low)
    mix = (1 - np.clip(ramp, 0, 1)) * p.ext_factor
    scale = p.attn_factor * (1 - 0.1 * np.log(np.float64(p.freq_scale)))
    return interpolated * (1 - mix) + theta * mix, float(scale)


def _corr_dim(p: RopeParams, n_rot: float) -> float:
    # the pair that makes n_rot turns within n_ctx_orig positions
    turns = np.float64(p.n_ctx_orig) / (n_rot * 2 * math.pi)
    return float(p.n_dims * np.log(turns) / (2 * np.log(np.float64(p.freq_base))))


KERNELS: Final[dict[Op, NumpyKernel]] = {
    Op.SUM_ROWS: float_kernel(_sum_rows),
    Op.NORM: float_kernel(_norm),
    Op.RMS_NORM: float_kernel(_rms_norm),
    Op.SOFT_MAX: float_kernel(_soft_max),
    Op.ROPE: _rope,
    Op.ARGSORT: _argsort,
    Op.TOP_K: _top_k,
    Op.DIAG_MASK_INF: float_kernel(_diag_mask_inf),
    Op.DIAG_MASK_ZERO: float_kernel(_diag_mask_zero),
}
