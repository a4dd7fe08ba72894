"""Measures the limits of this machine: bytes read from memory, and multiply-adds, per second.

`measure` allocates a large buffer for about a second. `measure_apart` measures in another process,
so that the caller's peak memory does not grow. Knows no models.
Tested by tests/kernels/test_cpu_ceiling.py.
"""

from __future__ import annotations

import json
import math
import subprocess
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np
from llvmlite import ir

from ...alloc.buffer import Bytes
from ...alloc.host import aligned_zeros
from ...base.errors import BackendError, OutOfMemoryError
from ...graph.types import GGMLType
from ..host import host_memory, python_command
from .compiler.isa import has_feature
from .compiler.jit import Kernel, kernel
from .packed.tiles import add_float, add_pair
from .params import first_of
from .pool import ENTRY_WORDS, FN, LINE, PARAMS_AT, ThreadPool
from .simd import types
from .simd.bf16_dots import HAS_DOTS
from .simd.byte_dots import REGISTER, Chain, emit_dots
from .simd.bytes import joined, pack, parts_of, unpack
from .simd.ints import i32x16
from .simd.memory import load_f32x16, load_i64, store_f32
from .simd.vectors import LANES, f32x16, hsum, pointer_to, vector_function, zero

BUFFER_BYTES: Final = 512 << 20  # more than any cache holds
NEAR_BYTES: Final = 64 << 20  # bytes read in total when a small range is read repeatedly
CHUNK: Final = 512  # bytes read in one iteration
TRIALS_S = 0.5  # seconds of repetitions of a measurement, because other programs may interfere
TURNS: Final = 200_000  # iterations of the loops of products; about 1 ms
N_LEFT: Final = 4  # vectors of each operand of a tile
TILE: Final = N_LEFT * N_LEFT
SMALL_WEIGHT: Final = 15  # the largest of 4-bit weights, whose products are the fastest
# a tile of floats: vectors, and numbers to multiply each with; all sums are in registers
FLOAT_VECTORS, FLOAT_NUMBERS = (2, 8) if has_feature("avx512f") else (1, 6)
FLOAT_TILE: Final = FLOAT_VECTORS * FLOAT_NUMBERS
TABLE_BYTES: Final = 4096  # bytes of operands, which stay in the first cache
_VECTOR_BYTES: Final = 64
N_WORDS: Final = 8  # vectors of each operand with registers of 32 bytes
INT_SUMS: Final = TILE if REGISTER == _VECTOR_BYTES else 4  # vectors of sums of bytes
N_PRODUCTS: Final = 1 if REGISTER == _VECTOR_BYTES else N_WORDS  # for each of those in a turn


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The work of all threads per second, the best of many trials: bytes read from memory, bytes
    read repeatedly from a range that may fit in caches, multiply-adds of bytes, of floats and of
    BF16. The last two are equal if the processor has no instruction for pairs of BF16."""

    bytes_per_s: float
    near_bytes_per_s: float
    int8_per_s: float
    f32_per_s: float
    bf16_per_s: float

    def mul_adds_per_s(self, type: GGMLType) -> float:
        """The multiply-adds per second of products with weights of this type."""
        if type.is_quantized:
            return self.int8_per_s
        return self.bf16_per_s if type is GGMLType.BF16 else self.f32_per_s

    def mul_adds_text(self) -> str:
        """The multiply-adds per second as text."""
        text = f"{self.int8_per_s / 1e9:.0f} G int8/s, {self.f32_per_s / 1e9:.0f} G float/s"
        if self.bf16_per_s > self.f32_per_s:
            text += f", {self.bf16_per_s / 1e9:.0f} G BF16/s"
        return text


# --- kernels; p: address, count, address of the results, number of repetitions ---


@kernel
def ceiling_read(p, ith, nth):
    """Read a buffer."""
    address, n = load_i64(p), load_i64(p + 8)
    begin = address + CHUNK * first_of(n // CHUNK, ith, nth)
    end = address + CHUNK * first_of(n // CHUNK, ith + 1, nth)
    s0, s1, s2, s3 = zero(), zero(), zero(), zero()
    for _ in range(load_i64(p + 24)):
        for at in range(begin, end, CHUNK):
            s0 = s0 + load_f32x16(at)
            s1 = s1 + load_f32x16(at + 64)
            s2 = s2 + load_f32x16(at + 128)
            s3 = s3 + load_f32x16(at + 192)
            s0 = s0 + load_f32x16(at + 256)
            s1 = s1 + load_f32x16(at + 320)
            s2 = s2 + load_f32x16(at + 384)
            s3 = s3 + load_f32x16(at + 448)
    store_f32(load_i64(p + 16) + LINE * ith, hsum((s0 + s1) + (s2 + s3)))


_V_I32, _V_F32 = ir.VectorType(ir.IntType(32), 16), ir.VectorType(ir.FloatType(), 16)


def _emit_dot_tile(b: Any, sums: Any, address: Any) -> Any:
    """The fastest products of bytes. With registers of 32 bytes, several are added to each sum at
    once, if they are small, and one operand is in memory."""
    at, index = pointer_to(b, address, ir.VectorType(ir.IntType(8), REGISTER)), ir.IntType(64)
    parts = [part for v in unpack(b, sums) for part in parts_of(b, v, REGISTER // 4)]
    n = N_LEFT if REGISTER == _VECTOR_BYTES else N_WORDS
    vectors = [b.load(b.gep(at, [index(i)]), align=1) for i in range(2 * n)]
    left, right = vectors[:n], vectors[n:]
    if REGISTER == _VECTOR_BYTES:
        pairs = zip(parts, [(x, y) for x in left for y in right], strict=True)
        chains = [Chain(part, [x], [y].__getitem__) for part, (x, y) in pairs]
    else:
        turns = [right[c:] + right[:c] for c in range(n)]
        chains = [Chain(p, left, t.__getitem__) for p, t in zip(parts, turns, strict=True)]
    found = emit_dots(b, chains, SMALL_WEIGHT)
    size = _VECTOR_BYTES // REGISTER
    return pack(b, [joined(b, found[i : i + size]) for i in range(0, len(found), size)])


def _float_products(add: Any) -> Any:
    """Products of vectors at the address with each of the numbers after them, as in the product of
    two matrices. `add` is that of packed/tiles.py."""

    def emit(b: Any, sums: Any, address: Any) -> Any:
        at, index = pointer_to(b, address, _V_F32), ir.IntType(64)
        vectors = [b.load(b.gep(at, [index(i)]), align=1) for i in range(FLOAT_VECTORS)]
        begin = _VECTOR_BYTES * FLOAT_VECTORS
        pairs = [(x, begin + 4 * i) for i in range(FLOAT_NUMBERS) for x in vectors]
        added = zip(unpack(b, sums), pairs, strict=True)
        return pack(b, [add(b, s, x, address, offset) for s, (x, offset) in added])

    return emit


def _zero_tile(lanes: Any, tile: Any) -> Any:
    return vector_function(
        tile, (), lambda _: ir.Constant(ir.ArrayType(lanes, tile.real.count), None)
    )


def _keep(lanes: Any, tile: Any) -> Any:
    """A function that stores a tile's sum, so that LLVM does not remove the computation."""

    def emit(b: Any, sums: Any, address: Any) -> Any:
        vectors = [b.bitcast(v, _V_I32) for v in unpack(b, sums)]
        total = vectors[0]
        for v in vectors[1:]:
            total = b.xor(total, v)
        b.store(total, pointer_to(b, address, _V_I32), align=1)

    return vector_function(types.void, (tile, types.int64), emit)


