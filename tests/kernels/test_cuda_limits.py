"""The sizes that CUDA kernels take from a device, on a table of real ones."""

from __future__ import annotations

from dataclasses import replace

import cuda_run
import pytest
from cuda_devices import DEVICES
from cuda_grid import needs_compiler
from matrix import combinations
from quantized_run import bits_of, expected, weights
from reference_run import each_type, leaf, normal

from lamella.base.settings import NO_FIT
from lamella.graph import GGMLType, Tensor, ops
from lamella.kernels.cuda.kernel_set import kernels_for
from lamella.kernels.cuda.limits import H100, KIB, MEASURED, sizes_of
from lamella.kernels.cuda.ops import quantized, tensor_core
from lamella.kernels.cuda.ops.quantized import (
    COLUMNS,
    GRID_BYTES,
    TYPES,
    shape_of_few,
    shape_of_groups,
    shape_of_one,
)

# blocks on a multiprocessor x warps of a block x stages, for rows of 4096 values: one column, 8,
# groups of 8
OCCUPANCY = {
    "T4": {
        "Q4_0": ("2x4x1", "1x8x1", "1x5x2"),
        "Q6_K": ("1x8x1", "1x7x1", "1x4x2"),
        "Q8_0": ("1x6x1", "1x6x1", "1x4x2"),
    },
    "A100": {
        "Q4_0": ("3x4x2", "1x12x2", "3x4x2"),
        "Q6_K": ("2x4x2", "1x12x2", "2x5x2"),
        "Q8_0": ("2x4x2", "1x10x2", "2x5x2"),
    },
    "H100": {
        "Q4_0": ("4x4x2", "1x12x4", "3x4x2"),
        "Q6_K": ("3x4x2", "1x12x3", "3x4x2"),
        "Q8_0": ("3x4x2", "1x12x2", "3x4x2"),
    },
}
SMALL = {
    "Q4_0": ("2x4x2", "1x7x2", "2x4x2"),
    "Q6_K": ("3x4x1", "1x6x2", "1x7x2"),
    "Q8_0": ("2x4x1", "1x5x2", "1x6x2"),
}
OCCUPANCY |= {name: SMALL for name in DEVICES if name.startswith("RTX")}


@pytest.mark.parametrize("name", DEVICES)
def test_blocks_of_products_on_a_multiprocessor(name: str) -> None:
    for type, wanted in OCCUPANCY[name].items():
        one = shape_of_one(GGMLType[type], 16, False, DEVICES[name])
        few = shape_of_few(GGMLType[type], 16, COLUMNS, DEVICES[name])
        assert one is not None and few is not None
        shapes = (one, few.block, shape_of_groups(GGMLType[type], DEVICES[name]))
        found = tuple(f"{s.resident // s.warps}x{s.warps}x{s.stages}" for s in shapes)
        assert found == wanted, type


def test_columns_stay_in_shared_memory_where_they_fit() -> None:
    def stay(chunks: int, columns: int, name: str) -> bool:
        shape = shape_of_few(GGMLType.Q4_0, chunks, columns, DEVICES[name])
        assert shape is not None
        return shape.columns_stay

    assert all(stay(16, n, name) for n in (2, 8) for name in DEVICES if name != "T4")
    assert (stay(16, 4, "T4"), stay(16, 8, "T4")) == (True, False)
    assert (stay(56, 2, "RTX 3060"), stay(56, 4, "RTX 3060")) == (True, False)
    assert (stay(56, 4, "A100"), stay(56, 8, "A100")) == (True, False)
    assert (stay(56, 8, "H100"), stay(100, 8, "H100")) == (True, False)


def test_long_columns_are_quantized_by_more_warps() -> None:
    def warps(chunks: int) -> int:
        shape = shape_of_one(GGMLType.Q4_0, chunks, False, sizes_of(H100))
        assert shape is not None and shape.stages == 2
        return shape.warps

    assert [warps(n) for n in (8, 31, 32, 56)] == [4, 4, 8, 8]
    with NO_FIT.set(1):
        assert [warps(n) for n in (32, 56)] == [4, 4]
    node = ops.mul_mat(Tensor(GGMLType.Q4_0, (14336, 4096)), Tensor(GGMLType.F32, (14336, 1)))
    [call] = quantized.calls(node)
    assert (call.grid[0], call.block) == (128, 256)  # of 132 multiprocessors


@each_type(TYPES)
def test_products_fill_every_device(type: GGMLType) -> None:
    """Another block does not fit; or there are enough warps."""
    for name, limits in DEVICES.items():
        groups = shape_of_groups(type, limits)
        others = GRID_BYTES.get(type, 0) + limits.reserved
        unused = limits.sm_shared - groups.resident // groups.warps * (groups.shared + others)
        assert groups.resident >= 12 or unused < 4 * groups.shared // groups.warps + others, name
        for chunks in (4, 16, 56):
            one = shape_of_one(type, chunks, True, limits)
            assert one is not None and one.resident >= 4, (name, chunks)
            few = shape_of_few(type, chunks, COLUMNS, limits)
            assert few is not None and few.block.resident >= 5, (name, chunks)


