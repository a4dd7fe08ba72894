"""The bits of a token's result depend neither on other tokens nor on the places of data."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference_run import Array, compute, data, each_type, ids, leaf, normal

from lamella.graph import GGMLType, GluOp, RopeMode, Tensor, UnaryOp, ops
from lamella.kernels import reference

N_TOKENS = 8
K = 1003  # no multiple of any vector

X = normal(N_TOKENS, K)
HEADS = normal(N_TOKENS, 4, 64)
POS = np.array([0, 3, 100_000, 17, 3, 4095, 2**24 + 1, 1])
MASK = np.where(normal(N_TOKENS, K, seed=2) > 1, -np.inf, normal(N_TOKENS, K, seed=3))
EXPERTS = np.random.default_rng(4).integers(0, 5, (N_TOKENS, 3))
TABLE = [[5, 0, 3], [2, 4, 1]]
SEQ = np.array([0, 1, 0, 1, 1, 0, 0, 1])
PLACES = np.array([47, 0, 15, 16, 33, 1, 20, 40])

WEIGHTS = leaf(normal(300, K, seed=1))
MOE = leaf(normal(5, 7, K, seed=1))
K_POOL = leaf(normal(6 * 16, 2 * 64, seed=5), GGMLType.Q8_0)
V_POOL = leaf(normal(6 * 16, 2 * 64, seed=6), GGMLType.F16)

Tokens = slice | list[int]
Case = tuple[Callable[[Tokens, int], Tensor], int]


def attention(s: Tokens, shift: int) -> Tensor:
    q, tokens = leaf(HEADS[s], shift=shift), (SEQ[s], PLACES[s], 0 * PLACES[s], PLACES[s] + 1)
    args = (q, K_POOL, V_POOL, ids(TABLE), *map(ids, tokens))
    return ops.flash_attn_ext(*args, page_size=16, scale=0.2)


def soft_max(s: Tokens, shift: int) -> Tensor:
    return ops.soft_max(leaf(X[s], shift=shift), leaf(MASK[s], shift=shift), 0.5, 8.0)


def rope(s: Tokens, shift: int, **params: Any) -> Tensor:
    return ops.rope(leaf(HEADS[s], shift=shift), ids(POS[s]), n_dims=64, **params)


def mul_mat_id(s: Tokens, shift: int) -> Tensor:
    x = leaf(normal(N_TOKENS, 1, K)[s], shift=shift)
    return ops.mul_mat_id(MOE, x, ids(EXPERTS[s]))


# a node of some tokens, and the axis of the tokens
CASES: dict[str, Case] = {
    "mul_mat": (lambda s, shift: ops.mul_mat(WEIGHTS, leaf(X[s], shift=shift)), 2),
    "mul_mat_id": (mul_mat_id, 1),
    "flash_attn_ext": (attention, 1),
    "soft_max": (soft_max, 2),
    "sum_rows": (lambda s, shift: ops.sum_rows(leaf(X[s], shift=shift)), 2),
    "norm": (lambda s, shift: ops.norm(leaf(X[s], shift=shift), 1e-5), 2),
    "rms_norm": (lambda s, shift: ops.rms_norm(leaf(X[s], shift=shift), 1e-5), 2),
    "rope": (rope, 1),
    "rope neox": (lambda s, shift: rope(s, shift, mode=RopeMode.NEOX), 1),
    "rope yarn": (
        lambda s, shift: rope(s, shift, ext_factor=1.0, freq_scale=0.5, n_ctx_orig=4096),
        1,
    ),
    "silu": (lambda s, shift: ops.silu(leaf(X[s], shift=shift)), 2),
    "gelu": (lambda s, shift: ops.gelu(leaf(X[s], shift=shift)), 2),
    "exp": (lambda s, shift: ops.unary(leaf(X[s], shift=shift), UnaryOp.EXP), 2),
    "log": (lambda s, shift: ops.log(ops.sqr(leaf(X[s], shift=shift))), 2),
    "geglu": (lambda s, shift: ops.glu(leaf(X[s, :-1], shift=shift), None, GluOp.GEGLU), 2),
    "cast": (lambda s, shift: ops.cast(leaf(X[s, :992], shift=shift), GGMLType.Q4_0), 2),
}
each_case = pytest.mark.parametrize("name", CASES)


def result_of(name: str, tokens: Tokens, shift: int = 0) -> Array:
    """The bits, as an array whose first axis is the tokens."""
    build, axis = CASES[name]
    node = compute(build(tokens, shift), shift=shift)
    return np.moveaxis(data(node), axis, 0).copy().view(np.uint8)


@each_case
@pytest.mark.parametrize("n_tokens", [1, 3, 5])
def test_bits_do_not_depend_on_the_batch(name: str, n_tokens: int) -> None:
    whole = result_of(name, slice(None))
    for t in range(0, N_TOKENS, n_tokens):
        part = slice(t, t + n_tokens)
        assert (result_of(name, part) == whole[part]).all()


@each_case
def test_bits_do_not_depend_on_the_order_of_tokens(name: str) -> None:
    order = [5, 0, 7, 2, 1, 6, 3, 4]
    assert (result_of(name, order) == result_of(name, slice(None))[order]).all()


@each_case
@pytest.mark.parametrize("shift", [1, 4, 20])
def test_bits_do_not_depend_on_alignment(name: str, shift: int) -> None:
    assert (result_of(name, slice(None), shift) == result_of(name, slice(None))).all()


@each_type((GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0, GGMLType.Q4_K))
def test_bits_of_mul_mat_by_other_weights(type: GGMLType) -> None:
    a = leaf(normal(9, 768), type)
    whole = data(compute(ops.mul_mat(a, leaf(X[:, :768]))))[0, 0]
    for t in range(N_TOKENS):
        alone = data(compute(ops.mul_mat(a, leaf(X[t, :768]))))[0, 0, 0]
        assert alone.tobytes() == whole[t].tobytes()


def test_bits_of_mul_mat_do_not_depend_on_other_rows_of_the_weights() -> None:
    whole = data(compute(ops.mul_mat(WEIGHTS, leaf(X))))[0, 0]
    for n, n_rows in ((0, 1), (7, 2), (255, 2), (299, 1)):
        rows = ops.view(WEIGHTS, (K, n_rows), offset=n * 4 * K)
        some = data(compute(ops.mul_mat(rows, leaf(X))))[0, 0]
        assert some.tobytes() == whole[:, n : n + n_rows].tobytes()


def test_bits_do_not_depend_on_strides() -> None:
    plain, turned = leaf(X), ops.transpose(leaf(np.ascontiguousarray(X.T)))
    whole, parts = leaf(normal(N_TOKENS, 2 * K)), []
    for offset in (0, 4 * K):
        parts.append(ops.view(whole, (K, N_TOKENS), nb=(4, 8 * K), offset=offset))
    builders: list[Callable[[Tensor], Tensor]] = [
        lambda x: ops.mul_mat(WEIGHTS, x),
        ops.sum_rows,
        lambda x: ops.scale(x, 0.3),
        lambda x: ops.log(ops.sqr(x)),
    ]
    for build in builders:
        assert data(compute(build(turned))).tobytes() == data(compute(build(plain))).tobytes()
    for build in (*builders, lambda x: ops.rms_norm(x, 1e-5), ops.silu, ops.gelu):
        for part in parts:
            packed = compute(build(ops.cont(part)))
            assert data(compute(build(part))).tobytes() == data(packed).tobytes()


def test_no_kernel_calls_blas() -> None:
    # BLAS chooses its own order of summation, so the tests above could pass on one machine only
    blas = {"matmul", "dot", "vdot", "inner", "einsum", "tensordot", "vecdot", "matvec", "vecmat"}
    files = list(Path(str(reference.__file__)).parent.glob("*.py"))
    assert len(files) >= 7
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            assert not isinstance(node, ast.MatMult), f"{file.name}: @"
            if isinstance(node, ast.Attribute):
                assert node.attr not in blas, f"{file.name}:{node.lineno}: {node.attr}"
