"""Matrix products with float weights on CUDA: right for every layout, with the same bits in all
kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cuda_run
import numpy as np
import pytest
from cuda_grid_compiler import needs_compiler
from op_case import OpCase
from op_cases import op_cases
from reference_run import Array, each_type, ids, leaf, normal, run

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, Tensor, ops
from lamella.graph.op import Op
from lamella.graph.ops.check import FLOATS
from lamella.kernels.cuda.kernel_set import KERNELS as CUDA_KERNELS
from lamella.kernels.cuda.ops import floats
from lamella.kernels.cuda.table import CudaSource

pytestmark = needs_compiler

F32, F16, BF16 = GGMLType.F32, GGMLType.F16, GGMLType.BF16

# mean square errors relative to the mean square: columns are rounded to the weights' type
LIMIT = {F32: 1e-12, F16: 3e-7, BF16: 1e-5}
CHUNK = {type: floats.WEIGHTS[type].chunk for type in FLOATS}

CASES = [
    case
    for case in op_cases()
    if not case.timed
    and (node := case.node()).op in (Op.MUL_MAT, Op.MUL_MAT_ID)
    and not node.src[0].type.is_quantized
    and "packed" not in case.name
]


def error(actual: Array, expected: Array) -> float:
    return float(np.square(actual - expected).sum() / np.square(expected).sum())


def assert_right(make: Callable[[], Tensor], reverse: bool = False) -> None:
    """Check that the node of `make` has the reference's values."""
    node, expected = make(), run(make())
    assert floats.supports(node)
    actual = cuda_run.compute(node, reverse=reverse)
    assert error(actual, expected) <= LIMIT[node.src[0].type]


def rows_of(node: Tensor, reverse: bool = False) -> Array:
    """The bits of the result's rows."""
    array = cuda_run.compute(node, reverse=reverse)
    return array.reshape(-1, array.shape[-1]).copy().view(np.uint32)


def kernel_of(node: Tensor) -> str:
    [call] = CUDA_KERNELS.calls_of(node)
    return call.kernel.name


