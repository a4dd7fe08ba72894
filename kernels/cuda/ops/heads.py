"""Heads of tokens into rows, by index (src/rope.cu, src/set_rows.cu): SET_ROWS, and what ROPE
shares with it.

For few tokens, one kernel stores heads, rotated or not, of queries, keys and values. So their
launches become one. Tested by tests/kernels/test_data.py and tests/kernels/test_fusion.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ....graph.op import Op
from ....graph.tensor import Tensor
from ....graph.types import GGMLType
from ...plan.calls import Number
from ..table import CudaCall, CudaKernel, CudaSource, implements
from .data import is_writable
from .elementwise import BLOCK, is_countable

ROPE: Final = CudaSource.of("rope.cu")
STORE_HEADS: Final = CudaKernel(ROPE, "store_heads", merges=True)
SET_ROWS: Final = CudaKernel(CudaSource.of("set_rows.cu"), "set_rows")

FEW, MANY = 512, 4096  # elements of a block: few tokens, many tokens
MANY_TOKENS: Final = 64
MAX_SHARED: Final = 48 * 1024  # bytes
NOT_ROTATED: Final = (0, 0, *[0.0] * 6, 0)  # the parameters of a ROPE that rotates nothing


class Heads(NamedTuple):
    """The heads of float32 to store, and the rows that they become.

    `n_tokens` tokens have `n_head` heads of `head_dim` elements. `nb` are the bytes from one head
    and from one token to the next, `row_bytes` those from one row to the next. A block stores a
    multiple of `unit` heads.
    """

    head_dim: int
    n_head: int
    n_tokens: int
    nb: tuple[int, int]
    type: GGMLType
    row_bytes: int
    unit: int = 1


def store_heads(
    heads: Heads, rotation: Sequence[Number], tensors: Sequence[Tensor], id_bytes: int
) -> CudaCall | None:
    """The call that stores heads; None if a block cannot. `tensors` are those of src/rope.cu."""
    n_wanted = (FEW if heads.n_tokens < MANY_TOKENS else MANY) // heads.head_dim
    n_heads = min(max(n_wanted // heads.unit, 1) * heads.unit, heads.n_head)
    shared = 4 * n_heads * heads.head_dim
    if shared > MAX_SHARED:
        return None
    n_blocks = heads.n_tokens * -(-heads.n_head // n_heads)
    layout = (heads.n_head, *heads.nb, heads.row_bytes)
    params = (*rotation, int(heads.type), n_heads, id_bytes, *layout)
    return CudaCall(STORE_HEADS, (n_blocks, 1, 1), BLOCK, params, shared, tensors=tensors)


def _can_set_rows(node: Tensor) -> bool:
    return is_writable(node.type) and is_countable(node.src[0])


@implements(Op.SET_ROWS, supports=_can_set_rows)
def set_rows(node: Tensor) -> Sequence[CudaCall]:
    b, ids, _ = node.src
    if b.n_rows == b.ne[1] < MANY_TOKENS and b.nb[0] == b.type.type_size:
        heads = Heads(b.ne[0], 1, b.ne[1], (0, b.nb[1]), node.type, node.nb[1])
        tensors = (node, b, ids, ids, ids)
        call = store_heads(heads, NOT_ROTATED, tensors, ids.type.type_size)
        if call is not None:
            return [call]
    params = (int(node.type), ids.type.type_size)
    return [CudaCall(SET_ROWS, (b.n_rows, 1, 1), BLOCK, params)]
