"""Micro-kernels: some groups of packed rows times one tile of columns, for a type and a width.

`(weights, n_groups, n_rows, n_blocks, columns, results, offset)`: groups from `weights` on, with
`n_rows` rows in all; `n_blocks` of each row, the columns' tile, and where results go as in
`tiles.store_sums`. Each is machine code of its own, which the kernels of products call.
Tested by tests/kernels/test_cpu_packed.py.
"""

from __future__ import annotations

from typing import Any, Final

from ....graph.types import GGMLType
from ..jit import Kernel, family
from ..simd import inlined, load_bf16x16, load_f16x16, load_f32x16
from ..simd_bytes import prefetch, zero_tile
from .formats import FORMATS
from .steps import STEPS
from .tiles import (
    COLUMN_BYTES,
    ROWS,
    SUMS,
    WIDTHS,
    float_products,
    integer_products,
    store_sums,
)

MICRO_ARGS: Final = 7
AT_ONCE: Final = 4  # groups
AHEAD: Final = 2048  # bytes: how far weights are fetched before a single column meets them


@family
def micro_kernel(type: GGMLType, width: int) -> Kernel:
    """The kernel for weights of a type and tiles of a width."""
    assert width in WIDTHS, f"no tile has {width} columns"
    make = _float_kernel if FORMATS[type].kind is None else _integer_kernel
    run = make(type, width)
    run.__name__ = f"packed_{type.name.lower()}_x{width}"
    return Kernel(run, MICRO_ARGS)


def _integer_kernel(type: GGMLType, width: int) -> Any:
    form = FORMATS[type]
    assert form.kind is not None, f"{type.name} is not quantised"
    size = COLUMN_BYTES * width
    multiply = integer_products(form.kind, width, small=form.offset < 128)
    step, zero, store = STEPS[type](multiply, size), zero_tile(width), store_sums(width)
    record, tile_bytes = form.record_bytes, size * (type.block_size // 32)
    fetch = prefetch(record)

    def run(weights, n_groups, n_rows, n_blocks, columns, results, offset):
        p = weights
        for group in range(n_groups):
            sums, at = zero(), columns
            for _ in range(n_blocks):
                if width == 1:
                    fetch(p + AHEAD)
                sums = step(sums, p, at)
                p += record
                at += tile_bytes
            store(sums, results, offset + 64 * group, n_rows - ROWS * group)

    return run


_LOAD: Final = {
    GGMLType.F32: load_f32x16,
    GGMLType.F16: load_f16x16,
    GGMLType.BF16: load_bf16x16,
}


def _float_kernel(type: GGMLType, width: int) -> Any:
    """Few columns take several groups at once: each sum waits for its last addition."""
    one, four = _float_groups(type, width, 1), _float_groups(type, width, AT_ONCE)
    record, at_once = FORMATS[type].record_bytes, AT_ONCE if AT_ONCE * width <= SUMS else 1

    def run(weights, n_groups, n_rows, n_blocks, columns, results, offset):
        size, whole = record * n_blocks, n_groups // at_once * at_once
        for group in range(0, whole, at_once):
            rows = n_rows - ROWS * group
            if at_once == 1:
                one(weights, rows, n_blocks, columns, results, offset + 64 * group)
            else:
                four(weights, rows, n_blocks, columns, results, offset + 64 * group)
            weights += at_once * size
        for group in range(whole, n_groups):
            one(weights, n_rows - ROWS * group, n_blocks, columns, results, offset + 64 * group)
            weights += size

    return run


def _float_groups(type: GGMLType, width: int, n_groups: int) -> Any:
    """One group of rows, or four."""
    multiply, zero = float_products(width, n_groups), zero_tile(width * n_groups)
    store = store_sums(width, n_groups)
    load, record = _LOAD[type], FORMATS[type].record_bytes

    @inlined
    def load_one(p, size):
        return (load(p),)

    @inlined
    def load_four(p, size):
        return load(p), load(p + size), load(p + 2 * size), load(p + 3 * size)

    load_all = load_one if n_groups == 1 else load_four

    @inlined
    def run(p, n_rows, n_blocks, columns, results, offset):
        sums, size = zero(), record * n_blocks
        for _ in range(n_blocks):
            sums = multiply(sums, load_all(p, size), columns)
            p += record
            columns += 4 * width
        store(sums, results, offset, n_rows)

    return run