@pytest.fixture
def eager_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use tiles even for matrices of few tiles."""
    monkeypatch.setattr(floats, "BUSY_PARTS", (0, 1))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_op_cases(case: OpCase) -> None:
    assert_right(case.node)


def test_the_op_cases_have_every_type() -> None:
    assert {c.node().src[0].type for c in CASES if c.name.startswith("mul_mat_id")} == set(FLOATS)
    assert {c.node().src[0].type for c in CASES if "mul_mat " in c.name} == set(FLOATS)


@pytest.mark.parametrize("k", [1, 7, 8, 33, 100, 250, 513, 2567])
@each_type(FLOATS)
def test_rows_of_any_length(type: GGMLType, k: int, eager_tiles: None) -> None:
    a = leaf(normal(19, k), type)
    for n in (1, 3, 20, 40, 70):
        b = leaf(normal(n, k, seed=1))
        assert_right(lambda b=b: ops.mul_mat(a, b))  # type: ignore[misc]


@pytest.mark.parametrize("m", [1, 5, 16, 33, 129, 300])
@each_type(FLOATS)
def test_any_number_of_rows(type: GGMLType, m: int, eager_tiles: None) -> None:
    a = leaf(normal(m, 96), type)
    for n in (2, 9, 65):
        b = leaf(normal(n, 96, seed=1))
        assert_right(lambda b=b: ops.mul_mat(a, b))  # type: ignore[misc]


KERNELS = {
    F32: {1: "mul_mat_1", 2: "mul_mat_8", 33: "mul_mat_tiles_64"},
    F16: {1: "mul_mat_8", 9: "mul_mat_32", 33: "mul_mat_tiles_64", 65: "mul_mat_tiles_128"},
}


@pytest.mark.parametrize("k", [200, 1031, 1280, 4 * 1024 + 264])
@each_type(FLOATS)
def test_bits_do_not_depend_on_the_batch(type: GGMLType, k: int, eager_tiles: None) -> None:
    a, x = leaf(normal(37, k), type), normal(70, k, seed=1)
    few = [*range(1, 10), 17, 33, 64]
    whole = rows_of(ops.mul_mat(a, leaf(x)))
    used = {kernel_of(ops.mul_mat(a, leaf(x)))}
    for n in few:
        node = ops.mul_mat(a, leaf(x[70 - n :]))
        assert (rows_of(node, reverse=n % 2 == 0) == whole[70 - n :]).all(), n
        used.add(kernel_of(node))
    assert used == set(KERNELS[F16 if type is BF16 else type].values())


@each_type(FLOATS)
def test_bits_do_not_depend_on_rounds(
    type: GGMLType, eager_tiles: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # shared memory does not hold the sums of all chunks at once
    n_chunks = 20
    k = n_chunks * CHUNK[type] - 40
    a, x = leaf(normal(3, k), type), normal(66, k, seed=1)
    whole = rows_of(ops.mul_mat(a, leaf(x)))
    monkeypatch.setattr(floats, "ROUND_BYTES", 512)
    for n in (1, 7, 12):
        node = ops.mul_mat(a, leaf(x[:n]))
        *_, round = CUDA_KERNELS.calls_of(node)[0].params
        assert round < n_chunks or kernel_of(node) == "mul_mat_1"
        assert (rows_of(node) == whole[:n]).all(), n


@each_type(FLOATS)
def test_bits_do_not_depend_on_places(type: GGMLType, eager_tiles: None) -> None:
    # addresses that do not allow loads of 16 bytes
    values, x = normal(33, 600), normal(70, 600, seed=1)
    for n in (1, 5, 20, 40, 70):
        whole = rows_of(ops.mul_mat(leaf(values, type), leaf(x[:n])))
        for shift in (type.type_size, 8):
            node = ops.mul_mat(leaf(values, type, shift=shift), leaf(x[:n], shift=4))
            assert (rows_of(node) == whole).all(), (n, shift)
        few = leaf(values[5:9], type)
        assert (rows_of(ops.mul_mat(few, leaf(x[:n]))) == whole[:, 5:9]).all()


@each_type(FLOATS)
def test_bits_of_tiny_sums(type: GGMLType, eager_tiles: None) -> None:
    # products that underflow to -0: no sum may be minus zero in one kernel alone
    a, x = leaf(np.full((5, 64), -1e-30), type), np.full((70, 64), 1e-30)
    whole = rows_of(ops.mul_mat(a, leaf(x)))
    for n in (1, 5, 20, 40):
        assert (rows_of(ops.mul_mat(a, leaf(x[:n]))) == whole[:n]).all(), n


@each_type(FLOATS)
def test_columns_of_other_types(type: GGMLType) -> None:
    a = leaf(normal(5, 300), type)
    for b_type in FLOATS:
        for n in (3, 12):
            b = leaf(normal(n, 300, seed=1), b_type)
            assert_right(lambda b=b: ops.mul_mat(a, b))  # type: ignore[misc]


SHAPES = [
    ((1, 1, 4, 7), (2, 3, 5, 7)),
    ((1, 2, 4, 7), (3, 6, 5, 7)),
    ((2, 1, 4, 7), (4, 3, 5, 7)),
    ((2, 3, 4, 7), (4, 3, 5, 7)),
    ((2, 2, 1, 33), (4, 8, 2, 33)),
    ((2, 3, 67, 96), (4, 6, 40, 96)),
]


@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
@each_type(FLOATS)
def test_batches(
    type: GGMLType, a_shape: Sequence[int], b_shape: Sequence[int], eager_tiles: None
) -> None:
    a, b = leaf(normal(*a_shape), type), leaf(normal(*b_shape, seed=1))
    assert_right(lambda: ops.mul_mat(a, b))


@each_type(FLOATS)
def test_columns_and_weights_in_other_layouts(type: GGMLType) -> None:
    for n in (5, 12):
        a, b = leaf(normal(2, 7, 48), type), leaf(normal(2, n, 48, seed=1))
        part = ops.view(a, (24, 7, 2), a.nb, 12 * a.nb[0])
        columns = ops.view(b, (24, n, 2), b.nb, 24 * b.nb[0])
        assert_right(lambda part=part, x=columns: ops.mul_mat(part, x))  # type: ignore[misc]
        turned = ops.transpose(leaf(normal(2, 24, n, seed=2)))
        assert_right(lambda part=part, x=turned: ops.mul_mat(part, x))  # type: ignore[misc]
        heads = ops.permute(leaf(normal(n, 2, 24, seed=3)), (0, 2, 1, 3))
        assert_right(lambda part=part, x=heads: ops.mul_mat(part, x))  # type: ignore[misc]


def test_weights_whose_rows_have_gaps_are_refused() -> None:
    gaps = ops.permute(leaf(normal(3, 6, 4)), (2, 0, 1, 3))
    assert not floats.supports(ops.mul_mat(gaps, leaf(normal(4, 5, 6, seed=1))))
    assert not floats.supports(ops.mul_mat(leaf(normal(4, 32), GGMLType.Q8_0), leaf(normal(4, 32))))


def test_empty_rows_sum_to_zero() -> None:
    for n in (1, 20):
        got = cuda_run.compute(ops.mul_mat(leaf(np.zeros((7, 0)), F16), leaf(np.zeros((n, 0)))))
        assert (got == 0).all()


def test_packed_columns_are_shared() -> None:
    x = leaf(normal(20, 64))
    nodes = [ops.mul_mat(leaf(normal(8, 64), F16), x) for _ in range(2)]
    [one], [other] = map(CUDA_KERNELS.calls_of, nodes)
    assert one.prepared[0].form == other.prepared[0].form
    [bf16] = CUDA_KERNELS.calls_of(ops.mul_mat(leaf(normal(8, 64), BF16), x))
    assert one.prepared[0].form != bf16.prepared[0].form


def test_bf16_without_tensor_cores(monkeypatch: pytest.MonkeyPatch, eager_tiles: None) -> None:
    # the path of sm_75: slow, but right, and with bits that do not depend on the batch
    source = CudaSource.of("mul_mat_f16.cu", T="BF16", BF16_MMA=0)
    weights = floats.WEIGHTS[BF16]._replace(source=source)
    monkeypatch.setitem(floats.WEIGHTS, BF16, weights)
    a, x = leaf(normal(21, 300), BF16), normal(70, 300, seed=1)
    assert_right(lambda: ops.mul_mat(a, leaf(x)))
    whole = rows_of(ops.mul_mat(a, leaf(x)))
    for n in (1, 20, 40):
        assert (rows_of(ops.mul_mat(a, leaf(x[:n]))) == whole[:n]).all(), n


# --- experts ---


@pytest.mark.parametrize("n_tokens", [1, 2, 900])
@each_type(FLOATS)
def test_experts(type: GGMLType, n_tokens: int) -> None:
    # 2700 pairs are more than a block searches at once
    chosen = ids(np.random.default_rng(0).integers(0, 6, (n_tokens, 3)))
    a = leaf(normal(6, 21, 70), type)
    for x in (1, 3):
        b = leaf(normal(n_tokens, x, 70, seed=1))
        assert_right(lambda b=b: ops.mul_mat_id(a, b, chosen))  # type: ignore[misc]


@each_type(FLOATS)
def test_experts_give_the_bits_of_a_product(type: GGMLType) -> None:
    a, x = normal(4, 33, 300), normal(9, 1, 300, seed=1)
    chosen = np.random.default_rng(0).integers(0, 4, (9, 2))
    whole = rows_of(ops.mul_mat_id(leaf(a, type), leaf(x), ids(chosen)), reverse=True)
    for t in (0, 8):
        alone = ops.mul_mat_id(leaf(a, type), leaf(x[t : t + 1]), ids(chosen[t : t + 1]))
        assert {kernel_of(alone)} == {"mul_mat_id_1"}
        assert (rows_of(alone) == whole[2 * t : 2 * t + 2]).all()
        for i, expert in enumerate(chosen[t]):
            product = ops.mul_mat(leaf(a[expert], type), leaf(x[t]))
            assert (rows_of(product) == whole[2 * t + i]).all()


def experts_kernel(n_rows: int, n_experts: int, n_pairs: int, type: GGMLType = F16) -> str:
    """The kernel for this number of pairs (token, its i-th expert), two of each token."""
    a, chosen = Tensor(type, (64, n_rows, n_experts)), Tensor(GGMLType.I32, (2, n_pairs // 2))
    [call] = CUDA_KERNELS.calls_of(ops.mul_mat_id(a, Tensor(F32, (64, 1, n_pairs // 2)), chosen))
    return call.kernel.name


def test_tiles_of_experts() -> None:
    # the largest tile that is more than half full and gives every multiprocessor a block
    for n_pairs, name in ((8, "1"), (64, "8"), (66, "tiles_32"), (256, "tiles_32")):
        assert experts_kernel(14336, 8, n_pairs) == f"mul_mat_id_{name}", n_pairs
    assert experts_kernel(14336, 8, 1024, BF16) == "mul_mat_id_tiles_128"
    assert experts_kernel(768, 8, 1024) == "mul_mat_id_tiles_64"
    assert experts_kernel(256, 2, 1024) == "mul_mat_id_tiles_32"  # few blocks of any size
    assert experts_kernel(14336, 8, 1024, F32) == "mul_mat_id_8"


@pytest.mark.parametrize("tile", [0, 1, 2])
@each_type((F16, BF16))
def test_tiles_of_experts_give_the_bits_of_a_product(
    type: GGMLType, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # one expert has no token, one has few, others have several tiles, the last ones partial
    weights = floats.WEIGHTS[type]
    chosen_tile = weights.expert_tiles[tile : tile + 1]
    monkeypatch.setitem(floats.WEIGHTS, type, weights._replace(expert_tiles=chosen_tile))
    rng = np.random.default_rng(0)
    chosen = rng.choice([0, 1, 3, 4], (120, 2), p=[0.6, 0.3, 0.08, 0.02])
    a, x = normal(5, 67, 600), normal(120, 1, 600, seed=1)
    node = ops.mul_mat_id(leaf(a, type), leaf(x), ids(chosen))
    assert kernel_of(node) == chosen_tile[0].name
    whole = rows_of(node, reverse=True)
    for t in (0, 60, 119):
        alone = ops.mul_mat_id(leaf(a, type), leaf(x[t : t + 1]), ids(chosen[t : t + 1]))
        assert kernel_of(alone) == "mul_mat_id_1"
        assert (rows_of(alone) == whole[2 * t : 2 * t + 2]).all(), t
    assert_right(lambda: ops.mul_mat_id(leaf(a, type), leaf(x), ids(chosen)))


@each_type((F32, F16))
def test_experts_with_strided_ids_and_columns_of_other_types(type: GGMLType) -> None:
    a, all_ids = leaf(normal(8, 20, 40), type), ids([[7, 0, 3, 3], [1, 2, 4, 7]])
    some = ops.view(all_ids, (2, 2), nb=(4, 16), offset=4)
    for b_type in FLOATS:
        b = leaf(normal(2, 1, 40, seed=1), b_type)
        assert_right(lambda b=b: ops.mul_mat_id(a, b, some))  # type: ignore[misc]


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1, -(2**31)])
@each_type((F32, F16))
def test_experts_out_of_range_are_refused(type: GGMLType, bad: int) -> None:
    a = leaf(normal(4, 8, 32), type)
    for chosen in ([[0, 1], [2, bad], [3, 1]], [[0, bad]], [[0, 1]] * 30 + [[bad, 2]]):
        node = ops.mul_mat_id(a, leaf(normal(len(chosen), 1, 32)), ids(chosen))
        with pytest.raises(BackendError, match=f"index {bad} must be at least 0 and below 4"):
            cuda_run.compute(node)
