"""Norms, softmax and sums of rows (src/rows.cu, src/softmax.cu); norms fused with their neighbors.

The length of a row determines how many threads share it. So the order of a sum depends on the
length alone. Tested by tests/kernels/test_rows.py and tests/kernels/test_fusion.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ....graph.op import Op, SoftMaxParams
from ....graph.tensor import Tensor, params_of
from ...plan.calls import Number
from ...plan.chains import NormMul, is_row_weighted
from ...plan.node_params import eps_of, has_whole_rows
from ..table import CudaCall, CudaKernel, CudaSource, fuses, implements
from .elementwise import is_countable

WARP: Final = 32
MAX_THREADS: Final = 1024
HELD: Final = 8  # elements that a thread holds in registers
SMALL_ROWS: Final = 4  # rows of a block if each row is computed by one warp

ROWS: Final = CudaSource.of("rows.cu")
SOFT_MAX: Final = CudaSource.of("softmax.cu")


def row_threads(n: int) -> int:
    """The number of threads that share a row of `n` elements."""
    threads = WARP
    while threads < MAX_THREADS and threads * HELD < n:
        threads *= 2
    return threads


def _call(
    source: CudaSource,
    name: str,
    rows: Tensor,
    *params: Number,
) -> list[CudaCall]:
    """The call for rows with the number and length of those of a tensor."""
    threads, n = row_threads(rows.ne[0]), rows.n_rows
    per_block = SMALL_ROWS if threads == WARP else 1
    return [
        CudaCall(
            CudaKernel(source, name),
            (-(-n // per_block), 1, 1),
            threads * per_block,
            (threads, *params),
        )
    ]


def _supports(node: Tensor) -> bool:
    return is_countable(node, *node.src) and has_whole_rows(node)


@implements(Op.SUM_ROWS, supports=_supports)
def sum_rows(node: Tensor) -> Sequence[CudaCall]:
    return _call(ROWS, "sum_rows_f32", node.src[0])


# --- softmax ---


@implements(Op.SOFT_MAX, supports=_supports)
def soft_max(node: Tensor) -> Sequence[CudaCall]:
    scale, max_bias = params_of(node, SoftMaxParams)
    if len(node.src) == 1:
        return _call(SOFT_MAX, "soft_max_f32", node, scale)
    mask = int(node.src[1].type)
    return _call(SOFT_MAX, "soft_max_masked_f32", node, scale, max_bias, mask)


# --- norms ---


@implements(Op.NORM, Op.RMS_NORM, supports=_supports)
def norms(node: Tensor) -> Sequence[CudaCall]:
    return _call(ROWS, f"{node.op.name.lower()}_f32", node, eps_of(node))


@fuses(NormMul)
def norm_mul(chain: NormMul) -> Sequence[CudaCall] | None:
    """The product, and the sum before the norm if another node reads it."""
    if not is_row_weighted(chain) or not is_countable(*chain.tensors):
        return None
    name = f"{'' if chain.add is None else 'add_'}{chain.norm.op.name.lower()}_mul_f32"
    [call] = _call(ROWS, name, chain.mul, eps_of(chain.norm))
    return [call._replace(tensors=chain.tensors, n_written=chain.n_written)]