class Products(NamedTuple):
    """A kernel that multiplies in registers, and its multiply-adds in each of `TURNS`."""

    kernel: Kernel
    n: int


def _products(name: str, sum_type: Any, lanes: Any, emit: Any, n_sums: int, n: int) -> Products:
    """The kernel whose turn is `emit`: it adds products of what is at an address to a tile of
    sums. `n`: the multiply-adds of each sum."""
    tile = types.UniTuple(sum_type, n_sums)
    zero, keep = _zero_tile(lanes, tile), _keep(lanes, tile)
    multiply = vector_function(tile, (tile, types.int64), emit)

    def run(p, ith, nth):
        table, n_turns = load_i64(p), load_i64(p + 8)
        sums = zero()
        for i in range(n_turns):
            sums = multiply(sums, table + _VECTOR_BYTES * (i & 31))
        keep(sums, load_i64(p + 16) + LINE * ith)

    run.__name__ = name
    return Products(Kernel(run), n_sums * n)


INT8: Final = _products(
    "ceiling_int8", i32x16, _V_I32, _emit_dot_tile, INT_SUMS, N_PRODUCTS * _VECTOR_BYTES
)
F32: Final = _products("ceiling_f32", f32x16, _V_F32, _float_products(add_float), FLOAT_TILE, LANES)
# only for processors with `HAS_DOTS`
BF16: Final = _products(
    "ceiling_bf16", f32x16, _V_F32, _float_products(add_pair), FLOAT_TILE, 2 * LANES
)


