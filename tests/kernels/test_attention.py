"""Paged attention: the reference's values, and bits that depend on positions alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from attention_run import (
    F16,
    F32,
    KV_TYPES,
    N_CELLS,
    N_POSITIONS,
    N_SEQS,
    POS,
    Q8_0,
    SEQ,
    Shape,
    bits,
    build,
    check,
    pool,
    queries,
    table,
    ways,
)
from backends import Backend, each_backend
from matrix import combinations
from reference_run import data, each_type, leaf, normal, values_of

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, ops

# --- values ---


@each_backend
@pytest.mark.parametrize(
    ("k", "v"),
    [*zip(KV_TYPES, KV_TYPES, strict=True), (F16, Q8_0), (Q8_0, F32)],
    ids=lambda t: t.name,
)
def test_types_of_k_and_v(on: Backend, k: GGMLType, v: GGMLType) -> None:
    check(on, Shape(8, 2, type_k=k, type_v=v))


@each_backend
@pytest.mark.parametrize("n_head_kv", [1, 4, 12])
def test_heads_that_share_k_and_v(on: Backend, n_head_kv: int) -> None:
    check(on, Shape(12, n_head_kv, 16, 16, F32, F32))


@each_backend
@pytest.mark.parametrize(
    ("params", "type"),
    combinations(
        [
            {"softcap": 1.5},
            {"max_bias": 8.0},
            {"softcap": 2.0, "max_bias": 4.0, "scale": 0.7},
            {"scale": 0.0},
        ],
        (F16, F32),
    ),
    ids=str,
)
def test_softcap_and_alibi(on: Backend, type: GGMLType, params: dict[str, float]) -> None:
    # six heads: the slopes of four, then every other one of eight
    check(on, Shape(6, 2, type_k=type), **params)


@each_backend
@each_type((F16, Q8_0, F32))
def test_strided_sources(on: Backend, type: GGMLType) -> None:
    # heads before tokens; K and V side by side, then not aligned to 16 bytes
    shape = Shape(4, 2, type_k=type, type_v=type)
    q = ops.permute(leaf(queries(4, 32)[SEQ, POS].transpose(1, 0, 2)), (0, 2, 1, 3))
    whole = bits(on, build(shape, q=q))
    for pad, shift in ((0, 0), (64, 4)):
        rows = np.zeros((N_CELLS, 128 + pad))
        rows[:, :64] = values_of(pool(64, type, 1))[0, 0]
        rows[:, 64:128] = values_of(pool(64, type, 2))[0, 0]
        both = leaf(rows, type, shift=shift)
        offset = both.nb[1] * 64 // both.ne[0]
        k = ops.view(both, (64, N_CELLS), nb=both.nb)
        v = ops.view(both, (64, N_CELLS), nb=both.nb, offset=offset)
        for way in ways(on, build(shape))[:3]:
            assert (bits(on, build(shape, q=q, k=k, v=v), way) == whole).all(), (pad, way)
    check(on, shape, q=q)
    assert (bits(on, build(shape)) == whole).all()


@each_backend
@each_type((F16, Q8_0))
def test_values_that_are_part_of_keys(on: Backend, type: GGMLType) -> None:
    """The sizes of DeepSeek's latent rows, and others."""
    seq, pos = [0, 0, 1, 2], [31, 32, 300, 513]
    for n_head, n_k, n_v in ((4, 576, 512), (8, 96, 64)):
        shape = Shape(n_head, 1, n_k, n_v, type, type)
        k = pool(n_k, type, 1)
        v = ops.view(k, (n_v, N_CELLS), k.nb[:2])
        whole = check(on, shape, seq, pos, k=k, v=v)
        copied = leaf(values_of(k)[0, 0][:, :n_v], type)
        assert (bits(on, build(shape, seq, pos, k=k, v=copied)) == whole).all()


@each_backend
@pytest.mark.parametrize("params", [{}, {"max_bias": 8.0, "softcap": 3.0, "scale": 1.0}], ids=str)
def test_partitions_are_merged(on: Backend, params: dict[str, Any]) -> None:
    for seq, pos in (
        ([1], [1631]),
        ([0, 1, 2], [1100, 400, 512]),
        ([0] * 24, list(range(500, 524))),
    ):
        check(on, Shape(8, 2, 16, 16), seq, pos, **params)


