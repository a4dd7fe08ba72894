"""ROPE straight into the rows of a cache: keys are rotated, converted and stored at once.

Threads divide the heads, not the tokens. So if an index occurs twice, the later token remains, as
in `data.set_rows`. A thread's heads fill whole blocks of the cache's type.
Tested by tests/kernels/test_fusion.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ....graph.op import RopeMode, RopeParams
from ....graph.tensor import params_of
from ....graph.types import GGMLType
from ...plan.chains import RopeSetRows
from ...plan.node_params import rope_params
from ..codecs.rows import move
from ..compiler.jit import Kernel
from ..params import data, fail, first_of, float_param, int_param, nb, ne, row_at, work
from ..simd.ints import call_at
from ..simd.memory import load_i32, load_i64
from ..simd.vectors import LANES
from ..table import SMALL, CpuCall, fuses
from .data import encoder_of, is_writable
from .rope import (
    MAGNITUDE,
    N_DIMS,
    N_ROPE_PARAMS,
    ROTATIONS,
    cos_sin,
    frequencies_of,
    rope_work,
)

IDS: Final = 4  # number of the tensor with the row indices in `RopeSetRows.tensors`
# parameters after those of ROPE
ENCODER: Final = N_ROPE_PARAMS  # the encoder and its table
BLOCK: Final = ENCODER + 2  # elements and bytes of a block of the cache
ID_BYTES: Final = BLOCK + 2
UNIT: Final = ID_BYTES + 1  # heads that fill whole blocks


def _kernel(name: str, rotate: Callable[..., Any], copies: int) -> Kernel:
    def run(p, ith, nth):
        n_dims, head_dim, n_tokens = int_param(p, N_DIMS), ne(p, 1, 0), ne(p, 1, 2)
        unit = int_param(p, UNIT)
        n_units = ne(p, 1, 1) // unit
        begin, end = first_of(n_units, ith, nth) * unit, first_of(n_units, ith + 1, nth) * unit
        if begin == end:
            return
        n, count = n_dims // 2 * copies, (end - begin) * head_dim
        frequencies = work(p, ith)
        cos = frequencies + 8 * n
        sin = cos + 4 * (n + LANES)
        heads = sin + 4 * (n + LANES)
        frequencies_of(p, frequencies, copies)
        for t in range(n_tokens):
            at = data(p, IDS) + t * nb(p, IDS, 0)
            index = load_i64(at) if int_param(p, ID_BYTES) == 8 else load_i32(at)
            if index < 0 or index >= ne(p, 0, 1):
                fail(p, index, ne(p, 0, 1))
                continue
            pos = load_i32(data(p, 2) + nb(p, 2, 0) * t)
            cos_sin(pos, frequencies, n, float_param(p, MAGNITUDE), cos, sin)
            for head in range(begin, end):
                out = heads + 4 * head_dim * (head - begin)
                rotate(row_at(p, 1, head, t, 0), out, n_dims, cos, sin, head_dim)
            first = begin * head_dim // int_param(p, BLOCK)
            dst = row_at(p, 0, index, 0, 0) + first * int_param(p, BLOCK + 1)
            if int_param(p, ENCODER) != 0:
                call_at(int_param(p, ENCODER), (heads, dst, count, int_param(p, ENCODER + 1)))
            else:
                move(dst, 4, heads, 4, count, 4)

    run.__name__ = name
    return Kernel(run)


ROPE_SET_ROWS: Final = {
    mode: _kernel(f"rope_{mode.name.lower()}_set_rows", *ROTATIONS[mode, GGMLType.F32])
    for mode in RopeMode
}


@fuses(RopeSetRows)
def rope_set_rows(chain: RopeSetRows) -> Sequence[CpuCall] | None:
    """Writes the cache. The rotated heads themselves are not stored."""
    rope, type, unit = chain.rope, chain.set_rows.type, chain.unit
    if not is_writable(type) or rope.type is not GGMLType.F32 or rope.ne[1] % unit:
        return None
    op, ids = params_of(rope, RopeParams), chain.tensors[IDS]
    params = (
        *rope_params(rope),
        *encoder_of(type),
        *(type.block_size, type.type_size, ids.type.type_size, unit),
    )
    work = rope_work(op.n_dims) + 4 * rope.ne[0] * rope.ne[1]
    kernel, small = ROPE_SET_ROWS[op.mode], rope.n_elements < SMALL
    return [CpuCall(kernel, params, small, work, tensors=chain.tensors)]
