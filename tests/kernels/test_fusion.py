"""Fused chains of norms, sums, convolutions and rope: they have the bits of single kernels. Also
chains that are not fused."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cuda_run
import numpy as np
import pytest
from backends import CPU, CUDA, FLOATS, Backend, each_backend
from cuda_grid import needs_compiler
from reference_run import data, each_type, ids, leaf, located, normal

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, RopeMode, Tensor, UnaryOp, ops
from lamella.kernels.cuda.ops import heads, rope

CACHES = (*FLOATS, *(GGMLType[f"Q{name}"] for name in ("4_0", "4_1", "5_0", "5_1", "8_0")))
each_norm = pytest.mark.parametrize("norm", [ops.rms_norm, ops.norm])
each_mode = pytest.mark.parametrize("mode", RopeMode, ids=lambda mode: mode.name)

Norm = Callable[[Tensor, float], Tensor]


def run(on: Backend, *outputs: Tensor) -> list[str]:
    """Compute the outputs. Return the names of the kernels."""
    return on.run_graph(located(*outputs))


def assert_same_bits(on: Backend, make: Callable[[], Sequence[Tensor]], kernels: str) -> None:
    """Check that `kernels` compute the outputs of `make`, with the bits of single kernels."""
    single = make()
    on.run_graph(located(*single), fuse=False)
    for way in range(on.n_graph_ways):
        fused = make()
        names = on.run_graph(located(*fused, shift=4 * (way % 2)), way)
        assert " ".join(names) == kernels
        for a, b in zip(single, fused, strict=True):
            assert data(a).tobytes() == data(b).tobytes(), f"{b} differs"


def rope_kernels(on: Backend, mode: RopeMode) -> tuple[list[str], list[str]]:
    """The kernels of rope and set_rows, single and fused."""
    if on is CUDA:  # of few tokens
        return ["store_heads", "store_heads"], ["store_heads"]
    name = f"rope_{mode.name.lower()}"
    return [f"{name}_f32", "set_rows"], [f"{name}_set_rows"]


# --- norms ---


@each_backend
@each_norm
@pytest.mark.parametrize("n", [1, 15, 64, 288, 2050, 9001])
def test_a_norm_and_its_weight(on: Backend, norm: Norm, n: int) -> None:
    def make() -> list[Tensor]:
        x, weight = leaf(normal(2, 3, 3, n)), leaf(normal(n, seed=1))
        return [ops.mul(norm(x, 1e-5), weight)]

    assert_same_bits(on, make, "rms_norm_mul_f32" if norm is ops.rms_norm else "norm_mul_f32")


@each_backend
@each_norm
@pytest.mark.parametrize("n", [1, 17, 288, 2050, 9001])
def test_a_sum_with_other_readers_its_norm_and_weight(on: Backend, norm: Norm, n: int) -> None:
    def make() -> list[Tensor]:
        a, b, weight = (leaf(normal(*s, seed=n)) for s in ((5, n), (5, n), (n,)))
        total = ops.add(a, b).set_output()
        return [ops.mul(norm(total, 1e-5), weight), total]

    assert_same_bits(
        on, make, "add_rms_norm_mul_f32" if norm is ops.rms_norm else "add_norm_mul_f32"
    )


@each_backend
@pytest.mark.parametrize("n", [64, 9001])
def test_a_sum_that_only_its_norm_reads_is_not_written(on: Backend, n: int) -> None:
    def make() -> list[Tensor]:
        a, b, weight = leaf(normal(5, n)), leaf(normal(5, n, seed=1)), leaf(normal(n))
        return [ops.mul(ops.rms_norm(ops.add(a, b), 1e-5), weight)]

    assert_same_bits(on, make, "add_rms_norm_mul_f32")
    graph = located(*make())
    on.run_graph(graph)
    assert (graph.nodes[0].buffer == 0xA5).all()


@each_norm
@pytest.mark.parametrize("n", [1, 17, 288, 2050])
def test_a_norm_its_weight_and_bias(norm: Norm, n: int) -> None:
    def make() -> list[Tensor]:
        x, weight, bias = (leaf(normal(*s, seed=n)) for s in ((2, 3, n), (n,), (n,)))
        return [ops.add(ops.mul(norm(x, 1e-5), weight), bias)]

    kernel = "rms_norm_mul_add_f32" if norm is ops.rms_norm else "norm_mul_add_f32"
    assert_same_bits(CPU, make, kernel)


@each_norm
@pytest.mark.parametrize("is_read", [False, True])
def test_a_sum_its_norm_weight_and_bias(norm: Norm, is_read: bool) -> None:
    def make() -> list[Tensor]:
        a, b, weight, bias = (leaf(normal(*s, seed=1)) for s in ((5, 80), (5, 80), (80,), (80,)))
        total = ops.add(a, b)
        result = ops.add(ops.mul(norm(total, 1e-5), weight), bias)
        return [result, total.set_output()] if is_read else [result]

    kernel = "add_rms_norm_mul_add_f32" if norm is ops.rms_norm else "add_norm_mul_add_f32"
    assert_same_bits(CPU, make, kernel)


@each_backend
def test_norms_without_a_row_as_bias(on: Backend) -> None:
    x, weight = leaf(normal(3, 32)), leaf(normal(32))
    product = ops.mul(ops.norm(x, 1e-5), weight)
    for other in (leaf(normal(3, 32)), leaf(normal(3, 1)), ops.sqr(leaf(normal(32)))):
        names = run(on, ops.add(product, other))
        assert {"norm_mul_f32", "add_float"} <= set(names)
    total = ops.add(product, leaf(normal(32)))
    assert run(on, total, product.set_output()) == ["norm_mul_f32", "add_float"]


@each_backend
def test_norms_of_strided_rows(on: Backend) -> None:
    def make() -> list[Tensor]:
        x = ops.view(leaf(normal(5, 70)), (64, 5), nb=(4, 280), offset=8)
        y = ops.view(leaf(normal(5, 67, seed=1)), (64, 5), nb=(4, 268), offset=4)
        total = ops.add(x, y).set_output()
        return [ops.mul(ops.rms_norm(total, 1e-5), leaf(normal(64))), total]

    assert_same_bits(on, make, "add_rms_norm_mul_f32")


@each_backend
def test_norms_that_are_not_weighted_by_one_row(on: Backend) -> None:
    x = leaf(normal(4, 32))
    for weight in (normal(4, 32), normal(4, 1), normal(16), normal(1)):
        product = ops.mul(ops.rms_norm(x, 1e-5), leaf(weight))
        assert run(on, product) == ["rms_norm_f32", "mul_float"]
    product = ops.mul(ops.rms_norm(x, 1e-5), leaf(normal(32), GGMLType.F16))
    assert run(on, product) == ["rms_norm_f32", "mul_float"]


@each_backend
def test_a_sum_with_two_norms_is_computed_once(on: Backend) -> None:
    total = ops.add(leaf(normal(4, 32)), leaf(normal(4, 32, seed=1)))
    first, second = (ops.mul(ops.rms_norm(total, 1e-5), leaf(normal(32))) for _ in range(2))
    assert run(on, first, second) == ["add_rms_norm_mul_f32", "rms_norm_mul_f32"]


@each_backend
def test_a_sum_of_other_shapes_is_not_fused(on: Backend) -> None:
    weight, x = leaf(normal(32)), leaf(normal(4, 32))
    total = ops.add(x, leaf(normal(1, 32)))
    product = ops.mul(ops.rms_norm(total, 1e-5), weight)
    assert run(on, product, total) == ["add_float", "rms_norm_mul_f32"]


# --- a convolution and its activation ---

SLOTS = [[-1, 1], [1, 1], [3, 2], [1, 4], [3, 3]]


def convolution(n: int, n_taps: int, biased: bool) -> Tensor:
    """A convolution of five tokens."""
    x, w, states = normal(5, n), normal(n, n_taps, seed=1), normal(6, n * (n_taps - 1), seed=2)
    bias = [leaf(normal(n, seed=3))] if biased else []
    return ops.ssm_conv(leaf(x), leaf(w), leaf(states), ids(SLOTS), *bias)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("n", "n_taps"), [(1072, 4), (150, 4), (48, 3)])
def test_a_convolution_and_silu(n: int, n_taps: int, biased: bool) -> None:
    states: list[Tensor] = []

    def make() -> list[Tensor]:
        conv = convolution(n, n_taps, biased)
        states.append(conv.src[2])
        return [ops.silu(conv)]

    assert_same_bits(CPU, make, "ssm_conv_f32")
    assert len({data(t).tobytes() for t in states}) == 1


def test_convolutions_that_are_not_fused() -> None:
    conv = convolution(48, 4, False)
    assert run(CPU, ops.unary(conv, UnaryOp.TANH)) == ["ssm_conv_f32", "tanh_float"]
    conv = convolution(48, 4, False)
    assert run(CPU, ops.silu(conv), conv.set_output()) == ["ssm_conv_f32", "silu_float"]
    conv = convolution(48, 4, False)
    assert run(CPU, ops.silu(conv), ops.sqr(conv))[:2] == ["ssm_conv_f32", "silu_float"]


# --- rope into a cache ---


@each_backend
@each_type(CACHES)
@each_mode
def test_keys_into_the_cache(on: Backend, mode: RopeMode, type: GGMLType) -> None:
    def make() -> list[Tensor]:
        x = ops.reshape(leaf(normal(7, 4 * 48)), (48, 4, 7))
        k = ops.rope(x, ids([5, 0, 3, 900, 1, 2, 6]), n_dims=32, mode=mode)
        cache = leaf(normal(20, 4 * 48, seed=2), type)
        # the same cell twice: the later row wins
        return [ops.set_rows(cache, ops.reshape(k, (4 * 48, 7)), ids([3, 19, 0, 7, 3, 8, 3]))]

    _, [fused] = rope_kernels(on, mode)
    assert_same_bits(on, make, fused)


def keys_with_factors(type: GGMLType) -> list[Tensor]:
    k = ops.rope(
        leaf(normal(3, 12, 16)),
        ids([4, 5, 6]),
        leaf(np.linspace(1, 4, 8)),
        n_dims=16,
        mode=RopeMode.NEOX,
        n_ctx_orig=64,
        freq_scale=0.25,
        ext_factor=1.0,
    )
    where = ids([2, 0, 1], GGMLType.I64)
    return [ops.set_rows(leaf(np.zeros((4, 192)), type), ops.reshape(k, (192, 3)), where)]


@each_backend
@each_type((GGMLType.F16, GGMLType.Q8_0))
def test_factors_and_wide_indices(on: Backend, type: GGMLType) -> None:
    _, [fused] = rope_kernels(on, RopeMode.NEOX)
    assert_same_bits(on, lambda: keys_with_factors(type), fused)


@needs_compiler
@each_type((GGMLType.F16, GGMLType.Q8_0))
def test_cuda_blocks_of_several_heads(type: GGMLType, monkeypatch: pytest.MonkeyPatch) -> None:
    for few in (1, 5 * 16):  # blocks of 2, then of 4 and, with less in the last, 5 heads
        monkeypatch.setattr(heads, "FEW", few)
        assert_same_bits(CUDA, lambda: keys_with_factors(type), "store_heads")
    for module in (heads, rope):  # single ops have their own kernels then
        monkeypatch.setattr(module, "MANY_TOKENS", 2)
    assert_same_bits(CUDA, lambda: keys_with_factors(type), "store_heads")


@needs_compiler
@pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
def test_cuda_queries_keys_and_values_are_one_launch(reverse: bool) -> None:
    def stored() -> list[Tensor]:
        q, k = (ops.rope(leaf(normal(3, n, 16, seed=n)), ids([5, 0, 9]), n_dims=12) for n in (6, 2))
        where, rows = ids([1, 3, 0]), ops.reshape(k, (32, 3))
        keys, values = (leaf(np.zeros((4, 32)), t) for t in (GGMLType.F16, GGMLType.Q8_0))
        v = leaf(normal(3, 32, seed=1))
        return [q, ops.set_rows(keys, rows, where), ops.set_rows(values, v, where)]

    single, merged = stored(), stored()
    for node in single:
        cuda_run.run(located(node))
    plan = cuda_run.run(located(*merged), reverse)
    assert [one.n_steps for one in plan.launches] == [3]
    for a, b in zip(single, merged, strict=True):
        assert data(a).tobytes() == data(b).tobytes()


@each_backend
def test_an_index_outside_the_cache_names_the_cache(on: Backend) -> None:
    k = ops.rope(leaf(normal(2, 2, 16)), ids([0, 1]), n_dims=16, mode=RopeMode.NEOX)
    cells = ops.set_rows(leaf(np.zeros((4, 32))), ops.reshape(k, (32, 2)), ids([1, 4]))
    with pytest.raises(BackendError, match=r"set_rows cache.*index 4 must be .* below 4"):
        run(on, cells.named("cache"))
    far = ids([1, 2**32 + 1], GGMLType.I64)
    cells = ops.set_rows(leaf(np.zeros((4, 32))), ops.reshape(k, (32, 2)), far)
    with pytest.raises(BackendError, match="index 4294967297 must be"):
        run(on, cells)


@each_backend
def test_keys_with_other_readers_are_not_fused(on: Backend) -> None:
    k = ops.rope(leaf(normal(2, 2, 16)), ids([0, 1]), n_dims=16, mode=RopeMode.NEOX)
    rows, cache = ops.reshape(k, (32, 2)), leaf(np.zeros((4, 32)))
    single, fused = rope_kernels(on, RopeMode.NEOX)
    assert run(on, ops.set_rows(cache, rows, ids([1, 0])), ops.sqr(k))[:2] == single
    assert run(on, ops.set_rows(cache, rows, ids([1, 0])), ops.sqr(rows))[:2] == single
    assert run(on, ops.set_rows(cache, rows, ids([1, 0]))) == fused
    k.set_output()
    assert run(on, ops.set_rows(cache, rows, ids([1, 0]))) == single


def keys_of_blocks(n_head: int, head_dim: int) -> list[Tensor]:
    n = n_head * head_dim
    k = ops.rope(leaf(normal(2, n_head, head_dim)), ids([0, 1]), n_dims=8)
    cache = leaf(np.zeros((4, n)), GGMLType.Q8_0)
    return [ops.set_rows(cache, ops.reshape(k, (n, 2)), ids([1, 0]))]


@each_backend
def test_heads_of_partial_blocks(on: Backend) -> None:
    _, [fused] = rope_kernels(on, RopeMode.NORMAL)
    assert_same_bits(on, lambda: keys_of_blocks(8, 8), fused)  # blocks of four heads


@needs_compiler
def test_cuda_heads_that_do_not_fit_in_shared_memory_are_not_fused() -> None:
    assert run(CUDA, *keys_of_blocks(32, 411)) == ["store_heads", "set_rows"]
