"""Products of quantized weights on CUDA: kernels for few columns and tiles of tensor cores have the
bits of a NumPy twin (quantized_run.py).

Tests of a single kernel are in test_cuda_quantized_few.py and test_cuda_tensor_core.py.
"""

from __future__ import annotations

from math import gcd

import numpy as np
import pytest
from cuda_grid import needs_compiler
from packed_run import bytes_of, exact_product, nmse, random_weights, set_scales
from quantized_blocks import BLOCK
from quantized_run import (
    FEW,
    N_ROWS,
    SPLIT,
    WIDE,
    Kernel,
    copied,
    each_type_with,
    expected,
    lengths,
    of_each_expert,
    of_experts,
    product,
    some_types,
    weights,
)
from reference_run import each_type, ids, leaf, normal, place

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, Tensor, ops
from lamella.kernels.cuda import lookup_tables
from lamella.kernels.cuda.ops.quantized import GRID_BYTES
from lamella.kernels.quants.values import grid

pytestmark = needs_compiler

each_kernel = pytest.mark.parametrize("kernel", [FEW, WIDE, SPLIT], ids=str)
few_and_many = pytest.mark.parametrize("kernel", [FEW, SPLIT], ids=str)


# --- products ---


@each_type_with(FEW, WIDE)
def test_products_are_near_those_of_float_columns(kernel: Kernel, type: GGMLType) -> None:
    w, x = weights(type, 64, 512), normal(kernel.n_columns, 512, seed=1)
    assert nmse(product(kernel, w, x).view(np.float32), exact_product(w, x)) <= 1e-4


@each_type_with(FEW, SPLIT)
def test_rows_may_begin_anywhere(kernel: Kernel, type: GGMLType) -> None:
    # rows of 160 values are no multiple of 16 bytes in any type, rows of 256 not in Q6_K.
    # Tiles need multiples of 1, 2 or 4 bytes, depending on the block size
    few, step = kernel is FEW, gcd(4, type.type_size)
    k = lengths(type)[1]
    x = normal(9, k, seed=1)
    for n in (1, 15, 16, 17) if few else (1, 17):
        w = weights(type, n, k)
        whole = expected(w, x)
        for shift in (0, 2, 4, 14 if step > 1 else 15) if few else range(0, 16, step):
            for m in (1, 3) if few else (9,):
                found = product(kernel, copied(w, shift), x[:m])
                assert (found == whole[:m]).all(), (n, shift, m)


@some_types
@few_and_many
def test_columns_of_other_shapes_and_layouts(kernel: Kernel, type: GGMLType) -> None:
    k, m = 256, kernel.n_columns
    w, x = weights(type, N_ROWS, k), normal(2, 3, m, k, seed=1)
    whole = expected(w, x)
    assert (product(kernel, w, x) == whole).all()
    turned = ops.permute(leaf(x), (0, 2, 1, 3))
    swapped = whole.reshape(2, 3, m, N_ROWS).swapaxes(1, 2).reshape(6 * m, N_ROWS)
    assert (product(kernel, w, turned) == swapped).all()
    # rows with gaps, off the alignment of their loads
    gaps = leaf(np.pad(x.reshape(6 * m, k), ((0, 0), (0, 3))), shift=4)
    part = ops.view(gaps, (k, m), nb=gaps.nb[:2], offset=gaps.nb[1])
    assert (product(kernel, w, part) == whole[1 : 1 + m]).all()


@few_and_many
def test_matrices_are_repeated_over_batches(kernel: Kernel) -> None:
    k, type, m = 160, GGMLType.Q5_1, 2 if kernel is FEW else 10
    w, x = random_weights(type, 2, 3, 20, k), normal(4, 6, m, k, seed=1)
    bits = product(kernel, w, x).reshape(4, 6, m, 20)
    for j, i in np.ndindex(4, 6):
        one = Tensor(type, (k, 20))
        one.buffer, one.offset = w.buffer, w.offset + j // 2 * w.nb[3] + i // 2 * w.nb[2]
        assert (bits[j, i] == expected(one, x[j, i])).all(), (j, i)


@some_types
@each_kernel
def test_the_order_of_warps_does_not_matter(kernel: Kernel, type: GGMLType) -> None:
    w, x = weights(type, N_ROWS, 2560), normal(20, 2560, seed=1)
    for m in (1, 8) if kernel is FEW else (20,):
        assert (product(kernel, w, x[:m], reverse=True) == expected(w, x[:m])).all()


