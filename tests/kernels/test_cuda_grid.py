"""The emulated grid of CUDA kernels: right numbers, and reports of mistakes."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path

import cuda_run
import numpy as np
import pytest
from cuda_grid import GridCompiler, needs_compiler
from cuda_grid_compiler import folder
from cuda_grid_memory import Memory
from cuda_run import run_kernel
from reference_run import Array

from lamella.base.errors import BackendError
from lamella.kernels.cuda.table import CudaSource

pytestmark = needs_compiler

TOY = str(Path(__file__).with_name("toy_cuda.cu"))
PORTABLE = CudaSource.of(TOY, GRID_PORTABLE=1)  # with the C library's way to change stacks

each_order = pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
each_source = pytest.mark.parametrize(
    "source", [CudaSource.of(TOY), PORTABLE], ids=["", "portable"]
)


# --- lanes ---


@each_order
@each_source
def test_lanes_exchange_values(source: CudaSource, reverse: bool) -> None:
    out = np.zeros((256, 6), np.int32)
    run_kernel(source, "toy_lanes", [out], grid=(2, 1, 1), block=128, reverse=reverse)
    lane, warp = np.arange(256) % 32, np.arange(256) % 128 // 32 * 100
    ballot = sum(1 << i for i in range(0, 32, 3))
    assert (out[:, 0] == warp + 5).all()
    assert (out[:, 1] == warp + (lane + 3) % 32).all()
    assert (out[:, 2] == warp + (lane ^ 9)).all()
    assert (out[:, 3] == ballot).all()
    expected = [(ballot << i % 2 & 0xFFFFFFFF).bit_count() for i in lane]
    assert out[:, 4].tolist() == expected
    assert (out[:, 5] == 3 * (31 - lane)).all()


def test_sums_and_maxima_of_a_warp() -> None:
    x = np.random.default_rng(0).standard_normal(32).astype(np.float32)
    out = np.zeros(2, np.float32)
    run_kernel(TOY, "toy_sums", [out, x])
    parts = x
    for half in (16, 8, 4, 2, 1):
        parts = parts[:half] + parts[half:]
    assert out.tolist() == [parts[0], x.max()]


# --- numbers ---


def test_float16_is_read_and_rounded_as_numpy_does() -> None:
    rng = np.random.default_rng(0)
    halves = np.arange(2**16).astype(np.uint16)
    decoded = halves.view(np.float16).astype(np.float32)
    steps = decoded[np.isfinite(decoded)].astype(np.float64)
    steps = np.sort(steps)
    between = ((steps[1:] + steps[:-1]) / 2).astype(np.float32)  # ties
    edges = np.array([65519.99, 65520, 1e9, np.inf, 2**-25, 2**-24, 1e-30, 0.0], np.float32)
    random = rng.integers(0, 2**32, 2**16, np.uint32).view(np.float32)
    floats = np.concatenate([between, np.nextafter(between, np.float32(9)), edges, -edges, random])
    out, rounded = np.zeros(2**16, np.float32), np.zeros(floats.size, np.uint16)
    n_blocks = -(-floats.size // 256)
    run_kernel(TOY, "toy_f16", [out, halves, rounded, floats], grid=(n_blocks, 1, 1), block=256)
    np.testing.assert_array_equal(out, decoded)
    nan = np.isnan(floats)
    with np.errstate(over="ignore"):
        expected = floats.astype(np.float16).view(np.uint16)
    np.testing.assert_array_equal(rounded[~nan], expected[~nan])
    assert (rounded[nan] == 0x7FFF).all()


def test_atomic_sums_count_each_thread_once() -> None:
    total, order = np.zeros(1, np.int32), np.full(512, -1, np.int32)
    run_kernel(TOY, "toy_atomics", [total, order], grid=(2, 1, 1), block=256)
    assert total == 512
    assert sorted(order) == list(range(512))


def test_only_the_first_bad_index_is_reported() -> None:
    with pytest.raises(BackendError, match="toy_fail: index 4 must be below 4"):
        run_kernel(TOY, "toy_fail", [], block=64)


# --- tensor cores ---


@pytest.mark.parametrize("k", [16, 32])
def test_products_of_bytes(k: int) -> None:
    rng = np.random.default_rng(k)
    a, b = (rng.integers(-128, 128, (n, k)).astype(np.int8) for n in (16, 8))
    before = rng.integers(-1000, 1000, (16, 8)).astype(np.int32)
    d = before.copy()
    run_kernel(TOY, f"toy_mma_s8_k{k}", [d, a, b])
    assert (d == before + a.astype(int) @ b.T.astype(int)).all()


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_products_of_halves(name: str) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((n, 16)).astype(np.float32) for n in (16, 8))
    before = rng.standard_normal((16, 8)).astype(np.float32)
    d = before.copy()
    if name == "f16":
        halves: list[Array] = [x.astype(np.float16) for x in (a, b)]
        a, b = (h.astype(np.float32) for h in halves)
    else:
        halves = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in (a, b)]
        a, b = ((h.astype(np.uint32) << 16).view(np.float32) for h in halves)
    run_kernel(TOY, f"toy_mma_{name}", [d, *halves])
    np.testing.assert_allclose(d, before + a @ b.T, rtol=0, atol=1e-5)


def test_matrices_from_shared_memory() -> None:
    x = np.arange(4 * 8 * 8, dtype=np.uint16).reshape(4, 8, 8)
    out = np.zeros((2, 32, 4), np.uint32)
    run_kernel(TOY, "toy_load_matrix", [out, x])
    pairs = out.view(np.uint16).reshape(2, 32, 4, 2)
    for lane in range(32):
        row, column = lane // 4, 2 * (lane % 4)
        assert (pairs[0, lane] == x[:, row, column : column + 2]).all()
        assert (pairs[1, lane] == x[:, column : column + 2, row]).all()


# --- blocks: a missing wait reads poison ---


@each_order
@each_source
def test_a_block_sums_up(source: CudaSource, reverse: bool) -> None:
    out = np.zeros(3, np.float32)
    run_kernel(source, "toy_block_sum", [out], [1], grid=(3, 1, 1), block=256, reverse=reverse)
    assert out.tolist() == [sum(range(256)) + 256 * i for i in range(3)]


def test_a_missing_block_barrier_reads_poison() -> None:
    out = np.zeros(3, np.float32)
    run_kernel(TOY, "toy_block_sum", [out], [0], grid=(3, 1, 1), block=256)
    assert np.isnan(out).all()


@each_order
def test_a_missing_warp_barrier_reads_poison(reverse: bool) -> None:
    out = np.zeros(32, np.float32)
    run_kernel(TOY, "toy_neighbor", [out], [1], reverse=reverse)
    assert out.tolist() == [*range(1, 32), 0]
    run_kernel(TOY, "toy_neighbor", [out], [0], reverse=reverse)
    assert np.isnan(out).sum() == (1 if reverse else 31)


def test_every_block_finds_poison() -> None:
    out = np.zeros((3, 3), np.int32)
    run_kernel(TOY, "toy_poison", [out], grid=(3, 1, 1), shared_memory=32)
    assert (out == -1).all()


@pytest.mark.parametrize(("late", "waits"), [(0, True), (1, True), (0, False)])
def test_copies_arrive_as_late_as_possible(late: int, waits: bool) -> None:
    x = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    out = np.zeros((4, 32), np.float32)
    reverse = not waits  # lanes read what lanes before them copied
    run_kernel(TOY, "toy_copies", [out, x], [late, int(waits)], shared_memory=512, reverse=reverse)
    if late:  # one group too many may be in flight
        assert np.isnan(out).any(axis=1).all()
    elif waits:
        assert (out == x).all()
    else:
        assert np.isnan(out).any()
        assert (np.isnan(out) | (out == x)).all()


@pytest.mark.parametrize("n", [1, 31, 64, 100, 128])
@each_order
def test_barriers_do_not_wait_for_returned_threads(n: int, reverse: bool) -> None:
    out = np.zeros(1, np.int32)
    run_kernel(TOY, "toy_leave", [out], [n], block=128, reverse=reverse)
    assert out == n


# --- misuse ---

WRONG: Sequence[tuple[int, int, str]] = [
    (0, 0, "deadlock: 64 threads wait at sync_block .the first is 1., "
           "64 at warp operations .the first is 0, at sync_warp., 0 have returned"),
    (1, 0, "shfl, but lane 3 has returned|returns while lane 0 waits at shfl"),
    (2, 0, "thread 1: shfl, but lane 0 is at shfl_xor"),
    (4, 40, "byte 40 of its dynamic shared memory was written, but it has 40 bytes"),
    (5, 4, "index outside its array"),
    (6, 64, r"thread 0: address 0x\w+ cannot be read or written \[toy_cuda.cu:\d+"),
    (6, -4096, "cannot be read or written"),
    (7, 2, "a misaligned address"),
    (8, 0, "division by 0"),
    (9, 0, r"copy_async: 0x\w+ is not in shared memory"),
    (10, 0, r"copy_async: 0x\w+ is not aligned to 16"),
    (11, 0, r"load_matrix: 0x\w+ is not in shared memory"),
    (12, 32, "a shift by too much"),
    (13, 0, "deadlock: 32 threads wait at sync_block .the first is 0., "
            "1 at warp operations .the first is 32, at ballot., 31 have returned"
            "|returns while lane 0 waits at ballot"),
    (14, 0, "cannot be read or written"),
    (15, 0, r"thread \d+: shfl in line \d+, but lane \d+ is in line \d+"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "value", "message"), WRONG)
@each_source
def test_misuse_is_reported(source: CudaSource, what: int, value: int, message: str) -> None:
    out = np.zeros(64, np.int32)
    with pytest.raises(BackendError, match=message) as e:
        run_kernel(source, "toy_wrong", [out], [what, value], block=128, shared_memory=40)
    assert str(e.value).startswith("toy_wrong: block (0, 0, 0)")
    # the next grid still works
    test_a_block_sums_up(source, reverse=False)


def test_a_partial_warp() -> None:
    with pytest.raises(BackendError, match="ballot in a warp of 8 lanes"):
        run_kernel(TOY, "toy_wrong", [], [3], block=40, reverse=True)
    with pytest.raises(BackendError, match="blocks of 129 threads, not at most 128"):
        run_kernel(TOY, "toy_wrong", [], [3], block=129)


def test_other_mappings_are_far_from_allocations() -> None:
    memory, others, arrays, near = Memory(), [], [], 64 * 1024
    for _ in range(32):  # the operating system places mappings side by side
        others.append(mmap.mmap(-1, 16 * mmap.PAGESIZE))
        arrays.append(memory.alloc(256))
    for other in others:
        at = np.frombuffer(other, np.uint8).ctypes.data
        assert all(at + len(other) <= a - near or a + near <= at for a in arrays)
    memory.close()


def test_the_pieces_beside_an_array_are_out_of_reach() -> None:
    """The next one after its last piece of 16 bytes; with `reverse`, the one before its first."""
    out = np.zeros(59, np.int32)
    for i, reverse in ((60, False), (-1, True)):
        with pytest.raises(BackendError, match="cannot be read or written"):
            run_kernel(TOY, "toy_wrong", [out], [6, i], reverse=reverse)


def test_writing_past_an_array() -> None:
    out = np.zeros(3, np.float32)
    with pytest.raises(BackendError, match=r"bytes beside the 12 bytes at 0x\w+ were written"):
        run_kernel(TOY, "toy_block_sum", [out], [1], grid=(4, 1, 1), block=256)


# --- compiling ---


def test_compile_errors_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "wrong.cu"
    path.write_text('#include "device.cuh"\nKERNEL(wrong, 32, 1) { int x = nothing; }\n')
    with pytest.raises(BackendError, match=r"(?s)wrong.cu does not compile:.*nothing"):
        GridCompiler().compile(CudaSource.of(str(path)), 90)


def test_a_kernel_is_compiled_again_when_its_sources_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder.cache_clear()
    try:
        source, included = tmp_path / "one.cu", tmp_path / "number.cuh"
        source.write_text(
            f'#include "device.cuh"\n#include "{included}"\n'
            "KERNEL(one, 32, 1) { *reinterpret_cast<int *>(p.t[0].data) = NUMBER + MORE; }\n"
        )
        out = np.zeros(1, np.int32)
        for number, more in ((1, 0), (2, 0), (2, 5)):
            included.write_text(f"#define NUMBER {number}\n")
            cuda_run.forget()
            run_kernel(CudaSource.of(str(source), MORE=more), "one", [out])
            assert out == number + more
        assert len(list(folder().glob("one-*.so"))) == 3
    finally:
        folder.cache_clear()
        cuda_run.forget()
