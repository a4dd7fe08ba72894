"""Paged attention on CUDA: both kernels, and how they divide the work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_run import (
    BF16,
    F16,
    F32,
    N_POSITIONS,
    N_SEQS,
    POS,
    Q8_0,
    SEQ,
    SMALL,
    WIDE,
    Shape,
    bits,
    build,
    check,
    queries,
    table,
)
from backends import CUDA
from cuda_devices import DEVICES
from cuda_grid import needs_compiler
from reference_run import Array, leaf, normal, values_of

from lamella.base.settings import NO_SPLIT
from lamella.graph import GGMLType, Tensor, ops
from lamella.graph.types import KV_TYPES
from lamella.kernels.cuda.ops import attention
from lamella.kernels.cuda.ops.attention import Division, calls_of, divided, has_tensor_cores

pytestmark = needs_compiler
Q4_0, Q4_1, Q5_0, Q5_1 = GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q5_0, GGMLType.Q5_1
IQ4_NL = GGMLType.IQ4_NL


def check_tensor(*args: Any, **params: Any) -> Array:
    assert has_tensor_cores(build(*args, **params))
    return check(CUDA, *args, **params)


def check_f32(*args: Any, **params: Any) -> Array:
    assert not has_tensor_cores(build(*args, **params))
    return check(CUDA, *args, **params)


# --- values ---


# some tokens, whose positions are within partitions and at their edges
SOME_SEQ, SOME_POS = (x[[0, 3, 5, 9, 12, 14]] for x in (SEQ, POS))

# --full: more sizes and types, each of which is compiled; test_ops.py has pools of every type
MORE_SHAPES = (
    Shape(2, 2, 64, 64),
    Shape(2, 1, 64, 64, Q8_0, Q8_0),
    Shape(4, 2, 48, 80, Q8_0, Q8_0),
    Shape(3, 1, 192, 192),
    Shape(2, 1, 320, 384, Q8_0, Q8_0),
    Shape(4, 2, 64, 64, BF16, BF16),
    Shape(3, 1, 40, 24, BF16, BF16),
    Shape(2, 1, 64, 64, Q4_0, Q4_1),
    Shape(4, 4, 40, 64, Q5_1, Q4_0),
    Shape(2, 1, 64, 64, IQ4_NL, IQ4_NL),
    Shape(4, 2, 48, 80, Q8_0, IQ4_NL),
    *(Shape(n, 1) for n in (4, 8, 20)),
)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(3, 1, 40, 24),  # not whole steps of the tensor core
        Shape(1, 1, 256, 256, Q8_0, F16),  # two slices of values
        Shape(3, 1, 288, 264),  # three slices
        Shape(4, 2, 48, 80, Q5_0, Q5_1),  # heads begin and end within blocks
        *(Shape(n, 1) for n in (7, 80)),  # heads that share; 80 need several blocks
        *(pytest.param(shape, marks=pytest.mark.full) for shape in MORE_SHAPES),
    ],
    ids=str,
)
def test_tensor_cores(shape: Shape) -> None:
    check_tensor(shape, SOME_SEQ, SOME_POS)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(2, 1, 64, 64, F32, F32),
        Shape(4, 2, 16, 80, BF16, Q8_0),
        Shape(3, 3, 12, 70, F16, BF16),
        Shape(8, 1, 288, 272, F16, F16),  # four heads at once
        Shape(8, 2, 272, 16, BF16, F32),
        Shape(1, 1, 1, 1, F32, F16),
        Shape(32, 32, 5, 3, Q8_0, Q8_0),
        Shape(32, 32, 5, 3, Q4_0, Q5_0),
        Shape(8, 8, 68, 68, Q5_1, Q4_1),
        Shape(8, 8, 68, 68, IQ4_NL, F32),
        Shape(32, 32, 5, 3, F32, IQ4_NL),
    ],
    ids=str,
)
def test_float32(shape: Shape) -> None:
    n = 4 if shape.n_head == 32 else None  # tokens
    check_f32(shape, SOME_SEQ[:n], SOME_POS[:n])


def test_pools_of_all_types() -> None:
    for type in KV_TYPES:
        assert all(map(CUDA.supports, (build(Shape(type_k=type)), build(Shape(type_v=type))))), type


def test_heads_of_a_block_have_slopes_and_sinks_of_their_own() -> None:
    sinks = [0.5, -1.0, 2.0, 0.0, 1.5, -2.0, 0.25, 1.0]
    check_f32(Shape(8, 1, 288, 16, F32, F32), [0, 1, 1], [40, 300, 301], max_bias=8.0, sinks=sinks)


def test_a_larger_page_is_as_good_as_two() -> None:
    pages = table(64)
    whole = check_tensor(Shape(2, 1), page_size=64, pages=pages)
    halves = (2 * pages[:, :, None] + [0, 1]).reshape(N_SEQS, -1)
    assert (bits(CUDA, build(Shape(2, 1), pages=halves)) == whole).all()


@pytest.mark.parametrize("page_size", [96, 16, 4, 1])
def test_pages_of_any_size(page_size: int) -> None:
    check_f32(Shape(2, 1), page_size=page_size)


def test_a_long_context() -> None:
    n = 4100
    k, v = (leaf(normal(n + 28, 64, seed=i), F16) for i in (1, 2))
    q = leaf(normal(2, 2, 64))
    pages = np.random.default_rng(1).permutation(129)[None]
    args: dict[str, Any] = {"q": q, "k": k, "v": v, "pages": pages, "seq": [0, 0]}
    check_tensor(Shape(2, 1, 64, 64), pos=[n - 1, n - 900], **args)


# --- bits ---


def test_tokens_that_decode_beside_a_prompt() -> None:
    # runs of one token, of a prompt, and of padding: a sequence with only the pool's first page
    seq, pos = [1, 2] + [0] * 60 + [3] * 10, [900, 300, *range(400, 460)] + [0] * 10
    pages = np.concatenate([table(), np.full((1, N_POSITIONS // 32), -1)])
    pages[3, 0] = 0
    q = queries(4, 32)
    node = build(q=leaf(q[np.array(seq) % 3, pos]), seq=seq, pos=pos, pages=pages)
    whole = bits(CUDA, node)
    assert np.isfinite(values_of(node)).all()
    for chosen in (SMALL, WIDE, Division(4, 4, 1000)):
        again = build(q=leaf(q[np.array(seq) % 3, pos]), seq=seq, pos=pos, pages=pages)
        assert (bits(CUDA, again, chosen) == whole).all(), chosen
    for t in (0, 1, 2, 33, 61):
        assert (bits(CUDA, build(seq=seq[t : t + 1], pos=pos[t : t + 1])) == whole[t]).all(), t


# --- segments of partitions ---

SEGMENTS = 2 * 256  # positions
FEW_RECORDS = 25  # of a head: room for the segments of all tokens, not for their partitions


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "SEGMENT", SEGMENTS)


@pytest.mark.parametrize(
    ("shape", "divisions"),
    [
        (Shape(), (SMALL, Division(1, 3, FEW_RECORDS), Division(4, 2, FEW_RECORDS))),
        (Shape(2, 1, 256, 256, Q8_0), (SMALL, Division(1, 3, FEW_RECORDS))),  # two slices of values
        (Shape(), (Division(1, split=4), Division(1, 2, FEW_RECORDS, 8))),
        (Shape(type_k=F32, type_v=F32), (Division(0), Division(0, 2, FEW_RECORDS))),
        (Shape(8, 1, 272, 16, F32, F32), (Division(0), Division(0, 2, FEW_RECORDS))),
    ],
    ids=["F16", "large heads", "split", "F32", "four heads at once"],
)
def test_bits_do_not_depend_on_records_of_segments(
    shape: Shape, divisions: tuple[Division, ...], short_segments: None
) -> None:
    tokens: dict[str, Any] = {"begin": np.where(POS > 1000, 300, 0)}
    whole = check(CUDA, shape, **tokens)
    n_partitions, n_segments = (
        int(sum(POS // n - tokens["begin"] // n + 1)) for n in (256, SEGMENTS)
    )
    assert n_segments <= FEW_RECORDS < n_partitions
    for chosen in divisions:
        assert (bits(CUDA, build(shape, **tokens), chosen) == whole).all(), chosen
    for t in (12, 14):
        alone = build(shape, SEQ[t : t + 1], POS[t : t + 1], begin=tokens["begin"][t])
        assert (bits(CUDA, alone) == whole[t]).all(), t


@pytest.mark.parametrize("shape", [Shape(2, 1), Shape(2, 1, 32, 32, F32, F32)], ids=str)
def test_segments_are_summed_first(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    # so the last bits depend on their size
    node, found = build(shape, [1] * 4, [1500, 1600, 1631, 1400]), set()
    for size in (256, 512, 4096):
        monkeypatch.setattr(attention, "SEGMENT", size)
        found.add(bits(CUDA, node).tobytes())
    assert len(found) == 2, "a partition alone is a segment, and so are all"


# --- how work is divided ---


def large(
    n_tokens: int, n_seqs: int, n_head: int = 32, n_cells: int = 2**17, n_swa: int = 0
) -> Tensor:
    """A node of a large model, with 8 heads of K; the page table has a row for padding."""
    q = Tensor(F32, (128, n_head, n_tokens))
    k, v = (Tensor(F16, (8 * 128, n_cells)) for _ in range(2))
    pages = Tensor(GGMLType.I32, (n_cells // 32, n_seqs + 1))
    tokens = (Tensor(GGMLType.I32, (n_tokens,)) for _ in range(4))
    return ops.flash_attn_ext(q, k, v, pages, *tokens, page_size=32, scale=0.1, n_swa=n_swa)


def test_few_tokens_have_their_partitions_divided() -> None:
    assert divided(large(1, 1)) == Division(1, 17, 512, split=8)  # one block on a multiprocessor
    assert divided(large(8, 8)) == Division(1, 3, 4032, split=8)
    assert divided(large(64, 64)) == Division(1, 3, 4032)
    assert divided(large(256, 256)).n_parts == 1
    assert divided(large(512, 1)) == Division(4)
    assert divided(large(512, 64)) == Division(4)
    assert divided(large(1, 1, n_cells=256)) == Division(1, split=8)  # one partition
    assert divided(large(1, 1, n_swa=512)) == Division(1, 3, 3, split=8)
    assert divided(large(1, 1, n_swa=1)) == Division(1, split=8)
    with NO_SPLIT.set(1):
        assert divided(large(1, 1)) == Division(1, 132, 512)


def test_scratch_memory_has_room_for_all_positions_of_the_pool_twice() -> None:
    for n_cells in (2**12, 2**17, 2**20):
        node = large(64, 64, n_cells=n_cells)
        assert divided(node).n_records >= min(64 * n_cells // 256, 2 * n_cells // 256 + 64)
    scratch = calls_of(node, divided(node))[0].scratch
    assert scratch <= 2 * node.src[1].nbytes // 16  # of a layer's keys


def test_devices_with_tensor_cores_for_a_type_or_a_size() -> None:
    def devices(shape: Shape) -> set[str]:
        return {n for n, limits in DEVICES.items() if has_tensor_cores(build(shape), limits)}

    assert devices(Shape(2, 1, 64, 64, Q8_0, F16)) == set(DEVICES)
    assert devices(Shape(2, 1, 256, 256, Q8_0, Q8_0)) == set(DEVICES)
    assert devices(Shape(2, 1, 64, 64, BF16, BF16)) == set(DEVICES) - {"T4"}
    assert devices(Shape(2, 1, 576, 512)) == {"A100", "H100"}
    assert devices(Shape(2, 1, 64, 64, F32, F16)) == devices(Shape(2, 1, 592, 512)) == set()


def test_blocks_follow_the_device() -> None:
    # warps of a block that share a partition, and blocks that share a token's
    found = {n: divided(large(1, 1), limits) for n, limits in DEVICES.items()}
    assert {n: (d.split, d.n_parts) for n, d in found.items()} == {
        "T4": (2, 5),
        "A100": (8, 14),
        "RTX 3060": (4, 4),
        "RTX 3090": (4, 11),
        "RTX 4060": (4, 3),
        "RTX 4090": (4, 16),
        "H100": (8, 17),
        "RTX 5090": (4, 22),
    }
    with NO_SPLIT.set(1):  # eight warps on a multiprocessor, or as many as run at once twice
        for n, limits in DEVICES.items():
            per_sm = 8 if n in ("H100", "A100") else 2 if n == "T4" else 4
            assert divided(large(1, 1), limits).n_parts == -(-per_sm * limits.n_sm // 8), n
    for limits in DEVICES.values():
        for node in (large(n, n) for n in (1, 3, 16, 64, 100, 512)):
            assert calls_of(node, divided(node, limits))[0].shared_memory <= limits.block_shared


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
