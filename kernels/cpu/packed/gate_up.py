"""GLUs of two products with packed weights: f(gate) * up. The products are not stored as tensors.

A thread computes a chunk of both products for a tile of columns in its scratch memory, and applies
the GLU there. The bits are those of the single ops. Tested by tests/kernels/test_cpu_packed.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ....graph.op import GluParams, Op
from ....graph.tensor import params_of
from ....graph.types import GGMLType
from ...plan.calls import Param
from ...plan.chains import GateUp
from ...plan.node_params import glu_scalars
from ..compiler.jit import Kernel, kernel
from ..ops.activations import GATED
from ..params import data, float_param, int_param, n_rows, ne, prepared, row, take, work
from ..simd.calls import inlined
from ..simd.ints import call_at
from ..simd.memory import load_f32_part, store_f32_part, store_i64
from ..simd.vectors import LANES, splat
from ..table import CpuCall, fuses, is_packed
from .activations import filled, prepared_columns, width_of
from .formats import FORMATS
from .micro import RESULTS_BYTES
from .products import (
    COLUMN,
    GROUP_BYTES,
    IS_FLOAT,
    MATRIX,
    MOST_AT_ONCE,
    UNPACKED_GROUP,
    can_multiply_matrix,
    chunk_begin,
    is_small,
    most_at_once,
    multiply_tile,
    n_chunks_of,
    product_params,
    unpacked,
    unpacked_bytes,
)
from .tiles import MOST, ROWS

# parameters: the kernel that applies the GLU to rows, and two numbers of the GLU
GATED_ROW: Final = MATRIX + 1
SCALARS: Final = GATED_ROW + 1
# bytes of a column's results in scratch memory; a single column may have those of all
CHUNK_ROW: Final = 4 * ROWS * MOST_AT_ONCE
UNPACKED_AT: Final = RESULTS_BYTES + 2 * MOST * CHUNK_ROW  # offset in scratch memory


def _gated_row(name: str, function: Callable[..., Any]) -> Kernel:
    """A kernel (gate, up, out, n, p) over `n` floats. `p` is the calling kernel's parameters."""

    def run(gate, up, out, n, p):
        scalars = splat(float_param(p, SCALARS)), splat(float_param(p, SCALARS + 1))
        for i in range(0, n, LANES):
            a, b = load_f32_part(gate + 4 * i, n - i), load_f32_part(up + 4 * i, n - i)
            store_f32_part(out + 4 * i, function(a, b, scalars), n - i)

    run.__name__ = name
    return Kernel(run, 5)


GATED_ROWS: Final = {op: _gated_row(f"{op.name.lower()}_row", f) for op, f in GATED.items()}


@inlined
def _multiply(p, weights, ready, count, tile, width, n_columns, results, to):
    """Multiply `count` groups of a matrix with a tile of columns, into rows of scratch at `to`."""
    for i in range(n_columns):
        store_i64(results + 8 * i, to + CHUNK_ROW * i)
    multiply_tile(p, weights, ready, count, ROWS * count, tile, results, 0, width, n_columns)


@kernel
def mul_mat_gated_packed(p, ith, nth):
    """Tensors: the result, the gate's weights, columns, the other weights."""
    n, m = ne(p, 1, 1), n_rows(p, 2)
    n_groups, group_size = (n + ROWS - 1) // ROWS, int_param(p, GROUP_BYTES)
    most = most_at_once(p, m, 2)
    n_chunks = n_chunks_of(n_groups, most, nth)
    results = work(p, ith)
    gate = results + RESULTS_BYTES
    up, is_float = gate + MOST * CHUNK_ROW, int_param(p, IS_FLOAT)
    first = results + UNPACKED_AT
    second = first + most * int_param(p, UNPACKED_GROUP)
    item = take(p, n_chunks, nth)
    while item < n_chunks:
        group = chunk_begin(n_groups, item, n_chunks)
        count, tile, c = chunk_begin(n_groups, item + 1, n_chunks) - group, prepared(p, 0), 0
        a, b = data(p, 1) + group * group_size, data(p, 3) + group * group_size
        ready_a, ready_b = unpacked(p, a, count, m, first), unpacked(p, b, count, m, second)
        while c < m:
            width = width_of(m - c, is_float)
            n_columns = filled(m - c, width, is_float)
            _multiply(p, a, ready_a, count, tile, width, n_columns, results, gate)
            _multiply(p, b, ready_b, count, tile, width, n_columns, results, up)
            for i in range(min(width, m - c)):
                at, out = CHUNK_ROW * i, row(p, 0, c + i) + 4 * ROWS * group
                size = min(ROWS * count, n - ROWS * group)
                call_at(int_param(p, GATED_ROW), (gate + at, up + at, out, size, p))
            tile += width * int_param(p, COLUMN)
            c += width
        item = take(p, n_chunks, nth)


@fuses(GateUp)
def gate_up(chain: GateUp) -> Sequence[CpuCall] | None:
    gate, up, glu = chain.nodes
    a, b = gate.src[0], up.src[0]
    if gate.op is not Op.MUL_MAT or not (is_packed(a) and is_packed(b)):
        return None
    if (a.type, a.ne) != (b.type, b.ne) or not can_multiply_matrix(gate):
        return None
    if glu.type is not GGMLType.F32 or not glu.has_contiguous_rows:
        return None
    form = FORMATS[a.type]
    params: list[Param] = [
        *product_params(form, a),
        GATED_ROWS[params_of(glu, GluParams).op],
        *glu_scalars(glu),
    ]
    columns = prepared_columns(form, gate.src[1])
    return [
        CpuCall(
            mul_mat_gated_packed,
            params,
            is_small(gate),
            UNPACKED_AT + unpacked_bytes(a, gate.src[1].n_rows, 2),
            prepared=[columns],
            tensors=chain.tensors,
        )
    ]
