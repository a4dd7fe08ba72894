"""Products with packed weights: equal to a NumPy twin, the same bits in every batch, experts."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import cycle, pairwise
from itertools import product as pairs_of

import cpu_run
import numpy as np
import pytest
from matrix import combinations
from packed_run import (
    SCALES_OF_8_BITS,
    bytes_of,
    exact_product,
    exact_weights,
    nmse,
    packed,
    product,
    quantized,
    random_weights,
    set_scales,
)
from reference_run import GUARD, Array, data, each_type, ids, leaf, locate, normal

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, GluOp, Graph, Tensor, UnaryOp, ops
from lamella.kernels.cpu.kernel_set import KERNELS
from lamella.kernels.cpu.packed.biased import BIASED_ROWS
from lamella.kernels.cpu.packed.formats import FORMATS
from lamella.kernels.cpu.packed.products import chunk_begin, n_chunks_of
from lamella.kernels.cpu.packed.tiles import QUANTIZED_WIDTHS, WIDTHS
from lamella.kernels.cpu.plan import CpuPlan

QUANTIZED = [t for t in FORMATS if t.is_quantized]
COLUMNS = (1, 2, 3, 4, 5, 7, 8, 13, 15, 16, 17, 33)
ALL = 64  # columns
ROWS = (1, 15, 16, 17, 48, 200, 230, 317)  # the last two end within a run of several groups
LIMIT = 1e-10  # of the twin's mean square error

some_types = pytest.mark.parametrize(
    "type",
    [GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q6_K, GGMLType.Q2_K, GGMLType.F16],
    ids=lambda t: t.name,  # one of each kind
)


def lengths(type: GGMLType) -> tuple[int, ...]:
    """Lengths of rows."""
    if not type.is_quantized:
        return 1, 7, 8, 33, 256, 1003
    return (256, 512, 1024) if type.block_size > 32 else (32, 96, 256, 1024)


def columns_of(node: Tensor, n_threads: int = 1) -> Array:
    """The bits of the result's columns."""
    array = cpu_run.compute(node, n_threads)
    return array.reshape(-1, array.shape[-1]).copy().view(np.uint32)


def run_graph(graph: Graph, n_threads: int = 1, fuse: bool = True) -> list[str]:
    """Compute a graph. Return the names of the kernels."""
    for node in graph.nodes:
        locate(node)
    return cpu_run.run_graph(graph, n_threads, fuse)


# --- products ---


@each_type(FORMATS)
def test_products_are_the_twin_s_with_the_same_bits_in_every_batch(
    type: GGMLType, pytestconfig: pytest.Config
) -> None:
    full = pytestconfig.getoption("--full")
    for n, k in pairs_of(ROWS, lengths(type)) if full else zip(ROWS, cycle(lengths(type))):
        plain, x = random_weights(type, n, k), normal(ALL, k, seed=1)
        weights = packed(plain)
        whole = columns_of(ops.mul_mat(weights, leaf(x)))
        assert nmse(whole.view(np.float32), product(plain, x)) <= LIMIT, (n, k)
        for m in COLUMNS:
            begin = ALL - m if m % 2 else 0
            bits = columns_of(ops.mul_mat(weights, leaf(x[begin:][:m])))
            assert (bits == whole[begin:][:m]).all(), (n, k, m)


@each_type(FORMATS)
def test_bits_do_not_depend_on_threads(type: GGMLType) -> None:
    k = lengths(type)[2]
    # groups of rows: fewer than threads, and more than a thread takes at once
    for n, m in ((17, 5), (200, 1), (200, 21), (3000, 2)):
        weights, x = packed(random_weights(type, n, k)), leaf(normal(m, k, seed=1))
        whole = columns_of(ops.mul_mat(weights, x))
        for n_threads in (2, 3):
            assert (columns_of(ops.mul_mat(weights, x), n_threads) == whole).all(), (n, n_threads)


@each_type(FORMATS)
def test_rows_have_the_same_bits_in_every_matrix(type: GGMLType) -> None:
    k = lengths(type)[1]
    plain, x = random_weights(type, 200, k), leaf(normal(9, k, seed=1))
    whole = columns_of(ops.mul_mat(packed(plain), x))
    for n in (1, 15, 33, 64, 65, 130):
        few = Tensor(type, (k, n))
        few.buffer, few.offset = plain.buffer, plain.offset
        assert (columns_of(ops.mul_mat(packed(few), x)) == whole[:, :n]).all(), n