# --- measuring ---


def measure(n_threads: int, n_near: int, n_bytes: int = BUFFER_BYTES) -> Ceiling:
    """The machine's ceiling. The buffer has `n_bytes`; its first `n_near` are read repeatedly.

    Raises:
        OutOfMemoryError: there is no memory for the buffer.
        BackendError: a kernel cannot be compiled, or the system gives too few threads.
    """
    n_near = min(max(CHUNK * n_threads, n_near), n_bytes)
    n_times = max(1, NEAR_BYTES // n_near)
    buffer = _buffer(n_bytes)
    at = buffer.ctypes.data
    pool = ThreadPool(n_threads)
    try:
        read_s = near_s = _best_s(pool, ceiling_read, at, n_bytes)
        if n_near < n_bytes:
            near_s = _best_s(pool, ceiling_read, at, n_near, n_times)
        else:
            n_times = 1
        table = aligned_zeros(TABLE_BYTES, LINE, "factors to measure")
        table.view(np.float32)[:] = 2.0**-60  # keeps sums and products in range
        int8, f32 = (_mul_adds_per_s(pool, each, table) for each in (INT8, F32))
        bf16 = _mul_adds_per_s(pool, BF16, table) if HAS_DOTS else f32
    finally:
        pool.close()
    return Ceiling(
        bytes_per_s=n_bytes / read_s,
        near_bytes_per_s=n_times * n_near / near_s,
        int8_per_s=int8,
        f32_per_s=f32,
        bf16_per_s=bf16,
    )


def _mul_adds_per_s(pool: ThreadPool, measured: Products, table: Bytes) -> float:
    n = pool.n_threads * TURNS * measured.n
    return n / _best_s(pool, measured.kernel, table.ctypes.data, TURNS)


def measure_read(n_threads: int, n_bytes: int = BUFFER_BYTES) -> float:
    """`Ceiling.bytes_per_s` alone, in less time. Raises the same errors as `measure`."""
    buffer = _buffer(n_bytes)
    pool = ThreadPool(n_threads)
    try:
        return n_bytes / _best_s(pool, ceiling_read, buffer.ctypes.data, n_bytes)
    finally:
        pool.close()


def _buffer(n_bytes: int) -> Bytes:
    """Memory to read. Raises OutOfMemoryError."""
    free, _ = host_memory()
    if free < n_bytes:  # the system would grant it, and kill a process later
        raise OutOfMemoryError("memory to measure", n_bytes, free)
    buffer = aligned_zeros(n_bytes, LINE, "memory to measure")
    buffer.view(np.float32)[:] = 1.0  # all unwritten pages are one page of zeros
    return buffer


def _best_s(pool: ThreadPool, k: Kernel, address: int, n: int, n_times: int = 1) -> float:
    """Seconds that a kernel takes on all threads."""
    result = aligned_zeros(LINE * pool.n_threads, LINE, "results to measure")
    words = np.array([address, n, result.ctypes.data, n_times], np.int64)
    entry = np.zeros(ENTRY_WORDS, np.int64)
    entry[FN], entry[PARAMS_AT] = k.address, words.ctypes.data
    best, until = math.inf, perf_counter() + TRIALS_S
    while best == math.inf or perf_counter() < until:
        begin = perf_counter()
        pool.run(entry.ctypes.data, 1)
        best = min(best, perf_counter() - begin)
    return best


def measure_apart(n_threads: int, n_near: int) -> Ceiling:
    """`measure` in another process.

    Raises:
        BackendError: the process cannot be started, or failed; names its last line.
    """
    failed = "the machine's speed cannot be measured"
    command = python_command(f"{__package__}.ceiling_process", n_threads, n_near)
    if command is None:
        raise BackendError(f"{failed}: Python is inside another program")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as e:
        raise BackendError(f"{failed}: {e}") from e
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise BackendError(f"{failed}: {last}")
    return Ceiling(**json.loads(done.stdout.splitlines()[-1]))
