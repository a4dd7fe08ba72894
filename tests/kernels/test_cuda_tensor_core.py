"""Tiles of tensor cores, for quantized weights with many columns on CUDA: all have the bits of the
twin (quantized_run.py), like the kernel for few columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cuda_run
import numpy as np
import pytest
from cuda_grid import needs_compiler
from packed_run import random_weights
from quantized_run import (
    N_ROWS,
    SPLIT,
    WIDE,
    Kernel,
    each_type_with,
    expected,
    gated,
    lengths,
    only,
    product,
    run_graph,
    some_types,
    weights,
)
from reference_run import Array, data, ids, leaf, normal

from lamella.base.errors import BackendError
from lamella.base.settings import NO_FIT
from lamella.graph import GGMLType, GluOp, Graph, Tensor, ops
from lamella.kernels.cuda.ops import tensor_core
from lamella.kernels.cuda.ops.experts import GROUP_THREADS
from lamella.kernels.cuda.ops.tensor_core import GATED_TILES, TILES, Tile

pytestmark = needs_compiler

GATED_SPLIT = Tile(1, 2, 2, 2)
assert GATED_SPLIT in GATED_TILES


# --- products ---


@each_type_with(WIDE, SPLIT)
def test_bits_are_the_twin_s(kernel: Kernel, type: GGMLType) -> None:
    for k in lengths(type):
        w, x = weights(type, N_ROWS, k), normal(29, k, seed=1)
        whole = expected(w, x)
        assert (product(kernel, w, x) == whole).all(), k
        # fewer columns, from other places
        assert (product(kernel, w, x[4:13]) == whole[4:13]).all(), k


# one for each number of columns, and of groups that share the chunks of K; --full: the others
SOME_TILES = (Tile(4, 1, 1, 8), Tile(4, 2, 1, 8), Tile(2, 4, 1, 4), Tile(1, 8, 1, 2))
SOME_GATED = (Tile(2, 2, 2, 4), Tile(1, 8, 2, 2))


def each_tile(tiles: Sequence[Tile], some: Sequence[Tile]) -> pytest.MarkDecorator:
    assert set(some) <= set(tiles)
    marks = {tile: () if tile in some else pytest.mark.full for tile in tiles}
    return pytest.mark.parametrize(
        "tile", [pytest.param(tile, marks=marks[tile], id=str(tile)) for tile in tiles]
    )


@each_tile(TILES, SOME_TILES)
def test_bits_of_every_tile(tile: Tile) -> None:
    # several tiles, the last ones partial, more steps than stages, and more chunks than groups
    k, n = 1184 if tile.warps_k < 8 else 2208, 150
    w, x = weights(GGMLType.Q4_0, n, k), normal(70, k, seed=1)
    whole = expected(w, x)
    for m in (9, 16, 17, 32, 33, 64, 70):
        assert (product(Kernel(tile, m), w, x[:m]) == whole[:m]).all(), m


# --- experts ---


def group(chosen: Array, n_experts: int, lists: Array, reverse: bool = False) -> None:
    """Fill `lists` by `group_by_expert` for ids [n_tokens, n_used]."""
    cuda_run.run_kernel(
        "group_by_expert.cu",
        "group_by_expert",
        [chosen.astype(np.int32)],
        (n_experts, 0),
        grid=(n_experts, 1, 1),
        block=GROUP_THREADS,
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


@pytest.mark.parametrize("bad", [-1, 3])
def test_an_expert_out_of_range_is_in_no_list(bad: int) -> None:
    lists = empty_lists(3, 4)
    with pytest.raises(BackendError, match=f"index {bad} must be below 3"):
        group(np.array([[2, bad], [0, 2]]), 3, lists)
    assert lists.tolist() == [0, 1, 1, 3, 2, 0, 3, -1]


# --- gated units ---


def assert_gated_bits(make: Callable[[], Graph], tile: Tile) -> None:
    """Check that one kernel computes the graph, with the bits of single kernels."""
    apart, fused = make(), make()
    with only(SPLIT):
        assert "glu" in run_graph(apart, fuse=False)[-1]
    with only(Kernel(tile, 9)):
        names = run_graph(fused)
    assert [n for n in names if n != "group_by_expert"] == ["quantize_q8", "mul_mat_mma"]
    assert data(apart.nodes[-1]).tobytes() == data(fused.nodes[-1]).tobytes()


@some_types
def test_gated_units_have_the_bits_of_single_ops(type: GGMLType) -> None:
    k = lengths(type)[1]
    for n, m in ((17, 9), (70, 21)):
        assert_gated_bits(lambda n=n, m=m: gated(type, n, k, m), GATED_SPLIT)  # type: ignore[misc]


@each_tile(GATED_TILES, SOME_GATED)
def test_every_tile_of_gated_units(tile: Tile) -> None:
    for n, m in ((9, 70), (150, 20)):
        assert_gated_bits(lambda n=n, m=m: gated(GGMLType.Q4_0, n, 672, m), tile)  # type: ignore[misc]


# --full: the others, which test_cuda_quantized_few.py has
OPS = (GluOp.GEGLU, *(pytest.param(o, marks=pytest.mark.full) for o in GluOp if o != GluOp.GEGLU))


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_gated_unit(op: GluOp) -> None:
    assert_gated_bits(lambda: gated(GGMLType.Q4_0, 20, 160, 9, op), GATED_SPLIT)


def test_gated_units_of_experts() -> None:
    a, b = (random_weights(GGMLType.Q4_0, 6, 20, 160, seed=s) for s in range(2))
    chosen = np.random.default_rng(0).integers(0, 6, (12, 3))

    def make() -> Graph:
        columns, of = leaf(normal(12, 1, 160, seed=1)), ids(chosen)
        return Graph(ops.swiglu(ops.mul_mat_id(a, columns, of), ops.mul_mat_id(b, columns, of)))

    assert_gated_bits(make, GATED_SPLIT)


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


def test_tiles_keep_multiprocessors_busy() -> None:
    assert tile_for(2048, 512) == tile_for(128000, 64) == Tile(4, 2, 1, 8)
    assert tile_for(2048, 511, gated=True) == WIDE.tile
    for n, m in ((2048, 64), (2048, 128), (5632, 64), (2048, 32), (5632, 16), (2048, 16)):
        tile = tile_for(n, m)
        blocks = -(-n // tile.rows) * -(-m // tile.columns)
        assert blocks >= 120 and blocks * tile.warps >= 7 * 132, (n, m, tile)
        assert tile.columns < 2 * m, (n, m, tile)
    # the smallest blocks, with the most warps
    assert tile_for(64, 9) == Tile(1, 8, 1, 2)


def test_tiles_are_the_largest_with_enough_blocks_as_they_were_measured() -> None:
    with NO_FIT.set(1):
        assert tile_for(2048, 512) == tile_for(128000, 64) == WIDE.tile
        assert tile_for(2048, 511, gated=True) == WIDE.tile
        assert tile_for(2048, 64) == Tile(2, 2, 1, 4)
        assert tile_for(64, 9) == Tile(1, 4, 1, 2)


def test_tiles_of_experts_depend_on_the_pairs_of_each() -> None:
    assert tile_for(768, 4096, n_experts=128) == Tile(4, 2, 1, 8)
    assert tile_for(768, 64, n_experts=128).columns == 16
    # two tokens cannot choose all experts
    assert tile_for(768, 2, n_experts=128) == Tile(2, 2, 1, 2)


def test_what_is_supported() -> None:
    x = Tensor(GGMLType.F32, (256, 9))
    assert tensor_core.supports(ops.mul_mat(Tensor(GGMLType.Q4_K, (256, 5)), x))
    assert not tensor_core.supports(ops.mul_mat(Tensor(GGMLType.F16, (256, 5)), x))
    many = Tensor(GGMLType.F32, (256, 1, 65536))
    assert not tensor_core.supports(ops.mul_mat(Tensor(GGMLType.Q4_K, (256, 5, 65536)), many))
