"""Paged attention on CUDA: the reference's values, and bits that depend on positions alone, for any
kernel and any division of the work."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import cuda_run
import numpy as np
import pytest
import reference_run
from cuda_grid import needs_compiler
from reference_run import Array, data, ids, leaf, normal, relative_error, values_of

from lamella.base.errors import BackendError
from lamella.graph import GGMLType, Tensor, ops
from lamella.kernels.cuda.ops import attention
from lamella.kernels.cuda.ops.attention import Division, calls_of, divided, has_tensor_cores

pytestmark = needs_compiler

F32, F16, BF16, Q8_0 = GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0
N_SEQS: Final = 3
N_POSITIONS: Final = 1088  # of each sequence: four partitions and two pages
N_CELLS: Final = N_SEQS * N_POSITIONS

# three sequences, with runs of tokens of one; positions at the edges of tiles and partitions
SEQ: Final = np.array([0, 0, 0, 0, 0, 1, 1, 2, 1, 2, 2, 2, 2, 0, 0, 0])
POS: Final = np.array([0, 31, 32, 33, 255, 256, 257, 95, 7, 511, 512, 513, 1055, 700, 701, 3])

SMALL, WIDE = Division(1), Division(4)
DIVISIONS: Final = (
    *(SMALL, WIDE, Division(1, 3, 1000), Division(4, 2, 1000), Division(1, 9, 1000)),
    Division(1, 4, 3),  # records do not fit
)
DIVISIONS_F32: Final = (Division(0), Division(0, 2, 1000), Division(0, 3, 5))


class Shape(NamedTuple):
    """Heads of queries and of the pool, their elements, types of the pools."""

    n_head: int = 4
    n_head_kv: int = 2
    k: int = 32
    v: int = 32
    type_k: GGMLType = F16
    type_v: GGMLType = F16

    def __str__(self) -> str:
        heads = f"{self.n_head} of {self.n_head_kv}"
        return f"{heads} {self.k} {self.type_k.name} {self.v} {self.type_v.name}"


SHAPE: Final = Shape()


@cache
def pool(n: int, type: GGMLType, seed: int) -> Tensor:
    return leaf(normal(N_CELLS, n, seed=seed), type)


@cache
def queries(n_head: int, head_dim: int) -> Array:
    """A query for each position of each sequence."""
    return normal(N_SEQS, N_POSITIONS, n_head, head_dim)


def table(page_size: int = 32) -> Array:
    """Pages of the sequences, anywhere in the pool."""
    n = N_POSITIONS // page_size
    return np.random.default_rng(1).permutation(N_CELLS // page_size)[: 3 * n].reshape(N_SEQS, n)


def build(
    shape: Shape = SHAPE,
    seq: Any = SEQ,
    pos: Any = POS,
    *,
    q: Tensor | None = None,
    k: Tensor | None = None,
    v: Tensor | None = None,
    pages: Any = None,
    page_size: int = 32,
    **params: Any,
) -> Tensor:
    if q is None:
        q = leaf(queries(shape.n_head, shape.k)[seq, pos])
    k = pool(shape.n_head_kv * shape.k, shape.type_k, 1) if k is None else k
    v = pool(shape.n_head_kv * shape.v, shape.type_v, 2) if v is None else v
    pages = ids(table(page_size) if pages is None else pages)
    params.setdefault("scale", shape.k**-0.5)
    return ops.flash_attn_ext(q, k, v, pages, ids(seq), ids(pos), page_size=page_size, **params)


@contextmanager
def division(chosen: Division | None) -> Iterator[None]:
    """Divide all nodes this way in the block."""
    if chosen is None:
        yield
        return
    with patch.object(attention, "divided", lambda _: chosen):
        yield


def bits(node: Tensor, chosen: Division | None = None, **run: Any) -> Array:
    """The result's bits as integers; the first axis is the tokens."""
    assert cuda_run.supports(node)
    with division(chosen):
        return np.ascontiguousarray(cuda_run.compute(node, **run)[0]).view(np.uint32).copy()


def check(limit: float, divisions: Sequence[Division], *args: Any, **params: Any) -> Array:
    """Check for the reference's values within `limit`, and the same bits in all divisions."""
    node = build(*args, **params)
    whole = bits(node)
    expected = reference_run.run(build(*args, **params))
    assert relative_error(values_of(node), expected) <= limit
    for chosen in divisions:
        assert (bits(build(*args, **params), chosen) == whole).all(), chosen
    assert (bits(build(*args, **params), divisions[0], reverse=True) == whole).all()
    assert (bits(build(*args, **params), divisions[1], shift=4) == whole).all()
    return whole


