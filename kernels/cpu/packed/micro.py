"""Micro-kernels: groups of packed rows times one tile of columns, for a type and a width.

The arguments are `(weights, n_groups, n_rows, n_blocks, columns, results, offset, n_columns)`: the
address of the first of `n_groups` groups, their rows in total, the blocks of a row, the tile of
columns, two arguments of `tiles.store_sums`, and the columns of a counted tile. `results` is
scratch memory of `RESULTS_BYTES`. Each is compiled alone; the kernels of products call it.
Tested by tests/kernels/test_cpu_packed.py.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ....graph.types import GGMLType
from ..compiler.jit import Kernel, family
from ..simd.bf16_dots import load_bf16_pairs
from ..simd.bytes import prefetch, zero_tile
from ..simd.calls import inlined
from ..simd.memory import (
    load_bf16x16,
    load_f16x16,
    load_f32x16,
    load_i64,
    store_f32_part,
    store_f32x16,
)
from ..simd.vectors import zero as zero_vector
from .formats import FORMATS
from .single import SINGLE_STEPS
from .tiles import (
    COLUMN_BYTES,
    COUNTED,
    MOST,
    QUANTIZED_WIDTHS,
    ROWS,
    SUM_BYTES,
    VALUES,
    WIDTHS,
    Kind,
    add_float,
    add_pair,
    add_tiles,
    counted_sums,
    float_products,
    group_products,
    integer_products,
    store_sums,
    tile_type,
)
from .unpacked import record_bytes as unpacked_record
from .unpacked import unpacked_step
from .unpacking import AHEAD, STEPS

MICRO_ARGS: Final = 8
_SUMS_AT: Final = -(-8 * MOST // 64) * 64  # offset of a counted tile's sums in scratch memory
RESULTS_BYTES: Final = _SUMS_AT + SUM_BYTES * MOST
IN_PAIRS: Final = not COUNTED  # registers have room for the sums of two groups and 8 columns
WIDE: Final = 8 if IN_PAIRS else 6  # columns that a wide tile multiplies at once


@family
def micro_kernel(type: GGMLType, width: int, in_pairs: bool) -> Kernel:
    """The kernel for weights of this type and tiles of this width. `in_pairs`: a block is a pair of
    BF16 values, as in `Format.in_pairs`."""
    form = FORMATS[type]
    widths = WIDTHS if form.kind is None else QUANTIZED_WIDTHS
    assert width in widths, f"no tile has {width} columns"
    if width == 1 and type in SINGLE_STEPS:
        run = _single_kernel(type)
    elif form.kind is not None:
        multiply = integer_products(form.kind, width, largest=form.largest)
        step = STEPS[type](multiply, COLUMN_BYTES * width)
        run = _integer_kernel(step, form.record_bytes, width, _blocks(type))
    else:
        make = _wide_float_kernel if width == WIDTHS[0] else _float_kernel
        run = make(_IN_PAIRS if in_pairs else _FLOATS[type], width)
    run.__name__ = f"packed_{type.name.lower()}{'_pairs' * in_pairs}_x{width}"
    return Kernel(run, MICRO_ARGS)


@family
def unpacked_micro_kernel(kind: Kind, largest: int) -> Kernel:
    """The kernel for unpacked weights of this kind, whose bytes are at most `largest`, and for the
    widest tiles. A block is an unpacked record."""
    width = QUANTIZED_WIDTHS[0]
    step = unpacked_step(kind, integer_products(kind, width, largest=largest))
    run = _integer_kernel(step, unpacked_record(kind), width, 1)
    run.__name__ = f"unpacked_{kind.name.lower()}_{largest}_x{width}"
    return Kernel(run, MICRO_ARGS)


def _integer_kernel(step: Any, record: int, width: int, n: int) -> Any:
    """The function for a step over `record` bytes of weights and `n` blocks of each column."""
    make = _counted_kernel if tile_type(width) is counted_sums else _summing_kernel
    return make(step, record, width, COLUMN_BYTES * width * n)


def _summing_kernel(step: Any, record: int, width: int, tile_bytes: int) -> Any:
    zero, store = zero_tile(width), store_sums(width)

    def run(weights, n_groups, n_rows, n_blocks, columns, results, offset, n_columns):
        p = weights
        for group in range(n_groups):
            sums, at = zero(), columns
            for _ in range(n_blocks):
                sums = step(sums, p, at)
                p += record
                at += tile_bytes
            store(sums, results, offset + 4 * ROWS * group, n_rows - ROWS * group)

    return run


def _single_kernel(type: GGMLType) -> Any:
    step, zero, store = SINGLE_STEPS[type], zero_tile(1), store_sums(1)
    record, column_bytes = FORMATS[type].record_bytes, COLUMN_BYTES * _blocks(type)

    def run(weights, n_groups, n_rows, n_blocks, columns, results, offset, n_columns):
        p = weights
        for group in range(n_groups):
            sum, at = zero()[0], columns
            for _ in range(n_blocks):
                sum = step(sum, p, at)
                p += record
                at += column_bytes
            store((sum,), results, offset + 4 * ROWS * group, n_rows - ROWS * group)

    return run


def _counted_kernel(step: Any, record: int, width: int, tile_bytes: int) -> Any:
    def run(weights, n_groups, n_rows, n_blocks, columns, results, offset, n_columns):
        n_columns = max(n_columns, 1)  # LLVM would add loops for none
        p, sums = weights, (results + _SUMS_AT, n_columns)
        for group in range(n_groups):
            for c in range(n_columns):
                store_f32x16(sums[0] + SUM_BYTES * c, zero_vector())
            at = columns
            for _ in range(n_blocks):
                sums = step(sums, p, at)
                p += record
                at += tile_bytes
            to = offset + 4 * ROWS * group
            for c in range(n_columns):
                sum = load_f32x16(sums[0] + SUM_BYTES * c)
                store_f32_part(load_i64(results + 8 * c) + to, sum, n_rows - ROWS * group)

    return run


def _blocks(type: GGMLType) -> int:
    """Blocks of columns for a block of weights."""
    return type.block_size // VALUES


class _Floats(NamedTuple):
    """How float weights are multiplied: bytes of a value of 16 rows, their load, their product."""

    record: int
    load: Any
    add: Any


_FLOATS: Final = {
    GGMLType.F32: _Floats(4 * ROWS, load_f32x16, add_float),
    GGMLType.F16: _Floats(2 * ROWS, load_f16x16, add_float),
    GGMLType.BF16: _Floats(2 * ROWS, load_bf16x16, add_float),
}
_IN_PAIRS: Final = _Floats(4 * ROWS, load_bf16_pairs, add_pair)


def _float_kernel(floats: _Floats, width: int) -> Any:
    """The function for float weights and narrow tiles.

    Each result has two sums, of even and of odd values, because an addition waits for the one
    before it.
    """
    record, load, product = floats
    multiply, multiply_last = (float_products(width, n, product) for n in (2, 1))
    zero, add, store = zero_tile(2 * width), add_tiles(width), store_sums(width)
    fetch = prefetch(2 * record)

    def run(weights, n_groups, n_rows, n_blocks, columns, results, offset, n_columns):
        p = weights
        for group in range(n_groups):
            at, sums = columns, zero()
            for _ in range(n_blocks // 2):
                fetch(p + AHEAD)
                sums = multiply(sums, load(p), load(p + record), at)
                p += 2 * record
                at += 8 * width
            if n_blocks % 2 != 0:
                sums = multiply_last(sums, load(p), load(p), at)
                p += record
            rows, to = n_rows - ROWS * group, offset + 4 * ROWS * group
            store(add(sums[:width], sums[width:]), results, to, rows)

    return run


def _wide_float_kernel(floats: _Floats, width: int) -> Any:
    """The function for float weights and wide tiles.

    If registers have room for the sums of a pair of groups, they share the loads of columns.
    """
    n = 2 if IN_PAIRS else 1
    first, last = _float_groups(floats, width, n), _float_groups(floats, width, 1)
    record = floats.record

    def run(weights, n_groups, n_rows, n_blocks, columns, results, offset, n_columns):
        size = record * n_blocks
        for group in range(0, n_groups - n + 1, n):
            rows, to = n_rows - ROWS * group, offset + 4 * ROWS * group
            first(weights + size * group, size, rows, n_blocks, columns, results, to)
        if n_groups % n != 0:
            group = n_groups - 1
            rows, to = n_rows - ROWS * group, offset + 4 * ROWS * group
            last(weights + size * group, size, rows, n_blocks, columns, results, to)

    return run


def _float_groups(floats: _Floats, width: int, n: int) -> Any:
    """A function for `n` groups, each of `size` bytes.

    The sums are those of `_float_kernel`. To have room in the registers for a part of the tile, all
    even values come before the odd ones. Each step prefetches a part of the next groups; not with
    16 registers, where weights are read in a plain order.
    """
    record, load, product = floats
    multiply, zero = group_products(n, WIDE, product), zero_tile(n * WIDE)
    add, store = add_tiles(n * WIDE), store_sums(WIDE)
    n_ahead = n * record * WIDE // width if IN_PAIRS else 0  # bytes for each step
    fetch = prefetch(n_ahead)

    @inlined
    def every_second(p, size, n_values, columns, ahead):
        sums = zero()
        for _ in range(n_values):
            fetch(ahead)
            ahead += n_ahead
            if n == 1:
                sums = multiply(sums, (load(p),), columns)
            else:
                sums = multiply(sums, (load(p), load(p + size)), columns)
            p += 2 * record
            columns += 8 * width
        return sums

    @inlined
    def run(weights, size, n_rows, n_blocks, columns, results, offset):
        n_even, n_odd, ahead = (n_blocks + 1) // 2, n_blocks // 2, weights + n * size
        for first in range(0, width, WIDE):
            at, to = columns + 4 * first, results + 8 * first
            even = every_second(weights, size, n_even, at, ahead)
            ahead += n_ahead * n_even
            odd = every_second(weights + record, size, n_odd, at + 4 * width, ahead)
            ahead += n_ahead * n_odd
            sums = add(even, odd)
            store(sums[:WIDE], to, offset, n_rows)
            if n == 2:
                store(sums[WIDE:], to, offset + 4 * ROWS, n_rows - ROWS)

    return run
