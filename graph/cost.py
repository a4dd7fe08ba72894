"""The cost of computing nodes: bytes to move, and multiplications.

    cost([gate, up, glu], used).n_bytes   # a fused chain: tensors inside it are free

Each tensor counts once. Only its data counts: no gaps between rows, no kernel caches and no
repeated reads. Costs that depend on data come from `KnownUse`; without it, the maximum for the
shapes counts. Knows no memory and no kernels. Tested by tests/graph/test_cost.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .op import VIEW_OPS, WRITTEN_SOURCES, AttnParams, Op
from .tensor import Tensor, params_of, written_source

I32_BYTES = 4


@dataclass(frozen=True, slots=True)
class KnownUse:
    """The parts of its sources that a node uses, where data decides. None if unknown.

    `experts`: number of experts that a MUL_MAT_ID uses. `cells`: number of pool cells that
    attention reads. `pairs`: number of (token, attended position) pairs. `states`: number of states
    that a recurrence reads, and of those that it writes.
    """

    experts: int | None = None
    cells: int | None = None
    pairs: int | None = None
    states: int | None = None


class Cost(NamedTuple):
    """Bytes read and written, and multiply-adds of matrix products and attention."""

    n_read: int = 0
    n_written: int = 0
    n_mul_adds: int = 0

    @property
    def n_bytes(self) -> int:
        return self.n_read + self.n_written


def cost(
    nodes: Sequence[Tensor], used: KnownUse | None = None, kept: Collection[Tensor] = ()
) -> Cost:
    """The cost of computing nodes as one: the last node and those in `kept` are written.

    Views cost nothing.
    """
    used = used or KnownUse()
    computed = [node for node in nodes if node.op not in VIEW_OPS and not node.is_empty]
    read: dict[Tensor, int] = {}
    for node in computed:
        for i, src in enumerate(node.src):
            if src not in nodes and src.root not in nodes:
                read[src] = max(read.get(src, 0), _read_bytes(node, i, used))
    written = sum(_written_bytes(node) for node in computed if node is nodes[-1] or node in kept)
    written += sum(_states_bytes(node, used) for node in computed)
    return Cost(sum(read.values()), written, sum(_mul_adds(node, used) for node in computed))


def data_bytes(t: Tensor) -> int:
    """The bytes of a tensor's elements, without gaps."""
    return 0 if t.is_empty else t.type.row_size(t.ne[0]) * t.n_rows


def _read_bytes(node: Tensor, i: int, used: KnownUse) -> int:
    """The bytes that the node reads of its i-th source; of adapters, as if tokens had all."""
    src = node.src[i]
    if src is written_source(node):
        return _states_bytes(node, used)
    match node.op, i:
        case Op.GET_ROWS, 0:
            return src.type.row_size(src.ne[0]) * node.n_rows
        case (Op.SET_ROWS, 2) | (Op.CPY, 1):
            return 0  # written, not read
        case Op.ADD_ID, 1:
            return src.type.row_size(src.ne[0]) * min(src.ne[1], node.src[2].n_elements)
        case Op.MUL_MAT_ID, 0:
            most = min(src.ne[2], node.src[2].n_elements)
            return data_bytes(src) // src.ne[2] * (most if used.experts is None else used.experts)
        case Op.FLASH_ATTN_EXT, 2 if src.root is node.src[1].root:
            return 0  # part of the keys
        case Op.FLASH_ATTN_EXT, (1 | 2):
            return src.type.row_size(src.ne[0]) * _cells(node, used)
        case Op.FLASH_ATTN_EXT, 3:
            pages = -(-_cells(node, used) // params_of(node, AttnParams).page_size)
            return min(data_bytes(src), I32_BYTES * pages)
    return data_bytes(src)


def _written_bytes(node: Tensor) -> int:
    if node.op is Op.SET_ROWS:
        return node.type.row_size(node.ne[0]) * node.src[0].n_rows
    return data_bytes(node)


def _states_bytes(node: Tensor, used: KnownUse) -> int:
    """The bytes of the states that a node reads, and of those that it writes."""
    states = written_source(node)
    if states is None:
        return 0
    n_tokens = node.src[WRITTEN_SOURCES[node.op] + 1].ne[1]  # of its slots
    most = min(states.ne[1], n_tokens)
    return states.type.row_size(states.ne[0]) * (most if used.states is None else used.states)


def _mul_adds(node: Tensor, used: KnownUse) -> int:
    if node.op in (Op.MUL_MAT, Op.MUL_MAT_ID, Op.LORA_A):
        return node.src[0].ne[0] * node.n_elements
    if node.op is Op.LORA_B:
        return node.src[2].ne[0] * node.n_elements
    if node.op is Op.FLASH_ATTN_EXT:
        head_dim_k, n_head, n_tokens, _ = node.src[0].ne
        n_cells, n_swa = node.src[1].ne[1], params_of(node, AttnParams).n_swa
        most = n_tokens * min(n_cells, n_swa or n_cells)
        pairs = most if used.pairs is None else used.pairs
        return pairs * n_head * (head_dim_k + node.ne[0])
    if node.op is Op.INDEX_SCORES:
        return node.src[0].ne[0] * node.src[0].ne[1] * node.n_elements
    if node.op is Op.SSM_CONV:
        return node.src[1].ne[0] * node.n_elements
    if node.op is Op.SSM_SCAN:  # to the state, and from it
        return 2 * node.src[3].ne[0] * node.n_elements
    if node.op is Op.GATED_DELTA_NET:  # also its part along the key
        return 3 * node.ne[0] * node.n_elements
    return 0


def _cells(node: Tensor, used: KnownUse) -> int:
    n_cells = node.src[1].ne[1]
    if used.cells is None:
        return min(n_cells, node.src[0].ne[2] * params_of(node, AttnParams).n_swa or n_cells)
    return used.cells
