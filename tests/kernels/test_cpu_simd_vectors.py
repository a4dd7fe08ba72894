"""The vector vocabulary: the reads, writes and results of each function, through tiny kernels."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf import quants
from numba import cfunc, types

from lamella.kernels.cpu.simd import calls, functions, sync
from lamella.kernels.cpu.simd import halves as conversions
from lamella.kernels.cpu.simd import memory as access
from lamella.kernels.cpu.simd import vectors as arithmetic

Array = npt.NDArray[Any]
F32Array = npt.NDArray[np.float32]

LANES = arithmetic.LANES
ALL = np.arange(LANES)


def run(function: Callable[..., None], *args: int | Array) -> None:
    """Compile a function of int64s and call it. Arrays are passed as addresses."""
    compiled = cfunc(types.void(*[types.int64] * len(args)), error_model="numpy")(function)
    words = [int(a.ctypes.data) if isinstance(a, np.ndarray) else a for a in args]
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(args))(compiled.address)(*words)


def mapped(f: Any, *operands: Array) -> F32Array:
    """f of vectors of the operands. Their length is a multiple of 16."""
    load, store = access.load_f32x16, access.store_f32x16
    rows = np.stack([np.asarray(x, np.float32) for x in operands])
    result = np.empty(rows.shape[1], np.float32)

    def kernel_1(x, to, n):  # type: ignore[no-untyped-def]
        for i in range(0, n, LANES):
            store(to + 4 * i, f(load(x + 4 * i)))

    def kernel_2(x, to, n):  # type: ignore[no-untyped-def]
        for i in range(0, n, LANES):
            store(to + 4 * i, f(load(x + 4 * i), load(x + 4 * (n + i))))

    def kernel_4(x, to, n):  # type: ignore[no-untyped-def]
        for i in range(0, n, LANES):
            a, b = load(x + 4 * i), load(x + 4 * (n + i))
            c, d = load(x + 4 * (2 * n + i)), load(x + 4 * (3 * n + i))
            store(to + 4 * i, f(a, b, c, d))

    run({1: kernel_1, 2: kernel_2, 4: kernel_4}[len(operands)], rows, result, len(result))
    return result


def normal(n: int = LANES, seed: int = 0) -> F32Array:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


# --- memory ---

F16_VALUES = [0.0, -0.0, 1.0, -2.5, 65504.0, 6e-8, 6.1e-5, math.inf, -math.inf, math.nan, 0.1]


def scalars(load: Any, store: Any, memory: Array, result: Array) -> None:
    """Copy elements of `memory` to `result`, one by one."""
    size, to_size = memory.itemsize, result.itemsize

    def copy(x, to, n):  # type: ignore[no-untyped-def]
        for i in range(n):
            store(to + to_size * i, load(x + size * i))

    run(copy, memory, result, len(memory))


@pytest.mark.parametrize("name", ["i8", "u8", "u16", "i32", "u32", "i64"])
def test_loads_of_integers(name: str) -> None:
    dtype = np.dtype({"i": "int", "u": "uint"}[name[0]] + name[1:])
    limits = np.iinfo(dtype)
    x = np.array([limits.min, limits.max, 0, 1, limits.max // 2 + 1], dtype)
    result = np.zeros(len(x), np.int64)
    scalars(getattr(access, f"load_{name}"), access.store_i64, x, result)
    assert result.tolist() == x.tolist()


@pytest.mark.parametrize("name", ["u8", "u16", "i32"])
def test_stores_of_integers_keep_the_low_bits(name: str) -> None:
    dtype = np.dtype({"i": "int", "u": "uint"}[name[0]] + name[1:])
    x = np.array([0, 1, -1, 2**40 + 77, 200, -200])
    result = np.zeros(len(x), dtype)
    scalars(access.load_i64, getattr(access, f"store_{name}"), x, result)
    assert result.tolist() == x.astype(dtype).tolist()


def bf16_to_f32(bits: Array) -> F32Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def test_scalar_floats() -> None:
    x = np.array(F16_VALUES, np.float32)
    f16, bf16 = np.zeros(len(x), np.float16), np.zeros(len(x), np.uint16)
    f32, f64 = np.zeros(len(x), np.float32), np.zeros(len(x), np.float64)
    scalars(access.load_f32, access.store_f16, x, f16)
    np.testing.assert_array_equal(f16, x.astype(np.float16))
    scalars(access.load_f16, access.store_f32, f16, f32)
    np.testing.assert_array_equal(f32, f16.astype(np.float32))
    scalars(access.load_f32, access.store_f64, x, f64)
    np.testing.assert_array_equal(f64, x.astype(np.float64))
    scalars(access.load_f64, access.store_f32, f64, f32)
    np.testing.assert_array_equal(f32, x)
    scalars(access.load_f32, access.store_bf16, x, bf16)
    scalars(access.load_bf16, access.store_f32, bf16, f32)
    np.testing.assert_array_equal(f32, bf16_to_f32(bf16))
    np.testing.assert_allclose(f32, x, rtol=2**-8)


def vectors(load: Any, store: Any, memory: Array, result: Array) -> None:
    """Copy one vector."""

    def copy(x, to):  # type: ignore[no-untyped-def]
        store(to, load(x))

    run(copy, memory, result)


@pytest.mark.parametrize(
    ("name", "dtype"), [("f32", np.float32), ("f16", np.float16), ("i8", np.int8)]
)
def test_vector_loads(name: str, dtype: npt.DTypeLike) -> None:
    x: Array = np.linspace(-128, 127, LANES).astype(dtype)
    result = np.zeros(LANES, np.float32)
    vectors(getattr(access, f"load_{name}x16"), access.store_f32x16, x, result)
    assert result.tolist() == x.tolist()


@pytest.mark.parametrize("edges", [F16_VALUES, [65519.9, 65520.0, 1e30, 2**-25, 2**-25 * 1.01]])
def test_vector_stores_of_f16_round_to_even(edges: list[float]) -> None:
    x = np.resize(np.array(edges, np.float32), LANES)
    result = np.zeros(LANES, np.float16)
    vectors(access.load_f32x16, access.store_f16x16, x, result)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(result, x.astype(np.float16))


@pytest.fixture(params=["as the target has it", "by arithmetic"])
def halves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile kernels with the target's instructions for halves, or without them."""
    if request.param == "by arithmetic":
        monkeypatch.setattr(conversions, "converts_halves", lambda: False)


