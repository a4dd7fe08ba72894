"""Paged attention on the CPU: the reference's values, and bits that depend on positions alone."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import cpu_run
import numpy as np
import pytest
from cpu_check import check, computed
from reference_run import Array, data, each_type, ids, leaf, normal, values_of

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, Op, Tensor, ops
from lamella.kernels.cpu.plan import calls_of
from lamella.kernels.cpu.table import TABLE

KV_TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0)
N_CELLS = 384

# three sequences; tokens at the edges of blocks of 32 positions, some of one sequence in a row
SEQ = np.array([0, 0, 0, 0, 0, 1, 1, 2, 1, 2, 2, 2, 2])
POS = np.array([0, 31, 32, 33, 127, 63, 64, 95, 7, 92, 93, 94, 95])


def pool(n_head_kv: int, head_dim: int, type: GGMLType = GGMLType.F32, seed: int = 1) -> Tensor:
    return leaf(normal(N_CELLS, n_head_kv * head_dim, seed=seed), type)


def table(page_size: int) -> Array:
    """Pages of the three sequences, 128 positions each, somewhere in the pool."""
    return np.random.default_rng(page_size).permutation(N_CELLS // page_size).reshape(3, -1)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    page_size: int = 32,
    tokens: Any = slice(None),
    **params: Any,
) -> Tensor:
    params = {"pages": table(page_size), "seq": SEQ[tokens], "pos": POS[tokens], **params}
    pages, seq, pos = (ids(params.pop(name)) for name in ("pages", "seq", "pos"))
    params.setdefault("scale", q.ne[0] ** -0.5)
    return ops.flash_attn_ext(q, k, v, pages, seq, pos, page_size=page_size, **params)


def queries(n_head: int, head_dim: int) -> Tensor:
    return leaf(normal(len(SEQ), n_head, head_dim))


@pytest.mark.parametrize(
    ("k", "v"),
    [*zip(KV_TYPES, KV_TYPES, strict=True), (KV_TYPES[1], KV_TYPES[3]), (KV_TYPES[3], KV_TYPES[0])],
    ids=lambda type: type.name,
)
def test_types_of_k_and_v(k: GGMLType, v: GGMLType) -> None:
    check(attention, queries(8, 32), pool(2, 32, k), pool(2, 32, v, seed=2))


def test_every_pair_of_types_is_supported() -> None:
    for k, v in product(KV_TYPES, KV_TYPES):
        node = attention(queries(8, 32), pool(2, 32, k), pool(2, 32, v))
        assert TABLE[Op.FLASH_ATTN_EXT].supports(node)
        assert len(calls_of(node)) == 1


@pytest.mark.parametrize("n_head_kv", [1, 2, 3, 4, 6, 12])
def test_heads_that_share_k_and_v(n_head_kv: int) -> None:
    check(attention, queries(12, 16), pool(n_head_kv, 16), pool(n_head_kv, 16, seed=2))


@pytest.mark.parametrize("head_dim", [1, 8, 12, 16, 24, 40, 64, 72, 80, 96, 128, 256])
@each_type((GGMLType.F16, GGMLType.Q8_0))
def test_head_dims(head_dim: int, type: GGMLType) -> None:
    n_head_kv = 32 // math.gcd(head_dim, 32)  # whole blocks, which heads may lie across
    k, v = pool(n_head_kv, head_dim, type), pool(n_head_kv, head_dim, type, seed=2)
    check(attention, queries(n_head_kv, head_dim), k, v)
    other = pool(n_head_kv, 2 * head_dim, type, seed=2)
    assert attention(queries(n_head_kv, head_dim), k, other).ne[0] == 2 * head_dim
    check(attention, queries(2 * n_head_kv, head_dim), k, other)


@pytest.mark.parametrize("page_size", [1, 4, 16, 32, 64, 128])
def test_page_sizes_give_the_same_bits(page_size: int) -> None:
    q, whole = queries(4, 16), table(32)
    k, v = pool(2, 16), pool(2, 16, seed=2)
    bits = computed(attention(q, k, v))
    moved = []
    for cells in (k, v):
        copy = leaf(np.zeros((N_CELLS, 32)))
        old = data(cells)[0, 0].reshape(-1, 32, 32)[whole].reshape(3, -1, page_size, 32)
        data(copy)[0, 0].reshape(-1, page_size, 32)[table(page_size)] = old
        moved.append(copy)
    check(attention, q, *moved, page_size=page_size)
    assert computed(attention(q, *moved, page_size=page_size)) == bits


@pytest.mark.parametrize(
    "params",
    [
        {"softcap": 1.5},
        {"max_bias": 8.0},
        {"softcap": 2.0, "max_bias": 4.0, "scale": 0.7},
        {"scale": 0.0},
    ],
    ids=str,
)
def test_softcap_and_alibi(params: dict[str, float]) -> None:
    # six heads: the slopes of four, then every other one of eight
    check(attention, queries(6, 24), pool(2, 24), pool(2, 24, seed=2), **params)


def test_strided_sources() -> None:
    q = ops.permute(leaf(normal(4, len(SEQ), 16)), (0, 2, 1, 3))  # heads before tokens
    both = leaf(normal(N_CELLS, 64, seed=1))  # K and V side by side
    k = ops.view(both, (32, N_CELLS), nb=both.nb)
    v = ops.view(both, (32, N_CELLS), nb=both.nb, offset=128)
    check(attention, q, k, v)


@each_type(KV_TYPES)
@pytest.mark.parametrize(("n_head", "n_head_kv"), [(4, 4), (8, 2), (7, 1)])
def test_bits_do_not_depend_on_other_tokens(type: GGMLType, n_head: int, n_head_kv: int) -> None:
    q = normal(len(SEQ), n_head, 32)
    k, v = pool(n_head_kv, 32, type), pool(n_head_kv, 32, type, seed=2)
    whole = attention(leaf(q), k, v)
    computed(whole, 4)
    for some in ([0], [4], [8], [12], [1, 2], [4, 3, 2, 1, 0], [3, 5, 7, 9, 11], range(9, 13)):
        tokens = list(some)
        part = attention(leaf(q[tokens], shift=4), k, v, tokens=tokens)
        for n_threads in (1, 2, 5):
            computed(part, n_threads)
            assert (values_of(part)[0] == values_of(whole)[0, tokens]).all()


def test_what_lies_behind_a_token_s_position_is_never_read() -> None:
    for n_head in (1, 4):
        q, k, v = leaf(normal(2, n_head, 16)), pool(1, 16), pool(1, 16, seed=2)
        for pos in ([40, 37], [31, 30]):
            args: dict[str, Any] = {"seq": [0, 0], "pos": pos}
            clean = computed(attention(q, k, v, **args))
            spoiled = [leaf(values_of(t)) for t in (k, v)]
            for t in spoiled:
                pages = data(t)[0, 0].reshape(-1, 32, 16)
                pages[table(32)[0]] = np.where(
                    np.arange(128).reshape(4, 32, 1) > pos[0], np.nan, pages[table(32)[0]]
                )
            result = attention(q, *spoiled, **args)
            assert computed(result) == clean


def test_the_first_token_gets_its_own_value() -> None:
    k, v = pool(2, 8), pool(2, 8, seed=2)
    result = check(attention, leaf(normal(1, 2, 8)), k, v, seq=[1], pos=[0])
    assert (result[0, 0].ravel() == values_of(v)[0, 0, 32 * table(32)[1, 0]]).all()


def test_large_scores_do_not_overflow() -> None:
    node = attention(queries(2, 8), pool(2, 8), pool(2, 8, seed=2), scale=1e30)
    computed(node)
    assert np.isfinite(values_of(node)).all()


def test_a_score_that_is_no_number_makes_its_result_none() -> None:
    q = normal(len(SEQ), 4, 8)
    q[3, 1, 2] = math.nan
    result = check(attention, leaf(q), pool(1, 8), pool(1, 8, seed=2))
    assert np.isnan(result[0, 3, 1]).all()
    assert np.isnan(result).sum() == 8


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"seq": [3]}, "index 3 must be at least 0 and below 3"),
        ({"seq": [-1]}, "index -1 must be at least 0 and below 3"),
        ({"pos": [128]}, "index 128 must be at least 0 and below 128"),
        ({"pos": [-1]}, "index -1 must be at least 0 and below 128"),
        ({"pages": [[0, -1]], "pos": [32]}, "index -1 must be at least 0 and below 12"),
        ({"pages": [[0, 12]], "pos": [32]}, "index 12 must be at least 0 and below 12"),
    ],
)
def test_indices_out_of_range_are_refused(args: dict[str, Any], message: str) -> None:
    q, k, v = leaf(normal(1, 2, 8)), pool(2, 8), pool(2, 8)
    with pytest.raises(BackendError, match=f"flash_attn_ext .*: {message}"):
        cpu_run.compute(attention(q, k, v, **{"seq": [0], "pos": [0], **args}))


def test_pages_behind_the_last_position_may_be_anything() -> None:
    q, k, v = leaf(normal(1, 2, 8)), pool(2, 8), pool(2, 8)
    check(attention, q, k, v, pages=[[3, -1], [99, 99]], seq=[0], pos=[31])