@some_types
@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_a_plan_runs_again(type: GGMLType, n_threads: int) -> None:
    weights, x = packed(random_weights(type, 1000, 256)), normal(2, 5, 256)
    columns = leaf(x[0])
    node = ops.mul_mat(weights, columns)
    whole = [columns_of(ops.mul_mat(weights, leaf(part))) for part in x]
    run_graph(graph := Graph(node), n_threads)
    plan = CpuPlan(graph, cpu_run.address_of, n_threads)
    for i in range(20):
        data(columns)[...] = x[i % 2]
        data(node)[...] = np.nan
        plan.run(cpu_run.pool(n_threads))
        assert (data(node).view(np.uint32) == whole[i % 2]).all(), i


@each_type(FORMATS)
def test_whole_numbers_are_exact(type: GGMLType) -> None:
    k = 256
    plain, x = exact_weights(type, 33, k), np.random.default_rng(0).integers(-127, 128, (21, k))
    x[:, ::32] = np.where(x[:, ::32] < 0, -127, 127)  # the largest of 32: their scale is 1
    assert (quantized(x)[1] == 1).all()
    found = cpu_run.compute(ops.mul_mat(packed(plain), leaf(x)))
    expected = exact_product(plain, x)
    if type.block_size > 32:  # scales are scaled too: sums beyond 2**24 are rounded
        assert nmse(found, expected) < 1e-14
    else:
        assert (found == expected).all()


@each_type(QUANTIZED)
def test_extreme_blocks_and_columns(type: GGMLType) -> None:
    # each value and inner scale is the largest or the smallest possible
    bytes = np.array([0x00, 0xFF, 0x7F, 0x80, 0x0F, 0xF0], np.uint8)
    plain = Tensor(type, (256, len(bytes)))
    locate(plain)
    bytes_of(plain).reshape(len(bytes), -1)[...] = bytes[:, None]
    set_scales(plain, np.ones)
    x = np.array([127, -127])[np.random.default_rng(0).integers(0, 2, (11, 256))]
    x[0], x[1] = 127, -127
    found = cpu_run.compute(ops.mul_mat(packed(plain), leaf(x)))
    assert nmse(found, exact_product(plain, x)) < 1e-13


@each_type(FORMATS)
def test_columns_of_other_shapes_and_layouts(type: GGMLType) -> None:
    k = 256
    plain, x = random_weights(type, 40, k), normal(2, 3, 5, k, seed=1)
    weights = packed(plain)
    whole = columns_of(ops.mul_mat(weights, leaf(x.reshape(30, k))))
    assert (columns_of(ops.mul_mat(weights, leaf(x))) == whole).all()
    turned = ops.permute(leaf(x), (0, 2, 1, 3))
    expected = whole.reshape(2, 3, 5, 40).swapaxes(1, 2).reshape(30, 40)
    assert (columns_of(ops.mul_mat(weights, turned), 2) == expected).all()
    # unaligned rows with gaps
    gaps = leaf(np.pad(x.reshape(30, k), ((0, 0), (0, 3))), shift=4)
    part = ops.view(gaps, (k, 29), nb=gaps.nb[:2], offset=gaps.nb[1])
    assert (columns_of(ops.mul_mat(weights, part), 3) == whole[1:]).all()


@each_type(FORMATS)
def test_products_are_near_those_of_float_columns(type: GGMLType) -> None:
    plain, x = random_weights(type, 64, 512), normal(16, 512, seed=1)
    found = cpu_run.compute(ops.mul_mat(packed(plain), leaf(x)))
    limit = 1e-4 if type.is_quantized else 1e-5 if FORMATS[type].in_pairs(512) else 1e-11
    assert nmse(found, exact_product(plain, x)) < limit


# --- special numbers ---


