"""Attention over a paged pool of keys and values: FLASH_ATTN_EXT.

Chooses the kernel of a node. src/attention.cu uses tensor cores, for pools of all types but
float32; it rounds operands to float16, or bfloat16. src/attention_f32.cu computes the rest.

Divides the work: tokens and heads are divided among blocks. If these are few, the partitions of
positions are divided, too; their sums go through scratch memory. If it has no room for these, its
records are sums of segments. If blocks are very few, src/attention_split.cu divides each partition
among the warps of a block. The bits do not depend on the division.
Tested by tests/kernels/test_attention.py and test_cuda_attention.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from ....base.settings import NO_SPLIT
from ....graph.op import AttnParams, Op
from ....graph.tensor import Tensor, params_of
from ....graph.types import GGMLType
from ...plan.node_params import has_whole_qkv
from ..limits import H100, KIB, Limits
from ..table import CudaCall, CudaKernel, CudaSource, implements_sized

WARP: Final = 32  # threads
PARTITION: Final = 256  # positions whose sums are computed separately, then combined
SEGMENT: Final = 16 * PARTITION  # positions whose partitions are combined before other ones
TILE: Final = 32  # positions that tensor cores process at a time
ROWS: Final = 16  # queries of a warp
ROW_BYTES: Final = 16  # bytes of a query in a block's shared memory, besides its elements
MAX_KEPT: Final = 128  # most elements of a query that are all in registers
MAX_KEPT_PACKED: Final = 96  # the same if keys or values must be unpacked
LEAST_KEPT: Final = 64  # elements of one of more than LARGE_HEAD that are in registers
LENT_ELEMENTS: Final = 96  # elements of a larger query that are in shared memory instead, at least
CHUNK: Final = 16  # bytes
MAX_SLICE: Final = 128  # most elements of a value that a block computes
MAX_HEAD_DIM: Final = 576  # with tensor cores, if the shared memory has room
LARGE_HEAD: Final = 256
MAX_FLOATS: Final = 8192  # in shared memory, for the heads of a block of src/attention_f32.cu

FEW_QUERIES: Final = ROWS  # queries of a sequence up to which blocks have one warp
# by `n_warps`: blocks that fill a multiprocessor, if it has room for half of them at once
ENOUGH_BLOCKS: Final = {0: 4, 1: 8, 4: 2}
REGISTERS: Final = 255  # of a thread, at most
SPLIT_WARPS: Final = (8, 4, 2)  # of a block of src/attention_split.cu, the best first
SCRATCH: Final = 1 << 26  # bytes of records that are always there
SHARED_PREFIX: Final = 2  # sequences that see the same positions, if that needs more scratch memory
MAX_PARTS: Final = 65535  # the grid's third dimension

TYPES_16: Final = (GGMLType.F16, GGMLType.BF16)  # of pools whose elements are not unpacked
PACKED: Final = (  # of pools whose elements become float16
    *(GGMLType.Q8_0, GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.IQ4_NL, GGMLType.Q5_0, GGMLType.Q5_1),
)
TYPES_F32: Final = (*TYPES_16, *PACKED, GGMLType.F32)  # of src/attention_f32.cu
BF16_ARCH: Final = 80  # the first one whose tensor cores multiply bfloat16
SINKS: Final = 9  # tensor of the kernels
COMBINE: Final = CudaKernel(CudaSource.of("attention_combine.cu"), "attention_combine")
COMBINE_THREADS: Final = 128
HEADS_AT_ONCE: Final = 4  # of src/attention_f32.cu, if heads are large and share keys and values


class Division(NamedTuple):
    """The division of a node's work. It does not change the bits.

    `n_warps`: the warps of a block of src/attention.cu, 1 or 4; 0 for src/attention_f32.cu.
    `n_parts`: the blocks that share a token's partitions. `n_records`: the partitions, or else the
    segments, that scratch memory has room for; if those do not fit either, one block computes all
    of a token. `split`: the warps of a block of src/attention_split.cu, which has the queries of
    one warp, or 0.
    """

    n_warps: int
    n_parts: int = 1
    n_records: int = 0
    split: int = 0

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return WARP * (self.split or self.n_warps) or PARTITION


# --- which kernel ---


def _supports(node: Tensor) -> bool:
    q, k, v = node.src[:3]
    fits = _floats(node) <= MAX_FLOATS and q.ne[1] <= MAX_PARTS
    return fits and {k.type, v.type} <= set(TYPES_F32) and has_whole_qkv(node)


def has_tensor_cores(node: Tensor, limits: Limits = H100) -> bool:
    """True if src/attention.cu computes the node."""
    q, k, v = node.src[:3]
    head_dims, op = (q.ne[0], node.ne[0]), _params(node)
    bf16 = {k.type, v.type} == {GGMLType.BF16} and limits.arch >= BF16_ARCH
    return (
        (bf16 or {k.type, v.type} <= {GGMLType.F16, *PACKED})
        and max(head_dims) <= MAX_HEAD_DIM
        and q.ne[0] % 8 == 0
        and node.ne[0] % (8 * _n_slices(node)) == 0
        and op.page_size % TILE == 0
        and op.page_size & (op.page_size - 1) == 0
        and resident_blocks(node, Division(4), limits) > 0
    )


def _params(node: Tensor) -> AttnParams:
    return params_of(node, AttnParams)


# --- how work is divided ---


def divided(node: Tensor, limits: Limits = H100) -> Division:
    """The division that fills the GPU."""
    q, k, pages = node.src[0], node.src[1], node.src[3]
    n_head, n_tokens = q.ne[1:3]
    n_warps = 0
    if has_tensor_cores(node, limits):
        # the page table has a row for padding
        n_queries = n_tokens * _n_shared(node) // max(1, pages.ne[1] - 1)
        n_warps = 1 if n_queries <= FEW_QUERIES else 4
    x, y = _blocks(node, n_warps)
    op = _params(node)
    n_positions = min(pages.ne[0] * op.page_size, k.ne[1])
    n_partitions = -(-n_positions // PARTITION)
    if op.n_swa > 0:
        n_partitions = min(n_partitions, -(-(op.n_swa - 1) // PARTITION) + 1)
    split = _split(node, limits) if n_warps == 1 and 2 * x * y <= limits.n_sm else 0
    n_blocks = _blocks_per_sm(node, Division(n_warps, split=split), limits) * limits.n_sm
    n_parts = min(-(-n_blocks // (x * y)), n_partitions, MAX_PARTS)
    if n_parts <= 1:
        return Division(n_warps, split=split)
    # the pool's partitions, and a last one of each token
    room = SHARED_PREFIX * -(-k.ne[1] // PARTITION) + n_tokens
    room = max(room, SCRATCH // (n_head * _record_bytes(node)))
    return Division(n_warps, n_parts, min(n_tokens * n_partitions, room), split)


def _split(node: Tensor, limits: Limits) -> int:
    """The most warps that can share a partition; 0 without room for several."""
    if NO_SPLIT() or node.src[0].ne[0] > LARGE_HEAD:
        return 0
    fits = (n for n in SPLIT_WARPS if resident_blocks(node, Division(1, split=n), limits))
    return next(fits, 0)


def resident_blocks(node: Tensor, division: Division, limits: Limits) -> int:
    """The blocks that a multiprocessor runs at once."""
    shared = _shared_memory(node, division) + _static_memory(node, division)
    return limits.resident(division.threads, shared, REGISTERS)


def _blocks_per_sm(node: Tensor, division: Division, limits: Limits) -> int:
    """The blocks that fill a multiprocessor."""
    resident = resident_blocks(node, division, limits)
    return resident if division.split else min(ENOUGH_BLOCKS[division.n_warps], 2 * resident)


def _n_shared(node: Tensor) -> int:
    """The number of heads that share keys and values."""
    q, k = node.src[:2]
    return q.ne[1] // (k.ne[0] // q.ne[0])


def _n_at_once(node: Tensor) -> int:
    """The number of heads that a block of src/attention_f32.cu computes."""
    fits = node.src[0].ne[0] > LARGE_HEAD and HEADS_AT_ONCE * _floats(node) <= MAX_FLOATS
    return HEADS_AT_ONCE if fits and _n_shared(node) % HEADS_AT_ONCE == 0 else 1


def _floats(node: Tensor) -> int:
    """The floats that src/attention_f32.cu has in shared memory for a head: its query, and sums of
    values, of a segment and of all."""
    return node.src[0].ne[0] + 2 * node.ne[0]


def _n_slices(node: Tensor) -> int:
    return -(-node.ne[0] // MAX_SLICE)


def _blocks(node: Tensor, n_warps: int) -> tuple[int, int]:
    """The blocks of the grid for tokens and for heads."""
    n_head, n_tokens = node.src[0].ne[1:3]
    if n_warps == 0:
        return n_tokens, n_head // _n_at_once(node)
    n_shared, rows = _n_shared(node), ROWS * n_warps
    together = max(1, rows // n_shared)  # tokens
    # at most one for each sequence; if there are more runs of tokens, a block takes several
    n_runs = min(together, node.src[3].ne[1], n_tokens)
    n_heads = n_head // n_shared * -(-n_shared // rows)
    return -(-n_tokens // together) * n_runs, n_heads * _n_slices(node)


def _record_bytes(node: Tensor) -> int:
    return 4 * (2 + node.ne[0])  # the largest score, the total, and values


# --- calls ---


@implements_sized(Op.FLASH_ATTN_EXT, supports=lambda node, limits: _supports(node))
def _flash_attn_ext(node: Tensor, limits: Limits) -> Sequence[CudaCall]:
    return calls_of(node, divided(node, limits))


def calls_of(node: Tensor, division: Division) -> Sequence[CudaCall]:
    """The calls that compute a node with this division."""
    n_warps, n_parts, n_records, split = division
    q, k, v = node.src[:3]
    params = _kernel_params(node, n_records)
    if split:
        kernel = CudaKernel(_source(node, "attention_split.cu", WARPS=split), "attention_split")
    elif n_warps > 0:
        kernel = CudaKernel(_source(node, "attention.cu"), f"attention_{n_warps}")
    else:
        n_heads = _n_at_once(node)
        source = CudaSource.of("attention_f32.cu", HEADS=n_heads)
        kernel = CudaKernel(source, "attention_f32")
        params = (*params, int(k.type), int(v.type))
    scratch = n_records * q.ne[1] * _record_bytes(node)
    grid, shared_memory = (*_blocks(node, n_warps), n_parts), _shared_memory(node, division)
    attend = CudaCall(kernel, grid, division.threads, params, shared_memory, scratch)
    if n_parts == 1:
        return [attend]
    grid = (q.ne[2], -(-q.ne[1] * node.ne[0] // COMBINE_THREADS), 1)
    return [attend, CudaCall(COMBINE, grid, COMBINE_THREADS, params, scratch=scratch)]


def _kernel_params(node: Tensor, n_records: int) -> tuple[float | int, ...]:
    """The parameters that src/attention.cuh names. Scores are exponents of 2."""
    op = _params(node)
    scale = op.scale / op.softcap if op.softcap > 0 else op.scale * math.log2(math.e)
    softcap = max(op.softcap, 0.0) * math.log2(math.e)
    n_pages = node.src[1].ne[1] // op.page_size
    has_sinks = len(node.src) > SINKS - 1
    return scale, softcap, op.max_bias, op.page_size, n_pages, n_records, has_sinks, SEGMENT


def _source(node: Tensor, file: str, **defines: int) -> CudaSource:
    q, k, v = node.src[:3]
    return CudaSource.of(
        file,
        HEAD_DIM_K=q.ne[0],
        HEAD_DIM_V=node.ne[0],
        TYPE_K=k.type.name,
        TYPE_V=v.type.name,
        **defines,
    )


def _shared_memory(node: Tensor, division: Division) -> int:
    """Bytes of shared memory for tiles of keys and values, and for queries."""
    q, k, v = node.src[:3]
    n_warps, split = division.n_warps, division.split
    if n_warps == 0:
        return 4 * _n_at_once(node) * _floats(node)
    stages, slice = 1 if split else 2, node.ne[0] // _n_slices(node)
    size = _tile_bytes(q.ne[0], k.type, stages) + _tile_bytes(slice, v.type, stages)
    is_packed = not {k.type, v.type} <= set(TYPES_16)
    n_lent, elements = 0, -(-q.ne[0] // 16) * 16
    if elements > (MAX_KEPT_PACKED if is_packed else MAX_KEPT):
        n_lent = LENT_ELEMENTS if elements <= LARGE_HEAD else elements - LEAST_KEPT
    if split:
        return split * (size + 2 * ROWS * n_lent)
    return size + ROWS * n_warps * (ROW_BYTES + 2 * n_lent)


def _static_memory(node: Tensor, division: Division) -> int:
    """Bytes of shared memory whose size the compiler knows, at most."""
    if division.split:
        return 384 * division.split + 512
    return 512 if division.n_warps else (19 + 2 * _n_at_once(node)) * KIB


def _tile_bytes(n: int, type: GGMLType, stages: int) -> int:
    """Bytes of a tile of `n` elements per position: see src/attention_tile.cuh."""
    row = (-(-n // 16) * 2 | 1) * CHUNK
    if type in TYPES_16:
        return TILE * stages * row
    elements = n if n % type.block_size == 0 else n + 24
    packed = -(-elements // type.block_size) * type.type_size
    return TILE * (row + -(-(packed + 14) // CHUNK) * CHUNK)