@each_backend
def test_scores_may_grow_from_block_to_block(on: Backend) -> None:
    slopes = np.array([0.0, 0.01, 0.1, 0.5, 3.0, -0.1, -3.0, 0.24])
    pos = np.minimum(POS, 127)
    q = np.broadcast_to(slopes[None, :, None], (len(pos), 8, 1))
    k = np.empty((N_CELLS, 1))
    k.reshape(-1, 32)[table().ravel()] = np.tile(np.arange(N_POSITIONS), 3).reshape(-1, 32)
    check(on, Shape(8, 1, 1, 1, F32, F32), pos=pos, q=leaf(q), k=leaf(k), scale=1.0)


# --- bits ---


@each_backend
@pytest.mark.parametrize(
    ("heads", "type"), combinations([(4, 4), (7, 1), (8, 2)], KV_TYPES), ids=str
)
def test_bits_do_not_depend_on_other_tokens(
    on: Backend, heads: tuple[int, int], type: GGMLType
) -> None:
    shape = Shape(*heads, type_k=type, type_v=type)
    whole = bits(on, build(shape))
    chosen = ways(on, build(shape))
    for i, some in enumerate(
        ([0], [4], [8], [12], [1, 2], [4, 3, 2, 1, 0], [3, 5, 7, 9, 11], range(9, 16))
    ):
        tokens = list(some)
        seq, pos = SEQ[tokens], POS[tokens]
        q = leaf(queries(shape.n_head, shape.k)[seq, pos], shift=4)
        for way in (chosen[0], chosen[1 + i % (len(chosen) - 1)]):
            part = bits(on, build(shape, seq, pos, q=q), way)
            assert (part == whole[tokens]).all(), (some, way)


@each_backend
@pytest.mark.parametrize("shape", [Shape(), Shape(3, 3), Shape(8, 2)], ids=str)
def test_prefill_in_chunks_and_decode_give_the_same_bits(on: Backend, shape: Shape) -> None:
    positions = list(range(465, 555))
    _, some, *_, other = ways(on, build(shape))
    whole = bits(on, build(shape, [1] * 90, positions), some)
    for size in (7, 17, 33):
        chunks = [positions[i : i + size] for i in range(0, 90, size)]
        parts = [bits(on, build(shape, [1] * len(c), c), other) for c in chunks]
        assert (np.concatenate(parts) == whole).all(), size
    for i in range(0, 90, 6):
        assert (bits(on, build(shape, [1], positions[i : i + 1])) == whole[i : i + 1]).all(), i
    order = np.random.default_rng(5).permutation(90)
    mixed = bits(on, build(shape, [1] * 90, [positions[i] for i in order]))
    assert (mixed == whole[order]).all()


# --- visible and hidden cells ---


@each_backend
@pytest.mark.parametrize(("n_head", "type"), combinations([1, 2, 4], (F16, F32)), ids=str)
def test_cells_of_later_tokens_do_not_affect_earlier_ones(
    on: Backend, type: GGMLType, n_head: int
) -> None:
    shape = Shape(n_head, 1, type_k=type, type_v=type)
    v = leaf(values_of(pool(32, type, 2))[0, 0], type)
    cells = data(v)[0, 0].reshape(-1, 32, 32)
    cells[table()[0, 1], 5:8] = np.array([np.inf, -np.inf, np.nan])[:, None]  # positions 37..39
    pos = [36, 35, 40, 34, 36, 33, 60]
    for way in ways(on, build(shape)):
        node = build(shape, [0] * 7, pos, v=v)
        whole = bits(on, node, way)
        assert np.isnan(values_of(node)[0, [2, 6]]).all()
        for t in (0, 1, 3, 5):
            assert np.isfinite(values_of(node)[0, t]).all()
            assert (bits(on, build(shape, [0], pos[t : t + 1], v=v)) == whole[t]).all(), t


