"""Products of quantized weights with many columns, on tensor cores: MUL_MAT, MUL_MAT_ID, and two
with their GLU.

A block computes a tile of the result. A few shapes of tiles are compiled; `_tile` chooses the one
that should take the least time. The shape changes no bit (src/blocks.cuh). Columns are in form q8
(activations.py). Tested by tests/kernels/test_cuda_quantized.py and test_cuda_tensor_core.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Final, NamedTuple

from ....base.settings import NO_FIT
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
    def warps(self) -> int:
        return self.warps_m * self.warps_k

    def most_warps(self, type: GGMLType) -> int:
        """The warps of a multiprocessor for which registers suffice: a thread has the sums of
        4 * mt * nt elements, and 1 / warps_k of as many totals."""
        if self.nt < 8 and self.mt == 1:
            return 16
        if self.mt == 2 and self.nt == 8:
            return 8
        is_large = type in WITH_MIN  # it needs more registers
        if self.mt == 1 and self.warps_k > 1:
            return 12 if is_large else 16
        is_large = is_large or (self.mt == 2 and type in quantized.GRID_BYTES)
        return (8 if is_large else 12) if self.nt >= 4 else 16


# before the time was estimated, the largest first: see LAMELLA_NO_FIT
FORMER: Final = (
    *(Tile(4, 1, 2, 8), Tile(4, 1, 1, 8), Tile(2, 2, 1, 4)),
    *(Tile(1, 2, 1, 4), Tile(2, 2, 1, 2), Tile(1, 4, 1, 2)),
)
FORMER_GATED: Final = (*(Tile(4, 1, 2, 8), Tile(2, 1, 2, 8), Tile(1, 2, 2, 4), Tile(1, 2, 2, 2)),)
TILES: Final = (
    *FORMER,
    *(Tile(4, 2, 1, 8), Tile(2, 4, 1, 8), Tile(2, 4, 1, 4), Tile(2, 8, 1, 4)),
    *(Tile(2, 8, 1, 2), Tile(1, 8, 1, 2)),
)
GATED_TILES: Final = (*FORMER_GATED, Tile(2, 2, 2, 4), Tile(2, 4, 2, 2), Tile(1, 8, 2, 2))
NARROWEST: Final = 16  # columns
SCHEDULERS: Final = 4  # of a multiprocessor
# the share of cycles in which a warp can issue an instruction: on an H100, two warps of the largest
# tiles did in 0.45 of their scheduler's cycles
READY: Final = 0.26
# by `mt`: machine instructions for a product of 16 x 8 results and 32 values (Q4_0, sm_90), and
# those that unpack its weights, once for all `nt` such products
INSTRUCTIONS: Final = {1: (14.4, 36.0), 2: (13.9, 31.0)}
EXCHANGED: Final = 1.5  # more, if the groups of warps exchange their sums
BYTES: Final = 8  # of weights for a multiprocessor in a cycle: 13 of an H100's, 6 of a T4's memory


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
    block = block_of(a.type, tile, limits)
    assert block is not None, f"{a.type.name}: {tile} does not fit the device"
    source = CudaSource.of(
        "mul_mat_mma.cu",
        TYPE=a.type.name,
        WARPS_M=tile.warps_m,
        WARPS_K=tile.warps_k,
        MT=tile.mt,
        NT=tile.nt,
        STAGES=block.stages,
        STAGE_BYTES=block.stage_bytes,
        BLOCKS_PER_SM=block.resident,
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
        block.stages * block.stage_bytes + _sums(tile),
        prepared=prepared,
        tensors=tensors,
    )


class Work(NamedTuple):
    """A product for each of some matrices: rows of all weights, values of a row, and columns."""

    type: GGMLType
    n_matrices: int
    rows: int
    k: int
    columns: int

    def n_blocks(self, tile: Tile) -> int:
        rows, columns = _ceil(self.rows, tile.rows), _ceil(self.columns, tile.columns)
        return self.n_matrices * rows * columns


def _work(node: Tensor, n_weights: int) -> Work:
    a, x = node.src[:2]
    if node.op is Op.MUL_MAT_ID:
        n_pairs = node.src[2].n_elements
        n = min(a.ne[2], n_pairs)
        columns = _ceil(n_pairs, n)
    else:
        n = a.ne[2] * a.ne[3]
        columns = x.n_rows // n
    return Work(a.type, n, n_weights * a.ne[1], a.ne[0], columns)


def _tile(node: Tensor, tiles: Sequence[Tile], n_weights: int, limits: Limits = H100) -> Tile:
    """The tile with which a product should take the least time."""
    work = _work(node, n_weights)
    if NO_FIT():
        return _former_tile(work, FORMER if tiles is TILES else FORMER_GATED, limits)
    wide_enough = [t for t in tiles if t.columns < 2 * work.columns or t.columns == NARROWEST]
    blocks = ((t, block_of(work.type, t, limits)) for t in wide_enough)
    times = {t: time(work, t, block, limits) for t, block in blocks if block is not None}
    return min(times, key=times.__getitem__)


def time(work: Work, tile: Tile, block: Block, limits: Limits) -> float:
    """The estimated cycles of the multiprocessor that has most blocks: it runs some at once, then
    the others. All warps share the cycles in which they can issue an instruction. Each tile of
    columns reads the weights again."""
    first, more = INSTRUCTIONS[tile.mt]
    instructions = first + more / tile.nt + (EXCHANGED if tile.warps_k > 1 else 0)
    turns = _ceil(_ceil(work.k, CHUNK), tile.warps_k) * CHUNK // BLOCK
    of_block = tile.warps * turns * tile.mt * tile.nt * instructions
    whole, rest = divmod(_ceil(work.n_blocks(tile), limits.n_sm), block.resident)

    def cycles(n: int) -> float:
        busy = 1 - (1 - READY) ** (n * tile.warps / SCHEDULERS)
        return n * of_block / (SCHEDULERS * busy) if n else 0.0

    weights = work.n_matrices * work.rows * work.type.row_size(work.k)
    memory = weights * _ceil(work.columns, tile.columns) / (BYTES * limits.n_sm)
    return max(whole * cycles(block.resident) + cycles(rest), memory)


def _former_tile(work: Work, tiles: Sequence[Tile], limits: Limits) -> Tile:
    """The largest tile that gives 10 of 11 multiprocessors a block and whose columns are more than
    half full. If there is none, the tile that gives the most blocks."""
    filled = [t for t in tiles if t.columns < 2 * work.columns or t.columns == NARROWEST]
    enough = (t for t in filled if 11 * work.n_blocks(t) >= 10 * limits.n_sm)
    return next(enough, max(filled, key=work.n_blocks))


class Block(NamedTuple):
    """The stages of a block in shared memory, the bytes of a stage, and how many blocks a
    multiprocessor runs at once."""

    stages: int
    stage_bytes: int
    resident: int


def block_of(type: GGMLType, tile: Tile, limits: Limits) -> Block | None:
    """The block of a tile, with as many stages as leave a multiprocessor the most blocks; None if
    it does not fit."""
    columns = STEP + PIECE * (3 if type in WITH_MIN else 1)
    stage = tile.warps_k * (tile.rows * _row_slot(type) + tile.columns * columns)
    others = WORK + 12 * tile.columns + _sums(tile) + quantized.GRID_BYTES.get(type, 0)
    if type in PACKS_SCALES:
        others += UNPACKED * tile.rows * tile.warps_k
    most = max(1, tile.most_warps(type) // tile.warps)
    registers = limits.registers(tile.threads, most)

    def resident(stages: int) -> int:
        return min(most, limits.resident(tile.threads, stages * stage + others, registers))

    stages = max(STAGES, key=resident)
    return Block(stages, stage, resident(stages)) if resident(stages) else None


def _row_slot(type: GGMLType) -> int:
    """Bytes of a row of weights in a stage. The row may begin anywhere in its first piece."""
    if type in HEADED_PIECES:
        return PIECE * (HEADED_PIECES[type] | 1)
    alignment = gcd(4, type.type_size)
    # blocks of 256 values are copied whole
    step = max(1, STEP // type.block_size) * type.type_size
    return PIECE * (_ceil(step + PIECE - alignment, PIECE) | 1)


def _sums(tile: Tile) -> int:
    """Bytes of shared memory in which groups of warps exchange their sums."""
    return 4 * tile.warps_k * tile.rows * tile.columns if tile.warps_k > 1 else 0


def _ceil(n: int, d: int) -> int:
    return -(-n // d)