@pytest.mark.parametrize(("type", "value"), combinations(FORMATS, [np.nan, np.inf, -np.inf]))
def test_inf_and_nan_stay_in_their_column(type: GGMLType, value: float) -> None:
    x = normal(21, 256, seed=1)
    weights = packed(random_weights(type, 33, 256))
    whole = columns_of(ops.mul_mat(weights, leaf(x)))
    for column in (0, 7, 20):
        changed = x.copy()
        changed[column, 77] = value
        bits = columns_of(ops.mul_mat(weights, leaf(changed)))
        rest = np.arange(21) != column
        assert (bits[rest] == whole[rest]).all()
        found = bits[column].view(np.float32)
        assert not np.isfinite(found).any()
        assert np.isnan(found).all() or not np.isnan(value)


@pytest.mark.parametrize(
    ("type", "scale"), combinations(FORMATS, [1e30, 1e20, 1e-20, 1e-28, 0.0, -0.0])
)
def test_columns_of_any_size(type: GGMLType, scale: float) -> None:
    plain, x = random_weights(type, 17, 256), normal(5, 256, seed=1) * scale
    found = cpu_run.compute(ops.mul_mat(packed(plain), leaf(x)))
    assert nmse(found / (scale or 1), product(plain, x) / (scale or 1)) <= LIMIT


@pytest.mark.parametrize(("type", "scale"), combinations(FORMATS, [1e-35, 1e-42]))
def test_columns_too_small_to_be_scaled(type: GGMLType, scale: float) -> None:
    weights = packed(random_weights(type, 17, 256))
    found = cpu_run.compute(ops.mul_mat(weights, leaf(normal(5, 256, seed=1) * scale)))
    assert np.abs(found).max() < 1e-29


@each_type(QUANTIZED)
def test_each_32_values_have_their_own_scale(type: GGMLType) -> None:
    plain, x = random_weights(type, 17, 512), normal(5, 512, seed=1)
    x *= np.repeat(10.0 ** np.arange(-8, 8), 32)
    found = cpu_run.compute(ops.mul_mat(packed(plain), leaf(x)))
    assert nmse(found, product(plain, x)) <= LIMIT


@pytest.mark.parametrize(
    ("type", "value"),  # scales of 8 bits are finite
    combinations([t for t in QUANTIZED if t not in SCALES_OF_8_BITS], [np.nan, np.inf]),
)
def test_bad_scales_stay_in_their_row(type: GGMLType, value: float) -> None:
    plain, x = random_weights(type, 40, 256), leaf(normal(5, 256, seed=1))
    whole = columns_of(ops.mul_mat(packed(plain), x))
    one = Tensor(type, (256, 1))
    one.buffer, one.offset = plain.buffer, plain.offset + 7 * plain.nb[1]
    set_scales(one, lambda n: np.full(n, value))
    bits = columns_of(ops.mul_mat(packed(plain), x))
    rest = np.arange(40) != 7
    assert (bits[:, rest] == whole[:, rest]).all()
    assert not np.isfinite(bits[:, 7].copy().view(np.float32)).any()


# --- experts ---


def experts_of(chosen: Array, x: Array, weights: Tensor, n_threads: int = 1) -> Array:
    """The bits of a MUL_MAT_ID: [n_tokens, n_used, n]."""
    node = ops.mul_mat_id(weights, leaf(x), ids(chosen))
    bits: Array = cpu_run.compute(node, n_threads).view(np.uint32)[0]
    return bits


def of_each_expert(plain: Tensor, x: Array) -> Array:
    """The bits of all columns with all experts, by MUL_MAT: [n_expert, columns, n]."""
    k, n, n_expert, _ = plain.ne
    found = []
    for e in range(n_expert):
        one = Tensor(plain.type, (k, n))
        one.buffer, one.offset = plain.buffer, plain.offset + e * plain.nb[2]
        found.append(columns_of(ops.mul_mat(packed(one), leaf(x.reshape(-1, k)))))
    return np.stack(found)


@each_type(FORMATS)
def test_experts_have_the_bits_of_their_matrices(type: GGMLType) -> None:
    k, n_expert, n_used, n_tokens = lengths(type)[2], 7, 3, 37
    plain = random_weights(type, n_expert, 35, k)
    weights, random = packed(plain), np.random.default_rng(0)
    for n_x in (1, n_used):
        x = normal(n_tokens, n_x, k, seed=1)
        each = of_each_expert(plain, x)
        columns = np.arange(n_tokens * n_x).reshape(n_tokens, n_x)
        for chosen in (
            random.integers(0, n_expert, (n_tokens, n_used)),
            random.integers(2, 4, (n_tokens, n_used)),  # the other experts are unused
            np.full((n_tokens, n_used), 5),
        ):
            expected = each[chosen, np.broadcast_to(columns, chosen.shape)]
            for n_threads in (1, 2, 3):
                assert (experts_of(chosen, x, weights, n_threads) == expected).all(), n_threads


