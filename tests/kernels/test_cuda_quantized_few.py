"""Products of quantized weights with few columns on CUDA, gated units, and columns as integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import cuda_run
import numpy as np
import pytest
from cuda_devices import DEVICES
from cuda_grid import needs_compiler
from packed_run import random_weights
from quantized_blocks import CHUNK
from quantized_run import (
    FEW,
    N_ROWS,
    Kernel,
    bits_of,
    columns_of,
    each_type_with,
    expected,
    gated,
    lengths,
    product,
    run_graph,
    some_types,
    weights,
)
from reference_run import Array, data, each_type, ids, leaf, locate, located, normal, values_of

from lamella.base.settings import NO_FEW
from lamella.graph import GGMLType, GluOp, Graph, Tensor, ops
from lamella.kernels.cuda.kernel_set import kernels_for
from lamella.kernels.cuda.limits import H100
from lamella.kernels.cuda.ops import quantized
from lamella.kernels.cuda.ops.activations import q8_column_bytes
from lamella.kernels.cuda.table import CudaSource

pytestmark = needs_compiler


# --- products ---


@each_type_with(FEW)
def test_bits_are_the_twin_s_for_every_number_of_columns(kernel: Kernel, type: GGMLType) -> None:
    for k in lengths(type):
        w, x = weights(type, N_ROWS, k), normal(8, k, seed=1)
        whole = expected(w, x)
        for m in range(1, 9):
            for begin in {0, 8 - m}:
                bits = product(kernel, w, x[begin:][:m])
                assert (bits == whole[begin:][:m]).all(), (k, m, begin)


@some_types
def test_sums_of_long_rows_are_added_in_several_rounds(type: GGMLType) -> None:
    k = 70 * CHUNK
    w, x = weights(type, 17, k), normal(3, k, seed=1)
    for m in (1, 3):
        assert (product(FEW, w, x[:m], reverse=m == 1) == expected(w, x[:m])).all(), m


@each_type((GGMLType.Q4_0, GGMLType.Q8_0, GGMLType.Q6_K))
def test_long_rows_take_smaller_blocks(type: GGMLType) -> None:
    """Until they do not fit in a block's shared memory: then another kernel takes them."""
    shapes, small = set(), DEVICES["T4"]
    for n in (8, 40, 112, 150, 200):
        w, x = weights(type, 9, n * CHUNK), normal(1, n * CHUNK, seed=1)
        node = ops.mul_mat(w, leaf(x))
        bits = bits_of(cuda_run.compute(node, kernels=kernels_for(small)))
        assert (bits == expected(w, x)).all(), n
        (call,) = quantized.calls(node, small)
        shapes.add((call.kernel.name, call.block < 128))
    assert shapes == {("mul_mat_one", False), ("mul_mat_one", True), ("mul_mat_few", False)}


def test_rows_with_gaps() -> None:
    whole, x = weights(GGMLType.Q4_0, 2 * N_ROWS, 512), normal(1, 512, seed=1)
    every_second = ops.view(whole, (512, N_ROWS), (whole.nb[0], 2 * whole.nb[1]))
    assert (product(FEW, every_second, x) == expected(whole, x)[:, ::2]).all()


@some_types
def test_many_columns_in_groups(type: GGMLType) -> None:
    w, x = weights(type, N_ROWS, 512), normal(21, 512, seed=1)
    assert (product(FEW, w, x) == expected(w, x)).all()


@pytest.mark.parametrize("type", [GGMLType.F16, GGMLType.BF16], ids=lambda t: t.name)
def test_columns_of_16_bit_floats(type: GGMLType) -> None:
    w, x = weights(GGMLType.Q4_0, N_ROWS, 160), leaf(normal(3, 160, seed=1), type)
    assert (product(FEW, w, x) == expected(w, values_of(x)[0, 0])).all()


# --- blocks that stay for many tiles ---

# multiprocessors that are few: columns stay or not, with one stage or more
FEW_BLOCKS = {name: replace(DEVICES[name], n_sm=2) for name in ("H100", "T4", "RTX 3060")}