def by_lanes(load: Any, store: Any, memory: Array, result: Array) -> None:
    """Copy elements of `memory` to `result`, a vector at a time."""
    size, to_size = memory.itemsize, result.itemsize

    def copy(x, to, n):  # type: ignore[no-untyped-def]
        for i in range(0, n, LANES):
            store(to + to_size * i, load(x + size * i))

    run(copy, memory, result, len(memory))


def bits_of(x: Array) -> Array:
    return x.view(f"uint{8 * x.itemsize}")


def same_numbers(result: Array, expected: Array) -> bool:
    """True if all bits are equal; NaN equals any NaN of its sign."""
    other = (bits_of(result) != bits_of(expected)) & ~(np.isnan(result) & np.isnan(expected))
    return not other.any() and bool((np.signbit(result) == np.signbit(expected)).all())


@pytest.mark.usefixtures("halves")
def test_every_half_as_a_float() -> None:
    x = np.arange(2**16, dtype=np.uint16).view(np.float16)
    one_by_one, vector = np.zeros((2, len(x)), np.float32)
    scalars(access.load_f16, access.store_f32, x, one_by_one)
    by_lanes(access.load_f16x16, access.store_f32x16, x, vector)
    assert same_numbers(one_by_one, x.astype(np.float32))
    assert (bits_of(vector) == bits_of(one_by_one)).all()
    digits = bits_of(x)[np.isnan(x)].astype(np.uint32) << 13 & 0x7FFFFF
    assert (bits_of(vector)[np.isnan(x)] & 0x7FFFFF == digits | 0x400000).all()  # and quiet


@pytest.mark.usefixtures("halves")
def test_every_scale_of_8_bits() -> None:
    x, found = np.arange(256, dtype=np.uint8), np.zeros(256, np.float32)
    by_lanes(access.load_e8m0x16, access.store_f32x16, x, found)
    assert (found == quants.MXFP4.e8m0_to_fp32_half(x)).all()
    by_lanes(access.load_ue4m3x16, access.store_f32x16, x, found)
    assert (found == quants.NVFP4.ue4m3_to_fp32(x)).all()


