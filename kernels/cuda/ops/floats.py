"""Matrix products with float weights: chooses the kernel of src/mul_mat_f16.cu or
src/mul_mat_f32.cu for a MUL_MAT or MUL_MAT_ID, and divides the work among blocks.

For few columns, several warps share a row, so that enough warps read the weights at full speed.
Many columns are computed in tiles. Both give a column the same bits.
Tested by tests/kernels/test_cuda_floats.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ....graph.op import Op
from ....graph.ops.check import FLOATS
from ....graph.tensor import Tensor
from ....graph.types import GGMLType
from ...plan.calls import PreparedSource
from ..limits import H100, Limits
from ..table import CudaCall, CudaKernel, CudaSource
from .experts import groups_of_experts, most_runs

PADDING: Final = 256  # elements; prepared columns are padded with zeros to a multiple
PACK_THREADS: Final = 128
PACKED_AT_ONCE: Final = 8 * PACK_THREADS  # elements that a block packs
BUSY_PARTS: Final = 8, 11  # of the multiprocessors that have a block; then no warps share a row

N_WARPS: Final = 8  # warps of a block whose warps share rows
ROUND_BYTES: Final = 4096  # bytes of shared memory for the sums of a warp


class Vectors(NamedTuple):
    """A kernel for few columns. A warp multiplies a tile of `rows` and `columns`, chunk by chunk.
    It computes `parts` sums for each result of a chunk (`add_in_order` in src/floats.cuh)."""

    name: str
    rows: int
    columns: int
    parts: int = 1
    packed: bool = False  # reads columns of the weights' type instead of float32


class Tiles(NamedTuple):
    """A kernel for many columns. A block multiplies a tile of `rows` and `columns`."""

    name: str
    rows: int
    columns: int
    threads: int
    shared_memory: int
    packed: bool = False


class Weights(NamedTuple):
    """The kernels for weights of one type. They process `chunk` elements of a row at a time."""

    source: CudaSource
    chunk: int
    vectors: tuple[Vectors, ...]  # the narrowest first
    tiles: tuple[Tiles, ...]  # the largest first
    one_pair: Vectors  # for MUL_MAT_ID: each pair (token, its i-th expert) has its own blocks
    all_pairs: Vectors  # for MUL_MAT_ID: each expert has blocks, which search for its pairs
    expert_tiles: tuple[Tiles, ...] = ()  # for MUL_MAT_ID: tiles per expert, the largest first


def _half_weights(type: GGMLType) -> Weights:
    return Weights(
        CudaSource.of("mul_mat_f16.cu", T=type.name),
        256,
        (Vectors("mul_mat_8", 16, 8), Vectors("mul_mat_32", 32, 32, packed=True)),
        (
            Tiles("mul_mat_tiles_128", 128, 128, 256, 3 * 16384, packed=True),
            Tiles("mul_mat_tiles_64", 64, 64, 128, 4 * 8192, packed=True),
        ),
        Vectors("mul_mat_id_1", 16, 8),
        Vectors("mul_mat_id_8", 16, 8),
        (
            Tiles("mul_mat_id_tiles_128", 128, 128, 256, 3 * 16384, packed=True),
            Tiles("mul_mat_id_tiles_64", 64, 64, 128, 4 * 8192, packed=True),
            Tiles("mul_mat_id_tiles_32", 64, 32, 128, 4 * 6144, packed=True),
        ),
    )


F32_SOURCE: Final = CudaSource.of("mul_mat_f32.cu")
WEIGHTS: Final = {
    GGMLType.F32: Weights(
        F32_SOURCE,
        512,
        (Vectors("mul_mat_1", 4, 1, parts=8), Vectors("mul_mat_8", 4, 8, parts=8)),
        (Tiles("mul_mat_tiles_64", 64, 64, 128, 4 * 8704),),
        Vectors("mul_mat_id_1", 4, 1, parts=8),
        Vectors("mul_mat_id_8", 4, 8, parts=8),
    ),
    GGMLType.F16: _half_weights(GGMLType.F16),
    GGMLType.BF16: _half_weights(GGMLType.BF16),
}


def supports(node: Tensor) -> bool:
    """True if a product has float weights, in rows without gaps, and float columns."""
    a, b = node.src[:2]
    return a.type in WEIGHTS and a.has_contiguous_rows and b.type in FLOATS


def calls(node: Tensor, limits: Limits = H100) -> Sequence[CudaCall]:
    """The call of a MUL_MAT or MUL_MAT_ID that `supports` accepts."""
    enough_blocks = limits.n_sm * BUSY_PARTS[0] // BUSY_PARTS[1]
    a, b = node.src[:2]
    weights = WEIGHTS[a.type]
    if node.op is Op.MUL_MAT_ID:
        return [_experts_call(node, weights, enough_blocks)]
    # weights that repeat along dimension 2 are multiplied with consecutive columns
    n_groups = a.ne[2] * (a.ne[3] if a.ne[2] == 1 else b.ne[3])
    n = b.n_rows // n_groups
    for tiles in weights.tiles:
        blocks = _ceil(a.ne[1], tiles.rows) * _ceil(n, tiles.columns) * n_groups
        if n > tiles.columns // 2 and blocks >= enough_blocks:
            return [_tiles_call(node, weights, tiles, n, n_groups)]
    enough = (v for v in weights.vectors if v.columns >= n)
    return [_vectors_call(node, weights, next(enough, weights.vectors[-1]), n, n_groups)]


def _experts_call(node: Tensor, weights: Weights, enough_blocks: int) -> CudaCall:
    """The call of a MUL_MAT_ID: in tiles if an expert has many pairs."""
    a, n_pairs = node.src[0], node.src[2].n_elements
    n_experts = a.ne[2]
    if n_pairs <= n_experts:
        return _vectors_call(node, weights, weights.one_pair, 1, n_pairs)
    n = _ceil(n_pairs, n_experts)
    for tiles in weights.expert_tiles if n > weights.all_pairs.columns else ():
        blocks = _ceil(a.ne[1], tiles.rows) * _ceil(n, tiles.columns) * n_experts
        is_last = tiles is weights.expert_tiles[-1]
        if is_last or (n > tiles.columns // 2 and blocks >= enough_blocks):
            runs = most_runs(n_pairs, n_experts, tiles.columns)
            return _tiles_call(node, weights, tiles, tiles.columns, runs)
    return _vectors_call(node, weights, weights.all_pairs, 1, n_experts)


def _vectors_call(
    node: Tensor, weights: Weights, kernel: Vectors, n: int, n_groups: int
) -> CudaCall:
    """The call for `n` columns of each of `n_groups` matrices."""
    n_chunks = max(1, _ceil(node.src[0].ne[0], weights.chunk))
    split = 1 << min(n_chunks, N_WARPS).bit_length() - 1
    n_tiles = N_WARPS // split
    sums = 4 * kernel.rows * kernel.columns
    round = split * min(_ceil(n_chunks, split), max(1, ROUND_BYTES // (kernel.parts * sums)))
    shared_memory = n_tiles * sums * (round * kernel.parts + (round < n_chunks))
    blocks = _ceil(n, kernel.columns), _ceil(node.src[0].ne[1], n_tiles * kernel.rows)
    return _call(
        node, weights, kernel, (n, n_groups), blocks, 32 * N_WARPS, shared_memory, (split, round)
    )


def _tiles_call(node: Tensor, weights: Weights, kernel: Tiles, n: int, n_groups: int) -> CudaCall:
    blocks = _ceil(n, kernel.columns), _ceil(node.src[0].ne[1], kernel.rows)
    return _call(node, weights, kernel, (n, n_groups), blocks, kernel.threads, kernel.shared_memory)


def _call(
    node: Tensor,
    weights: Weights,
    kernel: Vectors | Tiles,
    columns: tuple[int, int],
    blocks: tuple[int, int],
    threads: int,
    shared_memory: int,
    params: tuple[int, ...] = (),
) -> CudaCall:
    """A call with `blocks`: blocks for the columns and for the rows of each matrix."""
    a, b = node.src[:2]
    n, n_groups = columns
    stride, prepared = 0, tuple[PreparedSource[CudaCall], ...]()
    if kernel.packed:
        stride, prepared = _packed_columns(b, weights.source, a.type)
    elif b.type is not GGMLType.F32 or not b.has_contiguous_rows:
        stride, prepared = _packed_columns(b, F32_SOURCE, GGMLType.F32)
    if kernel in weights.expert_tiles:
        prepared = (*prepared, groups_of_experts(node.src[2], a.ne[2], 3))
    repeat_3 = 1 if a.ne[2] == 1 else b.ne[3] // a.ne[3]
    return CudaCall(
        CudaKernel(weights.source, kernel.name),
        (blocks[0] * blocks[1] * n_groups, 1, 1),
        threads,
        (n, repeat_3, stride, *blocks, *params),
        shared_memory,
        prepared=prepared,
    )


def _packed_columns(
    b: Tensor, source: CudaSource, type: GGMLType
) -> tuple[int, tuple[PreparedSource[CudaCall], ...]]:
    """All columns as rows of `type` without gaps, and the bytes from one row to the next."""
    k = max(1, _ceil(b.ne[0], PADDING)) * PADDING
    stride = type.row_size(k)
    grid = (b.n_rows, _ceil(k, PACKED_AT_ONCE), 1)
    call = CudaCall(CudaKernel(source, "pack_columns"), grid, PACK_THREADS, (stride, int(b.type)))
    return stride, (PreparedSource(b, ("columns", type), b.n_rows * stride, [call]),)


def _ceil(n: int, d: int) -> int:
    return -(-n // d)