@some_types
@pytest.mark.parametrize("name", FEW_BLOCKS)
def test_blocks_of_many_tiles_have_the_twin_s_bits(name: str, type: GGMLType) -> None:
    """Rows have fewer chunks than a block has warps, as many, and more."""
    limits = FEW_BLOCKS[name]
    for i, k in enumerate((*lengths(type)[1:], 12 * CHUNK, 40 * CHUNK)):
        w, x = weights(type, 133, k), normal(8, k, seed=1)
        whole = expected(w, x)
        for m in (2, 8):
            node = ops.mul_mat(w, leaf(x[:m]))
            found = cuda_run.compute(node, reverse=i % 2 == 1, kernels=kernels_for(limits))
            assert (bits_of(found) == whole[:m]).all(), (k, m)
            [call] = quantized.calls(node, limits)
            assert (call.kernel.name, call.grid[0]) == ("mul_mat_few", 2)


@pytest.mark.parametrize("name", FEW_BLOCKS)
def test_blocks_of_many_gated_tiles_have_the_bits_of_single_ops(name: str) -> None:
    for k, reverse in ((160, False), (2336, True)):
        single, fused = (gated(GGMLType.Q4_0, 133, k, 5) for _ in range(2))
        run_graph(single, fuse=False)
        for node in fused.nodes:
            locate(node)
        plan = cuda_run.run(fused, reverse, kernels_for(FEW_BLOCKS[name]))
        assert [step.call.kernel.name for step in plan.steps] == ["quantize_q8", "gate_up_few"]
        assert data(single.nodes[-1]).tobytes() == data(fused.nodes[-1]).tobytes()


def test_blocks_of_many_tiles_in_batches() -> None:
    w, x = random_weights(GGMLType.Q4_0, 2, 133, 416), normal(4, 3, 416, seed=1)
    node = ops.mul_mat(w, leaf(x))
    limits = replace(H100, n_sm=8)
    found = cuda_run.compute(node, kernels=kernels_for(limits))
    [call] = quantized.calls(node, limits)
    assert call.grid == (2, 4, 1)
    for i in range(4):
        one = Tensor(w.type, w.ne[:2])
        one.buffer, one.offset = w.buffer, w.offset + i // 2 * w.nb[2]
        assert (bits_of(found.reshape(4, 3, 133)[i]) == expected(one, x[i])).all(), i


@some_types
def test_a_switch_computes_a_tile_with_each_block(type: GGMLType) -> None:
    k = lengths(type)[-1]
    w, x = weights(type, N_ROWS, k), normal(8, k, seed=1)
    with NO_FEW.set(1):
        for m in (2, 8):
            bits = product(FEW, w, x[:m])
            assert (bits == expected(w, x[:m])).all(), m
        [call] = quantized.calls(ops.mul_mat(w, leaf(x)))
    assert call.kernel.name == "mul_mat_vec"


# --- gated units ---


def kernel_for(m: int, prefix: str = "gate_up") -> str:
    """The kernel of `m` columns."""
    return f"{prefix}_one" if m == 1 else f"{prefix}_few"


def assert_gated_bits(make: Callable[[], Graph], kernel: str) -> None:
    """Check that one kernel computes the graph, with the bits of single kernels."""
    single, fused = make(), make()
    assert kernel not in run_graph(single, fuse=False)
    before = [] if kernel.endswith("_one") else ["quantize_q8"]  # one column is quantized there
    assert run_graph(fused) == [*before, kernel]
    assert data(single.nodes[-1]).tobytes() == data(fused.nodes[-1]).tobytes()


@some_types
def test_gated_units_have_the_bits_of_single_ops(type: GGMLType) -> None:
    k = lengths(type)[1]
    for n, m in ((1, 1), (17, 5), (40, 8), (40, 1)):
        assert_gated_bits(lambda n=n, m=m: gated(type, n, k, m), kernel_for(m))  # type: ignore[misc]


@pytest.mark.parametrize("op", GluOp, ids=lambda op: op.name)
def test_every_gated_unit(op: GluOp) -> None:
    assert_gated_bits(lambda: gated(GGMLType.Q8_0, 20, 64, 1, op), "gate_up_one")
    assert_gated_bits(lambda: gated(GGMLType.Q8_0, 20, 64, 2, op), "gate_up_few")


@some_types
def test_gated_units_of_experts(type: GGMLType) -> None:
    a, b = (random_weights(type, 6, 20, 256, seed=s) for s in range(2))
    chosen = np.random.default_rng(0).integers(0, 6, (2, 3))

    def make() -> Graph:
        columns, of = leaf(normal(2, 1, 256, seed=1)), ids(chosen)
        return Graph(ops.swiglu(ops.mul_mat_id(a, columns, of), ops.mul_mat_id(b, columns, of)))

    assert_gated_bits(make, "gate_up_id_one")


