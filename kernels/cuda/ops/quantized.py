"""Products of quantized weights with few columns: MUL_MAT, MUL_MAT_ID, and two with their GLU.

One column has its own kernel, which quantizes the column itself. Other columns are in form q8
(activations.py). More than 8 are computed in groups; each group reads the weights again. Tested by
tests/kernels/test_cuda_quantized.py and test_cuda_quantized_few.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ....base.settings import NO_FEW, NO_FIT
from ....graph.op import Op
from ....graph.tensor import Tensor
from ....graph.types import GGMLType
from ...plan.calls import Number
from ...plan.chains import GateUp
from ..limits import H100, Limits
from ..table import CudaCall, CudaKernel, CudaSource, Dim3
from .activations import BLOCK, CHUNK, can_prepare_q8, n_chunks, prepared_q8
from .elementwise import gate_of

TYPES: Final = (
    *(GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q5_0, GGMLType.Q5_1, GGMLType.Q8_0),
    *(GGMLType.MXFP4, GGMLType.NVFP4, GGMLType.IQ4_NL, GGMLType.IQ4_XS),
    *(GGMLType.Q2_K, GGMLType.Q3_K, GGMLType.Q4_K, GGMLType.Q5_K, GGMLType.Q6_K),
    *(GGMLType.IQ3_S, GGMLType.IQ3_XXS, GGMLType.IQ2_S, GGMLType.IQ2_XS, GGMLType.IQ2_XXS),
    *(GGMLType.IQ1_S, GGMLType.IQ1_M, GGMLType.TQ1_0, GGMLType.TQ2_0),
)

# bytes of the grids of src/blocks_grid.cuh, beside a block's other shared memory
GRID_BYTES: Final = {
    GGMLType.IQ3_S: 2 << 10,
    GGMLType.IQ3_XXS: 1 << 10,
    GGMLType.IQ2_S: 8 << 10,
    GGMLType.IQ2_XS: 4 << 10,
    GGMLType.IQ2_XXS: 2 << 10,
    GGMLType.IQ1_S: 16 << 10,
    GGMLType.IQ1_M: 16 << 10,
}

COLUMNS: Final = 8  # most columns that a kernel computes in one pass over the weights

MAX_GRID: Final = 65535  # most blocks in the second and third dimension
WARP: Final = 32  # threads
PIECE: Final = 16  # bytes of a copy to shared memory
COLUMN_SLOT: Final = CHUNK + 8 * CHUNK // BLOCK + PIECE  # bytes of a chunk of a column there

# of src/few_columns.cuh: of a tile, a block's rows at a time
ROWS: Final = 16
FEW_REGISTERS: Final = 168  # of a thread, at most
ENOUGH_FEW: Final = 12  # warps on a multiprocessor

# of src/mul_mat_few.cu
FEW_WARPS: Final = range(12, 3, -1)  # of a block, the best first
FEW_STAGES: Final = (4, 3, 2)
SUMS_OF_WARP: Final = 2 * 2  # chunks: two rounds, twice
LEAST_WARPS: Final = 6  # on a multiprocessor, rather than columns that stay there
FIRST_ASYNC: Final = 80  # architecture; before, copies wait, and one stage is enough
MOST_ROW_BYTES: Final = 2**31 - 1

# of src/mul_mat_vec.cu
VEC_STAGES: Final = 2
VEC_WARPS: Final = range(4, 9)  # of a block, the best first

# of src/mul_mat_one.cu
SHAPES: Final = (  # (warps, stages) of a block, the best first
    *((4, 2), (6, 2), (8, 2)),
    *((4, 1), (6, 1), (8, 1), (2, 1), (1, 1)),
)
ONE_REGISTERS: Final = 128  # of a thread, at most
ENOUGH_ONE: Final = 8  # warps on a multiprocessor; more were slower
LONG: Final = 32  # chunks from which on quantizing a column takes a block of few warps long
MOST_IDLE: Final = 0.1  # share of lanes, if there are tiles of that few rows
MOST_TILE_ROWS: Final = 16


class _Names(NamedTuple):
    """The names of kernels for single products and for gated units, and their grids' second and
    third dimensions."""

    single: str
    gated: str
    others: tuple[int, int]


def _names(node: Tensor) -> _Names:
    x = node.src[1]
    if node.op is Op.MUL_MAT:
        return _Names("mul_mat", "gate_up", (x.ne[2] * x.ne[3], 1))
    return _Names("mul_mat_id", "gate_up_id", (node.ne[1], node.ne[2]))


def _chunk_bytes(type: GGMLType) -> int:
    return CHUNK // type.block_size * type.type_size


class Shape(NamedTuple):
    """Warps and stages of a block, its bytes of dynamic shared memory, and how many of its warps a
    multiprocessor runs at once."""

    warps: int
    stages: int
    shared: int
    resident: int


class FewShape(NamedTuple):
    """A `Shape` of src/mul_mat_few.cu, and whether it has room for the columns, which then stay."""

    block: Shape
    columns_stay: bool


def _call(
    node: Tensor, limits: Limits, tensors: Sequence[Tensor] = (), gate: Sequence[Number] = ()
) -> CudaCall | None:
    """The call of a product, or of two if there is a gate; None if there is no kernel."""
    if node.op is Op.MUL_MAT_ID:
        return _call_of_one(node, limits, tensors, gate)
    one = _call_of_one(node, limits, tensors, gate) if node.src[1].ne[1] == 1 else None
    few = None if one or NO_FEW() else _call_of_few(node, limits, tensors, gate)
    return one or few or _call_of_groups(node, limits, tensors, gate)


def _row_slot(type: GGMLType) -> int:
    """Bytes of a chunk of a row in shared memory, in src/few_columns.cuh."""
    return PIECE * (-(-(_chunk_bytes(type) + PIECE - 1) // PIECE) | 1)


def shape_of_few(type: GGMLType, chunks: int, columns: int, limits: Limits) -> FewShape | None:
    """The block of src/mul_mat_few.cu with enough warps at once, then with columns that stay, then
    with the most warps, then the most stages; None if none fits."""

    def shapes() -> Iterator[FewShape]:
        row, column = ROWS * _row_slot(type), columns * COLUMN_SLOT
        for stay in (True, False):
            for warps in FEW_WARPS:
                for stages in FEW_STAGES if limits.arch >= FIRST_ASYNC else (1,):
                    stage = row if stay else row + column
                    of_warp = stages * stage + SUMS_OF_WARP * 4 * ROWS * COLUMNS
                    shared = warps * of_warp + (chunks * column if stay else 0)
                    resident = _resident(type, limits, warps, shared, FEW_REGISTERS)
                    yield FewShape(Shape(warps, stages, shared, resident), stay)

    def value(shape: FewShape) -> tuple[int, ...]:
        (_, stages, _, resident), stay = shape
        return min(resident, LEAST_WARPS), stay, min(resident, ENOUGH_FEW), stages

    best = max(shapes(), key=value)
    return best if best.block.resident else None


def shape_of_groups(type: GGMLType, limits: Limits) -> Shape:
    """The block of src/mul_mat_vec.cu with the most warps at once."""
    stage = ROWS * _row_slot(type) + COLUMNS * COLUMN_SLOT

    def shape(warps: int) -> Shape:
        shared = warps * VEC_STAGES * (stage + 4 * ROWS * COLUMNS)
        resident = _resident(type, limits, warps, shared, FEW_REGISTERS)
        return Shape(warps, VEC_STAGES, shared, resident)

    return max(map(shape, VEC_WARPS), key=lambda s: min(s.resident, ENOUGH_FEW))


def shape_of_one(type: GGMLType, chunks: int, is_gated: bool, limits: Limits) -> Shape | None:
    """The block of src/mul_mat_one.cu with enough warps at once, then the most stages, then the
    most warps if the column is long; None if chunks of a column do not fit."""
    stage = -(-WARP * _chunk_bytes(type) // PIECE) * PIECE + PIECE
    sums = 4 * _tile_rows(chunks) * chunks * (2 if is_gated else 1)

    def shape(warps: int, stages: int) -> Shape:
        shared = chunks * COLUMN_SLOT + warps * (stages * stage + sums)
        resident = _resident(type, limits, warps, shared, ONE_REGISTERS)
        return Shape(warps, stages, shared, resident)

    shapes = [shape(*s) for s in SHAPES]
    is_long = chunks >= LONG and not NO_FIT()
    best = max(
        shapes, key=lambda s: (min(s.resident, ENOUGH_ONE), s.stages, s.warps if is_long else 0)
    )
    return best if best.resident else None


def _resident(type: GGMLType, limits: Limits, warps: int, shared: int, registers: int) -> int:
    """The warps of a block that a multiprocessor runs at once."""
    shared += GRID_BYTES.get(type, 0)
    return warps * limits.resident(WARP * warps, shared, registers)


def _call_of_few(
    node: Tensor, limits: Limits, tensors: Sequence[Tensor], gate: Sequence[Number]
) -> CudaCall | None:
    """The call for up to 8 columns; None if there are more, or rows are too far apart."""
    a, x = node.src[:2]
    chunks = n_chunks(a.ne[0])
    shape = shape_of_few(a.type, chunks, min(x.ne[1], COLUMNS), limits)
    if x.ne[1] > COLUMNS or a.nb[1] > MOST_ROW_BYTES or shape is None:
        return None
    (warps, stages, shared, resident), stay = shape
    names = _names(node)
    source = CudaSource.of("mul_mat_few.cu", TYPE=a.type.name)
    kernel = CudaKernel(source, f"{names.gated if gate else names.single}_few", merges=not gate)
    tiles = -(-a.ne[1] // (ROWS // 2 if gate else ROWS))
    most = max(1, resident // warps * limits.n_sm // names.others[0])
    grid: Dim3 = (min(tiles, most), *names.others)
    params = (*(gate or (0, 0.0, 0.0)), stages, int(stay), tiles)
    columns = [prepared_q8(x)]
    return CudaCall(kernel, grid, WARP * warps, params, shared, prepared=columns, tensors=tensors)


def _call_of_groups(
    node: Tensor, limits: Limits, tensors: Sequence[Tensor], gate: Sequence[Number]
) -> CudaCall:
    """The call for groups of columns."""
    a, x = node.src[:2]
    warps, _, shared, _ = shape_of_groups(a.type, limits)
    source = CudaSource.of("mul_mat_vec.cu", TYPE=a.type.name, THREADS=WARP * warps, SHARED=shared)
    names = _names(node)
    tiles = -(-a.ne[1] // (ROWS // 2 if gate else ROWS))
    groups = -(-x.ne[1] // COLUMNS)
    kernel = CudaKernel(source, f"{names.gated if gate else names.single}_vec", merges=not gate)
    grid: Dim3 = (tiles * groups, *names.others)
    columns = [prepared_q8(x)]
    return CudaCall(kernel, grid, WARP * warps, gate, shared, prepared=columns, tensors=tensors)


def _call_of_one(
    node: Tensor, limits: Limits, tensors: Sequence[Tensor], gate: Sequence[Number]
) -> CudaCall | None:
    """The call for one column, or for pairs of a token and an expert; None if rows are too long, or
    not consecutive."""
    a, x = node.src[:2]
    if a.nb[1] != a.type.row_size(a.ne[0]):
        return None
    chunks = n_chunks(a.ne[0])
    rows = _tile_rows(chunks)
    tiles, batches = -(-a.ne[1] // rows), -(-rows * chunks // WARP)
    shape = shape_of_one(a.type, chunks, bool(gate), limits)
    if shape is None:
        return None
    warps, stages, shared, resident = shape
    names = _names(node)
    source = CudaSource.of("mul_mat_one.cu", TYPE=a.type.name, T=x.type.name)
    merges = not gate and node.op is Op.MUL_MAT
    kernel = CudaKernel(source, f"{names.gated if gate else names.single}_one", merges)
    most_warps = min(resident, ENOUGH_ONE) * limits.n_sm
    most = max(1, most_warps // (names.others[0] * names.others[1]))
    grid: Dim3 = (-(-min(tiles, most) // warps), *names.others)
    params = (*(gate or (0, 0.0, 0.0)), rows, stages, chunks, batches, tiles)
    return CudaCall(kernel, grid, WARP * warps, params, shared, tensors=tensors)


def _tile_rows(chunks: int) -> int:
    """The rows of a tile: few, so that all warps have work, but with few idle lanes."""
    for rows in range(1, MOST_TILE_ROWS):
        lanes = WARP * -(-rows * chunks // WARP)
        if rows * chunks >= (1 - MOST_IDLE) * lanes:
            return rows
    return MOST_TILE_ROWS


def supports(node: Tensor, limits: Limits = H100) -> bool:
    """True if `calls` accepts the node."""
    a, x = node.src[:2]
    n = x.ne[2] * x.ne[3] if node.op is Op.MUL_MAT else max(node.ne[1:3])
    if n > MAX_GRID:
        return False
    if a.type not in TYPES or not a.has_contiguous_rows or not can_prepare_q8(x):
        return False
    return node.op is not Op.MUL_MAT_ID or _call_of_one(node, limits, (), ()) is not None


def calls(node: Tensor, limits: Limits = H100) -> Sequence[CudaCall]:
    """The calls of a MUL_MAT or MUL_MAT_ID."""
    call = _call(node, limits)
    assert call is not None, f"{node!r} is not supported"
    return [call]


def can_gate(chain: GateUp, limits: Limits) -> bool:
    """True if one kernel can compute the chain: both matrices have the same layout, without gaps
    in rows."""
    a, b, glu = chain.gate.src[0], chain.up.src[0], chain.glu
    alike = (a.type, a.ne, a.nb) == (b.type, b.ne, b.nb)
    is_supported = alike and supports(chain.gate, limits)
    return is_supported and glu.type is GGMLType.F32 and glu.has_contiguous_rows


def gate_up_calls(chain: GateUp, limits: Limits) -> Sequence[CudaCall] | None:
    """The calls of two products and their GLU; None if there is no kernel."""
    if not can_gate(chain, limits):
        return None
    call = _call(chain.gate, limits, chain.tensors, gate_of(chain.glu))
    return None if call is None else [call]
