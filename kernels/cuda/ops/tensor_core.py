"""Products of quantized weights with many columns, on tensor cores: MUL_MAT, MUL_MAT_ID, and two
with their GLU.

A block computes a tile of the result. Tiles are as large as possible while there are enough blocks
to fill a GPU. Their shape changes no bit (src/blocks.cuh). Columns are in form q8 (activations.py).
Tested by tests/kernels/test_cuda_quantized.py and test_cuda_tensor_core.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Final, NamedTuple

from ....graph.op import GluParams, Op
from ....graph.tensor import Tensor, params_of
from ....graph.types import GGMLType
from ...plan.chains import GateUp
from ...plan.node_params import glu_scalars
from ..limits import H100, Limits
from ..table import CudaCall, CudaKernel, CudaSource
from . import quantized
from .activations import BLOCK, CHUNK, can_prepare_q8, prepared_q8
from .experts import groups_of_experts, most_runs

BUSY_PARTS: Final = 10, 11  # of the multiprocessors that have a block: the GPU is filled
ENOUGH_RESIDENT: Final = 2  # blocks on a multiprocessor
STAGES: Final = (4, 3, 2)
MOST_BLOCKS: Final = 65535  # in the grid's dimensions y (columns) and z (matrices)

# as in src/tiles.cuh
STEP: Final = CHUNK // 2  # values
PIECE: Final = 16  # bytes
HEADED_PIECES: Final = {
    GGMLType.IQ4_XS: 8,
    GGMLType.Q4_K: 7,
    GGMLType.Q5_K: 9,
    GGMLType.Q6_K: 10,
}
WITH_MIN: Final = (
    *(GGMLType.Q4_1, GGMLType.Q5_1, GGMLType.Q2_K, GGMLType.Q4_K, GGMLType.Q5_K, GGMLType.IQ1_S),
    GGMLType.NVFP4,  # its second 16 values take the place of the minima
)


PACKS_SCALES: Final = (GGMLType.Q4_K, GGMLType.Q5_K)  # in src/blocks.cuh
UNPACKED: Final = 8 * STEP // BLOCK  # bytes of a row's scales and minima in shared memory
WORK: Final = 64  # bytes of what a block computes, at most


class Tile(NamedTuple):
    """The tile of a block, and its division among warps: see src/mul_mat_mma.cu.

    A warp has `mt` * 16 rows and `nt` * 8 columns. If there are two matrices, half of the rows are
    of each.
    """

    warps_m: int
    warps_k: int
    mt: int
    nt: int

    @property
    def rows(self) -> int:
        return 16 * self.mt * self.warps_m

    @property
    def columns(self) -> int:
        return 8 * self.nt

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_k

    @property
    def blocks_per_sm(self) -> int:
        """As in src/mul_mat_mma.cu: limits the registers."""
        warps = 8 if self.mt == 2 or self.nt == 8 else 12 if self.nt == 4 else 16
        return 32 * warps // self.threads


# the largest first
TILES: Final = (
    Tile(4, 1, 2, 8),
    Tile(4, 1, 1, 8),
    Tile(2, 2, 1, 4),
    Tile(1, 2, 1, 4),
    Tile(2, 2, 1, 2),
    Tile(1, 4, 1, 2),
)
GATED_TILES: Final = (Tile(4, 1, 2, 8), Tile(2, 1, 2, 8), Tile(1, 2, 2, 4), Tile(1, 2, 2, 2))
NARROWEST: Final = 16  # columns


def supports(node: Tensor) -> bool:
    """True if `calls` accepts the MUL_MAT or MUL_MAT_ID."""
    a, x = node.src[:2]
    if a.type not in quantized.TYPES or not a.has_contiguous_rows or not can_prepare_q8(x):
        return False
    if a.nb[1] % a.type.type_size != 0:
        return False
    n_columns = node.src[2].n_elements if node.op is Op.MUL_MAT_ID else x.n_rows
    return n_columns // NARROWEST + a.ne[2] * a.ne[3] <= MOST_BLOCKS


def calls(node: Tensor, limits: Limits) -> Sequence[CudaCall]:
    """The call that computes a product."""
    return [tile_call(node, _tile(node, TILES, 1, limits), limits)]


def gate_up_calls(chain: GateUp, limits: Limits) -> Sequence[CudaCall] | None:
    """The call that computes two products and their GLU; None if there is no kernel."""
    if not supports(chain.gate) or not quantized.can_gate(chain, limits):
        return None
    return [tile_call(chain.gate, _tile(chain.gate, GATED_TILES, 2, limits), limits, chain)]


def tile_call(
    node: Tensor, tile: Tile, limits: Limits = H100, chain: GateUp | None = None
) -> CudaCall:
    """The call that computes a product, or the chain whose gate it is, in tiles of this shape."""
    a, x, *ids = node.src
    n_matrices, gate, scalars = 1, 0, (0.0, 0.0)
    tensors: tuple[Tensor, ...] = ()
    if chain is not None:
        n_matrices, gate = 2, int(params_of(chain.glu, GluParams).op)
        tensors, scalars = chain.tensors, glu_scalars(chain.glu)
    stages, stage = stages_of(a.type, tile, limits)
    source = CudaSource.of(
        "mul_mat_mma.cu",
        TYPE=a.type.name,
        WARPS_M=tile.warps_m,
        WARPS_K=tile.warps_k,
        MT=tile.mt,
        NT=tile.nt,
        STAGES=stages,
        STAGE_BYTES=stage,
        MATRICES=n_matrices,
        GATE=gate,
    )
    n_rows = _ceil(a.ne[1], tile.rows // n_matrices)
    prepared, experts = [prepared_q8(x)], (0, 0)
    if node.op is Op.MUL_MAT_ID:
        n_experts, n_pairs = a.ne[2], ids[0].n_elements
        prepared.append(groups_of_experts(ids[0], n_experts, 2 + n_matrices))
        experts = n_experts, ids[0].ne[0]
        grid = n_rows, most_runs(n_pairs, n_experts, tile.columns), 1
    else:
        n_batches = a.ne[2] * a.ne[3]
        grid = n_rows, _ceil(x.n_rows // n_batches, tile.columns), n_batches
    return CudaCall(
        CudaKernel(source, "mul_mat_mma"),
        grid,
        tile.threads,
        (*experts, *scalars),
        stages * stage + _sums(tile),
        prepared=prepared,
        tensors=tensors,
    )


def _tile(node: Tensor, tiles: Sequence[Tile], n_matrices: int, limits: Limits = H100) -> Tile:
    """The largest tile that gives enough blocks and whose columns are more than half full. If there
    is none, the tile that gives the most blocks."""
    a, x = node.src[:2]
    if node.op is Op.MUL_MAT_ID:
        n_pairs = node.src[2].n_elements
        n_groups = min(a.ne[2], n_pairs)
        n = _ceil(n_pairs, n_groups)
    else:
        n_groups = a.ne[2] * a.ne[3]
        n = x.n_rows // n_groups

    def n_blocks(tile: Tile) -> int:
        rows = _ceil(n_matrices * a.ne[1], tile.rows)
        return n_groups * rows * _ceil(n, tile.columns)

    filled = [t for t in tiles if t.columns < 2 * n or t.columns == NARROWEST]
    enough_blocks = limits.n_sm * BUSY_PARTS[0] // BUSY_PARTS[1]
    enough = (t for t in filled if n_blocks(t) >= enough_blocks)
    return next(enough, max(filled, key=n_blocks))


def stages_of(type: GGMLType, tile: Tile, limits: Limits) -> tuple[int, int]:
    """The number of stages in shared memory, and the bytes of a stage: as many stages as leave a
    multiprocessor enough blocks."""
    columns = STEP + PIECE * (3 if type in WITH_MIN else 1)
    stage = tile.warps_k * (tile.rows * _row_slot(type) + tile.columns * columns)
    others = WORK + 12 * tile.columns + _sums(tile) + quantized.GRID_BYTES.get(type, 0)
    if type in PACKS_SCALES:
        others += UNPACKED * tile.rows * tile.warps_k
    registers = limits.registers(tile.threads, tile.blocks_per_sm)

    def n_blocks(stages: int) -> int:
        blocks = limits.resident(tile.threads, stages * stage + others, registers)
        return min(blocks, ENOUGH_RESIDENT)

    stages = max(STAGES, key=n_blocks)
    assert n_blocks(stages), f"{type.name}: {tile} needs {stage} bytes for a stage"
    return stages, stage


def _row_slot(type: GGMLType) -> int:
    """Bytes of a row of weights in a stage. The row may begin anywhere in its first piece."""
    if type in HEADED_PIECES:
        return PIECE * (HEADED_PIECES[type] | 1)
    alignment = gcd(4, type.type_size)
    # blocks of 256 values are copied whole
    step = max(1, STEP // type.block_size) * type.type_size
    return PIECE * (_ceil(step + PIECE - alignment, PIECE) | 1)


def _sums(tile: Tile) -> int:
    """Bytes of shared memory in which the other groups of warps pass their sums to the first."""
    return 4 * (tile.warps_k - 1) * tile.rows * tile.columns


def _ceil(n: int, d: int) -> int:
    return -(-n // d)
