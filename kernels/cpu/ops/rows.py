"""Norms, softmax, sums and masks: ops whose elements depend on their whole row.

Blocks of 1024 elements are summed in float32 vectors, the sums of blocks in float64. The order
depends only on the row's length. Tested by tests/kernels/test_rows.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from ....graph.op import Op, SoftMaxParams
from ....graph.tensor import Tensor, params_of
from ....graph.types import GGMLType
from ...plan.node_params import diag_mask_of, eps_of, has_whole_rows
from ..compiler.jit import Kernel, kernel
from ..params import first_of, float_param, int_param, n_rows, ne, row, row_at
from ..simd.calls import inlined
from ..simd.functions import vexp
from ..simd.memory import load_f16_part, load_f32_part, store_f32, store_f32_part
from ..simd.vectors import LANES, hmax, hsum, join, splat, vmax, zero
from ..table import SMALL, CpuCall, implements

BLOCK: Final = 1024  # elements that are summed in float32


def _call(kernel: Kernel, node: Tensor, *params: int | float) -> list[CpuCall]:
    return [CpuCall(kernel, params, one_thread=node.src[0].n_elements < SMALL)]


# --- sums ---


def _sum_of(f: Callable[..., Any]) -> Any:
    """A function (x, n, c): the float64 sum of f(v, c) over the row of `n` floats at `x`."""

    @inlined
    def sum_of(x, n, c):
        total = 0.0
        for start in range(0, n, BLOCK):
            end = min(start + BLOCK, n)
            lanes = zero()
            for i in range(start, end, LANES):
                lanes = lanes + join(f(load_f32_part(x + 4 * i, end - i), c), zero(), end - i)
            total += hsum(lanes)
        return total

    return sum_of


_sum = _sum_of(inlined(lambda v, c: v))
_sum_of_squares = _sum_of(inlined(lambda v, c: (v - c) * (v - c)))
_sum_of_exp = _sum_of(inlined(lambda v, c: vexp(v - c)))


@kernel
def sum_rows_f32(p, ith, nth):
    rows, n = n_rows(p, 0), ne(p, 1, 0)
    for r in range(first_of(rows, ith, nth), first_of(rows, ith + 1, nth)):
        store_f32(row(p, 0, r), _sum(row(p, 1, r), n, zero()))


@implements(Op.SUM_ROWS, supports=has_whole_rows)
def sum_rows(node: Tensor) -> Sequence[CpuCall]:
    return _call(sum_rows_f32, node)


# --- norms ---


@inlined
def mean_of(x, n):
    """The mean of the row of `n` floats at `x`, in all lanes."""
    return splat(_sum(x, n, zero()) / n)


@inlined
def norm_factor(x, n, mean, eps):
    """1 / sqrt(mean of (x - mean)**2 + eps), in all lanes."""
    return splat(1.0 / math.sqrt(_sum_of_squares(x, n, mean) / n + eps))


@inlined
def _normalize(x, out, n, mean, eps):
    factor = norm_factor(x, n, mean, eps)
    for i in range(0, n, LANES):
        store_f32_part(out + 4 * i, (load_f32_part(x + 4 * i, n - i) - mean) * factor, n - i)


@kernel
def rms_norm_f32(p, ith, nth):
    rows, n = n_rows(p, 0), ne(p, 0, 0)
    for r in range(first_of(rows, ith, nth), first_of(rows, ith + 1, nth)):
        _normalize(row(p, 1, r), row(p, 0, r), n, zero(), float_param(p, 0))


@kernel
def norm_f32(p, ith, nth):
    rows, n = n_rows(p, 0), ne(p, 0, 0)
    for r in range(first_of(rows, ith, nth), first_of(rows, ith + 1, nth)):
        x = row(p, 1, r)
        _normalize(x, row(p, 0, r), n, mean_of(x, n), float_param(p, 0))


@implements(Op.NORM, Op.RMS_NORM, supports=has_whole_rows)
def norms(node: Tensor) -> Sequence[CpuCall]:
    return _call(norm_f32 if node.op is Op.NORM else rms_norm_f32, node, eps_of(node))


# --- softmax ---


@inlined
def alibi_slope(head, n_head, max_bias):
    """The factor of a head's bias: 1, or ALiBi's if max_bias > 0 (arXiv 2108.12409).

    Heads beyond the largest power of two take every second slope of twice as many, as in ggml.
    """
    if max_bias <= 0:
        return 1.0
    n = 1
    while 2 * n <= n_head:
        n *= 2
    return (
        math.pow(2.0, -max_bias * (head + 1) / n)
        if head < n
        else math.pow(2.0, -max_bias * (2 * (head - n) + 1) / (2 * n))
    )


def _soft_max_kernel(name: str, load_mask: Callable[..., Any] | None, mask_size: int) -> Kernel:
    """The kernel for a type of mask: `load_mask` loads 16 elements of `mask_size` bytes each."""

    def run(p, ith, nth):
        scale = splat(float_param(p, 0))
        rows, n, n1, n2 = n_rows(p, 0), ne(p, 0, 0), ne(p, 0, 1), ne(p, 0, 2)
        for r in range(first_of(rows, ith, nth), first_of(rows, ith + 1, nth)):
            x, out, largest = row(p, 1, r), row(p, 0, r), splat(-math.inf)
            mask, slope = 0, zero()
            if load_mask is not None:
                head, batch = r // n1 % n2, r // (n1 * n2)
                slope = splat(alibi_slope(head, n2, float_param(p, 1)))
                mask = row_at(p, 2, r % n1, head % ne(p, 2, 2), batch % ne(p, 2, 3))
            for i in range(0, n, LANES):
                v = load_f32_part(x + 4 * i, n - i) * scale
                if load_mask is not None:
                    v = v + slope * load_mask(mask + mask_size * i, n - i)
                store_f32_part(out + 4 * i, v, n - i)
                largest = vmax(largest, join(v, splat(-math.inf), n - i))
            _exp_of_share(out, n, splat(hmax(largest)))

    run.__name__ = name
    return Kernel(run)


@inlined
def _exp_of_share(x, n, largest):
    """Replace the scores at `x` by their exponentials, divided by the sum of the exponentials."""
    factor = splat(1.0 / _sum_of_exp(x, n, largest))
    for i in range(0, n, LANES):
        v = vexp(load_f32_part(x + 4 * i, n - i) - largest)
        store_f32_part(x + 4 * i, v * factor, n - i)


SOFT_MAX: Final = {
    None: _soft_max_kernel("soft_max_f32", None, 0),
    GGMLType.F32: _soft_max_kernel("soft_max_f32_f32", load_f32_part, 4),
    GGMLType.F16: _soft_max_kernel("soft_max_f32_f16", load_f16_part, 2),
}


@implements(Op.SOFT_MAX)
def soft_max(node: Tensor) -> Sequence[CpuCall]:
    mask = node.src[1].type if len(node.src) > 1 else None
    return _call(SOFT_MAX[mask], node, *params_of(node, SoftMaxParams))


# --- masks ---


@kernel
def diag_mask_f32(p, ith, nth):
    n_past, value = int_param(p, 0), splat(float_param(p, 1))
    rows, n = n_rows(p, 0), ne(p, 0, 0)
    for r in range(first_of(rows, ith, nth), first_of(rows, ith + 1, nth)):
        x, out = row(p, 1, r), row(p, 0, r)
        n_kept = n_past + r % ne(p, 0, 1) + 1
        for i in range(0, n, LANES):
            v = join(load_f32_part(x + 4 * i, n - i), value, n_kept - i)
            store_f32_part(out + 4 * i, v, n - i)


@implements(Op.DIAG_MASK_INF, Op.DIAG_MASK_ZERO, supports=has_whole_rows)
def diag_mask(node: Tensor) -> Sequence[CpuCall]:
    return _call(diag_mask_f32, node, *diag_mask_of(node))