@each_type(FORMATS)
def test_experts_of_few_tokens(type: GGMLType) -> None:
    k = lengths(type)[0]
    plain, x = random_weights(type, 4, 20, k), normal(9, 2, k, seed=1)
    weights, chosen = packed(plain), np.random.default_rng(0).integers(0, 4, (9, 2))
    whole = experts_of(chosen, x, weights)
    each = product(plain, x)  # of all experts
    expected = np.take_along_axis(each, chosen[..., None, None], 2)[:, :, 0]
    assert nmse(whole.view(np.float32), expected) <= LIMIT
    for part in ([0], [8], [1, 2], [3, 1, 2, 0, 8]):
        assert (experts_of(chosen[part], x[part], weights, 2) == whole[part]).all(), part


@some_types
def test_experts_of_many_rows_and_of_strided_ids(type: GGMLType) -> None:
    plain, x = random_weights(type, 3, 700, 256), normal(5, 1, 256, seed=1)
    each, weights = of_each_expert(plain, x), packed(plain)
    table = np.random.default_rng(0).integers(0, 3, (5, 4))
    some = ops.view(ids(table), (2, 5), nb=(4, 16), offset=4)
    for n_threads in (1, 2, 3):
        node = ops.mul_mat_id(weights, leaf(x), some)
        bits = cpu_run.compute(node, n_threads).view(np.uint32)[0]
        assert (bits == each[table[:, 1:3], np.arange(5)[:, None]]).all()


@some_types
@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1, -(2**31)])
def test_experts_out_of_range_are_refused(type: GGMLType, bad: int) -> None:
    weights, x = packed(random_weights(type, 4, 20, 256)), normal(3, 1, 256)
    chosen = np.array([[0, 1], [2, bad], [3, 1]])
    for n_threads in (1, 3):
        with pytest.raises(BackendError, match=f"index {bad} must be at least 0 and below 4"):
            experts_of(chosen, x, weights, n_threads)
    # the next run is right again
    chosen[1, 1] = 0
    good = experts_of(chosen, x, weights)
    assert (good == experts_of(chosen[:, ::-1], x, weights)[:, ::-1]).all()


# --- gated units ---


def gated(a: Tensor, b: Tensor, x: Array, op: GluOp) -> Graph:
    columns = leaf(x)
    return Graph(ops.glu(ops.mul_mat(a, columns), ops.mul_mat(b, columns), op))


def assert_gated_bits(
    make: Callable[[], Graph], n_threads: int, kernel: str = "mul_mat_gated_packed"
) -> None:
    """Check that one kernel computes the graph, with the bits of single kernels."""
    single, fused = make(), make()
    assert "mul_mat_gated_packed" not in run_graph(single, 1, fuse=False)
    assert run_graph(fused, n_threads)[-1] == kernel
    assert data(single.nodes[-1]).tobytes() == data(fused.nodes[-1]).tobytes()


@each_type(FORMATS)
def test_gated_units_have_the_bits_of_single_ops(type: GGMLType) -> None:
    k = lengths(type)[1]
    for n, m in ((1, 1), (17, 5), (40, 31), (600, 1), (1100, 16), (300, 67)):
        a, b = (packed(random_weights(type, n, k, seed=s)) for s in range(2))
        for n_threads in (1, 2, 3):
            x = normal(m, k, seed=1)
            assert_gated_bits(lambda a=a, b=b, x=x: gated(a, b, x, GluOp.SWIGLU), n_threads)  # type: ignore[misc]


