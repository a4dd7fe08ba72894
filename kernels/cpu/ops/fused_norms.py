"""Norms fused with their neighbors: a residual's ADD before, a weight's MUL and a bias' ADD after.

Each row is read, summed, normed and weighted while it is in the first cache. Formulas and roundings
are those of rows.py and elementwise.py. Tested by tests/kernels/test_fusion.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ....graph.op import Op
from ...plan.chains import NormMul, NormMulAdd, is_row_weighted
from ...plan.node_params import eps_of
from ..compiler.jit import Kernel
from ..params import data, first_of, float_param, n_rows, ne, row
from ..simd.calls import inlined
from ..simd.memory import load_f32_part, store_f32_part
from ..simd.vectors import LANES, zero
from ..table import SMALL, CpuCall, fuses
from .rows import mean_of, norm_factor


@inlined
def _weigh(x, weight, bias, out, n, mean, eps):
    """Write the normed row times the weight; plus the bias, unless its address is 0."""
    factor = norm_factor(x, n, mean, eps)
    for i in range(0, n, LANES):
        v = (load_f32_part(x + 4 * i, n - i) - mean) * factor
        v = v * load_f32_part(weight + 4 * i, n - i)
        if bias != 0:
            v = v + load_f32_part(bias + 4 * i, n - i)
        store_f32_part(out + 4 * i, v, n - i)


@inlined
def _add(a, b, out, n):
    for i in range(0, n, LANES):
        v = load_f32_part(a + 4 * i, n - i) + load_f32_part(b + 4 * i, n - i)
        store_f32_part(out + 4 * i, v, n - i)


def _norm_mul_kernel(name: str, centered: bool, biased: bool) -> Kernel:
    """Tensors: the result, rows, the weight, the bias if there is one. Parameter: eps."""

    def run(p, ith, nth):
        rows, n, weight = n_rows(p, 0), ne(p, 0, 0), data(p, 2)
        bias = data(p, 3) if biased else 0
        for r in range(first_of(rows, ith, nth), first_of(rows, ith + 1, nth)):
            x = row(p, 1, r)
            mean = mean_of(x, n) if centered else zero()
            _weigh(x, weight, bias, row(p, 0, r), n, mean, float_param(p, 0))

    run.__name__ = name
    return Kernel(run)


def _add_norm_mul_kernel(name: str, centered: bool, biased: bool) -> Kernel:
    """Tensors: the result, the sum (or the result again), two operands, the weight, the bias."""

    def run(p, ith, nth):
        rows, n, weight = n_rows(p, 0), ne(p, 0, 0), data(p, 4)
        bias = data(p, 5) if biased else 0
        for r in range(first_of(rows, ith, nth), first_of(rows, ith + 1, nth)):
            x = row(p, 1, r)
            _add(row(p, 2, r), row(p, 3, r), x, n)
            mean = mean_of(x, n) if centered else zero()
            _weigh(x, weight, bias, row(p, 0, r), n, mean, float_param(p, 0))

    run.__name__ = name
    return Kernel(run)


# by the norm, and whether there is a bias
NORM_MUL: Final = {
    (Op.RMS_NORM, False): _norm_mul_kernel("rms_norm_mul_f32", False, False),
    (Op.NORM, False): _norm_mul_kernel("norm_mul_f32", True, False),
    (Op.RMS_NORM, True): _norm_mul_kernel("rms_norm_mul_add_f32", False, True),
    (Op.NORM, True): _norm_mul_kernel("norm_mul_add_f32", True, True),
}
ADD_NORM_MUL: Final = {
    (Op.RMS_NORM, False): _add_norm_mul_kernel("add_rms_norm_mul_f32", False, False),
    (Op.NORM, False): _add_norm_mul_kernel("add_norm_mul_f32", True, False),
    (Op.RMS_NORM, True): _add_norm_mul_kernel("add_rms_norm_mul_add_f32", False, True),
    (Op.NORM, True): _add_norm_mul_kernel("add_norm_mul_add_f32", True, True),
}


@fuses(NormMul)
def norm_mul(chain: NormMul) -> Sequence[CpuCall] | None:
    """The product, and the sum before the norm if another node reads it."""
    return _calls(chain, chain)


@fuses(NormMulAdd)
def norm_mul_add(chain: NormMulAdd) -> Sequence[CpuCall] | None:
    """The product plus the bias, and the sum before the norm if another node reads it."""
    return _calls(chain, chain.product)


def _calls(chain: NormMul | NormMulAdd, product: NormMul) -> Sequence[CpuCall] | None:
    if not is_row_weighted(product):
        return None
    kernels = NORM_MUL if product.add is None else ADD_NORM_MUL
    return [
        CpuCall(
            kernels[product.norm.op, chain is not product],
            (eps_of(product.norm),),
            one_thread=product.mul.n_elements < SMALL,
            tensors=chain.tensors,
            n_written=chain.n_written,
        )
    ]