def test_gated_units_of_batches() -> None:
    a, b = (random_weights(GGMLType.Q4_0, 2, 20, 160, seed=s) for s in range(2))

    def make() -> Graph:
        columns = leaf(normal(4, 3, 160, seed=1))
        return Graph(ops.swiglu(ops.mul_mat(a, columns), ops.mul_mat(b, columns)))

    assert_gated_bits(make, "gate_up_few")


def test_gated_units_that_are_not_fused() -> None:
    a, b = weights(GGMLType.Q8_0, 20, 64), weights(GGMLType.Q4_0, 20, 64)
    columns = leaf(normal(3, 64))
    graph = Graph(ops.swiglu(ops.mul_mat(a, columns), ops.mul_mat(b, columns)))
    assert run_graph(graph)[:3] == ["quantize_q8", "mul_mat_few", "mul_mat_few"]


# --- columns are prepared once for all their readers ---


def test_products_share_their_columns() -> None:
    x = leaf(normal(3, 256))
    types = (GGMLType.Q4_0, GGMLType.Q4_K, GGMLType.Q6_K)
    products = [ops.mul_mat(weights(t, 20, 256), x) for t in types]
    assert run_graph(Graph(*products)) == ["quantize_q8", *["mul_mat_few"] * 3]
    for t, node in zip(types, products, strict=True):
        assert (bits_of(data(node)) == expected(weights(t, 20, 256), values_of(x)[0, 0])).all(), t


@pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
@pytest.mark.parametrize("n_rows", [(40, 8, 8), (9, 700, 1, 20)], ids=str)
@pytest.mark.parametrize("n_columns", [1, 3])
def test_products_of_few_columns_are_one_launch(
    n_columns: int, n_rows: Sequence[int], reverse: bool
) -> None:
    x = leaf(normal(n_columns, 2048, seed=1))
    matrices = [weights(GGMLType.Q4_0, n, 2048) for n in n_rows]
    products = [ops.mul_mat(w, x) for w in matrices]
    plan = cuda_run.run(located(*products), reverse)
    assert [one.n_steps for one in plan.launches][-1] == len(n_rows)
    for w, node in zip(matrices, products, strict=True):
        assert (bits_of(data(node)) == expected(w, values_of(x)[0, 0])).all()


def test_products_that_differ_are_not_one_launch() -> None:
    x, y = leaf(normal(1, 256)), leaf(normal(1, 256))
    a, b = (weights(t, 256, 256) for t in (GGMLType.Q4_0, GGMLType.Q4_K))
    first = ops.mul_mat(a, x)
    others = [ops.mul_mat(w, c) for w, c in ((b, x), (a, first), (a, y))]
    plan = cuda_run.run(located(first, *others))
    assert [one.n_steps for one in plan.launches] == [1, 1, 2]


def test_a_column_holds_values_scales_and_sums() -> None:
    x = normal(3, 300, seed=1).astype(np.float32)
    size = q8_column_bytes(300)
    made = np.zeros((3, size), np.uint8)
    source = CudaSource.of("quantize.cu", T="F32")
    none = np.zeros(1, np.uint8)
    arrays: list[Array] = [none, none, x]
    cuda_run.run_kernel(source, "quantize_q8", arrays, grid=(2, 1, 1), block=128, prepared=[made])
    q, scale = columns_of(np.pad(x, ((0, 0), (0, 212))))
    assert size == 512 + 8 * 16
    assert (made[:, :512].view(np.int8) == q.reshape(3, 512)).all()
    assert (made[:, 512:576].view(np.float32) == scale).all()
    assert (made[:, 576:].view(np.int32) == q.sum(-1)).all()


def test_experts_whose_rows_have_gaps_or_are_too_long_are_left_to_the_cpu() -> None:
    chosen, columns = ids(np.zeros((2, 3), int)), leaf(normal(2, 1, 256))
    whole = random_weights(GGMLType.Q4_0, 6, 40, 256)
    every_second = ops.view(whole, (256, 20, 6), (whole.nb[0], 2 * whole.nb[1], whole.nb[2]))
    small = DEVICES["T4"]
    assert quantized.supports(ops.mul_mat_id(whole, columns, chosen), small)
    assert not quantized.supports(ops.mul_mat_id(every_second, columns, chosen), small)
    long, columns = (
        Tensor(GGMLType.Q4_0, (200 * CHUNK, 8, 6)),
        Tensor(GGMLType.F32, (200 * CHUNK, 1, 2)),
    )
    assert not quantized.supports(ops.mul_mat_id(long, columns, chosen), small)