@pytest.mark.parametrize("op", GluOp, ids=lambda op: op.name)
def test_every_gated_unit(op: GluOp) -> None:
    a, b = (packed(random_weights(GGMLType.Q8_0, 40, 64, seed=s)) for s in range(2))
    assert_gated_bits(lambda: gated(a, b, normal(6, 64), op), 2)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_a_gated_unit_runs_again(n_threads: int) -> None:
    a, b = (packed(random_weights(GGMLType.Q4_K, 700, 256, seed=s)) for s in range(2))
    graph = gated(a, b, normal(3, 256), GluOp.SWIGLU)
    run_graph(graph, 1, fuse=False)
    node = graph.nodes[-1]
    expected = data(node).tobytes()
    plan = CpuPlan(graph, cpu_run.address_of, n_threads)
    for _ in range(20):
        data(node)[...] = np.nan
        plan.run(cpu_run.pool(n_threads))
        assert data(node).tobytes() == expected
    begin, end = node.offset, node.offset + node.nbytes
    assert (node.buffer[:begin] == GUARD).all()
    assert (node.buffer[end:] == GUARD).all()


def test_gated_units_that_are_not_fused() -> None:
    plain = random_weights(GGMLType.Q8_0, 40, 64)
    a, other = packed(plain), packed(random_weights(GGMLType.Q4_0, 40, 64))
    x = normal(3, 64)
    for pair in ((a, other), (a, plain), (plain, a)):
        assert_gated_bits(lambda p=pair: gated(p[0], p[1], x, GluOp.SWIGLU), 2, "swiglu_float")  # type: ignore[misc]
    experts, chosen = packed(random_weights(GGMLType.Q8_0, 3, 40, 64)), ids([[0, 2]])

    def of_experts() -> Graph:
        columns = leaf(x[None, :1])
        gate, up = (ops.mul_mat_id(experts, columns, chosen) for _ in range(2))
        return Graph(ops.swiglu(gate, up))

    assert_gated_bits(of_experts, 2, "swiglu_float")


# --- biases ---

ACTIVATIONS = (None, *BIASED_ROWS)


def biased(a: Tensor, x: Array, op: UnaryOp | None) -> Graph:
    total = ops.add(ops.mul_mat(a, leaf(x)), leaf(normal(a.ne[1], seed=3)))
    return Graph(total if op is None else ops.unary(total, op))


def assert_biased_bits(make: Callable[[], Graph], n_threads: int, n_kernels: int) -> None:
    """Check that so many kernels compute the graph, with the bits of single kernels."""
    single, fused = make(), make()
    assert len(run_graph(single, 1, fuse=False)) == 1 + len(single.nodes)  # and one for columns
    assert len(run_graph(fused, n_threads)) == 1 + n_kernels
    assert data(single.nodes[-1]).tobytes() == data(fused.nodes[-1]).tobytes()


@pytest.mark.parametrize("op", ACTIVATIONS, ids=lambda op: op.name if op else "none")
@each_type([GGMLType.F16, GGMLType.F32, GGMLType.Q8_0])
def test_biases_have_the_bits_of_single_ops(type: GGMLType, op: UnaryOp | None) -> None:
    for n, m in ((1, 1), (17, 5), (40, 31), (600, 1), (1100, 16)):
        a = packed(random_weights(type, n, 64))
        for n_threads in (1, 3):
            x = normal(m, 64, seed=1)
            assert_biased_bits(lambda a=a, x=x: biased(a, x, op), n_threads, 1)  # type: ignore[misc]


def test_biases_that_are_not_fused() -> None:
    plain = random_weights(GGMLType.Q8_0, 40, 64)
    a, x = packed(plain), normal(3, 64)
    assert_biased_bits(lambda: biased(a, x, UnaryOp.TANH), 2, 2)

    def residual() -> Graph:
        return Graph(ops.add(ops.mul_mat(a, leaf(x)), leaf(normal(3, 40))))

    def read_twice() -> Graph:
        total = ops.add(ops.mul_mat(a, leaf(x)), leaf(normal(40)))
        return Graph(ops.add(ops.gelu_erf(total), total))

    assert_biased_bits(residual, 2, 2)
    assert_biased_bits(read_twice, 2, 3)
    graph = biased(plain, x, None)
    assert "biased" not in " ".join(run_graph(graph))


# --- columns are prepared once for all their readers ---