def check_tensor(*args: Any, **params: Any) -> Array:
    assert has_tensor_cores(build(*args, **params))
    return check(3e-7, DIVISIONS, *args, **params)


def check_f32(*args: Any, **params: Any) -> Array:
    assert not has_tensor_cores(build(*args, **params))
    return check(1e-11, DIVISIONS_F32, *args, **params)


# --- values ---


@pytest.mark.parametrize(
    "shape",
    [
        Shape(2, 2, 64, 64),
        Shape(2, 1, 64, 64, Q8_0, Q8_0),
        Shape(3, 1, 40, 24),  # not whole steps of the tensor core
        Shape(4, 2, 48, 80, Q8_0, Q8_0),  # heads begin and end within blocks
        Shape(1, 1, 256, 256, Q8_0, F16),  # two slices of values
        *(Shape(n, 1) for n in (4, 7, 8, 20, 80)),  # heads that share; 80 need several blocks
    ],
    ids=str,
)
def test_tensor_cores(shape: Shape) -> None:
    check_tensor(shape)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(2, 1, 64, 64, F32, F32),
        Shape(4, 2, 16, 80, BF16, Q8_0),
        Shape(3, 3, 12, 70, F16, BF16),
        Shape(2, 1, 288, 272, F16, F16),
        Shape(1, 1, 1, 1, F32, F16),
        Shape(32, 32, 5, 3, Q8_0, Q8_0),
    ],
    ids=str,
)
def test_float32(shape: Shape) -> None:
    check_f32(shape)


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
    check_tensor(Shape(6, 2), **params)
    check_f32(Shape(6, 2, type_k=F32), **params)


def test_a_larger_page_is_as_good_as_two() -> None:
    pages = table(64)
    whole = check_tensor(Shape(2, 1), page_size=64, pages=pages)
    halves = (2 * pages[:, :, None] + [0, 1]).reshape(N_SEQS, -1)
    assert (bits(build(Shape(2, 1), pages=halves)) == whole).all()


@pytest.mark.parametrize("page_size", [96, 16, 4, 1])
def test_pages_of_any_size(page_size: int) -> None:
    check_f32(Shape(2, 1), page_size=page_size)


@pytest.mark.parametrize("type", [F16, Q8_0, F32], ids=lambda type: type.name)
def test_strided_sources(type: GGMLType) -> None:
    # heads before tokens; K and V side by side, then not aligned to 16 bytes
    q = ops.permute(leaf(queries(4, 32)[SEQ, POS].transpose(1, 0, 2)), (0, 2, 1, 3))
    whole = bits(build(Shape(4, 2, type_k=type, type_v=type), q=q))
    for pad, shift in ((0, 0), (64, 4)):
        rows = np.zeros((N_CELLS, 128 + pad))
        rows[:, :64] = values_of(pool(64, type, 1))[0, 0]
        rows[:, 64:128] = values_of(pool(64, type, 2))[0, 0]
        both = leaf(rows, type, shift=shift)
        offset = both.nb[1] * 64 // both.ne[0]
        k = ops.view(both, (64, N_CELLS), nb=both.nb)
        v = ops.view(both, (64, N_CELLS), nb=both.nb, offset=offset)
        for chosen in (DIVISIONS_F32 if type is F32 else DIVISIONS)[:2]:
            node = build(Shape(4, 2, type_k=type, type_v=type), q=q, k=k, v=v)
            assert (bits(node, chosen) == whole).all(), (pad, shift)
    node = build(Shape(4, 2, type_k=type, type_v=type))
    assert (bits(node) == whole).all()


def test_a_long_context() -> None:
    n = 4100
    k, v = (leaf(normal(n + 28, 64, seed=i), F16) for i in (1, 2))
    q = leaf(normal(2, 2, 64))
    pages = np.random.default_rng(1).permutation(129)[None]
    args: dict[str, Any] = {"q": q, "k": k, "v": v, "pages": pages, "seq": [0, 0]}
    check_tensor(Shape(2, 1, 64, 64), pos=[n - 1, n - 900], **args)


# --- bits ---


