"""Vector functions of attention: products of tiles of float rows in memory, and prefetching.

Rows are float32 or F16, in whole vectors of 16, at equal distances. A tile multiplies several rows
with several others, so that they share loads; its size depends on the number of registers. The
order of an element's sum is fixed, so its bits do not depend on the tile. Knows no pages.
Tested by tests/kernels/test_cpu_simd_floats.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, Final, NamedTuple

from llvmlite import ir

from ..compiler.isa import has_feature
from . import types
from .bytes import CACHE_LINE, emit_prefetch, fma, pack, prefetch, spread, unpack
from .halves import f16_to_f32
from .vectors import LANES, f32x16, pointer_to, vector_function

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_F32 = ir.FloatType()
_V_F32 = ir.VectorType(_F32, LANES)
_V_LANES = ir.VectorType(_I32, LANES)
_V_I16 = ir.VectorType(ir.IntType(16), LANES)
_ZERO: Final = ir.Constant(_V_F32, None)


class Rows(NamedTuple):
    """A type of rows: the bytes of 16 elements, code that reads those at an address, and whether
    the same elements of other rows are prefetched beside each load."""

    vector: int
    load: Callable[[Any, Any], Any]
    reads_ahead: bool


def _load_f32(b: Any, address: Any) -> Any:
    return b.load(pointer_to(b, address, _V_F32), align=4)


def _load_f16(b: Any, address: Any) -> Any:
    return f16_to_f32(b, b.load(pointer_to(b, address, _V_I16), align=2))


F32_ROWS: Final = Rows(4 * LANES, _load_f32, False)  # in a cache
F16_ROWS: Final = Rows(2 * LANES, _load_f16, True)

# vectors that a loop adds to: 16 if there are 32 registers of 16 floats, else as few as possible
N_SUMS: Final = 16 if has_feature("avx512f") else 4

_two: Final = types.UniTuple(f32x16, 2)
_four: Final = types.UniTuple(f32x16, 4)


def _loop(
    b: Any, n: Any, start: Sequence[Any], step: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """Call `step(i, values)`, which returns the next values, `n` times, at least once."""
    before, body, done = b.block, b.append_basic_block(), b.append_basic_block()
    b.branch(body)
    b.position_at_end(body)
    i, values = b.phi(_I64), [b.phi(v.type) for v in start]
    results = step(i, values)
    following = b.add(i, _I64(1))
    after = [following, *results]
    for phi, first, next in zip([i, *values], [_I64(0), *start], after, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(next, body)
    b.cbranch(b.icmp_signed("<", following, n), body, done)
    b.position_at_end(done)
    return results


def _rows(b: Any, address: Any, step: Any, n: int) -> list[Any]:
    """Addresses of `n` rows that are `step` bytes apart."""
    return [b.add(address, b.mul(step, _I64(i))) for i in range(n)]


def _vector_at(b: Any, row: Any, i: Any, rows: Rows = F32_ROWS, ahead: Any = None) -> Any:
    """Vector `i` of a row. That `ahead` bytes further on may be prefetched, if it is not None."""
    at = b.add(row, b.mul(i, _I64(rows.vector)))
    if rows.reads_ahead and ahead is not None:
        emit_prefetch(b, b.add(at, ahead))
    return rows.load(b, at)


def _float_at(b: Any, row: Any, i: Any) -> Any:
    """Element `i` of a row, in all lanes."""
    x = b.load(pointer_to(b, b.add(row, b.mul(i, _I64(4))), _F32), align=4)
    return spread(b, x, _V_F32)


def _shuffled(b: Any, x: Any, y: Any, lanes: Sequence[int]) -> Any:
    return b.shuffle_vector(x, y, ir.Constant(_V_LANES, list(lanes)))


# --- products of rows ---

# Lanes of two vectors, (low, high) for each step. A step adds the low and the high half of each
# vector, so that both sums fit in one vector. The first two steps move whole groups of four lanes
# (4 to 7 are the second vector's), the last two move lanes within groups: no shuffle needs a table.


def _groups(*groups: int) -> list[int]:
    return [4 * g + i for g in groups for i in range(4)]


def _in_groups(*lanes: int) -> list[int]:
    return [4 * g + i + (0 if i < 4 else LANES - 4) for g in range(4) for i in lanes]


_HALVINGS: Final = (
    (_groups(0, 1, 4, 5), _groups(2, 3, 6, 7)),
    (_groups(0, 2, 4, 6), _groups(1, 3, 5, 7)),
    (_in_groups(0, 1, 4, 5), _in_groups(2, 3, 6, 7)),
    (_in_groups(0, 2, 4, 6), _in_groups(1, 3, 5, 7)),
)


def _sums(b: Any, vectors: Sequence[Any]) -> Any:
    """Lane i is `vectors.hsum` of vector i of 16, bit for bit."""
    # in this order, the last two steps give ordered lanes
    v = [vectors[4 * group + i] for i in range(4) for group in range(4)]
    for low, high in _HALVINGS:
        v = [
            b.fadd(_shuffled(b, x, y, low), _shuffled(b, x, y, high))
            for x, y in zip(v[::2], v[1::2], strict=True)
        ]
    return v[0]


def _emit_dot_tile(
    b: Any, xs: Sequence[Any], ys: Sequence[Any], y_rows: Rows, n: Any, ahead: Any
) -> list[Any]:
    """The products of each row x with each row y, `n` vectors long, not summed over lanes."""

    def step(i: Any, sums: list[Any]) -> list[Any]:
        x = [_vector_at(b, row, i) for row in xs]
        y = [_vector_at(b, row, i, y_rows, ahead) for row in ys]
        return [fma(b, *pair, z) for pair, z in zip(product(x, y), sums, strict=True)]

    return _loop(b, n, [_ZERO] * (len(xs) * len(ys)), step)


def _dots(n_x: int, n_y: int, n_sums: int, y_rows: Rows) -> Callable[..., Any]:
    tile_x = min(n_x, {16: 4, 4: 2}[n_sums])
    tile_y = n_sums // tile_x

    def emit(b: Any, values: Any) -> Any:
        x, x_step, y, y_step, n, ahead = unpack(b, values)
        xs, ys = _rows(b, x, x_step, n_x), _rows(b, y, y_step, n_y)
        sums: dict[tuple[int, int], Any] = {}
        for i, j in product(range(0, n_x, tile_x), range(0, n_y, tile_y)):
            tile_ahead = ahead if i == 0 else None
            tile = _emit_dot_tile(b, xs[i : i + tile_x], ys[j : j + tile_y], y_rows, n, tile_ahead)
            pairs = product(range(i, i + tile_x), range(j, j + tile_y))
            sums.update(zip(pairs, tile, strict=True))
        return _sums(b, [sums[pair] for pair in product(range(n_x), range(n_y))])

    return emit


def dots(n_x: int, n_y: int, n_sums: int = N_SUMS, y_rows: Rows = F32_ROWS) -> Any:
    """A function of (x, x_step, y, y_step, n, ahead): 16 products, of `n_x` rows x with `n_y` rows.

    Rows x are float32, rows y of the type `y_rows`: those `ahead` bytes further on are read next.

    Rows are `step` bytes apart and have `n` >= 1 vectors. Lane n_y * i + j is the product of row i
    of x with row j of y. Element d is added in lane d mod 16, then lanes are added as in `hsum`.
    """
    assert n_x * n_y == LANES, f"{n_x} * {n_y} products"
    emit = _dots(n_x, n_y, n_sums, y_rows)
    return vector_function(f32x16, (types.UniTuple(types.int64, 6),), emit)


# --- weighted sums of rows ---


def _emit_sum_tile(
    b: Any,
    out: Sequence[Any],
    w: Sequence[Any],
    v: Sequence[Any],
    v_step: Any,
    v_rows: Rows,
    n: Any,
    ahead: Any,
    n_ahead: Any,
) -> None:
    """Add weighted sums of `n` rows to the vectors at `out`, one for each pair of w and v.

    `w` are the addresses of rows of weights, `v` those of vectors in the first row.
    """

    def step(j: Any, sums: list[Any]) -> list[Any]:
        row = b.mul(j, v_step)
        here = b.select(b.icmp_signed("<", j, n_ahead), ahead, _I64(0))
        columns = [_vector_at(b, b.add(c, row), _I64(0), v_rows, here) for c in v]
        weights = [_float_at(b, row_w, j) for row_w in w]
        pairs = product(weights, columns)
        return [fma(b, *pair, z) for pair, z in zip(pairs, sums, strict=True)]

    start = [_vector_at(b, at, _I64(0)) for at in out]
    for at, value in zip(out, _loop(b, n, start, step), strict=True):
        b.store(value, pointer_to(b, at, _V_F32), align=4)


def _add_rows(n_w: int, n_v: int, n_sums: int, v_rows: Rows) -> Callable[..., Any]:
    tile_v = max(1, min(n_v, n_sums // n_w))

    def emit(b: Any, values: Any) -> None:
        y, w, row_step, v, v_step, n, ahead, n_ahead = unpack(b, values)
        ys, ws = _rows(b, y, row_step, n_w), _rows(b, w, row_step, n_w)
        columns = _rows(b, v, _I64(v_rows.vector), n_v)
        for j in range(0, n_v, tile_v):
            out = [b.add(row, _I64(4 * LANES * k)) for row in ys for k in range(j, j + tile_v)]
            _emit_sum_tile(b, out, ws, columns[j : j + tile_v], v_step, v_rows, n, ahead, n_ahead)

    return emit


def add_rows(n_w: int, n_v: int, n_sums: int = N_SUMS, v_rows: Rows = F32_ROWS) -> Any:
    """A function of (y, w, step, v, v_step, n, ahead, n_ahead): adds weighted rows to `n_w` rows y.

    Element j of row i of w, times row j of v, is added to row i of y, for j = 0..n - 1 in this
    order; n >= 1. Rows of y and v have `n_v` vectors. Rows of y and w are `step` bytes apart, rows
    of v `v_step`; these are of the type `v_rows`, and `n_ahead` rows `ahead` bytes further on are
    read next. All others are float32.
    """
    kind = types.UniTuple(types.int64, 8)
    return vector_function(types.void, (kind,), _add_rows(n_w, n_v, n_sums, v_rows))


# --- the rest ---


def _emit_transposed(b: Any, values: Any) -> Any:
    v0, v1, v2, v3 = unpack(b, values)
    # groups of four lanes are elements of a 4 x 4 matrix
    first, second = _groups(0, 1, 4, 5), _groups(2, 3, 6, 7)
    even, odd = _groups(0, 2, 4, 6), _groups(1, 3, 5, 7)
    low = _shuffled(b, v0, v1, first), _shuffled(b, v2, v3, first)
    high = _shuffled(b, v0, v1, second), _shuffled(b, v2, v3, second)
    pairs = product((low, high), (even, odd))
    return pack(b, [_shuffled(b, x, y, lanes) for (x, y), lanes in pairs])


def _emit_halves(b: Any, values: Any) -> Any:
    v, w = unpack(b, values)
    return pack(b, [_shuffled(b, v, w, _groups(*g)) for g in ((0, 1, 4, 5), (2, 3, 6, 7))])


# the low halves of two vectors, and their high halves
halves = vector_function(_two, (_two,), _emit_halves)
# transpose four vectors of four groups of four lanes: vector i gets group i of each
transposed = vector_function(_four, (_four,), _emit_transposed)
# prefetch a cache line; any address is valid
prefetch_line = prefetch(CACHE_LINE)