def kernels_for(*types: GGMLType) -> list[str]:
    x = leaf(normal(3, 256))
    products = [ops.mul_mat(packed(random_weights(t, 20, 256)), x) for t in types]
    names = run_graph(Graph(*products))
    for t, node in zip(types, products, strict=True):
        alone = ops.mul_mat(packed(random_weights(t, 20, 256)), x)
        assert cpu_run.compute(alone).tobytes() == data(node).tobytes()
    return names


def test_products_of_one_kind_share_their_columns() -> None:
    made, once = "quantize_columns", ["mul_mat_packed"]
    q8_0, q4_0, q4_k, q6_k = GGMLType.Q8_0, GGMLType.Q4_0, GGMLType.Q4_K, GGMLType.Q6_K
    assert kernels_for(q4_0, q4_0, q4_0) == [made, *once * 3]
    assert kernels_for(q4_k, GGMLType.Q4_1, GGMLType.Q5_K) == [made, *once * 3]
    assert kernels_for(q8_0, GGMLType.IQ4_NL) == [made, *once * 2]
    assert kernels_for(q4_k, q4_k, q6_k) == [made, *once * 2, made, *once]
    assert kernels_for(q4_0, q8_0) == [made, *once] * 2  # another offset
    assert kernels_for(q4_0, GGMLType.F16, GGMLType.F32) == [
        *(made, *once),
        *("tile_columns", *once * 2),
    ]


# --- supported ops ---


def test_what_is_supported() -> None:
    a, x = packed(random_weights(GGMLType.Q8_0, 8, 64)), leaf(normal(5, 64))
    assert KERNELS.supports(ops.mul_mat(a, x))
    assert KERNELS.supports(ops.get_rows(a, ids([1])))
    experts = packed(random_weights(GGMLType.Q8_0, 3, 8, 64))
    assert KERNELS.supports(ops.mul_mat(experts, leaf(normal(3, 5, 64))))
    assert KERNELS.supports(ops.mul_mat_id(experts, leaf(normal(5, 1, 64)), ids(np.zeros((5, 2)))))
    others = {
        "columns of halves": ops.mul_mat(a, leaf(normal(5, 64), GGMLType.F16)),
        "packed columns": ops.mul_mat(a, packed(leaf(normal(5, 64)))),
        "only packed columns": ops.mul_mat(leaf(normal(5, 64)), packed(leaf(normal(5, 64)))),
        "two columns of matrices": ops.mul_mat(experts, leaf(normal(2, 3, 5, 64))),
        "matrices that share columns": ops.mul_mat(experts, leaf(normal(6, 5, 64))),
        "sums": ops.add(packed(leaf(normal(5, 64))), x),
        "copies": ops.cont(packed(leaf(normal(5, 64)))),
        "rows of a part": ops.get_rows(ops.view(a, (64, 4), offset=0), ids([1])),
        "a part": ops.mul_mat(ops.view(a, (64, 4), offset=4 * a.nb[1]), x),
        "a part of experts": ops.mul_mat_id(
            ops.view(experts, (64, 8, 2), offset=experts.nb[2]),
            leaf(normal(5, 1, 64)),
            ids(np.zeros((5, 2))),
        ),
        "one expert": ops.mul_mat(ops.view(experts, (64, 8), offset=experts.nb[2]), x),
    }
    for what, node in others.items():
        assert not KERNELS.supports(node), what
    assert WIDTHS[-1] == QUANTIZED_WIDTHS[-1] == 1  # any number of columns has tiles


@pytest.mark.parametrize("most", [2, 6, 14, 32, 512])
@pytest.mark.parametrize("n_threads", [1, 2, 3, 8])
def test_chunks_let_threads_end_together(n_threads: int, most: int) -> None:
    for n_groups in range(1, 1100):
        n = n_chunks_of(n_groups, most, n_threads)
        begins = [chunk_begin(n_groups, i, n) for i in range(n + 1)]
        sizes = [end - begin for begin, end in pairwise(begins)]
        assert begins[0] == 0 and begins[-1] == n_groups
        assert min(sizes) >= 0 and max(sizes) <= most
        done = [0] * n_threads  # by each thread; the first that is free takes the next chunk
        for size in sizes:
            heapq.heapreplace(done, done[0] + size)
        assert max(done) <= -(-n_groups // n_threads) + 1, n_groups
