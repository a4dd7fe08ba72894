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
from ..table import CudaCall, CudaKernel, fuses, implements
from .data import is_writable
from .elementwise import BLOCK, is_countable
from .heads import MANY_TOKENS, ROPE, Heads, store_heads

MANY_PAIRS: Final = 2**17  # from here on a thread rotates several heads, to compute fewer angles
HEADS: Final = 8  # heads of such a thread


@implements(Op.ROPE, supports=is_countable)
def rope(node: Tensor) -> Sequence[CudaCall]:
    if node.ne[2] < MANY_TOKENS and (call := _rope_of_few(node)):
        return [call]
    n_pairs, (_, n_head, n_tokens, n_batch) = (node.ne[0] + 1) // 2, node.ne
    n_heads = 1 if n_pairs * node.n_rows < MANY_PAIRS else min(HEADS, n_head)
    n_threads = n_pairs * -(-n_head // n_heads) * n_tokens * n_batch
    params = (*_rotation(node), int(node.type), n_heads)
    return [CudaCall(CudaKernel(ROPE, "rope"), (-(-n_threads // BLOCK), 1, 1), BLOCK, params)]


def _rope_of_few(node: Tensor) -> CudaCall | None:
    """The call that may be merged with those for keys and values."""
    (x, pos, *factors), nb = node.src, (node.type.type_size, node.nb[1])
    is_plain = x.nb[0] == nb[0] == node.nb[0] and nb[1] == nb[0] * node.ne[0] and node.ne[3] == 1
    if node.type is not GGMLType.F32 or not is_plain:
        return None
    tensors = (node, x, pos, *(factors or [pos]), pos)
    heads = Heads(*node.ne[:3], (x.nb[1], x.nb[2]), node.type, node.nb[2])
    return store_heads(heads, _rotation(node), tensors, 0)


@fuses(RopeSetRows)
def rope_set_rows(chain: RopeSetRows) -> Sequence[CudaCall] | None:
    """Writes the cache. The rotated heads themselves are not stored."""
    rope, cache, x, ids = chain.rope, chain.set_rows, chain.rope.src[0], chain.tensors[-1]
    fits = is_writable(cache.type) and rope.type is GGMLType.F32 and rope.ne[1] % chain.unit == 0
    if not fits or not is_countable(rope):
        return None
    nb = (x.nb[1], x.nb[2])
    heads = Heads(*rope.ne[:3], nb, cache.type, cache.nb[1], chain.unit)
    call = store_heads(heads, _rotation(rope), chain.tensors, ids.type.type_size)
    return None if call is None else [call]


def _rotation(node: Tensor) -> tuple[Number, ...]:
    """The parameters of a rotation for all kernels."""
    return *rope_params(node), params_of(node, RopeParams).mode is RopeMode.NEOX
