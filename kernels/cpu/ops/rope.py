"""Rotary position embedding: ROPE of F32 and F16, with pairs of neighbors or of halves.

An angle is the position times the pair's frequency, in turns and in float64. Only its fraction
matters, which is rounded to float32. Cosines and sines are computed once for all heads of a token.
Threads divide heads. Tested by tests/kernels/test_rope.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from ....graph.op import Op, RopeMode, RopeParams
from ....graph.tensor import Tensor, params_of
from ....graph.types import GGMLType
from ...plan.node_params import rope_params
from ..compiler.jit import Kernel
from ..params import data, first_of, float_param, int_param, n_rows, nb, ne, row_at, work
from ..simd.calls import inlined
from ..simd.memory import (
    load_f16_part,
    load_f32,
    load_f32_part,
    load_f32x16,
    load_f64,
    load_i32,
    store_f16_part,
    store_f32,
    store_f32_part,
    store_f32x16,
    store_f64,
)
from ..simd.vectors import LANES, choose, fma, splat, turn_pairs, vabs, vround, zero
from ..table import SMALL, CpuCall, implements

# parameters, in the order of `plan.node_params.rope_params`
N_DIMS: Final = 0
HAS_FACTORS: Final = 1
RATIO: Final = 2  # frequency of a pair / frequency of the pair before it
FREQ_SCALE: Final = 3
EXT_FACTOR: Final = 4
LOW: Final = 5  # YaRN: pairs up to LOW are not scaled, pairs from HIGH on are, others are mixed
HIGH: Final = 6
MAGNITUDE: Final = 7  # factor of cosines and sines
N_ROPE_PARAMS: Final = 8

TURN: Final = 2 * math.pi
WHOLE: Final = 1.5 * 2**52  # adding and subtracting it rounds a float64 to an integer


@inlined
def vcos_sin(turns):
    """Cosine and sine of 2 pi `turns`, for turns in -0.5..0.5.

    Uses the polynomials of Cephes' cosf and sinf, within an eighth of a turn of the nearest quarter
    turn.
    """
    quarters = vround(turns * splat(4.0))
    a = (turns - quarters * splat(0.25)) * splat(TURN)
    z = a * a
    s = fma(splat(-1.9515295891e-4), z, splat(8.3321608736e-3))
    s = fma(s, z, splat(-1.6666654611e-1))
    s = fma(s * z, a, a)
    c = fma(splat(2.443315711809948e-5), z, splat(-1.388731625493765e-3))
    c = fma(c, z, splat(4.166664568298827e-2))
    c = fma(c * z, z, fma(splat(-0.5), z, splat(1.0)))
    # by quarter turns: (c, s), (-s, c), (-c, -s), (s, -c)
    even, distance = splat(0.5), vabs(quarters)
    side = choose(vabs(distance - splat(1.0)), even, splat(1.0), zero())  # one quarter off
    sign = choose(quarters, zero(), splat(-1.0), splat(1.0))
    back = choose(splat(1.5), distance, splat(-1.0), splat(1.0))  # half a turn
    cos = choose(even, side, s * sign * splat(-1.0), c * back)
    sin = choose(even, side, c * sign, s * back)
    return cos, sin


@inlined
def frequencies_of(p, to, copies):
    """Write each pair's frequency, the turns at position 1, `copies` times as float64 to `to`."""
    low, high, ext = float_param(p, LOW), float_param(p, HIGH), float_param(p, EXT_FACTOR)
    power = 1.0 / TURN
    for i in range(int_param(p, N_DIMS) // 2):
        turns = power
        if int_param(p, HAS_FACTORS) != 0:
            turns /= load_f32(data(p, 3) + nb(p, 3, 0) * i)
        ramp = min(1.0, max(0.0, (i - low) / max(0.001, high - low)))
        mix = (1.0 - ramp) * ext
        turns = turns * float_param(p, FREQ_SCALE) * (1.0 - mix) + turns * mix
        for j in range(copies):
            store_f64(to + 8 * (copies * i + j), turns)
        power *= float_param(p, RATIO)


@inlined
def cos_sin(pos, frequencies, n, magnitude, cos, sin):
    """Write `n` cosines and sines of a position, in whole vectors."""
    for i in range(n):
        turns = pos * load_f64(frequencies + 8 * i)
        store_f32(cos + 4 * i, turns - ((turns + WHOLE) - WHOLE))
    for i in range(0, n, LANES):
        c, s = vcos_sin(load_f32_part(cos + 4 * i, n - i))
        store_f32x16(cos + 4 * i, c * splat(magnitude))
        store_f32x16(sin + 4 * i, s * splat(magnitude))


def _rope_kernel(name: str, rotate: Callable[..., Any], copies: int) -> Kernel:
    """The kernel of a mode and type: rotate(x, out, n_dims, cos, sin, ne0) rotates one head."""

    def run(p, ith, nth):
        n_dims, ne0, n_head, n_tokens = int_param(p, N_DIMS), ne(p, 0, 0), ne(p, 0, 1), ne(p, 0, 2)
        magnitude, n = float_param(p, MAGNITUDE), n_dims // 2 * copies
        frequencies = work(p, ith)
        cos = frequencies + 8 * n
        sin = cos + 4 * (n + LANES)
        rows, at = n_rows(p, 0), -1
        frequencies_of(p, frequencies, copies)
        for r in range(first_of(rows, ith, nth), first_of(rows, ith + 1, nth)):
            token = r // n_head
            t, batch = token % n_tokens, token // n_tokens
            if token != at:
                at = token
                pos = load_i32(data(p, 2) + nb(p, 2, 0) * t)
                cos_sin(pos, frequencies, n, magnitude, cos, sin)
            head = r - token * n_head
            x, out = row_at(p, 1, head, t, batch), row_at(p, 0, head, t, batch)
            rotate(x, out, n_dims, cos, sin, ne0)

    run.__name__ = name
    return Kernel(run)


def _neighbors(load: Callable[..., Any], store: Callable[..., Any], size: int) -> Any:
    """Rotation of pairs (0, 1), (2, 3), ...; `cos` and `sin` have each number twice."""

    @inlined
    def rotate(x, out, n_dims, cos, sin, ne0):
        for i in range(0, n_dims, LANES):
            v = load(x + size * i, n_dims - i)
            y = v * load_f32x16(cos + 4 * i) + turn_pairs(v) * load_f32x16(sin + 4 * i)
            store(out + size * i, y, n_dims - i)
        for i in range(n_dims, ne0, LANES):
            store(out + size * i, load(x + size * i, ne0 - i), ne0 - i)

    return rotate


def _halves(load: Callable[..., Any], store: Callable[..., Any], size: int) -> Any:
    """Rotation of pairs (0, n/2), (1, n/2 + 1), ..."""

    @inlined
    def rotate(x, out, n_dims, cos, sin, ne0):
        half = n_dims // 2
        for i in range(0, half, LANES):
            v, w = load(x + size * i, half - i), load(x + size * (half + i), half - i)
            c, s = load_f32x16(cos + 4 * i), load_f32x16(sin + 4 * i)
            store(out + size * i, v * c - w * s, half - i)
            store(out + size * (half + i), v * s + w * c, half - i)
        for i in range(n_dims, ne0, LANES):
            store(out + size * i, load(x + size * i, ne0 - i), ne0 - i)

    return rotate


_F32 = (load_f32_part, store_f32_part, 4)
_F16 = (load_f16_part, store_f16_part, 2)
# by mode and type: the rotation of a head, and the number of copies of each cosine and sine
ROTATIONS: Final = {
    (RopeMode.NORMAL, GGMLType.F32): (_neighbors(*_F32), 2),
    (RopeMode.NORMAL, GGMLType.F16): (_neighbors(*_F16), 2),
    (RopeMode.NEOX, GGMLType.F32): (_halves(*_F32), 1),
    (RopeMode.NEOX, GGMLType.F16): (_halves(*_F16), 1),
}
ROPE: Final = {
    (mode, type): _rope_kernel(f"rope_{mode.name.lower()}_{type.name.lower()}", *rotation)
    for (mode, type), rotation in ROTATIONS.items()
}


@implements(Op.ROPE)
def rope(node: Tensor) -> Sequence[CpuCall]:
    op, small = params_of(node, RopeParams), node.n_elements < SMALL
    return [CpuCall(ROPE[op.mode, node.type], rope_params(node), small, rope_work(op.n_dims))]


def rope_work(n_dims: int) -> int:
    """Bytes that a thread needs for frequencies, cosines and sines."""
    return 8 * n_dims + 2 * 4 * (n_dims + LANES)
