"""ROPE, compared with the reference's angles in float64."""

from __future__ import annotations

import numpy as np
import pytest
from backends import CUDA, Backend, each_backend
from cuda_grid import needs_compiler
from reference_run import each_type, ids, leaf, normal, values_of
from rope_cases import CASES, each_mode

from lamella.graph import GGMLType, RopeMode, ops
from lamella.kernels.cuda.ops import rope

TYPES = (GGMLType.F32, GGMLType.F16)
POSITIONS = [0, 1, 17, 4095, 131072, 2**24 + 1, 2**31 - 1]
N = len(POSITIONS)


@each_backend
@each_type(TYPES)
@pytest.mark.parametrize("name", CASES)
def test_rope(on: Backend, name: str, type: GGMLType) -> None:
    x, pos = leaf(normal(N, 3, 64), type), ids(POSITIONS)
    factors = leaf(np.linspace(1, 8, 32))
    for mode in RopeMode:
        on.check(ops.rope, x, pos, n_dims=64, mode=mode, **CASES[name])
        on.check(ops.rope, x, pos, factors, n_dims=64, mode=mode, **CASES[name])


@each_backend
@each_type(TYPES)
@pytest.mark.parametrize(
    ("head_dim", "n_dims"),
    [(2, 2), (8, 8), (24, 24), (80, 80), (256, 256), (64, 20), (40, 32), (41, 32)],
)
def test_head_dims(on: Backend, head_dim: int, n_dims: int, type: GGMLType) -> None:
    x, pos = leaf(normal(N, 3, head_dim), type), ids(POSITIONS)
    for mode in RopeMode:
        result = on.check(ops.rope, x, pos, n_dims=n_dims, mode=mode)
        assert (result[..., n_dims:] == values_of(x)[..., n_dims:]).all()
        on.check_in_place(ops.rope, x, pos, n_dims=n_dims, mode=mode)


@each_backend
@each_type(TYPES)
def test_strided_heads_and_positions(on: Backend, type: GGMLType) -> None:
    both = leaf(normal(2, N, 6, 48), type)  # Q and K side by side
    q = ops.view(both, (32, 3, N, 2), nb=both.nb, offset=3 * both.nb[1])
    turned = ops.permute(both, (0, 2, 1, 3))
    for mode in RopeMode:
        on.check(ops.rope, q, ids(POSITIONS), n_dims=32, mode=mode)
        on.check(ops.rope, turned, ids(np.arange(6)), n_dims=32, mode=mode)


@each_backend
def test_angles_of_large_positions_are_precise(on: Backend) -> None:
    # cos and sin of 10**6 and of 2**30, from (1, 0); the error of float32 angles would be 0.03
    x = leaf(np.tile([1.0, 0.0], (2, 1, 1)))
    result = on.check(ops.rope, x, ids([10**6, 2**30]), n_dims=2, error=2e-7)
    angles = np.array([10.0**6, 2.0**30])
    np.testing.assert_allclose(result[0, :, 0, 0], np.cos(angles), atol=2e-7)
    np.testing.assert_allclose(result[0, :, 0, 1], np.sin(angles), atol=2e-7)


@each_backend
@each_mode
def test_a_token_has_the_same_bits_alone(on: Backend, mode: RopeMode) -> None:
    x = normal(N, 5, 64)
    node = ops.rope(leaf(x), ids(POSITIONS), n_dims=64, mode=mode)
    on.computed(node)
    for t in range(N):
        token, pos = leaf(x[t : t + 1], shift=4), ids(POSITIONS[t : t + 1])
        alone = on.check(ops.rope, token, pos, n_dims=64, mode=mode)
        assert (alone[0, 0] == values_of(node)[0, t]).all()


@needs_compiler
@each_mode
def test_cuda_threads_that_rotate_several_heads(
    mode: RopeMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, pos = leaf(normal(N, 11, 24)), ids(POSITIONS)
    single = CUDA.computed(ops.rope(x, pos, n_dims=20, mode=mode))
    monkeypatch.setattr(rope, "MANY_PAIRS", 1)
    several = ops.rope(x, pos, n_dims=20, mode=mode)
    assert CUDA.computed(several) == single
