"""Rotary position embedding (src/rope.cu): ROPE, and ROPE that writes into the rows of a cache.

Angles are computed in float64, from the position and the pair alone. So an element's bits do not
depend on the division of heads among threads.
Tested by tests/kernels/test_rope.py and tests/kernels/test_fusion.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ....graph.op import Op, RopeMode, RopeParams
from ....graph.tensor import Tensor, params_of
from ....graph.types import GGMLType
from ...plan.calls import Number
from ...plan.chains import RopeSetRows
from ...plan.node_params import rope_params
from ..table import CudaCall, CudaKernel, CudaSource, fuses, implements
from .data import is_writable
from .elementwise import BLOCK, is_countable

ROPE: Final = CudaSource.of("rope.cu")
MANY_PAIRS: Final = 2**17  # from here on a thread rotates several heads, to compute fewer angles
HEADS: Final = 8  # heads of such a thread
FEW, MANY = 512, 4096  # elements of a block that writes into a cache: few tokens, many tokens
MANY_TOKENS: Final = 64
MAX_SHARED: Final = 48 * 1024  # bytes


@implements(Op.ROPE, supports=is_countable)
def rope(node: Tensor) -> Sequence[CudaCall]:
    n_pairs, (_, n_head, n_tokens, n_batch) = (node.ne[0] + 1) // 2, node.ne
    n_heads = 1 if n_pairs * node.n_rows < MANY_PAIRS else min(HEADS, n_head)
    n_threads = n_pairs * -(-n_head // n_heads) * n_tokens * n_batch
    params = (*_params(node), int(node.type), n_heads)
    return [CudaCall(CudaKernel(ROPE, "rope"), (-(-n_threads // BLOCK), 1, 1), BLOCK, params)]


@fuses(RopeSetRows)
def rope_set_rows(chain: RopeSetRows) -> Sequence[CudaCall] | None:
    """Writes the cache. The rotated heads themselves are not stored."""
    rope, type, unit = chain.rope, chain.set_rows.type, chain.unit
    head_dim, n_head, n_tokens, _ = rope.ne
    if not is_writable(type) or rope.type is not GGMLType.F32 or n_head % unit:
        return None
    n_wanted = (FEW if n_tokens < MANY_TOKENS else MANY) // head_dim
    n_heads = min(max(n_wanted // unit, 1) * unit, n_head)
    shared = 4 * n_heads * head_dim
    if shared > MAX_SHARED or not is_countable(rope):
        return None
    kernel, ids = CudaKernel(ROPE, "rope_set_rows"), chain.tensors[-1]
    params = (*_params(rope), int(type), n_heads, ids.type.type_size)
    grid = (n_tokens, -(-n_head // n_heads), 1)
    return [CudaCall(kernel, grid, BLOCK, params, shared, tensors=chain.tensors)]


def _params(node: Tensor) -> tuple[Number, ...]:
    """The parameters of both kernels."""
    return *rope_params(node), params_of(node, RopeParams).mode is RopeMode.NEOX
