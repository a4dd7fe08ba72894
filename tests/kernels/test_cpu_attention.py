"""Paged attention on the CPU: the reference's values, and bits that depend on positions alone."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import cpu_run
import numpy as np
import pytest
from backends import CPU
from reference_run import Array, data, each_type, graph_of, ids, leaf, normal, values_of

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, Tensor, ops
from lamella.kernels.cpu.kernel_set import KERNELS
from lamella.kernels.cpu.plan import CpuPlan

KV_TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0)
N_CELLS = 384
N_LONG = 3 * 1632  # cells of three sequences, each longer than three partitions of 512 positions

# three sequences, with runs of tokens of one; positions at the edges of blocks of 32
SEQ = np.array([0, 0, 0, 0, 0, 1, 1, 2, 1, 2, 2, 2, 2])
POS = np.array([0, 31, 32, 33, 127, 63, 64, 95, 7, 92, 93, 94, 95])


def pool(
    n_head_kv: int,
    head_dim: int,
    type: GGMLType = GGMLType.F32,
    seed: int = 1,
    n_cells: int = N_CELLS,
) -> Tensor:
    return leaf(normal(n_cells, n_head_kv * head_dim, seed=seed), type)


def table(page_size: int, n_cells: int = N_CELLS) -> Array:
    """Pages of three sequences of equal length, somewhere in the pool."""
    return np.random.default_rng(page_size).permutation(n_cells // page_size).reshape(3, -1)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    page_size: int = 32,
    tokens: Any = slice(None),
    **params: Any,
) -> Tensor:
    pages_of_all = table(page_size, k.ne[1])
    params = {"pages": pages_of_all, "seq": SEQ[tokens], "pos": POS[tokens], **params}
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
    CPU.check(attention, queries(8, 32), pool(2, 32, k), pool(2, 32, v, seed=2))


def test_every_pair_of_types_is_supported() -> None:
    for k, v in product(KV_TYPES, KV_TYPES):
        node = attention(queries(8, 32), pool(2, 32, k), pool(2, 32, v))
        assert KERNELS.supports(node)
        assert len(KERNELS.calls_of(node)) == 1


@pytest.mark.parametrize("n_head_kv", [1, 2, 3, 4, 6, 12])
def test_heads_that_share_k_and_v(n_head_kv: int) -> None:
    CPU.check(attention, queries(12, 16), pool(n_head_kv, 16), pool(n_head_kv, 16, seed=2))


@pytest.mark.parametrize("head_dim", [1, 8, 12, 16, 24, 40, 64, 72, 80, 96, 128, 256])
@each_type((GGMLType.F16, GGMLType.Q8_0))
def test_head_dims(head_dim: int, type: GGMLType) -> None:
    n_head_kv = 32 // math.gcd(head_dim, 32)  # rows are whole blocks, heads need not be
    k, v = pool(n_head_kv, head_dim, type), pool(n_head_kv, head_dim, type, seed=2)
    CPU.check(attention, queries(n_head_kv, head_dim), k, v)
    other = pool(n_head_kv, 2 * head_dim, type, seed=2)
    assert attention(queries(n_head_kv, head_dim), k, other).ne[0] == 2 * head_dim
    CPU.check(attention, queries(2 * n_head_kv, head_dim), k, other)


@pytest.mark.parametrize("page_size", [1, 4, 16, 32, 64, 128])
def test_page_sizes_give_the_same_bits(page_size: int) -> None:
    q, whole = queries(4, 16), table(32)
    k, v = pool(2, 16), pool(2, 16, seed=2)
    bits = CPU.computed(attention(q, k, v))
    moved = []
    for cells in (k, v):
        copy = leaf(np.zeros((N_CELLS, 32)))
        old = data(cells)[0, 0].reshape(-1, 32, 32)[whole].reshape(3, -1, page_size, 32)
        data(copy)[0, 0].reshape(-1, page_size, 32)[table(page_size)] = old
        moved.append(copy)
    CPU.check(attention, q, *moved, page_size=page_size)
    assert CPU.computed(attention(q, *moved, page_size=page_size)) == bits


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
    CPU.check(attention, queries(6, 24), pool(2, 24), pool(2, 24, seed=2), **params)


def test_strided_sources() -> None:
    q = ops.permute(leaf(normal(4, len(SEQ), 16)), (0, 2, 1, 3))  # heads before tokens
    both = leaf(normal(N_CELLS, 64, seed=1))  # K and V side by side
    k = ops.view(both, (32, N_CELLS), nb=both.nb)
    v = ops.view(both, (32, N_CELLS), nb=both.nb, offset=128)
    CPU.check(attention, q, k, v)


@each_type(KV_TYPES)
@pytest.mark.parametrize(("n_head", "n_head_kv"), [(4, 4), (8, 2), (7, 1)])
def test_bits_do_not_depend_on_other_tokens(type: GGMLType, n_head: int, n_head_kv: int) -> None:
    q = normal(len(SEQ), n_head, 32)
    k, v = pool(n_head_kv, 32, type), pool(n_head_kv, 32, type, seed=2)
    whole = attention(leaf(q), k, v)
    cpu_run.compute(whole, 4)
    for some in ([0], [4], [8], [12], [1, 2], [4, 3, 2, 1, 0], [3, 5, 7, 9, 11], range(9, 13)):
        tokens = list(some)
        part = attention(leaf(q[tokens], shift=4), k, v, tokens=tokens)
        for n_threads in (1, 2, 5):
            cpu_run.compute(part, n_threads)
            assert (values_of(part)[0] == values_of(whole)[0, tokens]).all()


# the first and last positions of blocks and of partitions, for each sequence
LONG_POS = [0, 510, 511, 512, 513, 544, 1022, 1023, 1024, 1300, 1535, 1536, 1631]


def long_attention(
    n_head: int, n_head_kv: int, type: GGMLType = GGMLType.F16, **params: Any
) -> Any:
    """A function that builds the node of tokens (seq, pos); a query depends on both."""
    q = np.random.default_rng(3).standard_normal((3, 1632, n_head, 16))
    k, v = (pool(n_head_kv, 16, type, seed, N_LONG) for seed in (1, 2))
    return lambda seq, pos: attention(leaf(q[seq, pos]), k, v, seq=seq, pos=pos, **params)


def alone(build: Any, seq: int, pos: int, n_threads: int) -> Array:
    alone: Array = cpu_run.compute(build([seq], [pos]), n_threads)[0, 0].copy()
    return alone


@pytest.mark.parametrize("params", [{}, {"max_bias": 8.0, "softcap": 3.0, "scale": 1.0}], ids=str)
def test_partitions_are_merged(params: dict[str, Any]) -> None:
    build = long_attention(8, 2, **params)
    for seq, pos in (
        ([1], [1631]),
        ([0, 1, 2], [1100, 400, 512]),
        ([0] * 24, list(range(500, 524))),
    ):
        CPU.check(lambda seq=seq, pos=pos: build(seq, pos))


@each_type((GGMLType.F32, GGMLType.Q8_0))
@pytest.mark.parametrize(("n_head", "n_head_kv"), [(4, 4), (8, 2), (6, 2)])
def test_bits_do_not_depend_on_how_partitions_are_divided(
    type: GGMLType, n_head: int, n_head_kv: int
) -> None:
    build = long_attention(n_head, n_head_kv, type)
    seq = [s for s in range(3) for _ in LONG_POS]
    whole = cpu_run.compute(build(seq, LONG_POS * 3))[0].copy()  # too many tokens to divide
    for n_threads in (1, 2, 3):
        # one token: divided. Two of a sequence need more records than the pool allows
        for t in range(0, len(whole), 4):
            assert (alone(build, seq[t], LONG_POS[t % 13], n_threads) == whole[t]).all(), t
        for chosen in ([12, 25], [12, 11, 10, 9], [3, 2, 14, 27, 1], [8, 21, 34]):
            pos = [LONG_POS[t % 13] for t in chosen]
            part = cpu_run.compute(build([seq[t] for t in chosen], pos), n_threads)[0]
            assert (part == whole[chosen]).all(), (chosen, n_threads)


@pytest.mark.parametrize(("n_head", "n_head_kv"), [(3, 3), (8, 2)])
def test_prefill_in_chunks_and_decode_give_the_same_bits(n_head: int, n_head_kv: int) -> None:
    build = long_attention(n_head, n_head_kv)
    positions = list(range(490, 550))
    whole = cpu_run.compute(build([1] * 60, positions))[0].copy()
    for size, n_threads in ((7, 2), (33, 3), (17, 1)):
        chunks = [positions[i : i + size] for i in range(0, 60, size)]
        parts = [cpu_run.compute(build([1] * len(c), c), n_threads)[0].copy() for c in chunks]
        assert (np.concatenate(parts) == whole).all(), size
    for i in range(0, 60, 6):
        assert (alone(build, 1, positions[i], 2) == whole[i]).all(), i
    order = np.random.default_rng(5).permutation(60)
    mixed = cpu_run.compute(build([1] * 60, [positions[i] for i in order]), 2)[0]
    assert (mixed == whole[order]).all()


def test_partitions_are_divided_only_for_few_tokens_of_long_sequences() -> None:
    build = long_attention(8, 2)
    nodes = {n: build([0] * n, [9] * n) for n in (1, 16, 17)}
    nodes[0] = attention(queries(8, 16), pool(2, 16), pool(2, 16))
    records = {n: KERNELS.calls_of(node)[0].scratch > 0 for n, node in nodes.items()}
    assert records == {1: True, 16: True, 17: False, 0: False}


def test_a_plan_may_be_run_again_with_other_positions() -> None:
    build = long_attention(4, 1)
    node, pos = build([0, 1], [1600, 1100]), np.array([[1600, 1100], [7, 513], [1631, 0], [3, 4]])
    cpu_run.prepare(node)
    plan = CpuPlan(graph_of(node), cpu_run.address_of, 3)
    for two in pos:
        data(node.src[5])[...] = two
        plan.run(cpu_run.pool(3))
        for t in (0, 1):
            q = leaf(values_of(node.src[0])[0, t : t + 1])
            alone = attention(q, *node.src[1:3], seq=[t], pos=[two[t]])
            assert (cpu_run.compute(alone)[0, 0] == data(node)[0, t]).all(), two


def test_scores_may_grow_from_block_to_block() -> None:
    slopes = np.array([0.0, 0.01, 0.1, 0.5, 3.0, -0.1, -3.0, 0.24])
    q = np.broadcast_to(slopes[None, :, None], (len(SEQ), 8, 1))
    k = np.empty((N_CELLS, 1))
    k.reshape(-1, 32)[table(32).ravel()] = np.tile(np.arange(128.0), 3).reshape(-1, 32)
    CPU.check(attention, leaf(q), leaf(k), pool(1, 1, seed=2), scale=1.0)


def test_cells_of_later_tokens_do_not_affect_earlier_ones() -> None:
    v = pool(1, 16, seed=2)
    cells = data(v)[0, 0].reshape(-1, 32, 16)
    cells[table(32)[0, 1], 5:8] = np.array([np.inf, -np.inf, np.nan])[:, None]  # positions 37..39
    for n_head in (1, 4):
        q, k = normal(6, n_head, 16), pool(1, 16)
        node = attention(leaf(q), k, v, seq=[0] * 6, pos=[36, 35, 40, 34, 36, 33])
        CPU.computed(node)
        assert np.isnan(values_of(node)[0, 2]).all()
        for t, pos in ((0, 36), (1, 35), (3, 34), (5, 33)):
            alone = attention(leaf(q[t : t + 1]), k, v, seq=[0], pos=[pos])
            CPU.computed(alone)
            assert np.isfinite(values_of(alone)).all()
            assert (values_of(alone)[0, 0] == values_of(node)[0, t]).all()


def test_cells_after_a_token_s_position_are_never_read() -> None:
    for n_head in (1, 4):
        q, k, v = leaf(normal(2, n_head, 16)), pool(1, 16), pool(1, 16, seed=2)
        for pos in ([40, 37], [31, 30]):
            args: dict[str, Any] = {"seq": [0, 0], "pos": pos}
            clean = CPU.computed(attention(q, k, v, **args))
            spoiled = [leaf(values_of(t)) for t in (k, v)]
            for t in spoiled:
                pages = data(t)[0, 0].reshape(-1, 32, 16)
                pages[table(32)[0]] = np.where(
                    np.arange(128).reshape(4, 32, 1) > pos[0], np.nan, pages[table(32)[0]]
                )
            result = attention(q, *spoiled, **args)
            assert CPU.computed(result) == clean


def test_the_first_token_gets_its_own_value() -> None:
    k, v = pool(2, 8), pool(2, 8, seed=2)
    result = CPU.check(attention, leaf(normal(1, 2, 8)), k, v, seq=[1], pos=[0])
    assert (result[0, 0].ravel() == values_of(v)[0, 0, 32 * table(32)[1, 0]]).all()


def test_large_scores_do_not_overflow() -> None:
    node = attention(queries(2, 8), pool(2, 8), pool(2, 8, seed=2), scale=1e30)
    CPU.computed(node)
    assert np.isfinite(values_of(node)).all()


def test_a_nan_score_makes_its_result_nan() -> None:
    q = normal(len(SEQ), 4, 8)
    q[3, 1, 2] = math.nan
    result = CPU.check(attention, leaf(q), pool(1, 8), pool(1, 8, seed=2))
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


def test_pages_after_the_last_position_may_be_invalid() -> None:
    q, k, v = leaf(normal(1, 2, 8)), pool(2, 8), pool(2, 8)
    CPU.check(attention, q, k, v, pages=[[3, -1], [99, 99]], seq=[0], pos=[31])