@pytest.mark.parametrize("shape", [Shape(), Shape(7, 1), Shape(2, 2, 64, 64, F32, F32)], ids=str)
def test_bits_do_not_depend_on_other_tokens(shape: Shape) -> None:
    whole = bits(build(shape))
    chosen = DIVISIONS if has_tensor_cores(build(shape)) else DIVISIONS_F32
    for i, some in enumerate(
        ([0], [4], [12], [1, 2], [4, 3, 2, 1, 0], [3, 5, 9, 10], range(9, 16))
    ):
        tokens = list(some)
        part = build(shape, SEQ[tokens], POS[tokens])
        assert (bits(part, chosen[i % len(chosen)]) == whole[tokens]).all(), some
        assert (bits(build(shape, SEQ[tokens], POS[tokens])) == whole[tokens]).all(), some


def test_prefill_in_chunks_and_decode_give_the_same_bits() -> None:
    positions = list(range(215, 305))
    whole = bits(build(pos=positions, seq=[1] * 90), WIDE)
    for size in (7, 33):
        chunks = [positions[i : i + size] for i in range(0, 90, size)]
        parts = [bits(build(pos=c, seq=[1] * len(c))) for c in chunks]
        assert (np.concatenate(parts) == whole).all(), size
    for i in range(0, 90, 8):
        assert (bits(build(pos=positions[i : i + 1], seq=[1])) == whole[i : i + 1]).all(), i
    order = np.random.default_rng(5).permutation(90)
    mixed = bits(build(pos=[positions[i] for i in order], seq=[1] * 90), SMALL)
    assert (mixed == whole[order]).all()


