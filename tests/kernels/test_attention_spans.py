"""Paged attention to spans of positions: windows, chunks, both directions, sinks, empty spans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pytest
from attention_run import (
    F16,
    F32,
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
from reference_run import Array, each_type, leaf, values_of

from lamella.graph import GGMLType

END = N_POSITIONS
SINKS = np.array([3.0, -4.0, 0.5, 40.0])


def window(n: int, pos: Any = POS) -> dict[str, Any]:
    """The last `n` positions of each token."""
    return {"begin": np.maximum(0, np.add(pos, 1 - n)), "n_swa": n}


def around(n: int) -> dict[str, Any]:
    """`n` positions on either side of each token."""
    return {"begin": np.maximum(0, POS - n), "end": np.minimum(END, POS + n + 1)}


def chunk(n: int) -> dict[str, Any]:
    """The positions from the last multiple of `n` on."""
    return {"begin": POS // n * n, "n_swa": n}


SPANS: Final[Mapping[str, dict[str, Any]]] = {
    "all positions of a sequence": {"end": 1100},
    "some positions of a sequence": {"begin": 40, "end": 1100},
    "few around": around(5),
    "many around": around(600),
    "few around, ALiBi": {**around(40), "max_bias": 8.0},
    "many around, ALiBi": {**around(600), "max_bias": 0.1},
    "chunks": chunk(64),
    "chunks that are no pages": chunk(500),
}
KINDS: Final[Mapping[str, dict[str, Any]]] = {
    "sinks": {"sinks": SINKS},
    "sinks, window": {"sinks": SINKS, **window(100)},
    "sinks, window of one": {"sinks": SINKS, **window(1)},
    "softcap, window": {"softcap": 1.5, **window(100)},
    "ALiBi, window": {"max_bias": 8.0, **window(100)},
    # a sink makes the distances' absolute values matter
    "ALiBi, sinks, few around": {"max_bias": 2.0, "sinks": SINKS, **around(30)},
    "all": {"max_bias": 4.0, "softcap": 2.0, "sinks": SINKS, **window(600)},
}

# --- values ---


@each_backend
@pytest.mark.parametrize(
    ("n", "type"), combinations([1, 31, 32, 33, 256, 300, 513, 5000], (F16, F32)), ids=str
)
def test_windows(on: Backend, type: GGMLType, n: int) -> None:
    check(on, Shape(type_k=type, type_v=type), **window(n))


@each_backend
@pytest.mark.parametrize(("span", "type"), combinations(SPANS, (F16, F32)), ids=str)
def test_other_spans(on: Backend, type: GGMLType, span: str) -> None:
    check(on, Shape(type_k=type, type_v=type), **SPANS[span])


@each_backend
@pytest.mark.parametrize(("kind", "type"), combinations(KINDS, (F16, F32)), ids=str)
def test_sinks_softcap_and_alibi(on: Backend, type: GGMLType, kind: str) -> None:
    check(on, Shape(type_k=type, type_v=type), **KINDS[kind])


@each_backend
@each_type((F16, F32))
def test_extreme_sinks(on: Backend, type: GGMLType) -> None:
    shape = Shape(type_k=type, type_v=type)
    plain = bits(on, build(shape))
    for way in ways(on, build(shape)):
        node = build(shape, sinks=[-np.inf, 1e30, np.inf, -1e30])
        found = bits(on, node, way)
        assert (found[:, [0, 3]] == plain[:, [0, 3]]).all(), "they change no bit"
        assert (values_of(node)[0, :, [1, 2]] == 0).all(), "they take all of the weight"


@each_backend
@pytest.mark.parametrize("head_dim", [80, 256, 512])
def test_head_dims(on: Backend, head_dim: int) -> None:
    shape = Shape(4, 1, head_dim, head_dim)
    check(on, shape, sinks=SINKS, **window(70))


@each_backend
@pytest.mark.parametrize(("sunk", "type"), combinations([False, True], (F16, F32)), ids=str)
def test_empty_spans_give_zeros(on: Backend, type: GGMLType, sunk: bool) -> None:
    shape, sinks = Shape(type_k=type, type_v=type), SINKS if sunk else None
    empty = np.isin(np.arange(16), [0, 3, 5, 7, 8, 14])
    for places in (POS, 256, END):
        # of tokens that see nothing, with and without others
        for chosen in (empty, np.full(16, True)):
            begin, end = (np.where(chosen, places, span) for span in (0, POS + 1))
            args: dict[str, Any] = {"begin": begin, "end": end, "sinks": sinks}
            found = check(on, shape, **args)
            assert (found[chosen] << 1 == 0).all(), places


@each_backend
@each_type((F16, F32))
def test_tokens_of_a_tile_begin_in_different_partitions(on: Backend, type: GGMLType) -> None:
    for pos in ([1040, 1100], [1100, 1040], [1060, 1110, 1030]):
        check(on, Shape(type_k=type, type_v=type), [1] * len(pos), pos, **window(560, pos))


# --- bits ---


@each_backend
@pytest.mark.parametrize(
    ("shape", "n"),
    combinations(
        [Shape(), Shape(7, 1, type_k=F32, type_v=F32), Shape(4, 4, type_k=Q8_0, type_v=Q8_0)],
        [32, 530],
    ),
    ids=str,
)
def test_bits_do_not_depend_on_other_tokens(on: Backend, shape: Shape, n: int) -> None:
    sinks = np.arange(shape.n_head)
    whole = bits(on, build(shape, sinks=sinks, **window(n)))
    chosen = ways(on, build(shape))
    for i, some in enumerate(([0], [8], [12], [1, 2], [4, 3, 2, 1, 0], [3, 5, 7, 9], range(9, 16))):
        seq, pos = SEQ[list(some)], POS[list(some)]
        for way in (chosen[0], chosen[1 + i % (len(chosen) - 1)]):
            part = bits(on, build(shape, seq, pos, sinks=sinks, **window(n, pos)), way)
            assert (part == whole[list(some)]).all(), (some, way)


@each_backend
@pytest.mark.parametrize(
    ("shape", "n"), combinations([Shape(), Shape(3, 3, type_k=F32)], [40, 300]), ids=str
)
def test_prefill_in_chunks_and_decode_give_the_same_bits(on: Backend, shape: Shape, n: int) -> None:
    positions = np.arange(495, 555)
    _, some, *_, other = ways(on, build(shape))

    def run(pos: Array, way: Any = None) -> Array:
        return bits(on, build(shape, [1] * len(pos), pos, **window(n, pos)), way)

    whole = run(positions, some)
    for size in (7, 17, 33):
        parts = [run(positions[i : i + size], other) for i in range(0, 60, size)]
        assert (np.concatenate(parts) == whole).all(), size
    for i in range(0, 60, 6):
        assert (run(positions[i : i + 1]) == whole[i : i + 1]).all(), i
    order = np.random.default_rng(5).permutation(60)
    assert (run(positions[order]) == whole[order]).all()


@each_backend
@each_type((F16, F32))
def test_a_window_larger_than_the_context_changes_no_bit(on: Backend, type: GGMLType) -> None:
    shape = Shape(type_k=type, type_v=type)
    whole = bits(on, build(shape))
    for way in ways(on, build(shape)):
        assert (bits(on, build(shape, **window(END)), way) == whole).all(), way


# --- visible and hidden cells ---


def released(shape: Shape, seen: Array) -> dict[str, Any]:
    """The pools and the table of sequences whose other pages were given back.

    `seen` [N_SEQS, pages]: pages that the sequences have. The others hold NaN, and their numbers
    in the table are invalid.
    """
    pages = table()
    spoiled = []
    for i, type in ((1, shape.type_k), (2, shape.type_v)):
        n = shape.n_head_kv * (shape.k if i == 1 else shape.v)
        t = leaf(values_of(pool(n, type, i))[0, 0], type)
        raw = t.buffer[t.offset :][: t.nbytes].reshape(N_CELLS // 32, -1)
        raw[np.setdiff1d(np.arange(N_CELLS // 32), pages[seen])] = 0xFF
        spoiled.append(t)
    wrong = np.where(np.arange(pages.size).reshape(pages.shape) % 2, -1, 10**6)
    return {"k": spoiled[0], "v": spoiled[1], "pages": np.where(seen, pages, wrong)}


@each_backend
@pytest.mark.parametrize(("n_head", "type"), combinations([4, 1], (F16, Q8_0, F32)), ids=str)
def test_pages_before_a_window_are_never_read(on: Backend, type: GGMLType, n_head: int) -> None:
    shape = Shape(n_head, 1, type_k=type, type_v=type)
    for n in (1, 40, 300):
        for pos in (np.array([1100]), np.arange(1090, 1103), np.array([1023, 1024, 1000])):
            seq, spans = [0] * len(pos), window(n, pos)
            seen = np.zeros((N_SEQS, END // 32), bool)
            seen[0, spans["begin"].min() // 32 : pos.max() // 32 + 1] = True
            clean = bits(on, build(shape, seq, pos, **spans))
            rest = released(shape, seen)
            for way in ways(on, build(shape)):
                node = build(shape, seq, pos, **spans, **rest)
                assert (bits(on, node, way) == clean).all(), (n, way)


@each_backend
@each_type((F16, F32))
def test_pages_between_spans_are_never_read(on: Backend, type: GGMLType) -> None:
    shape = Shape(2, 1, type_k=type, type_v=type)
    begin, end = np.array([[70, 90], [90, 100], [600, 610], [0, 20], [95, 95], [400, 1000]]).T
    seen = np.zeros((N_SEQS, END // 32), bool)
    for first, last in zip(begin, end, strict=True):
        seen[0, first // 32 : -(-last // 32)] |= first < last
    args: Any = (shape, [0] * 6, [0] * 6)
    q = leaf(queries(2, 32)[0, :6])
    clean = bits(on, build(*args, q=q, begin=begin, end=end))
    for way in ways(on, build(shape)):
        node = build(*args, q=q, begin=begin, end=end, **released(shape, seen))
        assert (bits(on, node, way) == clean).all(), way


@each_backend
@each_type((F16, F32))
def test_cells_before_a_span_do_not_affect_it(on: Backend, type: GGMLType) -> None:
    shape = Shape(2, 1, type_k=type, type_v=type)
    v = leaf(values_of(pool(32, type, 2))[0, 0], type)
    places = 32 * table()[0, 1] + np.arange(5, 8)  # positions 37..39
    dtype = np.float16 if type is F16 else np.float32
    cells = v.buffer[v.offset :][: v.nbytes].view(dtype).reshape(N_CELLS, -1)
    cells[places] = np.array([np.inf, -np.inf, np.nan])[:, None]
    pos, begin = np.array([60, 61, 62, 63, 41]), np.array([40, 37, 41, 39, 40])
    for way in ways(on, build(shape)):
        node = build(shape, [0] * 5, pos, v=v, begin=begin)
        whole = bits(on, node, way)
        assert np.isnan(values_of(node)[0, [1, 3]]).all()
        for t in (0, 2, 4):
            assert np.isfinite(values_of(node)[0, t]).all()
            alone = build(shape, [0], pos[t : t + 1], v=v, begin=begin[t : t + 1])
            assert (bits(on, alone) == whole[t]).all(), t
