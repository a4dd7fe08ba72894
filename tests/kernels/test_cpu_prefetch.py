"""The distance of prefetches: measured once, kept for later processes, never a matter of bits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from packed_run import packed, random_weights

from lamella.base.errors import OutOfMemoryError
from lamella.kernels.cpu.compiler import jit
from lamella.kernels.cpu.compiler.objects import AHEAD, SYMBOLS
from lamella.kernels.cpu.packed import prefetch
from lamella.kernels.cpu.packed.formats import FORMATS
from lamella.kernels.cpu.packed.micro import RESULTS_BYTES, micro_kernel
from lamella.kernels.cpu.packed.prefetch import DISTANCES, TYPE, choose_distance, known_distance
from lamella.kernels.cpu.packed.tiles import COLUMN_BYTES, ROWS, VALUES
from lamella.kernels.disk_cache import write

KERNEL = micro_kernel(TYPE, 1, False)
OTHER = next(n for n in DISTANCES if n != prefetch.DEFAULT)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of kernels, and the default distance."""
    for module in (jit, prefetch):
        monkeypatch.setattr(module, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(jit, "_WANTED", {})
    monkeypatch.setitem(SYMBOLS, AHEAD, prefetch.DEFAULT)
    choose_distance.cache_clear()
    yield tmp_path
    choose_distance.cache_clear()


compile_once = cache(KERNEL.compile)


def compiled(folder: Path) -> bytes:
    """The kernel's object file, also in the cache."""
    data = compile_once()
    write(folder, f"{KERNEL.name}.o", data)
    return data


def measured(monkeypatch: pytest.MonkeyPatch, rates: dict[int, float] | Exception) -> list[str]:
    """Let measurements have this result. Returns the names of the measured kernels."""
    calls = []

    def measure(_data: bytes, name: str) -> dict[int, float]:
        calls.append(name)
        if isinstance(rates, Exception):
            raise rates
        return rates

    monkeypatch.setattr(prefetch, "_measure", measure)
    return calls


@pytest.mark.parametrize("best", DISTANCES)
def test_the_fastest_is_measured_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, best: int
) -> None:
    compiled(folder)
    calls = measured(monkeypatch, {n: 2e9 if n == best else 1e9 for n in DISTANCES})
    for _ in range(2):  # as in two processes
        choose_distance.cache_clear()
        SYMBOLS[AHEAD] = prefetch.DEFAULT
        choose_distance()
        assert SYMBOLS[AHEAD] == best
    assert calls == [KERNEL.name]
    assert "2.0 GB/s" in str(known_distance())


def test_noise_does_not_change_the_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(folder)
    measured(monkeypatch, {prefetch.DEFAULT: 1e9, OTHER: 1.01e9})
    choose_distance()
    assert SYMBOLS[AHEAD] == prefetch.DEFAULT


def test_a_start_that_compiles_kernels_measures_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = measured(monkeypatch, {OTHER: 1e9})
    choose_distance()
    assert calls == [] and known_distance() is None
    assert list(jit._WANTED) == [KERNEL.name], "it is compiled with the next kernels"
    assert SYMBOLS[AHEAD] == prefetch.DEFAULT


def test_a_damaged_file_is_measured_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(folder)
    calls = measured(monkeypatch, {prefetch.DEFAULT: 1e9, OTHER: 2e9})
    (folder / prefetch._FILE).write_bytes(b"0" * 40)
    choose_distance()
    assert len(calls) == 1 and SYMBOLS[AHEAD] == OTHER


def test_little_memory_keeps_the_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(folder)
    measured(monkeypatch, OutOfMemoryError("weights", 2, 1))
    choose_distance()
    assert SYMBOLS[AHEAD] == prefetch.DEFAULT and known_distance() is None


def test_distances_have_equal_bits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, n_groups, n_blocks = compiled(folder), 3, 2
    size = FORMATS[TYPE].record_bytes * n_blocks
    tensor = packed(random_weights(TYPE, n_groups * ROWS, n_blocks * TYPE.block_size))
    weights = np.asarray(tensor.buffer)[: n_groups * size]
    n_bytes = n_blocks * TYPE.block_size // VALUES * COLUMN_BYTES
    columns = np.random.default_rng(0).integers(-127, 128, n_bytes, np.int8)
    columns.reshape(-1, COLUMN_BYTES)[:, VALUES:].view(np.float32)[:] = 0.5
    bits = []
    for n in DISTANCES:
        sums = np.zeros(ROWS * n_groups, np.float32)
        results = np.zeros(RESULTS_BYTES // 8, np.int64)
        results[0] = sums.ctypes.data
        args = (weights.ctypes.data, n_groups, len(sums), n_blocks, columns.ctypes.data)
        prefetch._linked(data, KERNEL.name, n)(*args, results.ctypes.data, 0, 1)
        bits.append(sums.tobytes())
    assert len(set(bits)) == 1 and any(bits[0])


def test_a_real_measurement(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "N_BYTES", 1 << 20)
    monkeypatch.setattr(prefetch, "N_ROUNDS", 2)
    compiled(folder)
    choose_distance()
    known = known_distance()
    assert known is not None and known.n_bytes in DISTANCES
    assert all(1e6 < rate < 1e13 for rate in known.rates.values())
    assert SYMBOLS[AHEAD] == known.n_bytes