def test_tokens_that_decode_beside_a_prompt() -> None:
    # runs of one token, of a prompt, and of padding: a sequence with only the pool's first page
    seq, pos = [1, 2] + [0] * 60 + [3] * 10, [900, 300, *range(400, 460)] + [0] * 10
    pages = np.concatenate([table(), np.full((1, N_POSITIONS // 32), -1)])
    pages[3, 0] = 0
    q = queries(4, 32)
    node = build(q=leaf(q[np.array(seq) % 3, pos]), seq=seq, pos=pos, pages=pages)
    whole = bits(node)
    assert np.isfinite(values_of(node)).all()
    for chosen in (SMALL, WIDE, Division(4, 4, 1000)):
        again = build(q=leaf(q[np.array(seq) % 3, pos]), seq=seq, pos=pos, pages=pages)
        assert (bits(again, chosen) == whole).all(), chosen
    for t in (0, 1, 2, 33, 61):
        assert (bits(build(seq=seq[t : t + 1], pos=pos[t : t + 1])) == whole[t]).all(), t


# --- visible and hidden cells ---


@pytest.mark.parametrize("type", [F16, F32], ids=lambda type: type.name)
def test_cells_of_later_tokens_do_not_affect_earlier_ones(type: GGMLType) -> None:
    shape = Shape(2, 1, type_k=type, type_v=type)
    v = leaf(values_of(pool(32, type, 2))[0, 0], type)
    cells = data(v)[0, 0].reshape(-1, 32, 32)
    cells[table()[0, 1], 5:8] = np.array([np.inf, -np.inf, np.nan])[:, None]  # positions 37..39
    pos = [36, 35, 40, 34, 36, 33, 60]
    for chosen in DIVISIONS[:4] if type is F16 else DIVISIONS_F32:
        node = build(shape, [0] * 7, pos, v=v)
        whole = bits(node, chosen)
        assert np.isnan(values_of(node)[0, [2, 6]]).all()
        for t in (0, 1, 3, 5):
            assert np.isfinite(values_of(node)[0, t]).all()
            assert (bits(build(shape, [0], pos[t : t + 1], v=v)) == whole[t]).all(), t


@pytest.mark.parametrize("type", [F16, Q8_0, F32], ids=lambda type: type.name)
def test_cells_after_the_last_position_are_never_read(type: GGMLType) -> None:
    shape = Shape(2, 1, type_k=type, type_v=type)
    pages = np.full((N_SEQS, N_POSITIONS // 32), 10**6)
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
        clean = bits(build(shape, seq, pos))
        for chosen in DIVISIONS_F32 if type is F32 else DIVISIONS[:4]:
            node = build(shape, seq, pos, k=spoiled[0], v=spoiled[1], pages=pages)
            assert (bits(node, chosen) == clean).all(), chosen


def test_the_first_token_gets_its_own_value() -> None:
    for type in (F16, F32):
        shape = Shape(2, 2, type_k=type, type_v=type)
        node = build(shape, [1], [0])
        bits(node)
        cell = 32 * table()[1, 0]
        assert (values_of(node).ravel() == values_of(pool(64, type, 2))[0, 0, cell]).all()


def test_large_scores_do_not_overflow() -> None:
    for type in (F16, F32):
        for scale in (1e30, -1e30):
            node = build(Shape(type_k=type, type_v=type), scale=scale)
            bits(node)
            assert np.isfinite(values_of(node)).all()


def test_a_nan_score_makes_its_result_nan() -> None:
    q = queries(4, 32)[SEQ, POS]
    q[3, 1, 2] = math.nan
    for type in (F16, F32):
        for chosen in DIVISIONS[:3] if type is F16 else DIVISIONS_F32:
            node = build(Shape(type_k=type, type_v=type), q=leaf(q))
            bits(node, chosen)
            assert np.isnan(values_of(node)[0, 3, 1]).all()
            assert np.isnan(values_of(node)).sum() == 32


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"seq": [3]}, "index 3 must be at least 0 and below 3"),
        ({"seq": [-1]}, "index -1 must be at least 0 and below 3"),
        ({"pos": [1088]}, "index 1088 must be at least 0 and below 1088"),
        ({"pos": [-1]}, "index -1 must be at least 0 and below 1088"),
        ({"pages": [[0, -1]], "pos": [32]}, "index -1 must be at least 0 and below 102"),
        ({"pages": [[0, 102]], "pos": [63]}, "index 102 must be at least 0 and below 102"),
        # among tokens of other sequences
        ({"seq": [0, 1, 7, 2], "pos": [500, 5, 5, 600]}, "index 7 must be at least 0 and below 3"),
        ({"seq": [0, 0, 2], "pos": [9, -5, 300]}, "index -5 must be at least 0 and below 1088"),
    ],
    ids=str,
)
def test_indices_out_of_range_are_reported(args: dict[str, Any], message: str) -> None:
    args = {"seq": [0], "pos": [0], **args}
    for type in (F16, F32):
        for chosen in (*DIVISIONS[1:3], None) if type is F16 else DIVISIONS_F32[:2]:
            q = leaf(normal(len(args["pos"]), 4, 32))
            node = build(Shape(type_k=type, type_v=type), q=q, **args)
            with pytest.raises(BackendError, match=f"flash_attn_ext .*: {message}"):
                bits(node, chosen)


# --- how work is divided ---


def large(n_tokens: int, n_seqs: int, n_head: int = 32, n_cells: int = 2**17) -> Tensor:
    """A node of a large model, with 8 heads of K; the page table has a row for padding."""
    q = Tensor(F32, (128, n_head, n_tokens))
    k, v = (Tensor(F16, (8 * 128, n_cells)) for _ in range(2))
    pages = Tensor(GGMLType.I32, (n_cells // 32, n_seqs + 1))
    seq, pos = (Tensor(GGMLType.I32, (n_tokens,)) for _ in range(2))
    return ops.flash_attn_ext(q, k, v, pages, seq, pos, page_size=32, scale=0.1)


def test_few_tokens_have_their_partitions_divided() -> None:
    assert divided(large(1, 1)) == Division(1, 132, 512)
    assert divided(large(64, 64)) == Division(1, 3, 2016)
    assert divided(large(256, 256)).n_parts == 1
    assert divided(large(512, 1)) == Division(4)
    assert divided(large(512, 64)) == Division(4)
    assert divided(large(1, 1, n_cells=256)) == Division(1)  # one partition
    for n in (1, 3, 16, 64, 100, 512):
        for call in calls_of(large(n, 1), divided(large(n, 1))):
            assert call.scratch <= attention.MAX_SCRATCH
            assert call.shared_memory <= 48 * 1024


@pytest.mark.parametrize("type", [F16, Q8_0], ids=lambda type: type.name)
def test_shared_memory_of_blocks(type: GGMLType) -> None:
    # 48 KiB without opting in; the oldest devices allow 64 KiB, static memory included
    for head_dim, limit in ((64, 48), (80, 48), (96, 48), (128, 48), (256, 63)):
        node = build(Shape(2, 2, head_dim, head_dim, type, type))
        for chosen in (SMALL, WIDE):
            assert calls_of(node, chosen)[0].shared_memory <= limit * 1024, head_dim


def test_blocks_of_one_warp_serve_few_queries_of_a_sequence() -> None:
    assert [divided(large(n, 1)).n_warps for n in (1, 4, 5, 512)] == [1, 1, 4, 4]
    assert [divided(large(n, 64)).n_warps for n in (64, 256, 512)] == [1, 1, 4]
