"""Products of quantized weights with many columns on CUDA. Every tile has the bits of the twin in
test_cuda_quantized.py, like the kernel for few columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import cuda_run
import numpy as np
import pytest
from cuda_grid import needs_compiler
from packed_run import bytes_of, exact_product, nmse, random_weights, set_scales
from reference_run import Array, data, each_type, ids, leaf, normal, place
from test_cuda_quantized import (
    BLOCK,
    N_ROWS,
    SOME,
    Bits,
    bits_of,
    copied,
    expected,
    lengths,
    of_each_expert,
    run_graph,
    weights,
)

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, GluOp, Graph, Tensor, ops
from lamella.kernels.cuda.ops import tensor_core
from lamella.kernels.cuda.ops.quantized import TYPES
from lamella.kernels.cuda.ops.tensor_core import GATED_TILES, TILES, Tile

pytestmark = needs_compiler

WIDE, SPLIT = TILES[0], Tile(2, 2, 1, 2)  # the second's warps share the chunks of K
GATED_SPLIT = Tile(1, 2, 2, 2)
assert SPLIT in TILES and GATED_SPLIT in GATED_TILES

each_tile = pytest.mark.parametrize("tile", [WIDE, SPLIT], ids=str)


@contextmanager
def tiles_of(tile: Tile) -> Iterator[None]:
    """Compute all products in tiles of a shape in the block."""
    with patch.object(tensor_core, "_tile", lambda *_: tile):
        yield


def product(tile: Tile, w: Tensor, x: Tensor | Array, reverse: bool = False) -> Bits:
    node = ops.mul_mat(w, x if isinstance(x, Tensor) else leaf(x))
    with tiles_of(tile):
        return bits_of(cuda_run.compute(node, reverse=reverse))


# --- products ---


@each_type(TYPES)
@each_tile
def test_bits_are_the_twin_s(type: GGMLType, tile: Tile) -> None:
    for k in lengths(type):
        w, x = weights(type, N_ROWS, k), normal(29, k, seed=1)
        whole = expected(w, x)
        assert (product(tile, w, x) == whole).all(), k
        # fewer columns, from other places
        assert (product(tile, w, x[4:13]) == whole[4:13]).all(), k


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_bits_of_every_tile(tile: Tile) -> None:
    # several tiles, the last ones partial, and more steps than stages
    k, n = 1184, 150
    w, x = weights(GGMLType.Q4_0, n, k), normal(70, k, seed=1)
    whole = expected(w, x)
    for m in (9, 16, 17, 32, 33, 64, 70):
        assert (product(tile, w, x[:m]) == whole[:m]).all(), m


@each_type(TYPES)
def test_products_are_near_those_of_float_columns(type: GGMLType) -> None:
    w, x = weights(type, 64, 512), normal(9, 512, seed=1)
    assert nmse(product(WIDE, w, x).view(np.float32), exact_product(w, x)) <= 1e-4


@each_type(TYPES)
def test_rows_may_begin_anywhere(type: GGMLType) -> None:
    # at multiples of 2 or 4 bytes, depending on the block size
    k, step = lengths(type)[1], 4 if type.type_size % 4 == 0 else 2
    x = normal(9, k, seed=1)
    for n in (1, 17):
        w = weights(type, n, k)
        whole = expected(w, x)
        for shift in range(0, 16, step):
            assert (product(SPLIT, copied(w, shift), x) == whole).all(), (n, shift)


@each_type(SOME)
def test_columns_of_other_shapes_and_layouts(type: GGMLType) -> None:
    k = 256
    w, x = weights(type, N_ROWS, k), normal(2, 3, 9, k, seed=1)
    whole = expected(w, x)
    assert (product(SPLIT, w, x) == whole).all()
    turned = ops.permute(leaf(x), (0, 2, 1, 3))
    swapped = whole.reshape(2, 3, 9, N_ROWS).swapaxes(1, 2).reshape(54, N_ROWS)
    with patch("lamella.kernels.cuda.ops.matrix._is_few", lambda _: False):
        assert (product(SPLIT, w, turned) == swapped).all()


def test_matrices_are_repeated_over_batches() -> None:
    k, type = 160, GGMLType.Q5_1
    w, x = random_weights(type, 2, 3, 20, k), normal(4, 6, 10, k, seed=1)
    bits = product(SPLIT, w, x).reshape(4, 6, 10, 20)
    for j, i in np.ndindex(4, 6):
        one = Tensor(type, (k, 20))
        one.buffer, one.offset = w.buffer, w.offset + j // 2 * w.nb[3] + i // 2 * w.nb[2]
        assert (bits[j, i] == expected(one, x[j, i])).all(), (j, i)


@each_type(SOME)
@each_tile
def test_the_order_of_warps_does_not_matter(type: GGMLType, tile: Tile) -> None:
    w, x = weights(type, N_ROWS, 1280), normal(20, 1280, seed=1)
    assert (product(tile, w, x, reverse=True) == expected(w, x)).all()


# --- numbers of all kinds ---


@each_type(TYPES)
@each_tile
def test_extreme_blocks_and_columns(type: GGMLType, tile: Tile) -> None:
    # each value and inner scale is the largest or the smallest possible
    bytes = np.array([0x00, 0xFF, 0x7F, 0x80, 0x0F, 0xF0], np.uint8)
    w = Tensor(type, (256, len(bytes)))
    place(w)
    bytes_of(w).reshape(len(bytes), -1)[...] = bytes[:, None]
    set_scales(w, np.ones)
    x = np.array([127.0, -127.0])[np.random.default_rng(0).integers(0, 2, (9, 256))]
    x[0], x[1] = 127, -127
    assert (product(tile, w, x) == expected(w, x)).all()


@each_type(SOME)
def test_columns_of_any_size(type: GGMLType) -> None:
    w, x = weights(type, N_ROWS, 512), normal(9, 512, seed=1)
    x *= np.array([1e30, 1e20, 1, 1e-20, 1e-28, 0, -0.0, 1e-35, 1])[:, None]
    x[2] *= np.repeat(10.0 ** np.arange(-8, 8), BLOCK)
    x[3, :64] = 0
    assert (product(WIDE, w, x) == expected(w, x)).all()


@each_type(SOME)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_inf_and_nan_stay_in_their_column(type: GGMLType, value: float) -> None:
    w, x = weights(type, N_ROWS, 512), normal(10, 512, seed=1)
    whole = expected(w, x)
    x[2, 77] = value
    bits = product(WIDE, w, x)
    assert (np.delete(bits, 2, 0) == np.delete(whole, 2, 0)).all()
    assert not np.isfinite(bits[2].view(np.float32)).any()


# --- experts ---


def group(chosen: Array, n_experts: int, lists: Array, reverse: bool = False) -> None:
    """Fill `lists` by `group_by_expert` for ids [n_tokens, n_used]."""
    cuda_run.run_kernel(
        "group_by_expert.cu",
        "group_by_expert",
        [chosen.astype(np.int32)],
        (n_experts, 0),
        grid=(n_experts, 1, 1),
        block=tensor_core.GROUP_THREADS,
        prepared=[lists],
        reverse=reverse,
    )


def empty_lists(n_experts: int, n_pairs: int) -> Array:
    return np.full(n_experts + 1 + n_pairs, -1, np.int32)


@pytest.mark.parametrize("reverse", [False, True])
def test_pairs_are_grouped_by_expert(reverse: bool) -> None:
    for n_experts, n_tokens, n_used in ((1, 1, 1), (5, 3, 2), (7, 100, 8), (40, 300, 3)):
        chosen = np.random.default_rng(0).integers(0, n_experts, (n_tokens, n_used))
        lists = empty_lists(n_experts, chosen.size)
        group(chosen, n_experts, lists, reverse)
        flat = chosen.reshape(-1)
        begins = np.searchsorted(np.sort(flat), np.arange(n_experts + 1))
        assert (lists[: n_experts + 1] == begins).all()
        assert (lists[n_experts + 1 :] == np.argsort(flat, kind="stable")).all()


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1, -(2**31)])
def test_experts_out_of_range_are_refused(bad: int) -> None:
    w, x = random_weights(GGMLType.Q4_K, 4, 20, 256), normal(9, 1, 256)
    chosen = np.array([[0, 1], [2, bad], [3, 1], *[[0, 0]] * 6])
    with pytest.raises(BackendError, match=f"index {bad} must be at least 0 and below 4"):
        cuda_run.compute(ops.mul_mat_id(w, leaf(x), ids(chosen)))


@pytest.mark.parametrize("bad", [-1, 3])
def test_an_expert_out_of_range_is_in_no_list(bad: int) -> None:
    lists = empty_lists(3, 4)
    with pytest.raises(BackendError, match=f"index {bad} must be below 3"):
        group(np.array([[2, bad], [0, 2]]), 3, lists)
    assert lists.tolist() == [0, 1, 1, 3, 2, 0, 3, -1]


def of_experts(tile: Tile, w: Tensor, x: Array, chosen: Tensor) -> Array:
    """The bits of a MUL_MAT_ID, [n_tokens, n_used, n]."""
    with tiles_of(tile):
        found: Array = cuda_run.compute(ops.mul_mat_id(w, leaf(x), chosen))[0]
    return found.view(np.uint32)


@each_type(SOME)
@each_tile
def test_experts_have_the_bits_of_their_matrices(type: GGMLType, tile: Tile) -> None:
    k, n_expert, n_used, n_tokens = lengths(type)[1], 5, 4, 15
    w = random_weights(type, n_expert, 21, k)
    chosen = np.random.default_rng(0).integers(0, n_expert, (n_tokens, n_used))
    chosen[chosen == 3] = 2  # an unused expert; another has several tiles
    for n_x in (1, 2, n_used):
        x = normal(n_tokens, n_x, k, seed=1)
        columns = np.arange(n_tokens)[:, None] * n_x + np.arange(n_used) % n_x
        whole = of_each_expert(w, x)[chosen, columns]
        assert (of_experts(tile, w, x, ids(chosen)) == whole).all(), n_x


def test_many_experts_and_ids_with_gaps() -> None:
    n_expert, n_tokens = 70, 60
    w, x = random_weights(GGMLType.Q8_0, n_expert, 20, 64), normal(n_tokens, 1, 64, seed=1)
    table = np.random.default_rng(0).integers(0, n_expert, (n_tokens, 4))
    some = ops.view(ids(table), (2, n_tokens), nb=(4, 16), offset=4)
    whole = of_each_expert(w, x)[table[:, 1:3], np.arange(n_tokens)[:, None]]
    assert (of_experts(SPLIT, w, x, some) == whole).all()


# --- gated units ---


def assert_gated_bits(make: Callable[[], Graph], tile: Tile, single: Tile) -> None:
    """Check that one kernel computes the graph, with the bits of single kernels."""
    apart, fused = make(), make()
    with tiles_of(single):
        assert "glu" in run_graph(apart, fuse=False)[-1]
    with tiles_of(tile):
        names = run_graph(fused)
    assert [n for n in names if n != "group_by_expert"] == ["quantize_q8", "mul_mat_mma"]
    assert data(apart.nodes[-1]).tobytes() == data(fused.nodes[-1]).tobytes()


def gated(type: GGMLType, n: int, k: int, m: int, op: GluOp = GluOp.SWIGLU) -> Graph:
    a, b = (weights(type, n, k, seed=s) for s in range(2))
    columns = leaf(normal(m, k, seed=1))
    return Graph(ops.glu(ops.mul_mat(a, columns), ops.mul_mat(b, columns), op))


@each_type(SOME)
def test_gated_units_have_the_bits_of_single_ops(type: GGMLType) -> None:
    k = lengths(type)[1]
    for n, m in ((17, 9), (70, 21)):
        assert_gated_bits(lambda n=n, m=m: gated(type, n, k, m), GATED_SPLIT, SPLIT)  # type: ignore[misc]


@pytest.mark.parametrize("tile", GATED_TILES, ids=str)
def test_every_tile_of_gated_units(tile: Tile) -> None:
    for n, m in ((9, 70), (150, 20)):
        assert_gated_bits(lambda n=n, m=m: gated(GGMLType.Q4_0, n, 672, m), tile, SPLIT)  # type: ignore[misc]


@pytest.mark.parametrize("op", GluOp, ids=lambda op: op.name)
def test_every_gated_unit(op: GluOp) -> None:
    assert_gated_bits(lambda: gated(GGMLType.Q4_0, 20, 160, 9, op), GATED_SPLIT, SPLIT)


def test_gated_units_of_experts() -> None:
    a, b = (random_weights(GGMLType.Q4_0, 6, 20, 160, seed=s) for s in range(2))
    chosen = np.random.default_rng(0).integers(0, 6, (12, 3))

    def make() -> Graph:
        columns, of = leaf(normal(12, 1, 160, seed=1)), ids(chosen)
        return Graph(ops.swiglu(ops.mul_mat_id(a, columns, of), ops.mul_mat_id(b, columns, of)))

    assert_gated_bits(make, GATED_SPLIT, SPLIT)


# --- which tiles ---


def tile_for(n: int, m: int, n_experts: int = 0, n_used: int = 8, gated: bool = False) -> Tile:
    """The tile for matrices of `n` rows and `m` columns or tokens."""
    type, k = GGMLType.Q4_0, 2048
    if n_experts:
        chosen = Tensor(GGMLType.I32, (n_used, m))
        a = Tensor(type, (k, n, n_experts))
        node = ops.mul_mat_id(a, Tensor(GGMLType.F32, (k, 1, m)), chosen)
    else:
        node = ops.mul_mat(Tensor(type, (k, n)), Tensor(GGMLType.F32, (k, m)))
    tiles = GATED_TILES if gated else TILES
    return tensor_core._tile(node, tiles, 1 + gated)


def test_tiles_are_the_largest_with_enough_blocks() -> None:
    assert tile_for(2048, 512) == WIDE
    assert tile_for(2048, 511, gated=True) == WIDE
    assert tile_for(128000, 64) == WIDE
    for n, m in ((2048, 64), (2048, 128), (5632, 64), (2048, 32), (5632, 16), (2048, 16)):
        tile = tile_for(n, m)
        assert -(-n // tile.rows) * -(-m // tile.columns) >= 120, (n, m, tile)
        assert tile.columns < 2 * m, (n, m, tile)
    # no tile gives enough blocks: the smallest gives the most
    assert tile_for(64, 9) == Tile(1, 4, 1, 2)


def test_tiles_of_experts_depend_on_the_pairs_of_each() -> None:
    assert tile_for(768, 4096, n_experts=128) == WIDE
    assert tile_for(768, 64, n_experts=128).columns == 16
    # two tokens cannot choose all experts
    assert tile_for(768, 2, n_experts=128) == Tile(2, 2, 1, 2)


@each_type(TYPES)
def test_every_tile_fits_all_architectures(type: GGMLType) -> None:
    node = ops.mul_mat(Tensor(type, (256, 64)), Tensor(GGMLType.F32, (256, 64)))
    for tile in (*TILES, *GATED_TILES):
        assert tensor_core.tile_call(node, tile).shared_memory <= 64 * 1024


def test_what_is_supported() -> None:
    x = Tensor(GGMLType.F32, (256, 9))
    assert tensor_core.supports(ops.mul_mat(Tensor(GGMLType.Q4_K, (256, 5)), x))
    assert not tensor_core.supports(ops.mul_mat(Tensor(GGMLType.F16, (256, 5)), x))
    many = Tensor(GGMLType.F32, (256, 1, 65536))
    assert not tensor_core.supports(ops.mul_mat(Tensor(GGMLType.Q4_K, (256, 5, 65536)), many))
