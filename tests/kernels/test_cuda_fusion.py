"""Fused chains of CUDA kernels: they have the bits of single kernels. Also chains not fused."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cuda_run
import numpy as np
import pytest
from cuda_grid import needs_compiler
from reference_run import data, each_type, ids, leaf, locate, normal

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, Graph, RopeMode, Tensor, ops
from lamella.kernels.cuda.ops import rope
from lamella.kernels.cuda.ops.data import is_writable

pytestmark = needs_compiler

F32, F16, Q8_0 = GGMLType.F32, GGMLType.F16, GGMLType.Q8_0
CACHES = [t for t in GGMLType if is_writable(t) and t is not GGMLType.I32]
each_norm = pytest.mark.parametrize("norm", [ops.rms_norm, ops.norm])
each_mode = pytest.mark.parametrize("mode", RopeMode, ids=lambda mode: mode.name)

Norm = Callable[[Tensor, float], Tensor]


def place(*outputs: Tensor, shift: int = 0) -> Graph:
    """A graph whose nodes have their own memory."""
    graph = Graph(*outputs)
    for node in graph.nodes:
        locate(node, shift=shift)
    return graph


def run(*outputs: Tensor) -> list[str]:
    """Compute the outputs. Return the names of the kernels."""
    return cuda_run.run_graph(place(*outputs))


def assert_same_bits(make: Callable[[], Sequence[Tensor]], kernels: str) -> None:
    """Check that `kernels` compute the outputs of `make`, with the bits of single kernels."""
    single = make()
    cuda_run.run_graph(place(*single), fuse=False)
    for shift, reverse in ((0, False), (4, True)):
        fused = make()
        names = cuda_run.run_graph(place(*fused, shift=shift), reverse=reverse)
        assert " ".join(names) == kernels
        for a, b in zip(single, fused, strict=True):
            assert data(a).tobytes() == data(b).tobytes(), f"{b} differs"


# --- norms ---


@each_norm
@pytest.mark.parametrize("n", [1, 15, 64, 288, 2050, 9001])
def test_a_norm_and_its_weight(norm: Norm, n: int) -> None:
    def make() -> list[Tensor]:
        x, weight = leaf(normal(2, 1, 5, n)), leaf(normal(n, seed=1))
        return [ops.mul(norm(x, 1e-5), weight)]

    assert_same_bits(make, "rms_norm_mul_f32" if norm is ops.rms_norm else "norm_mul_f32")


@each_norm
@pytest.mark.parametrize("n", [1, 17, 288, 2050, 9001])
def test_a_sum_with_other_readers_its_norm_and_weight(norm: Norm, n: int) -> None:
    def make() -> list[Tensor]:
        a, b, weight = (leaf(normal(*s, seed=n)) for s in ((5, n), (5, n), (n,)))
        total = ops.add(a, b).set_output()
        return [ops.mul(norm(total, 1e-5), weight), total]

    assert_same_bits(make, "add_rms_norm_mul_f32" if norm is ops.rms_norm else "add_norm_mul_f32")


@pytest.mark.parametrize("n", [64, 9001])
def test_a_sum_that_only_its_norm_reads_is_not_written(n: int) -> None:
    def make() -> list[Tensor]:
        a, b, weight = leaf(normal(5, n)), leaf(normal(5, n, seed=1)), leaf(normal(n))
        return [ops.mul(ops.rms_norm(ops.add(a, b), 1e-5), weight)]

    assert_same_bits(make, "add_rms_norm_mul_f32")
    graph = place(*make())
    cuda_run.run_graph(graph)
    assert (graph.nodes[0].buffer == 0xA5).all()


def test_norms_of_strided_rows() -> None:
    def make() -> list[Tensor]:
        x = ops.view(leaf(normal(5, 70)), (64, 5), nb=(4, 280), offset=8)
        y = ops.view(leaf(normal(5, 67, seed=1)), (64, 5), nb=(4, 268), offset=4)
        total = ops.add(x, y).set_output()
        return [ops.mul(ops.rms_norm(total, 1e-5), leaf(normal(64))), total]

    assert_same_bits(make, "add_rms_norm_mul_f32")


def test_norms_that_are_not_weighted_by_one_row() -> None:
    x = leaf(normal(4, 32))
    for weight in (normal(4, 32), normal(4, 1), normal(16), normal(1)):
        product = ops.mul(ops.rms_norm(x, 1e-5), leaf(weight))
        assert run(product) == ["rms_norm_f32", "mul_float"]
    product = ops.mul(ops.rms_norm(x, 1e-5), leaf(normal(32), F16))
    assert run(product) == ["rms_norm_f32", "mul_float"]


def test_a_sum_with_two_norms_is_computed_once() -> None:
    total = ops.add(leaf(normal(4, 32)), leaf(normal(4, 32, seed=1)))
    first, second = (ops.mul(ops.rms_norm(total, 1e-5), leaf(normal(32))) for _ in range(2))
    assert run(first, second) == ["add_rms_norm_mul_f32", "rms_norm_mul_f32"]


def test_a_sum_of_other_shapes_is_not_fused() -> None:
    weight, x = leaf(normal(32)), leaf(normal(4, 32))
    total = ops.add(x, leaf(normal(1, 32)))
    product = ops.mul(ops.rms_norm(total, 1e-5), weight)
    assert run(product, total) == ["add_float", "rms_norm_mul_f32"]


# --- rope into a cache ---


@each_type(CACHES)
@each_mode
def test_keys_into_the_cache(mode: RopeMode, type: GGMLType) -> None:
    def make() -> list[Tensor]:
        x = ops.reshape(leaf(normal(7, 4 * 48)), (48, 4, 7))
        k = ops.rope(x, ids([5, 0, 3, 900, 1, 2, 6]), n_dims=32, mode=mode)
        cache = leaf(normal(20, 4 * 48, seed=2), type)
        # the same cell twice: the later row wins
        return [ops.set_rows(cache, ops.reshape(k, (4 * 48, 7)), ids([3, 19, 0, 7, 3, 8, 3]))]

    assert_same_bits(make, "rope_set_rows")


@pytest.mark.parametrize("type", [F16, Q8_0], ids=lambda t: t.name)
def test_heads_of_several_blocks_and_factors(
    type: GGMLType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> list[Tensor]:
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

    assert_same_bits(make, "rope_set_rows")
    for few in (1, 5 * 16):  # blocks of 2, then of 4 and, with less in the last, 5 heads
        monkeypatch.setattr(rope, "FEW", few)
        assert_same_bits(make, "rope_set_rows")
    monkeypatch.setattr(rope, "MANY_TOKENS", 2)
    assert_same_bits(make, "rope_set_rows")


def test_an_index_outside_the_cache_names_the_cache() -> None:
    k = ops.rope(leaf(normal(2, 2, 16)), ids([0, 1]), n_dims=16, mode=RopeMode.NEOX)
    cells = ops.set_rows(leaf(np.zeros((4, 32))), ops.reshape(k, (32, 2)), ids([1, 4]))
    with pytest.raises(BackendError, match=r"set_rows cache.*index 4 must be .* below 4"):
        run(cells.named("cache"))
    far = ids([1, 2**32 + 1], GGMLType.I64)
    cells = ops.set_rows(leaf(np.zeros((4, 32))), ops.reshape(k, (32, 2)), far)
    with pytest.raises(BackendError, match="index 4294967297 must be"):
        run(cells)


def test_keys_with_other_readers_are_not_fused() -> None:
    k = ops.rope(leaf(normal(2, 2, 16)), ids([0, 1]), n_dims=16, mode=RopeMode.NEOX)
    rows, cache = ops.reshape(k, (32, 2)), leaf(np.zeros((4, 32)))
    single = ["rope", "set_rows"]
    assert run(ops.set_rows(cache, rows, ids([1, 0])), ops.sqr(k))[:2] == single
    assert run(ops.set_rows(cache, rows, ids([1, 0])), ops.sqr(rows))[:2] == single
    assert run(ops.set_rows(cache, rows, ids([1, 0]))) == ["rope_set_rows"]
    k.set_output()
    assert run(ops.set_rows(cache, rows, ids([1, 0]))) == single


def test_heads_of_partial_blocks_are_not_fused() -> None:
    def kernels(n_head: int, head_dim: int) -> list[str]:
        n = n_head * head_dim
        k = ops.rope(leaf(normal(2, n_head, head_dim)), ids([0, 1]), n_dims=8)
        cache = leaf(np.zeros((4, n)), Q8_0)
        return run(ops.set_rows(cache, ops.reshape(k, (n, 2)), ids([1, 0])))

    assert kernels(8, 8) == ["rope_set_rows"]
    # heads that do not fit in shared memory
    assert kernels(32, 411) == ["rope", "set_rows"]