def floats_near_halves() -> F32Array:
    """Every half, the midpoint to the next, the floats around both; random bits."""
    halves = np.arange(0x7C01, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves[-1] = 65536  # the next half if the exponent had more bits
    middles = (halves[1:] + halves[:-1]) / 2
    exact = np.concatenate([halves, middles]).view(np.uint32)
    near = np.concatenate([exact, exact + 1, np.maximum(exact, 1) - 1])
    rng = np.random.default_rng(0)
    any_bits = rng.integers(0, 2**31, 2**17, np.uint32)
    special = np.array([0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x7F7FFFFF, 1], np.uint32)
    positive = np.concatenate([near, any_bits, special])
    x = np.concatenate([positive, positive | 1 << 31])
    return np.resize(x, -(-len(x) // LANES) * LANES).view(np.float32)


@pytest.mark.usefixtures("halves")
def test_floats_as_halves_are_rounded_to_nearest_even() -> None:
    x = floats_near_halves()
    one_by_one, vector = np.zeros((2, len(x)), np.float16)
    scalars(access.load_f32, access.store_f16, x, one_by_one)
    by_lanes(access.load_f32x16, access.store_f16x16, x, vector)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        assert same_numbers(one_by_one, x.astype(np.float16))
    assert (bits_of(vector) == bits_of(one_by_one)).all()
    digits = bits_of(x)[np.isnan(x)] >> 13 & 0x3FF
    assert (bits_of(vector)[np.isnan(x)] & 0x3FF == digits | 0x200).all()


# bits of a float32 and of the bfloat16 nearest to it
BF16_EDGES = {
    0x3F808000: 0x3F80,  # a tie: the even one is below
    0x3F818000: 0x3F82,  # and above
    0x3F808001: 0x3F81,
    0x3F807FFF: 0x3F80,
    0x80000000: 0x8000,
    0x00000001: 0x0000,
    0x007F8000: 0x0080,  # the largest subnormal becomes normal
    0x7F7FFFFF: 0x7F80,  # too large: infinite
    0xFF800000: 0xFF80,
    0x7F800001: 0x7FC0,  # NaN, whose bits rounding would lose
    0xFFFFFFFF: 0xFFFF,
    0x7FC12345: 0x7FC1,
}


def test_bf16_is_rounded_to_nearest_even() -> None:
    x = np.resize(np.array(list(BF16_EDGES), np.uint32), LANES).view(np.float32)
    expected = np.resize(np.array(list(BF16_EDGES.values()), np.uint16), LANES)
    vector, one_by_one, back = np.zeros((3, LANES), np.uint16)
    vectors(access.load_f32x16, access.store_bf16x16, x, vector)
    scalars(access.load_f32, access.store_bf16, x, one_by_one)
    assert vector.tolist() == one_by_one.tolist() == expected.tolist()
    vectors(access.load_bf16x16, access.store_bf16x16, vector, back)
    assert back.tolist() == vector.tolist()


@pytest.mark.usefixtures("halves")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("f32", np.float32), ("f16", np.float16), ("bf16", np.uint16), ("i8", np.int8)],
)
def test_loads_of_parts_do_not_read_past_their_end(name: str, dtype: npt.DTypeLike) -> None:
    load, store = getattr(access, f"load_{name}_part"), access.store_f32x16
    size = np.dtype(dtype).itemsize

    def copy(x, to, n):  # type: ignore[no-untyped-def]
        store(to, load(x, n))

    page: Array = np.frombuffer(page_before_none(), dtype)
    for n in (-3, 0, 1, 7, 15, 16, 17, 100):
        used = min(max(n, 0), LANES)
        x = page[len(page) - used :]  # the next byte cannot be read
        x[:] = np.arange(1, used + 1)
        result = np.full(LANES, 99, np.float32)
        run(copy, int(page.ctypes.data) + page.nbytes - used * size, result, n)
        values = bf16_to_f32(x) if name == "bf16" else x
        assert result.tolist() == [*values.tolist(), *[0] * (LANES - used)]


def page_before_none() -> Any:
    """A page of memory, followed by an inaccessible one."""
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    first = (ctypes.c_uint8 * mmap.PAGESIZE).from_buffer(pages)
    second = ctypes.c_void_p(ctypes.addressof(first) + mmap.PAGESIZE)
    assert ctypes.CDLL(None).mprotect(second, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    return first


@pytest.mark.usefixtures("halves")
@pytest.mark.parametrize(
    ("name", "dtype"), [("f32", np.float32), ("f16", np.float16), ("bf16", np.uint16)]
)
def test_stores_of_parts_do_not_write_past_their_end(name: str, dtype: npt.DTypeLike) -> None:
    load, store = access.load_f32x16, getattr(access, f"store_{name}_part")

    def copy(x, to, n):  # type: ignore[no-untyped-def]
        store(to, load(x), n)

    x = (ALL + 1).astype(np.float32)
    for n in (-3, 0, 1, 7, 15, 16, 17, 100):
        memory: Array = np.full(LANES + 8, 77, dtype)
        run(copy, x, memory, n)
        used = min(max(n, 0), LANES)
        written = bf16_to_f32(memory) if name == "bf16" else memory
        assert written[:used].tolist() == x[:used].tolist()
        assert (memory[used:] == 77).all()


@pytest.mark.parametrize("stride", [5, 4, 7])
def test_columns_of_rows(stride: int) -> None:
    x, width = normal(stride * (LANES - 1) + 4), LANES + 3
    rows = np.lib.stride_tricks.sliding_window_view(x, 4)[::stride]
    result = np.zeros(4 * width, np.float32)

    def transpose(x, to, stride, width):  # type: ignore[no-untyped-def]
        access.transpose_f32x4(x, 4 * stride, to, 4 * width)

    def load(x, to, stride, width):  # type: ignore[no-untyped-def]
        for i in range(4):
            access.store_f32x16(to + 4 * width * i, access.load_f32_column(x + 4 * i, 4 * stride))

    for copy in (transpose, load):
        result[:] = 0
        run(copy, x, result, stride, width)
        found = result.reshape(4, width)
        np.testing.assert_array_equal(found[:, :LANES], rows.T)
        assert (found[:, LANES:] == 0).all()


# --- lanes ---


def test_constants() -> None:
    lane_numbers, splat, zero = arithmetic.lane_numbers, arithmetic.splat, arithmetic.zero
    x = normal()
    assert mapped(calls.inlined(lambda v: lane_numbers()), x).tolist() == ALL.tolist()
    assert mapped(calls.inlined(lambda v: splat(2.5)), x).tolist() == [2.5] * LANES
    assert mapped(calls.inlined(lambda v: zero()), x).tolist() == [0.0] * LANES


def test_arithmetic() -> None:
    x, y = normal(), normal(seed=1)
    y[:2] = 0
    x[0] = 0
    with np.errstate(all="ignore"):
        for f, expected in (
            (calls.inlined(lambda x, y: x + y), x + y),
            (calls.inlined(lambda x, y: x - y), x - y),
            (calls.inlined(lambda x, y: x * y), x * y),
            (calls.inlined(lambda x, y: x / y), x / y),
        ):
            np.testing.assert_array_equal(mapped(f, x, y), expected)


def test_fma_rounds_once() -> None:
    fma = arithmetic.fma
    x = np.full(LANES, 1 + 2**-12, np.float32)
    result = mapped(calls.inlined(lambda x, y: fma(x, x, y)), x, np.full(LANES, -1 - 2**-11))
    assert result.tolist() == [2**-24] * LANES


def test_minimum_and_maximum_return_the_second_for_nan() -> None:
    x = np.resize(np.array([1, 3, math.nan, 2, -math.inf, 0.0], np.float32), LANES)
    y = np.resize(np.array([2, 1, 5, math.nan, math.inf, -0.0], np.float32), LANES)
    np.testing.assert_array_equal(mapped(arithmetic.vmax, x, y), np.where(x > y, x, y))
    np.testing.assert_array_equal(mapped(arithmetic.vmin, x, y), np.where(x < y, x, y))


def test_functions_of_a_lane() -> None:
    x = np.resize(np.array([0.5, 1.5, -2.5, -0.0, 1e30, -math.inf, 2.0], np.float32), LANES)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(mapped(arithmetic.vround, x), np.rint(x))
        np.testing.assert_array_equal(mapped(arithmetic.vsqrt, x), np.sqrt(x))
    result = mapped(arithmetic.vabs, x)
    np.testing.assert_array_equal(result, np.abs(x))
    assert not np.signbit(result).any()


def test_choose() -> None:
    x, y, v, w = (normal(seed=i) for i in range(4))
    x[:3] = y[1], math.nan, -math.inf
    result = mapped(arithmetic.choose, x, y, v, w)
    np.testing.assert_array_equal(result, np.where(x < y, v, w))


@pytest.mark.parametrize("n", [-1, 0, 1, 15, 16, 40])
def test_join(n: int) -> None:
    join, v, w = arithmetic.join, normal(), normal(seed=1)
    result = mapped(calls.inlined(lambda v, w: join(v, w, n)), v, w)
    np.testing.assert_array_equal(result, np.where(n > ALL, v, w))


def test_turn_pairs() -> None:
    v = normal()
    result = mapped(arithmetic.turn_pairs, v).reshape(-1, 2)
    np.testing.assert_array_equal(result, np.stack([-v[1::2], v[::2]], axis=1))


def tree_sum(v: F32Array) -> np.float32:
    """The sum in the order of `hsum`: halves onto each other."""
    while len(v) > 1:
        v = v[: len(v) // 2] + v[len(v) // 2 :]
    return np.float32(v[0])


def test_sums_and_maxima_of_all_lanes() -> None:
    hsum, hmax, splat = arithmetic.hsum, arithmetic.hmax, arithmetic.splat
    for seed in range(5):
        v = normal(seed=seed)
        assert set(mapped(calls.inlined(lambda v: splat(hsum(v))), v)) == {tree_sum(v)}
        assert set(mapped(calls.inlined(lambda v: splat(hmax(v))), v)) == {v.max()}


# --- functions ---

SPECIAL = np.array([0.0, -0.0, math.inf, -math.inf, math.nan, 1e38, -1e38, 1.0])


def ulps(result: F32Array, expected: Array) -> float:
    """The largest error in units in the last place; infinite if infinities differ."""
    with np.errstate(over="ignore"):
        nearest = expected.astype(np.float32)
    same = (result == nearest) | (np.isnan(result) & np.isnan(nearest))
    unit = np.spacing(np.abs(nearest[~same])).astype(np.float64)
    error = np.abs(result[~same].astype(np.float64) - expected[~same]) / unit
    return float(error.max(initial=0))


def check_function(f: Any, exact: Callable[[Array], Array], x: Array, limit: float) -> None:
    for values in (x, np.resize(SPECIAL, LANES)):
        values = values.astype(np.float32)  # noqa: PLW2901
        with np.errstate(all="ignore"):
            assert ulps(mapped(f, values), exact(values.astype(np.float64))) <= limit


def test_vexp() -> None:
    # results from 0 through subnormals to beyond the largest
    check_function(functions.vexp, np.exp, np.linspace(-110, 90, 2**17), 1.5)
    check_function(functions.vexp, np.exp, np.linspace(-1e-3, 1e-3, 2**12), 1.0)
    assert (
        mapped(functions.vexp, np.resize([-104.1, -math.inf, -3e38], LANES)).tolist()
        == [0.0] * LANES
    )


def test_vlog() -> None:
    check_function(functions.vlog, np.log, np.exp(np.linspace(-103, 88, 2**16)), 1.5)
    check_function(functions.vlog, np.log, np.linspace(0.5, 2, 2**16), 1.5)
    check_function(functions.vlog, np.log, np.resize([-1.0, 1e-45, 1.2e-38, -1e-45], LANES), 1.5)


def test_vexpm1() -> None:
    small = np.geomspace(1e-40, 1, 2**12)
    for values in (np.linspace(-100, 80, 2**16), small, -small, np.full(LANES, -math.inf)):
        x = values.astype(np.float32)
        assert ulps(mapped(functions.vexpm1, x), np.expm1(x.astype(np.float64))) <= 2.0
    assert np.isnan(mapped(functions.vexpm1, np.full(LANES, math.nan))).all()


def test_vlog1p() -> None:
    x = np.geomspace(1e-40, 1e30, 2**16).astype(np.float32)
    assert ulps(mapped(functions.vlog1p, x), np.log1p(x.astype(np.float64))) <= 4.0
    assert np.isnan(mapped(functions.vlog1p, np.full(LANES, math.nan))).all()


def test_vtanh() -> None:
    check_function(functions.vtanh, np.tanh, np.linspace(-12, 12, 2**16), 2.0)
    check_function(functions.vtanh, np.tanh, np.geomspace(1e-40, 1, 2**12), 2.0)
    check_function(functions.vtanh, np.tanh, -np.geomspace(1e-40, 1, 2**12), 2.0)


def test_a_lane_s_bits_depend_on_its_value_alone() -> None:
    x = np.linspace(-5, 5, LANES * 8).astype(np.float32)
    for f in (functions.vexp, functions.vtanh):
        assert (mapped(f, x[::-1].copy())[::-1] == mapped(f, x)).all()


# --- between threads ---


def test_atomics() -> None:
    atomic_add, atomic_load, atomic_store = sync.atomic_add, sync.atomic_load, sync.atomic_store

    def work(at):  # type: ignore[no-untyped-def]
        atomic_store(at + 8, atomic_add(at, 5))
        atomic_store(at + 16, atomic_load(at))

    words = np.array([37, 0, 0])
    run(work, words)
    assert words.tolist() == [42, 37, 42]


def test_call_kernel() -> None:
    store, call_kernel = access.store_i64, calls.call_kernel

    def inner(p, ith, nth):  # type: ignore[no-untyped-def]
        store(p, 100 * ith + nth)

    def outer(fn, p):  # type: ignore[no-untyped-def]
        call_kernel(fn, p, 3, 7)

    compiled = cfunc(types.void(types.int64, types.int64, types.int64))(inner)
    word = np.zeros(1, np.int64)
    run(outer, compiled.address, word)
    assert word[0] == 307