@each_type(GRID_BYTES)
def test_room_for_the_grid_in_shared_memory(type: GGMLType) -> None:
    name = "IQ1_S" if type is GGMLType.IQ1_M else type.name
    assert GRID_BYTES[type] == grid(name).size  # a byte for each value
    assert f" GRID_{name}[" in lookup_tables.header()


# --- numbers of all kinds ---


@each_type_with(FEW, WIDE, SPLIT)
def test_extreme_blocks_and_columns(kernel: Kernel, type: GGMLType) -> None:
    # each value and inner scale is the largest or the smallest possible
    bytes = np.array([0x00, 0xFF, 0x7F, 0x80, 0x0F, 0xF0], np.uint8)
    w = Tensor(type, (256, len(bytes)))
    place(w)
    bytes_of(w).reshape(len(bytes), -1)[...] = bytes[:, None]
    set_scales(w, np.ones)
    x = np.random.default_rng(0).choice([127.0, -127.0], (kernel.n_columns, 256))
    x[0], x[1] = 127, -127
    assert (product(kernel, w, x) == expected(w, x)).all()


@some_types
@pytest.mark.parametrize("kernel", [FEW, WIDE], ids=str)
def test_columns_of_any_size(kernel: Kernel, type: GGMLType) -> None:
    w, x = weights(type, N_ROWS, 512), normal(9, 512, seed=1)
    x *= np.array([1e30, 1e20, 1, 1e-20, 1e-28, 0, -0.0, 1e-35, 1])[:, None]
    x[2] *= np.repeat(10.0 ** np.arange(-8, 8), BLOCK)
    x[3, :64] = 0
    x = x[: kernel.n_columns]
    bits = product(kernel, w, x)
    assert (bits == expected(w, x)).all()
    assert (bits[5] << 1 == 0).all()


@some_types
@pytest.mark.parametrize("kernel", [FEW, WIDE], ids=str)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_inf_and_nan_stay_in_their_column(kernel: Kernel, type: GGMLType, value: float) -> None:
    w, x = weights(type, N_ROWS, 512), normal(5 if kernel is FEW else 10, 512, seed=1)
    whole = expected(w, x)
    x[2, 77] = value
    bits = product(kernel, w, x)
    assert (np.delete(bits, 2, 0) == np.delete(whole, 2, 0)).all()
    found = bits[2].view(np.float32)
    assert not np.isfinite(found).any()
    assert np.isnan(found).all() or not np.isnan(value)


# --- experts ---


@some_types
@each_kernel
def test_experts_have_the_bits_of_their_matrices(kernel: Kernel, type: GGMLType) -> None:
    k, n_expert, n_used, n_tokens = lengths(type)[1], 5, 4, 3 if kernel is FEW else 15
    w = random_weights(type, n_expert, 21, k)
    chosen = np.random.default_rng(0).integers(0, n_expert, (n_tokens, n_used))
    chosen[chosen == 3] = 2  # an unused expert; another has several tiles
    for n_x in (1, 2, n_used):
        x = normal(n_tokens, n_x, k, seed=1)
        columns = np.arange(n_tokens)[:, None] * n_x + np.arange(n_used) % n_x
        whole = of_each_expert(w, x)[chosen, columns]
        assert (of_experts(kernel, w, x, chosen) == whole).all(), n_x
        some = [2, 0]
        assert (of_experts(kernel, w, x[some], chosen[some]) == whole[some]).all(), n_x


@few_and_many
@pytest.mark.parametrize(("n_expert", "n_tokens"), [(3, 5), (70, 60)])
def test_ids_may_have_gaps(kernel: Kernel, n_expert: int, n_tokens: int) -> None:
    w, x = random_weights(GGMLType.Q8_0, n_expert, 20, 64), normal(n_tokens, 1, 64, seed=1)
    table = np.random.default_rng(0).integers(0, n_expert, (n_tokens, 4))
    some = ops.view(ids(table), (2, n_tokens), nb=(4, 16), offset=4)
    whole = of_each_expert(w, x)[table[:, 1:3], np.arange(n_tokens)[:, None]]
    assert (of_experts(kernel, w, x, some) == whole).all()


@few_and_many
@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1, -(2**31)])
def test_experts_out_of_range_are_refused(kernel: Kernel, bad: int) -> None:
    w, x = random_weights(GGMLType.Q4_K, 4, 20, 256), normal(9, 1, 256)
    chosen = np.array([[0, 1], [2, bad], [3, 1], *[[0, 0]] * 6])
    with pytest.raises(BackendError, match=f"index {bad} must be at least 0 and below 4"):
        of_experts(kernel, w, x, chosen)
