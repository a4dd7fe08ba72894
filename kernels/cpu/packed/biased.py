"""Products with packed weights, plus a bias, and an activation of that: BERT's matrices.

A thread adds the bias to a chunk of rows right after their products, while they are in the first
cache. The bits are those of the single ops. Tested by tests/kernels/test_cpu_packed.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ....graph.op import UnaryOp, UnaryParams
from ....graph.tensor import params_of
from ...plan.chains import BiasedMatMul
from ..compiler.jit import Kernel
from ..ops.activations import UNARY_FUNCTIONS
from ..simd.calls import inlined
from ..simd.memory import load_f32_part, store_f32_part
from ..simd.vectors import LANES
from ..table import CpuCall, fuses, is_packed
from .products import can_multiply_matrix, mul_mat_call

# the functions that may follow a bias: they have no parameters
ACTIVATIONS: Final = (UnaryOp.GELU_ERF, UnaryOp.GELU, UnaryOp.SILU, UnaryOp.RELU)


def _biased_rows(name: str, function: Callable[..., Any]) -> Kernel:
    """A kernel (row, bias, n): replaces `n` floats of a row by f(row + bias)."""

    def run(x, bias, n):
        for i in range(0, n, LANES):
            v = load_f32_part(x + 4 * i, n - i) + load_f32_part(bias + 4 * i, n - i)
            store_f32_part(x + 4 * i, function(v, ()), n - i)

    run.__name__ = name
    return Kernel(run, 3)


BIASED_ROW: Final = _biased_rows("biased_row", inlined(lambda x, s: x))
BIASED_ROWS: Final = {
    op: _biased_rows(f"biased_{op.name.lower()}_row", UNARY_FUNCTIONS[op]) for op in ACTIVATIONS
}


@fuses(BiasedMatMul)
def biased(chain: BiasedMatMul) -> Sequence[CpuCall] | None:
    if not is_packed(chain.product.src[0]) or not can_multiply_matrix(chain.product):
        return None
    kernel = BIASED_ROW
    if chain.unary is not None:
        op = params_of(chain.unary, UnaryParams).op
        if op not in BIASED_ROWS:
            return None
        kernel = BIASED_ROWS[op]
    return [mul_mat_call(chain.product, kernel)._replace(tensors=chain.tensors)]
