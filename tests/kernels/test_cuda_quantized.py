"""Products of quantized weights with few columns on CUDA: they have the bits of a NumPy twin.

The twin unpacks blocks by their layouts and takes the float steps of src/blocks.cuh one by one.
The tests of kernels for many columns compare with it too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple
from unittest.mock import patch

import cuda_run
import numpy as np
import numpy.typing as npt
import pytest
from cuda_grid import needs_compiler
from packed_run import bytes_of, exact_product, nmse, random_weights, set_scales
from reference_run import Array, data, each_type, ids, leaf, locate, normal, place, values_of

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, GluOp, Graph, Tensor, ops
from lamella.kernels.cuda.ops import quantized, tensor_core
from lamella.kernels.cuda.ops.activations import q8_column_bytes
from lamella.kernels.cuda.table import CudaSource
from lamella.kernels.quants import LAYOUTS

pytestmark = needs_compiler

F32Array = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

BLOCK, CHUNK = 32, 256
N_ROWS = 37  # two whole tiles of rows, and a part
SOME = (GGMLType.Q4_0, GGMLType.Q5_1, GGMLType.Q4_K, GGMLType.Q6_K)  # one of each kind


def lengths(type: GGMLType) -> tuple[int, ...]:
    """Lengths of rows: within a chunk, at its end, with a chunk for each warp, of two rounds."""
    return (256, 512, 2560) if type.block_size > BLOCK else (32, 160, 256, 416, 2336)


# --- the twin ---


class Blocks(NamedTuple):
    """Weights by blocks of 32: `scale` * (`sub` * integer) and `min`. Integers are [n, blocks, 32],
    `sub` is [n, blocks, 2], one for 16 integers each."""

    integers: IntArray
    sub: IntArray
    scale: F32Array
    min: F32Array


def halves(bytes: Array, run: int) -> IntArray:
    """The nibbles of each `run` bytes: all low ones, then all high ones."""
    runs = bytes.reshape(*bytes.shape[:-1], -1, run).astype(np.int64)
    return np.concatenate([runs & 15, runs >> 4], axis=-1).reshape(*bytes.shape[:-1], -1)


def unpacked(t: Tensor) -> Blocks:
    """The blocks of a matrix of weights."""
    raw = bytes_of(t).reshape(-1, t.type.type_size).view(LAYOUTS[t.type])[:, 0]
    n, blocks = t.ne[1], t.ne[0] // BLOCK
    names = LAYOUTS[t.type].names or ()
    if t.type.block_size > BLOCK:
        q, sub, scale, low = _of_256(raw, names)
    else:
        q, sub, scale, low = _of_32(raw, names)
    return Blocks(
        q.reshape(n, blocks, BLOCK),
        np.broadcast_to(sub, (*sub.shape[:-1], 2)).reshape(n, blocks, 2),
        scale.reshape(n, blocks),
        low.reshape(n, blocks),
    )


Parts = tuple[IntArray, IntArray, F32Array, F32Array]


def _of_32(raw: Array, names: tuple[str, ...]) -> Parts:
    q = raw["qs"].astype(np.int64) if raw["qs"].shape[1] == BLOCK else halves(raw["qs"], 16)
    bits = 4
    if "qh" in names:
        q += (raw["qh"].astype(np.int64)[:, None] >> np.arange(BLOCK) & 1) << 4
        bits = 5
    if "m" not in names and raw["qs"].shape[1] < BLOCK:
        q -= 1 << (bits - 1)
    scale = raw["d"].astype(np.float32)
    low = raw["m"].astype(np.float32) if "m" in names else np.zeros_like(scale)
    return q, np.ones((len(raw), 1, 1), np.int64), scale, low


def _of_256(raw: Array, names: tuple[str, ...]) -> Parts:
    d = raw["d"].astype(np.float32)[:, None]
    scales = raw["scales"].astype(np.int64)
    if "ql" in names:
        high = raw["qh"].astype(np.int64).reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2)[:, None] & 3
        q = halves(raw["ql"], 64) + (high.reshape(-1, CHUNK) << 4) - 32
        return q, scales.reshape(-1, 8, 2), np.repeat(d, 8, 1), np.zeros((len(d), 8), np.float32)
    q = halves(raw["qs"], 32)
    if "qh" in names:
        fifth = raw["qh"].astype(np.int64)[:, None, :] >> np.arange(8)[:, None] & 1
        q += fifth.reshape(-1, CHUNK) << 4
    a, b, c = scales[:, :4], scales[:, 4:8], scales[:, 8:]
    scale = np.concatenate([a & 63, c & 15 | a >> 6 << 4], axis=1).astype(np.float32)
    low = np.concatenate([b & 63, c >> 4 | b >> 6 << 4], axis=1).astype(np.float32)
    ones = np.ones((len(raw), 8, 1), np.int64)
    return q, ones, d * scale, -(raw["dmin"].astype(np.float32)[:, None] * low)


def fma(a: F32Array, b: F32Array, c: F32Array) -> F32Array:
    """a * b + c, rounded once: in float64 the product is exact, and the sum is rounded to odd."""
    p, c64 = a.astype(np.float64) * b, c.astype(np.float64)
    s = p + c64
    back = s - p
    error = (p - (s - back)) + (c64 - back)
    bits = s.view(np.int64)
    toward = np.where(np.signbit(error) == np.signbit(s), 1, -1)
    odd = bits + np.where((error != 0) & (bits % 2 == 0), toward, 0)
    return odd.view(np.float64).astype(np.float32)


def columns_of(x: Array) -> tuple[IntArray, F32Array]:
    """Columns [m, k] as integers [m, blocks, 32] and their scales."""
    blocks = x.astype(np.float32).reshape(len(x), -1, BLOCK)
    scale = np.abs(blocks).max(axis=-1) / np.float32(127)
    with np.errstate(divide="ignore"):
        inverse = np.where(scale > 1e-30, np.float32(1) / scale, np.float32(0))
    q = np.clip(np.rint(blocks * inverse[..., None]), -127, 127)
    return q.astype(np.int64), scale


def twin(t: Tensor, x: Array) -> F32Array:
    """The products of weights [n, k] and columns [m, k]: [m, n]."""
    w, (q, a_d) = unpacked(t), columns_of(x)
    a_sum = q.sum(-1).astype(np.float32)
    has_min = {"m", "dmin"} & set(LAYOUTS[t.type].names or ())
    total = np.zeros((len(x), t.ne[1]), np.float32)
    for first in range(0, q.shape[1], CHUNK // BLOCK):
        s = np.zeros_like(total)
        for b in range(first, min(first + CHUNK // BLOCK, q.shape[1])):
            parts = w.integers[:, b].reshape(-1, 2, 16) * w.sub[:, b, :, None]
            isum = q[:, b] @ parts.reshape(-1, BLOCK).T
            s = fma(w.scale[:, b] * a_d[:, b, None], isum.astype(np.float32), s)
            if has_min:
                s = fma(w.min[:, b] * a_d[:, b, None], a_sum[:, b, None], s)
        total += s
    return total


# --- helpers ---

Bits = npt.NDArray[np.uint32]


def bits_of(array: Array) -> Bits:
    """The columns of a result, [m, n], as bits."""
    return array.reshape(-1, array.shape[-1]).astype(np.float32).view(np.uint32)


def product(w: Tensor, x: Tensor | Array, reverse: bool = False) -> Bits:
    node = ops.mul_mat(w, x if isinstance(x, Tensor) else leaf(x))
    return bits_of(cuda_run.compute(node, reverse=reverse))


def expected(w: Tensor, x: Array) -> Bits:
    return twin(w, x.reshape(-1, x.shape[-1])).view(np.uint32)


@cache
def weights(type: GGMLType, n: int, k: int, seed: int = 0) -> Tensor:
    return random_weights(type, n, k, seed=seed)


def copied(w: Tensor, shift: int) -> Tensor:
    """A matrix at an address that is `shift` bytes off its alignment."""
    t = Tensor(w.type, w.ne)
    place(t, shift)
    bytes_of(t)[...] = bytes_of(w)
    return t


def run_graph(graph: Graph, fuse: bool = True) -> list[str]:
    for node in graph.nodes:
        locate(node)
    return cuda_run.run_graph(graph, fuse)


some_types = each_type(SOME)


# --- products ---


@each_type(quantized.TYPES)
def test_bits_are_the_twin_s_for_every_number_of_columns(type: GGMLType) -> None:
    for k in lengths(type):
        w, x = weights(type, N_ROWS, k), normal(8, k, seed=1)
        whole = expected(w, x)
        for m in range(1, 9):
            for begin in {0, 8 - m}:
                bits = product(w, x[begin:][:m])
                assert (bits == whole[begin:][:m]).all(), (k, m, begin)


@each_type(quantized.TYPES)
def test_products_are_near_those_of_float_columns(type: GGMLType) -> None:
    w, x = weights(type, 64, 512), normal(8, 512, seed=1)
    assert nmse(product(w, x).view(np.float32), exact_product(w, x)) <= 1e-4


@each_type(quantized.TYPES)
def test_rows_may_begin_anywhere(type: GGMLType) -> None:
    # rows of 160 values are no multiple of 16 bytes in any type, rows of 256 not in Q6_K
    k = lengths(type)[1]
    x = normal(3, k, seed=1)
    for n in (1, 15, 16, 17):
        w = weights(type, n, k)
        whole = expected(w, x)
        for shift in (0, 2, 4, 14):
            for m in (1, 3):
                assert (product(copied(w, shift), x[:m]) == whole[:m]).all(), (n, shift, m)


@some_types
def test_sums_of_long_rows_are_added_in_several_rounds(type: GGMLType) -> None:
    k = 70 * CHUNK
    w, x = weights(type, 17, k), normal(3, k, seed=1)
    for m in (1, 3):
        assert (product(w, x[:m], reverse=m == 1) == expected(w, x[:m])).all(), m


@some_types
def test_many_columns_in_groups(type: GGMLType) -> None:
    w, x = weights(type, N_ROWS, 512), normal(21, 512, seed=1)
    with patch.object(tensor_core, "supports", lambda node: False):
        assert (product(w, x) == expected(w, x)).all()


@some_types
def test_columns_of_other_shapes_and_layouts(type: GGMLType) -> None:
    k = 256
    w, x = weights(type, N_ROWS, k), normal(2, 3, 5, k, seed=1)
    whole = expected(w, x)
    assert (product(w, x) == whole).all()
    turned = ops.permute(leaf(x), (0, 2, 1, 3))
    swapped = whole.reshape(2, 3, 5, N_ROWS).swapaxes(1, 2).reshape(30, N_ROWS)
    assert (product(w, turned) == swapped).all()
    # rows with gaps, off the alignment of their loads
    gaps = leaf(np.pad(x.reshape(30, k), ((0, 0), (0, 3))), shift=4)
    part = ops.view(gaps, (k, 7), nb=gaps.nb[:2], offset=gaps.nb[1])
    assert (product(w, part) == whole[1:8]).all()


def test_matrices_are_repeated_over_batches() -> None:
    k, type = 160, GGMLType.Q5_1
    w, x = random_weights(type, 2, 3, 20, k), normal(4, 6, 2, k, seed=1)
    bits = product(w, x).reshape(4, 6, 2, 20)
    for j, i in np.ndindex(4, 6):
        one = Tensor(type, (k, 20))
        one.buffer, one.offset = w.buffer, w.offset + j // 2 * w.nb[3] + i // 2 * w.nb[2]
        assert (bits[j, i] == expected(one, x[j, i])).all(), (j, i)


@pytest.mark.parametrize("type", [GGMLType.F16, GGMLType.BF16], ids=lambda t: t.name)
def test_columns_of_16_bit_floats(type: GGMLType) -> None:
    w, x = weights(GGMLType.Q4_0, N_ROWS, 160), leaf(normal(3, 160, seed=1), type)
    assert (product(w, x) == expected(w, values_of(x)[0, 0])).all()


@some_types
def test_the_order_of_warps_does_not_matter(type: GGMLType) -> None:
    w, x = weights(type, N_ROWS, 2560), normal(8, 2560, seed=1)
    for m in (1, 8):
        assert (product(w, x[:m], reverse=True) == expected(w, x[:m])).all()


# --- numbers of all kinds ---


@each_type(quantized.TYPES)
def test_extreme_blocks_and_columns(type: GGMLType) -> None:
    # each value and inner scale is the largest or the smallest possible
    bytes = np.array([0x00, 0xFF, 0x7F, 0x80, 0x0F, 0xF0], np.uint8)
    w = Tensor(type, (256, len(bytes)))
    place(w)
    bytes_of(w).reshape(len(bytes), -1)[...] = bytes[:, None]
    set_scales(w, np.ones)
    x = np.array([127.0, -127.0])[np.random.default_rng(0).integers(0, 2, (8, 256))]
    x[0], x[1] = 127, -127
    assert (product(w, x) == expected(w, x)).all()


@some_types
def test_columns_of_any_size(type: GGMLType) -> None:
    w, x = weights(type, N_ROWS, 512), normal(8, 512, seed=1)
    x *= np.array([1e30, 1e20, 1, 1e-20, 1e-28, 0, -0.0, 1e-35])[:, None]
    x[2] *= np.repeat(10.0 ** np.arange(-8, 8), BLOCK)
    x[3, :64] = 0
    assert (product(w, x) == expected(w, x)).all()
    assert (product(w, x[5:6]) << 1 == 0).all()


@some_types
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_inf_and_nan_stay_in_their_column(type: GGMLType, value: float) -> None:
    w, x = weights(type, N_ROWS, 512), normal(5, 512, seed=1)
    whole = expected(w, x)
    x[2, 77] = value
    bits = product(w, x)
    assert (np.delete(bits, 2, 0) == np.delete(whole, 2, 0)).all()
    found = bits[2].view(np.float32)
    assert not np.isfinite(found).any()
    assert np.isnan(found).all() or not np.isnan(value)


# --- experts ---


def of_experts(w: Tensor, x: Array, chosen: Array) -> Bits:
    """The bits of a MUL_MAT_ID, [n_tokens, n_used, n]."""
    node = ops.mul_mat_id(w, leaf(x), ids(chosen))
    with patch.object(tensor_core, "supports", lambda node: False):
        bits: Bits = cuda_run.compute(node).view(np.uint32)[0]
    return bits


def of_each_expert(w: Tensor, x: Array) -> Bits:
    """The bits of all columns with all experts, [n_expert, columns, n]."""
    found = []
    for e in range(w.ne[2]):
        one = Tensor(w.type, w.ne[:2])
        one.buffer, one.offset = w.buffer, w.offset + e * w.nb[2]
        found.append(expected(one, x))
    return np.stack(found)


@some_types
def test_experts_have_the_bits_of_their_matrices(type: GGMLType) -> None:
    k, n_expert, n_used, n_tokens = lengths(type)[1], 5, 4, 3
    w = random_weights(type, n_expert, 21, k)
    chosen = np.random.default_rng(0).integers(0, n_expert, (n_tokens, n_used))
    for n_x in (1, 2, n_used):
        x = normal(n_tokens, n_x, k, seed=1)
        each = of_each_expert(w, x)
        columns = np.arange(n_tokens)[:, None] * n_x + np.arange(n_used) % n_x
        assert (of_experts(w, x, chosen) == each[chosen, columns]).all(), n_x
        some = [2, 0]
        assert (of_experts(w, x[some], chosen[some]) == each[chosen, columns][some]).all(), n_x


def test_ids_may_have_gaps() -> None:
    w, x = random_weights(GGMLType.Q8_0, 3, 20, 64), normal(5, 1, 64, seed=1)
    table = np.random.default_rng(0).integers(0, 3, (5, 4))
    some = ops.view(ids(table), (2, 5), nb=(4, 16), offset=4)
    node = ops.mul_mat_id(w, leaf(x), some)
    with patch.object(tensor_core, "supports", lambda node: False):
        bits = cuda_run.compute(node).view(np.uint32)[0]
    assert (bits == of_each_expert(w, x)[table[:, 1:3], np.arange(5)[:, None]]).all()


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1, -(2**31)])
def test_experts_out_of_range_are_refused(bad: int) -> None:
    w, x = random_weights(GGMLType.Q4_K, 4, 20, 256), normal(3, 1, 256)
    chosen = np.array([[0, 1], [2, bad], [3, 1]])
    with pytest.raises(BackendError, match=f"index {bad} must be at least 0 and below 4"):
        of_experts(w, x, chosen)


# --- gated units ---


def gated(type: GGMLType, n: int, k: int, m: int, op: GluOp = GluOp.SWIGLU) -> Graph:
    a, b = (weights(type, n, k, seed=s) for s in range(2))
    columns = leaf(normal(m, k, seed=1))
    return Graph(ops.glu(ops.mul_mat(a, columns), ops.mul_mat(b, columns), op))


def assert_gated_bits(make: Callable[[], Graph], kernel: str) -> None:
    """Check that one kernel computes the graph, with the bits of single kernels."""
    single, fused = make(), make()
    assert kernel not in run_graph(single, fuse=False)
    assert run_graph(fused) == ["quantize_q8", kernel]
    assert data(single.nodes[-1]).tobytes() == data(fused.nodes[-1]).tobytes()


@each_type(quantized.TYPES)
def test_gated_units_have_the_bits_of_single_ops(type: GGMLType) -> None:
    k = lengths(type)[1]
    for n, m in ((1, 1), (17, 5), (40, 8), (40, 1)):
        assert_gated_bits(lambda n=n, m=m: gated(type, n, k, m), "gate_up_vec")  # type: ignore[misc]


@pytest.mark.parametrize("op", GluOp, ids=lambda op: op.name)
def test_every_gated_unit(op: GluOp) -> None:
    assert_gated_bits(lambda: gated(GGMLType.Q8_0, 20, 64, 1, op), "gate_up_vec")


@some_types
def test_gated_units_of_experts(type: GGMLType) -> None:
    a, b = (random_weights(type, 6, 20, 256, seed=s) for s in range(2))
    chosen = np.random.default_rng(0).integers(0, 6, (2, 3))

    def make() -> Graph:
        columns, of = leaf(normal(2, 1, 256, seed=1)), ids(chosen)
        return Graph(ops.swiglu(ops.mul_mat_id(a, columns, of), ops.mul_mat_id(b, columns, of)))

    assert_gated_bits(make, "gate_up_id_vec")


def test_gated_units_of_batches() -> None:
    a, b = (random_weights(GGMLType.Q4_0, 2, 20, 160, seed=s) for s in range(2))

    def make() -> Graph:
        columns = leaf(normal(4, 3, 160, seed=1))
        return Graph(ops.swiglu(ops.mul_mat(a, columns), ops.mul_mat(b, columns)))

    assert_gated_bits(make, "gate_up_vec")


def test_gated_units_that_are_not_fused() -> None:
    a, b = weights(GGMLType.Q8_0, 20, 64), weights(GGMLType.Q4_0, 20, 64)
    columns = leaf(normal(3, 64))
    graph = Graph(ops.swiglu(ops.mul_mat(a, columns), ops.mul_mat(b, columns)))
    assert run_graph(graph)[:3] == ["quantize_q8", "mul_mat_vec", "mul_mat_vec"]


# --- columns are prepared once for all their readers ---


def test_products_share_their_columns() -> None:
    x = leaf(normal(3, 256))
    types = (GGMLType.Q4_0, GGMLType.Q4_K, GGMLType.Q6_K)
    products = [ops.mul_mat(weights(t, 20, 256), x) for t in types]
    assert run_graph(Graph(*products)) == ["quantize_q8", *["mul_mat_vec"] * 3]
    for t, node in zip(types, products, strict=True):
        assert (bits_of(data(node)) == expected(weights(t, 20, 256), values_of(x)[0, 0])).all(), t


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