def test_grids_of_one_column_have_the_warps_that_a_device_runs_at_once() -> None:
    node = ops.mul_mat(Tensor(GGMLType.Q4_0, (4096, 14336)), Tensor(GGMLType.F32, (4096, 1)))
    blocks = {n: quantized.calls(node, limits)[0].grid[0] for n, limits in DEVICES.items()}
    assert blocks == {n: 2 * limits.n_sm for n, limits in DEVICES.items()}


def test_the_largest_rows_of_experts_follow_the_shared_memory() -> None:
    chosen = Tensor(GGMLType.I32, (2, 1))
    for n_chunks, names in ((150, set(DEVICES)), (200, set(DEVICES) - {"T4"}), (500, {"H100"})):
        k = n_chunks * 256
        weights = Tensor(GGMLType.Q4_0, (k, 8, 6))
        node = ops.mul_mat_id(weights, Tensor(GGMLType.F32, (k, 1, 1)), chosen)
        found = {n for n, limits in DEVICES.items() if kernels_for(limits).supports(node)}
        assert found == names, n_chunks


@each_type(TYPES)
def test_every_device_has_tiles_for_all_numbers_of_columns(type: GGMLType) -> None:
    for limits in DEVICES.values():
        for tiles in (tensor_core.TILES, tensor_core.GATED_TILES):
            fitting = {t.columns for t in tiles if tensor_core.block_of(type, t, limits)}
            assert fitting == {16, 32, 64}
    for tile in (*tensor_core.FORMER, *tensor_core.FORMER_GATED):
        assert tensor_core.block_of(type, tile, MEASURED)


def test_more_warps_share_rows_where_blocks_are_few() -> None:
    def tile(rows: int, columns: int, device: str = "H100") -> tensor_core.Tile:
        x = Tensor(GGMLType.F32, (4096, columns))
        node = ops.mul_mat(Tensor(GGMLType.Q4_0, (4096, rows)), x)
        return tensor_core._tile(node, tensor_core.TILES, 1, DEVICES[device])

    few, many = tile(4096, 32), tile(14336, 32)
    assert few.warps_k == 8 and many.warps_k == 2
    assert tile(4096, 32, "RTX 4060").warps_k == 2  # it has a sixth of the multiprocessors
    with NO_FIT.set(1):
        assert tile(4096, 32).warps_k == 2


def test_no_tile_reads_weights_in_vain() -> None:
    """The bandwidth of memory limits small tiles of columns."""
    a = Tensor(GGMLType.Q4_0, (4096, 14336))
    for n in (64, 128, 512):
        node = ops.mul_mat(a, Tensor(GGMLType.F32, (4096, n)))
        tile = tensor_core._tile(node, tensor_core.TILES, 1, DEVICES["T4"])
        assert tile.columns == 64


def test_resident_blocks() -> None:
    # the limits in turn: threads, blocks, registers, shared memory
    assert H100.resident(1024, 0, 32) == 2
    assert H100.resident(32, 0, 32) == 32
    assert H100.resident(128, 0, 128) == 4
    assert H100.resident(128, 0, 121) == 4
    assert H100.resident(128, 75 * KIB, 32) == 3
    assert H100.resident(128, 75 * KIB + 1, 32) == 2
    assert H100.resident(128, 228 * KIB, 32) == 0
    assert DEVICES["T4"].resident(128, 32 * KIB, 32) == 2
    assert (H100.registers(128, 4), H100.registers(32, 1), H100.registers(96, 3)) == (128, 255, 224)


def test_a_switch_gives_every_device_the_sizes_that_were_measured() -> None:
    small = DEVICES["RTX 3060"]
    assert sizes_of(small) == small
    with NO_FIT.set(1):
        assert sizes_of(small) == replace(MEASURED, arch=86)


# --- bits ---

SOME = (GGMLType.Q4_0, GGMLType.Q6_K, GGMLType.Q8_0, GGMLType.IQ1_S)


@needs_compiler
@pytest.mark.parametrize(("type", "name"), combinations(SOME, ["T4", "RTX 3060"]))
def test_bits_are_the_twin_s_with_the_sizes_of_every_device(name: str, type: GGMLType) -> None:
    kernels = kernels_for(DEVICES[name])
    for k, m in ((2560, 1), (56 * 256, 1), (4096, 3), (2560, 70)):
        w, x = weights(type, 37, k), normal(m, k, seed=1)
        node = ops.mul_mat(w, leaf(x))
        assert (bits_of(cuda_run.compute(node, kernels=kernels)) == expected(w, x)).all(), (k, m)
