"""Measuring the machine's ceilings. No test checks how high they are."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, astuple, replace

import numpy as np
import numpy.typing as npt
import pytest

from lamella.alloc.host import aligned_zeros
from lamella.base.errors import BackendError, OutOfMemoryError
from lamella.graph.types import GGMLType
from lamella.kernels.cpu import ceiling
from lamella.kernels.cpu.ceiling import (
    BF16,
    CHUNK,
    F32,
    FLOAT_NUMBERS,
    FLOAT_VECTORS,
    INT8,
    INT_SUMS,
    N_LEFT,
    N_WORDS,
    SMALL_WEIGHT,
    TABLE_BYTES,
    Ceiling,
    Products,
    ceiling_read,
)
from lamella.kernels.cpu.compiler.jit import Kernel
from lamella.kernels.cpu.pool import ENTRY_WORDS, FN, LINE, PARAMS_AT, ThreadPool
from lamella.kernels.cpu.simd.bf16_dots import HAS_DOTS
from lamella.kernels.cpu.simd.byte_dots import REGISTER
from lamella.kernels.cpu.simd.vectors import LANES

TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q4_K)
FOUND = Ceiling(bytes_per_s=1, near_bytes_per_s=2, int8_per_s=3e9, f32_per_s=4e9, bf16_per_s=8e9)


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    opened = ThreadPool(2)
    yield opened
    opened.close()


def run(
    pool: ThreadPool, kernel: Kernel, memory: npt.NDArray[np.uint8], n: int, times: int = 1
) -> npt.NDArray[np.float32]:
    """Run a kernel. Return the output of each thread, a row for each."""
    out = np.zeros((pool.n_threads, LINE // 4), np.float32)
    words = np.array([memory.ctypes.data, n, out.ctypes.data, times], np.int64)
    entry = np.zeros(ENTRY_WORDS, np.int64)
    entry[FN], entry[PARAMS_AT] = kernel.address, words.ctypes.data
    pool.run(entry.ctypes.data, 1)
    return out


def test_threads_together_read_every_byte_the_given_number_of_times(pool: ThreadPool) -> None:
    memory = aligned_zeros(3 * CHUNK, LINE, "test")
    memory.view(np.float32)[:] = np.arange(3 * CHUNK // 4)
    sums = memory.view(np.float32).reshape(3, -1).sum(axis=1)
    out = run(pool, ceiling_read, memory, 3 * CHUNK, 5)
    assert out[:, 0].tolist() == [5 * sums[0], 5 * (sums[1] + sums[2])]


def test_every_pair_of_vectors_is_multiplied(pool: ThreadPool) -> None:
    memory = aligned_zeros(TABLE_BYTES, LINE, "test")
    random = np.random.default_rng(0)
    wide = REGISTER == 64
    n = N_LEFT if wide else N_WORDS
    left = random.integers(0, SMALL_WEIGHT + 1, (n, REGISTER))
    right = random.integers(-127, 128, (n, REGISTER))
    both = np.concatenate([left, right]).astype(np.uint8).ravel()
    memory[: both.size] = both
    if wide:
        pairs = [[(x, y)] for x in range(n) for y in range(n)]
    else:
        pairs = [[(i, (i + c) % n) for i in range(n)] for c in range(INT_SUMS * 64 // REGISTER)]
    products = [sum(left[x] * right[y] for x, y in of).reshape(-1, 4).sum(axis=1) for of in pairs]
    # the sums are combined by exclusive or
    expected = np.bitwise_xor.reduce(np.array(products, np.int32).reshape(INT_SUMS, 16))
    out = run(pool, INT8.kernel, memory, 1).view(np.int32)
    assert (out == expected).all()


@pytest.mark.parametrize("measured", [F32, *([BF16] if HAS_DOTS else [])])
def test_every_float_is_multiplied_with_every_number(pool: ThreadPool, measured: Products) -> None:
    memory = aligned_zeros(TABLE_BYTES, LINE, "test")
    small = np.random.default_rng(0).integers(-8, 9, (measured.n // LANES, LANES))
    n_pair = 2 if measured is BF16 else 1
    vectors = small[: FLOAT_VECTORS * n_pair].reshape(FLOAT_VECTORS, LANES, n_pair)
    numbers = small[-FLOAT_NUMBERS * n_pair :, 0].reshape(FLOAT_NUMBERS, n_pair)
    values = np.concatenate([vectors.ravel(), numbers.ravel()]).astype(np.float32)
    data = (values.view(np.uint32) >> 16).astype(np.uint16) if n_pair == 2 else values
    memory[: data.nbytes] = data.view(np.uint8)
    sums = (vectors[:, None] * numbers[None, :, None]).sum(axis=-1).reshape(-1, LANES)
    assert measured.n == sums.size * n_pair
    # the sums are combined by exclusive or
    expected = np.bitwise_xor.reduce(sums.astype(np.float32).view(np.uint32))
    out = run(pool, measured.kernel, memory, 1).view(np.uint32)
    assert (out == expected).all()


def test_each_type_of_weights_has_its_rate() -> None:
    rates = {type: FOUND.mul_adds_per_s(type) for type in TYPES}
    assert rates == dict(zip(rates, (4e9, 4e9, 8e9, 3e9), strict=True))
    assert FOUND.mul_adds_text() == "3 G int8/s, 4 G float/s, 8 G BF16/s"
    assert replace(FOUND, bf16_per_s=4e9).mul_adds_text() == "3 G int8/s, 4 G float/s"


def test_measured_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling, "TRIALS_S", 0.001)
    found = ceiling.measure(2, 1 << 16, 1 << 22)
    assert min(astuple(found)) > 0
    assert HAS_DOTS or found.bf16_per_s == found.f32_per_s
    large = ceiling.measure(1, 1 << 30, 1 << 22)
    assert large.near_bytes_per_s == large.bytes_per_s


def test_another_process_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[1:] == ["-P", "-m", "lamella.kernels.cpu.ceiling_process", "2", "1000"]
        text = json.dumps(asdict(FOUND))
        return subprocess.CompletedProcess(command, 0, f"noise\n{text}\n", "")

    monkeypatch.setattr(subprocess, "run", answer)
    assert ceiling.measure_apart(2, 1000) == FOUND


def test_the_process_measures() -> None:
    found = ceiling.measure_apart(1, 1 << 16)
    assert min(astuple(found)) > 0


def test_memory_that_is_not_free_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling, "host_memory", lambda: ((1 << 22) - 1, 1 << 40))
    with pytest.raises(OutOfMemoryError, match="4194304 bytes, 4194303 bytes are free"):
        ceiling.measure(1, 1 << 16, 1 << 22)


@pytest.mark.parametrize("program", ["", None, "/no/such/program"])
def test_no_process_can_be_started(program: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(BackendError, match=r"cannot be measured: (.*another program|.*No such)"):
        ceiling.measure_apart(1, 1)


def test_a_failure_of_the_process_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "Traceback\nOutOfMemoryError: too little\n")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(BackendError, match="cannot be measured: OutOfMemoryError: too little"):
        ceiling.measure_apart(1, 1)
