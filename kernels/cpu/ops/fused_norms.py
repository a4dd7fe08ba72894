"""Norms fused with their neighbors: the ADD of a residual before, the MUL by a weight after.

Each row is read, summed, normed and weighted while it is in the first cache. Formulas and roundings
are those of rows.py and elementwise.py. Tested by tests/kernels/test_fusion.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ....graph.op import Op
from ...plan.chains import NormMul, is_row_weighted
from ...plan.node_params import eps_of
from ..compiler.jit import Kernel
from ..params import data, first_of, float_param, n_rows, ne, row
from ..simd.calls import inlined
from ..simd.memory import load_f32_part, store_f32_part
from ..simd.vectors import LANES, zero
from ..table import SMALL, CpuCall, fuses
from .rows import mean_of, norm_factor


@inlined
def _weigh(x, weight, out, n, mean, eps):
    factor = norm_factor(x, n, mean, eps)
    for i in range(0, n, LANES):
        v = (load_f32_part(x + 4 * i, n - i) - mean) * factor
        store_f32_part(out + 4 * i, v * load_f32_part(weight + 4 * i, n - i), n - i)


@inlined
def _add(a, b, out, n):
    for i in range(0, n, LANES):
        v = load_f32_part(a + 4 * i, n - i) + load_f32_part(b + 4 * i, n - i)
        store_f32_part(out + 4 * i, v, n - i)


def _norm_mul_kernel(name: str, centered: bool) -> Kernel:
    """Tensors: the result, rows, the weight. Parameter: eps."""

    def run(p, ith, nth):
        rows, n, weight = n_rows(p, 0), ne(p, 0, 0), data(p, 2)
        for r in range(first_of(rows, ith, nth), first_of(rows, ith + 1, nth)):
            x = row(p, 1, r)
            mean = mean_of(x, n) if centered else zero()
            _weigh(x, weight, row(p, 0, r), n, mean, float_param(p, 0))

    run.__name__ = name
    return Kernel(run)


def _add_norm_mul_kernel(name: str, centered: bool) -> Kernel:
    """Tensors: the result, the sum (or the result again), two operands, the weight."""

    def run(p, ith, nth):
        rows, n, weight = n_rows(p, 0), ne(p, 0, 0), data(p, 4)
        for r in range(first_of(rows, ith, nth), first_of(rows, ith + 1, nth)):
            x = row(p, 1, r)
            _add(row(p, 2, r), row(p, 3, r), x, n)
            mean = mean_of(x, n) if centered else zero()
            _weigh(x, weight, row(p, 0, r), n, mean, float_param(p, 0))

    run.__name__ = name
    return Kernel(run)


NORM_MUL: Final = {
    Op.RMS_NORM: _norm_mul_kernel("rms_norm_mul_f32", False),
    Op.NORM: _norm_mul_kernel("norm_mul_f32", True),
}
ADD_NORM_MUL: Final = {
    Op.RMS_NORM: _add_norm_mul_kernel("add_rms_norm_mul_f32", False),
    Op.NORM: _add_norm_mul_kernel("add_norm_mul_f32", True),
}


@fuses(NormMul)
def norm_mul(chain: NormMul) -> Sequence[CpuCall] | None:
    """The product, and the sum before the norm if another node reads it."""
    if not is_row_weighted(chain):
        return None
    kernels = NORM_MUL if chain.add is None else ADD_NORM_MUL
    return [
        CpuCall(
            kernels[chain.norm.op],
            (eps_of(chain.norm),),
            one_thread=chain.mul.n_elements < SMALL,
            tensors=chain.tensors,
            n_written=chain.n_written,
        )
    ]