@each_backend
@pytest.mark.parametrize(("n_head", "type"), combinations([1, 2, 4], (F16, Q8_0, F32)), ids=str)
def test_cells_after_the_last_position_are_never_read(
    on: Backend, type: GGMLType, n_head: int
) -> None:
    shape = Shape(n_head, 1, type_k=type, type_v=type)
    pages = np.full((N_SEQS, N_POSITIONS // 32), 10**6)
    pages[:, 1::2] = -1
    pages[0, :9] = table()[0, :9]
    spoiled = []
    for i in (1, 2):
        t = leaf(values_of(pool(32, type, i))[0, 0], type)
        raw = t.buffer[t.offset :][: t.nbytes].reshape(N_CELLS // 32, 32, -1)
        raw[table()[0, 8], 8:] = 0xFF  # NaN, like all cells outside of the sequence's pages
        raw[np.setdiff1d(np.arange(N_CELLS // 32), table()[0, :9])] = 0xFF
        spoiled.append(t)
    for pos in ([263], [263, 262, 100]):
        seq = [0] * len(pos)
        clean = bits(on, build(shape, seq, pos))
        for way in ways(on, build(shape)):
            node = build(shape, seq, pos, k=spoiled[0], v=spoiled[1], pages=pages)
            assert (bits(on, node, way) == clean).all(), way


@each_backend
@each_type((F16, F32))
def test_the_first_token_gets_its_own_value(on: Backend, type: GGMLType) -> None:
    node = build(Shape(2, 2, type_k=type, type_v=type), [1], [0])
    bits(on, node)
    cell = 32 * table()[1, 0]
    assert (values_of(node).ravel() == values_of(pool(64, type, 2))[0, 0, cell]).all()


@each_backend
@each_type((F16, F32))
def test_large_scores_do_not_overflow(on: Backend, type: GGMLType) -> None:
    for scale in (1e30, -1e30):
        node = build(Shape(type_k=type, type_v=type), scale=scale)
        bits(on, node)
        assert np.isfinite(values_of(node)).all()


@each_backend
@each_type((F16, F32))
def test_a_nan_score_makes_its_result_nan(on: Backend, type: GGMLType) -> None:
    shape, q = Shape(type_k=type, type_v=type), queries(4, 32)[SEQ, POS]
    q[3, 1, 2] = math.nan
    for way in ways(on, build(shape)):
        node = build(shape, q=leaf(q))
        bits(on, node, way)
        assert np.isnan(values_of(node)[0, 3, 1]).all()
        assert np.isnan(values_of(node)).sum() == 32


@each_backend
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"seq": [3]}, "index 3 must be at least 0 and below 3"),
        ({"seq": [-1]}, "index -1 must be at least 0 and below 3"),
        ({"end": [1665]}, "index 1665 must be at least 0 and below 1665"),
        ({"end": [-1]}, "index -1 must be at least 0 and below 1665"),
        ({"begin": [-1]}, "index -1 must be at least 0 and below 2"),
        ({"begin": [10], "end": [9]}, "index 10 must be at least 0 and below 10"),
        ({"pages": [[0, -1]], "pos": [32]}, "index -1 must be at least 0 and below 156"),
        ({"pages": [[0, 156]], "pos": [63]}, "index 156 must be at least 0 and below 156"),
        # among tokens of other sequences
        ({"seq": [0, 1, 7, 2], "pos": [500, 5, 5, 600]}, "index 7 must be at least 0 and below 3"),
        ({"seq": [0, 0, 2], "pos": [9, -6, 300]}, "index -5 must be at least 0 and below 1665"),
    ],
    ids=str,
)
@each_type((F16, F32))
def test_indices_out_of_range_are_reported(
    on: Backend, type: GGMLType, args: dict[str, Any], message: str
) -> None:
    args = {"seq": [0], "pos": [0], **args}
    shape = Shape(type_k=type, type_v=type)
    for way in ways(on, build(shape))[:4]:
        node = build(shape, q=leaf(normal(len(args["pos"]), 4, 32)), **args)
        with pytest.raises(BackendError, match=f"flash_attn_ext .*: {message}"):
            bits(on, node, way)
