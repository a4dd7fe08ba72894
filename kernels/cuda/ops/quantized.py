"""Products of quantized weights with few columns: MUL_MAT, MUL_MAT_ID, and two with their GLU.

More than 8 columns are computed in groups; each group reads the weights again. Columns are in form
q8 (activations.py). Tested by tests/kernels/test_cuda_quantized.py and test_cuda_quantized_few.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ....graph.op import Op
from ....graph.tensor import Tensor
from ....graph.types import GGMLType
from ...plan.calls import Number
from ...plan.chains import GateUp
from ..table import CudaCall, CudaKernel, CudaSource
from .activations import BLOCK, CHUNK, can_prepare_q8, prepared_q8
from .elementwise import gate_of

TYPES: Final = (
    GGMLType.Q4_0,
    GGMLType.Q4_1,
    GGMLType.Q5_0,
    GGMLType.Q5_1,
    GGMLType.Q8_0,
    GGMLType.MXFP4,
    GGMLType.NVFP4,
    GGMLType.Q4_K,
    GGMLType.Q5_K,
    GGMLType.Q6_K,
)

COLUMNS: Final = 8  # most columns that a kernel computes in one pass over the weights

MAX_GRID: Final = 65535  # most blocks in the second and third dimension

# as in src/mul_mat_vec.cu
ROWS: Final = 16
STAGES: Final = 2
PIECE: Final = 16  # bytes
COLUMN_SLOT: Final = CHUNK + 8 * CHUNK // BLOCK + PIECE


class BlockShape(NamedTuple):
    """The number of threads of a block, and its shared memory in bytes."""

    threads: int
    shared_memory: int


def _shape(type: GGMLType, n_cols: int) -> BlockShape:
    """The shape whose stages (for each warp) and sums of chunks fill the 64 KiB that every device
    has."""
    chunk = CHUNK // type.block_size * type.type_size
    row_slot = PIECE * (-(-(chunk + PIECE - 1) // PIECE) | 1)
    if n_cols > 1:
        warps, n_sums = 4, 8
    else:
        warps, n_sums = (8, 64) if chunk <= 192 else (6, 48)
    stage = ROWS * row_slot + n_cols * COLUMN_SLOT
    return BlockShape(32 * warps, warps * STAGES * stage + 4 * n_sums * ROWS * n_cols)


def _call(
    name: str,
    node: Tensor,
    n_cols: int,
    n_rows: int,
    tensors: Sequence[Tensor] = (),
    params: Sequence[Number] = (),
) -> CudaCall:
    """A call whose blocks compute `n_rows` rows, of `n_cols` columns or of one pair of a token and
    an expert."""
    a, x = node.src[:2]
    threads, shared = _shape(a.type, n_cols)
    source = CudaSource.of(
        "mul_mat_vec.cu", TYPE=a.type.name, N_COLS=n_cols, THREADS=threads, SHARED=shared
    )
    tiles = -(-a.ne[1] // n_rows)
    if node.op is Op.MUL_MAT:
        grid = tiles * -(-x.ne[1] // n_cols), x.ne[2] * x.ne[3], 1
    else:
        grid = tiles, node.ne[1], node.ne[2]
    columns = [prepared_q8(x)]
    return CudaCall(
        CudaKernel(source, name), grid, threads, params, shared, prepared=columns, tensors=tensors
    )


def _name_and_columns(prefix: str, node: Tensor) -> tuple[str, int]:
    if node.op is Op.MUL_MAT_ID:
        return f"{prefix}_id_vec", 1
    return f"{prefix}_vec", 1 if node.src[1].ne[1] == 1 else COLUMNS


def supports(node: Tensor) -> bool:
    """True if `calls` accepts the node."""
    a, x = node.src[:2]
    n = x.ne[2] * x.ne[3] if node.op is Op.MUL_MAT else max(node.ne[1:3])
    if n > MAX_GRID:
        return False
    return a.type in TYPES and a.has_contiguous_rows and can_prepare_q8(x)


def calls(node: Tensor) -> Sequence[CudaCall]:
    """The calls of a MUL_MAT or MUL_MAT_ID."""
    name, n_cols = _name_and_columns("mul_mat", node)
    return [_call(name, node, n_cols, ROWS)]


def can_gate(chain: GateUp) -> bool:
    """True if one kernel can compute the chain: both matrices have the same layout, without gaps
    in rows."""
    a, b, glu = chain.gate.src[0], chain.up.src[0], chain.glu
    alike = (a.type, a.ne, a.nb) == (b.type, b.ne, b.nb)
    return alike and supports(chain.gate) and glu.type is GGMLType.F32 and glu.has_contiguous_rows


def gate_up_calls(chain: GateUp) -> Sequence[CudaCall] | None:
    """The calls of two products and their GLU; None if there is no kernel."""
    if not can_gate(chain):
        return None
    name, n_cols = _name_and_columns("gate_up", chain.gate)
    return [_call(name, chain.gate, n_cols, ROWS // 2, chain.tensors, gate_of(chain.glu))]
