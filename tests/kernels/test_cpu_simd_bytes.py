"""The vocabulary of integer products: each function is exact, with every instruction that this
machine has."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
from numba import cfunc, types

from lamella.kernels.cpu.compiler.isa import host_features
from lamella.kernels.cpu.simd import bytes as simd_bytes
from lamella.kernels.cpu.simd import ints as simd_int
from lamella.kernels.cpu.simd import memory as access
from lamella.kernels.cpu.simd import vectors as arithmetic
from lamella.kernels.cpu.simd.ints import i32x16
from lamella.kernels.cpu.simd.vectors import vector_function

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

LANES = arithmetic.LANES
WORDS = simd_bytes.WORDS
GUARD = 0xA5

BEST, WIDE = ("avx512vbmi", "avx512bw", "avx2"), ("avx512bw", "avx2")
NARROW, NONE = ("avx2",), ()


def run(function: Callable[..., None], *args: int | Array) -> None:
    """Compile a function of int64s and call it. Arrays are passed as addresses."""
    compiled = cfunc(types.void(*[types.int64] * len(args)), error_model="numpy")(function)
    values = [int(a.ctypes.data) if isinstance(a, np.ndarray) else a for a in args]
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(args))(compiled.address)(*values)


def require(features: tuple[str, ...]) -> None:
    """Skip a test of instructions that this machine lacks."""
    if not all(host_features().get(f) for f in features):
        pytest.skip(f"this processor lacks one of {features}")


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


# --- columns ---


def _emit_load_i32(b: Any, at: Any) -> Any:
    return b.load(arithmetic.pointer_to(b, at, simd_int._V_I32), align=1)


def test_rounding_to_the_nearest_halves_to_even(random: np.random.Generator) -> None:
    to_nearest, load, store = simd_bytes.scaled_to_nearest, access.load_f32x16, access.store_f32x16
    to_f32 = simd_int.to_f32

    def kernel(v, factor, to, n):  # type: ignore[no-untyped-def]
        for i in range(n):
            at = 64 * i
            store(to + at, to_f32(to_nearest(load(v + at), load(factor + at))))

    halves = np.arange(-128, 128) + 0.5
    edges = np.array([2.0**22 - 1, 1 - 2.0**22, 0.49999997, -0.49999997, 0, -0.0, 1e-40, 126.99999])
    v = np.concatenate([halves, np.resize(edges, LANES), random.uniform(-130, 130, 64 * LANES)])
    for scale in (1.0, 0.37, -3.0, 1e-30):
        x = (v if scale > 0 else v / 4).astype(np.float32).reshape(-1, LANES)
        factor = np.full_like(x, scale)
        result = np.empty_like(x)
        run(kernel, x, factor, result, len(x))
        # a product of two floats is exact in float64
        expected = np.rint(x.astype(np.float64) * factor.astype(np.float64))
        assert (result == expected).all(), scale


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_a_too_large_value_affects_no_other_lane(value: float) -> None:
    to_nearest, load, store = simd_bytes.scaled_to_nearest, access.load_f32x16, access.store_f32x16
    to_f32 = simd_int.to_f32

    def kernel(v, factor, to):  # type: ignore[no-untyped-def]
        store(to, to_f32(to_nearest(load(v), load(factor))))

    v, factor = np.arange(LANES, dtype=np.float32), np.ones(LANES, np.float32)
    v[5] = value
    result = np.zeros(LANES, np.float32)
    run(kernel, v, factor, result)
    rest = np.arange(LANES) != 5
    assert (result[rest] == v[rest]).all()


def test_lanes_added_up(random: np.random.Generator) -> None:
    sum_lanes, store = simd_bytes.sum_lanes, access.store_i64
    load = vector_function(i32x16, (types.int64,), _emit_load_i32)

    def kernel(v, to, n):  # type: ignore[no-untyped-def]
        for i in range(n):
            store(to + 8 * i, sum_lanes(load(v + 64 * i)))

    v = random.integers(-(2**26), 2**26, (20, LANES)).astype(np.int32)
    result = np.zeros(20, np.int64)
    run(kernel, v, result, 20)
    assert (result == v.sum(axis=-1, dtype=np.int64)).all()


# --- moving bytes ---


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("stride", [16, 18, 210, -32])
def test_rows_side_by_side(size: int, stride: int, random: np.random.Generator) -> None:
    interleave = simd_bytes.interleave_rows(size)

    def kernel(source, stride, to):  # type: ignore[no-untyped-def]
        interleave(source, stride, to)

    memory = random.integers(0, 256, 16 * 256, np.uint8)
    first = 0 if stride > 0 else 15 * -stride
    result = np.full(256 + 64, GUARD, np.uint8)
    run(kernel, int(memory.ctypes.data) + first, stride, int(result.ctypes.data) + 32)
    rows = np.stack([memory[first + stride * r :][:16] for r in range(16)])
    expected = rows.reshape(16, 16 // size, size).swapaxes(0, 1).ravel()
    assert (result[32:-32] == expected).all()
    assert (result[:32] == GUARD).all()
    assert (result[-32:] == GUARD).all()


def test_bits_of_words_become_bytes(random: np.random.Generator) -> None:
    bits_to_bytes = simd_bytes.bits_to_bytes

    def kernel(at):  # type: ignore[no-untyped-def]
        bits_to_bytes(at)

    single = np.left_shift(1, np.arange(32)).astype(np.uint32)
    words = np.concatenate([single, [0, 2**32 - 1], random.integers(0, 2**32, 14)])
    for part in words.astype(np.uint32).reshape(-1, 16):
        before = part.copy()
        run(kernel, part)
        for word, found in zip(before, part.view(np.uint8).reshape(16, 4), strict=True):
            expected = [sum((int(word) >> 4 * j + b & 1) << j for j in range(8)) for b in range(4)]
            assert found.tolist() == expected


# --- words: 8 vectors of bytes ---

_store_words: Final = vector_function(
    types.void,
    (types.int64, simd_bytes.words),
    lambda b, at, words: b.store(words, arithmetic.pointer_to(b, at, words.type), align=1),
)


def words_from(memory: Bytes, function: Any, *args: int, is_load: bool = False) -> Bytes:
    """8 rows of 64 bytes: the result of function(words, *args), or of function(address)."""
    result, store, load = np.zeros((WORDS, 64), np.uint8), _store_words, simd_bytes.load_words

    def loaded(at, to):  # type: ignore[no-untyped-def]
        store(to, function(at))

    def mapped(at, to):  # type: ignore[no-untyped-def]
        store(to, function(load(at)))

    def moved(at, to, shift, mask):  # type: ignore[no-untyped-def]
        store(to, function(load(at), shift, mask))

    def joined(at, to, place):  # type: ignore[no-untyped-def]
        store(to, function(load(at), load(at + 512), place))

    kernels: list[Callable[..., None]] = [loaded if is_load else mapped, joined, moved]
    run(kernels[len(args)], memory, result, *args)
    return result


@pytest.fixture
def memory(random: np.random.Generator) -> Iterator[Bytes]:
    """16 unaligned rows of 64 bytes, which must not change."""
    whole = random.integers(0, 256, 1024 + 3, np.uint8)
    before = whole.copy()
    yield whole[3:].reshape(16, 64)
    assert (whole == before).all()


def test_loads_of_words(memory: Bytes) -> None:
    assert (words_from(memory, simd_bytes.load_words, is_load=True) == memory[:8]).all()


def test_loads_of_nibbles(memory: Bytes) -> None:
    expected = np.concatenate([memory[:4] & 15, memory[:4] >> 4])
    assert (words_from(memory, simd_bytes.nibbles(), is_load=True) == expected).all()
    expected = expected[[0, 1, 4, 5, 2, 3, 6, 7]]
    assert (words_from(memory, simd_bytes.nibbles(run=2), is_load=True) == expected).all()


def test_loads_of_bit_planes(memory: Bytes) -> None:
    expected = np.stack([memory[0] >> j & 1 for j in range(8)])
    assert (words_from(memory, simd_bytes.load_bit_planes, is_load=True) == expected).all()


@pytest.mark.parametrize(
    ("shift", "mask"), [(0, 15), (4, 15), (0, 3), (2, 3), (6, 3), (7, 1), (0, 1), (3, 1), (0, 255)]
)
def test_bits_of_words(shift: int, mask: int, memory: Bytes) -> None:
    found = words_from(memory, simd_bytes.bits_of, shift, mask)
    assert (found == (memory[:8] >> shift & mask)).all()


@pytest.mark.parametrize(("place", "bits"), [(4, 1), (4, 2), (2, 1), (0, 4), (7, 1)])
def test_words_with_more_bits(place: int, bits: int, memory: Bytes) -> None:
    memory = memory.copy()
    memory[8:] &= (1 << bits) - 1
    found = words_from(memory, simd_bytes.with_bits, place)
    assert (found == (memory[:8] | memory[8:] << place)).all()


def test_signed_bytes_as_unsigned_ones(memory: Bytes) -> None:
    expected = (memory[:8].view(np.int8).astype(int) + 128).astype(np.uint8)
    assert (words_from(memory, simd_bytes.unsigned) == expected).all()


@pytest.mark.parametrize("run", [4, 2])
@pytest.mark.parametrize("features", [BEST, WIDE, NARROW, NONE], ids=["vbmi", "512", "256", "none"])
def test_entries_of_a_table(
    features: tuple[str, ...], run: int, memory: Bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(features)
    plain = words_from(memory, simd_bytes.nibbles(run=run), is_load=True)
    monkeypatch.setattr(simd_bytes, "has_feature", features.__contains__)
    entries = [-128, 127, 0, -1, 1, 77, -77, 100, -100, 64, -64, 5, -5, 33, -33, 2]
    found = words_from(memory, simd_bytes.nibbles(entries, run), is_load=True)
    assert set(plain.ravel()) == set(range(16))
    assert (found.view(np.int8) == np.array(entries, np.int8)[plain]).all()


# --- tiles ---


@pytest.mark.parametrize("n", [1, 4])
def test_tiles_of_zeros(n: int) -> None:
    zero = simd_bytes.zero_tile(n)
    type = types.UniTuple(arithmetic.f32x16.real, n)
    store = vector_function(
        types.void,
        (types.int64, type),
        lambda b, at, tile: b.store(tile, arithmetic.pointer_to(b, at, tile.type), align=1),
    )

    def kernel(to):  # type: ignore[no-untyped-def]
        store(to, zero())

    result = np.ones((n + 1, LANES), np.float32)
    run(kernel, result)
    assert (result[:n].view(np.uint32) == 0).all()
    assert (result[n] == 1).all()


@pytest.mark.parametrize("n_rows", [*range(1, 18), 100])
def test_rows_that_are_stored(n_rows: int) -> None:
    load = access.load_f32x16

    def emit(b: Any, x: Any, y: Any, first: Any, n: Any) -> None:
        second = b.add(first, first.type(4 * 40))
        simd_bytes.store_rows(b, [x, y], [first, second], n)

    store = vector_function(
        types.void, (arithmetic.f32x16, arithmetic.f32x16, types.int64, types.int64), emit
    )

    def kernel(x, to, n):  # type: ignore[no-untyped-def]
        store(load(x), load(x + 64), to, n)

    x = np.arange(2 * LANES, dtype=np.float32).reshape(2, LANES)
    result = np.full((2, 40), -1, np.float32)
    run(kernel, x, result, n_rows)
    n = min(n_rows, LANES)
    assert (result[:, :n] == x[:, :n]).all()
    assert (result[:, n:] == -1).all()


def test_any_address_may_be_prefetched() -> None:
    fetch = simd_bytes.prefetch(300)

    def kernel(at):  # type: ignore[no-untyped-def]
        fetch(at)

    x = np.arange(64, dtype=np.float32)
    before = x.copy()
    run(kernel, x)
    run(kernel, 0)
    assert (x == before).all()
