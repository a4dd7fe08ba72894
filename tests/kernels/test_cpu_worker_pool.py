"""Compiling in several processes: kernels that workers compile, failures, and their end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import pytest
from jit_process import call
from op_cases import op_cases
from reference_run import with_prepared
from toy_kernels import test_count

from lamella.base.errors import BackendError
from lamella.graph import GGMLType
from lamella.kernels.cpu import plan as _plan  # noqa: F401 - declares the kernels
from lamella.kernels.cpu.compiler import jit, worker_pool
from lamella.kernels.cpu.compiler.jit import KERNELS, Kernel, cache_folder, family, kernel
from lamella.kernels.cpu.compiler.objects import load_objects
from lamella.kernels.cpu.compiler.worker import compile_kernel
from lamella.kernels.cpu.compiler.worker_pool import code_size, compile_all, n_workers
from lamella.kernels.cpu.kernel_set import KERNELS as CPU_KERNELS
from lamella.kernels.cpu.packed.micro import micro_kernel
from lamella.kernels.cpu.simd.memory import load_i64, store_i64

# Numba types kernels, mypy does not: they have no annotations
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

Started = list["subprocess.Popen[bytes]"]
SMALL = ("pool_stop", "encode_f16", "decode_f16", "decode_q4_0")


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """Allow one worker for any number of kernels. Returns the workers; all must have ended."""
    processes: Started = []
    start = subprocess.Popen

    def popen(*args: object, **options: object) -> subprocess.Popen[bytes]:
        processes.append(start(*args, **options))  # type: ignore[call-overload]
        return processes[-1]

    monkeypatch.setattr(worker_pool, "n_workers", lambda n: 1)
    monkeypatch.setattr(subprocess, "Popen", popen)
    before = dict(KERNELS)
    yield processes
    KERNELS.clear()
    KERNELS.update(before)
    assert all(p.poll() is not None for p in processes)


class Results:
    """The progress and the objects that `compile_all` reported."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, str]] = []
        self.objects: dict[str, bytes] = {}

    def progress(self, done: int, name: str) -> None:
        self.steps.append((done, name))

    def add(self, k: Kernel, data: bytes) -> None:
        assert k.name not in self.objects
        self.objects[k.name] = data


def compiled(*kernels: Kernel) -> Results:
    results = Results()
    compile_all(kernels, cache_folder().name, results.progress, results.add)
    assert set(results.objects) == {k.name for k in kernels}
    done = [n for n, _ in results.steps]
    assert done == sorted(done)
    assert done[0] == 0
    assert results.steps[-1] == (len(kernels), "")
    assert {name for _, name in results.steps[:-1]} <= {k.name for k in kernels}
    return results


def by_worker(*kernels: Kernel) -> dict[str, bytes]:
    """The objects that a worker alone compiles."""
    with worker_pool._Workers(kernels, cache_folder().name) as workers:
        found: dict[str, bytes] = {}
        while len(found) + len(workers._returned) < len(kernels):
            found.update((k.name, data) for k, data in workers.results(wait=True))
        return found


def declare_add(name: str, n: int) -> Kernel:
    """A kernel that no worker knows."""

    def add(p, ith, nth):
        store_i64(p, load_i64(p) + n)

    add.__name__ = name
    return kernel(add)


def load(name: str, data: bytes) -> Kernel:
    k = Kernel.__new__(Kernel)
    k.name, k._address = name, load_objects({name: data})[name]
    return k


# --- kernels that workers compile ---


def test_a_worker_compiles_declared_and_lazy_kernels() -> None:
    lazy = micro_kernel(GGMLType.Q4_0, 1, False)
    wanted = [*(KERNELS[name] for name in SMALL), lazy]
    found = by_worker(*wanted)
    assert set(found) == {k.name for k in wanted}
    for name, data in found.items():
        assert load_objects({name: data})[name] != 0


def test_a_worker_returns_unknown_kernels_and_goes_on() -> None:
    own = declare_add("test_own", 3)
    assert set(by_worker(own, KERNELS["pool_stop"])) == {"pool_stop"}


def test_the_caller_compiles_too(started: Started) -> None:
    kernels = [declare_add(f"test_add_{n}", n) for n in range(4)]
    results = compiled(*kernels, *(KERNELS[name] for name in SMALL))
    assert len(started) == 1
    for n in range(4):
        assert call(load(f"test_add_{n}", results.objects[f"test_add_{n}"]), 10) == 10 + n


def test_a_faulty_kernel_is_reported_as_by_the_caller() -> None:
    def test_faulty(p, ith, nth):
        store_i64(p, no_such_thing(ith))  # type: ignore[name-defined]  # noqa: F821

    faulty = kernel(test_faulty)
    assert compile_kernel("test_faulty", None) is None
    with pytest.raises(BackendError, match=r"(?s)test_faulty cannot be compiled: .*no_such"):
        compiled(*(KERNELS[name] for name in SMALL), faulty)


def test_modules_of_the_working_folder_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    assert set(by_worker(KERNELS["pool_stop"])) == {"pool_stop"}


def test_workers_can_compile_every_kernel() -> None:
    micro_kernel(GGMLType.Q4_0, 1, False)
    # a kernel neither declared by imports nor made by a `family` would slow down the start
    source = "from lamella.kernels.cpu.compiler.worker import *; import_all(); print(*KERNELS)"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    declared = set(done.stdout.split())
    calls = with_prepared(c for case in op_cases() for c in CPU_KERNELS.calls_of(case.node()))
    made = {k for call in calls for k in call.kernels()} | {
        k for k in KERNELS.values() if not k.name.startswith("test_")
    }
    assert [k for k in made if k.name not in declared and k.recipe is None] == []
    assert {*SMALL, "sample_rows"} <= declared


def test_a_family_makes_each_kernel_once() -> None:
    @family
    def make(n: int) -> Kernel:
        return declare_add(f"test_family_{n}", n)

    assert make(1) is make(1)
    assert make(2) is not make(1)
    recipe = micro_kernel(GGMLType.Q8_0, 1, False).recipe
    assert recipe == ("lamella.kernels.cpu.packed.micro", "micro_kernel", (GGMLType.Q8_0, 1, False))


def test_a_family_makes_a_kernel_once_for_concurrent_threads() -> None:
    n = 4
    asking = Barrier(n)

    @family
    def make(i: int) -> Kernel:
        with suppress(BrokenBarrierError):
            asking.wait(0.2)  # give the others time to make it too
        return declare_add(f"test_asked_{i}", i)

    with ThreadPoolExecutor(n) as threads:
        found = list(threads.map(make, [1] * n))
    assert len(set(map(id, found))) == 1


# --- workers that fail ---

KEY = "import pickle, sys; pickle.dump({key!r}, sys.stdout.buffer); sys.stdout.buffer.flush()\n"
ALWAYS_WRONG = """
while True:
    pickle.load(sys.stdin.buffer)
    pickle.dump(b'wrong', sys.stdout.buffer)
    sys.stdout.buffer.flush()
"""
FAILING = {
    "no such program": None,
    "ends at once": "",
    "says nothing it should": "print('hello')",
    "has other sources": KEY.replace("{key!r}", "'other'") + ALWAYS_WRONG,
    "ends with the first": KEY + "pickle.load(sys.stdin.buffer); sys.exit(1)",
    "answers nonsense": KEY + "pickle.load(sys.stdin.buffer); print('nonsense')",
    "is killed": KEY + "import os; pickle.load(sys.stdin.buffer); os.kill(os.getpid(), 9)",
    "reads nothing": KEY + "sys.stdin.close()",
}


@pytest.mark.parametrize("way", FAILING)
def test_the_caller_compiles_kernels_of_failed_workers(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FAILING[way]
    command = ["/no/such/program"]
    if source is not None:
        command = [sys.executable, "-c", source.replace("{key!r}", repr(cache_folder().name))]
    monkeypatch.setattr(worker_pool, "worker_command", lambda: command)
    results = compiled(*(KERNELS[name] for name in SMALL))
    assert b"wrong" not in results.objects.values()


def test_an_interruption_ends_the_workers(started: Started) -> None:
    def interrupt(k: Kernel, data: bytes) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_all(
            [KERNELS[name] for name in SMALL],
            cache_folder().name,
            lambda done, name: None,
            interrupt,
        )
    assert len(started) == 1
    assert started[0].returncode is not None


def test_a_worker_ends_with_its_input(started: Started) -> None:
    command = worker_pool.worker_command()
    assert command is not None
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = process.communicate(timeout=250)
    assert (process.returncode, err) == (0, b"")
    assert cache_folder().name.encode() in out


# --- how many, and which first ---


@pytest.mark.parametrize(
    ("n_cpus", "free_mib", "n_kernels", "expected"),
    [
        *((1, 9999, 100, 0), (2, 9999, 0, 0), (2, 9999, 1, 0), (2, 9999, 5, 0)),
        *((2, 9999, 6, 1), (2, 9999, 100, 1), (8, 9999, 15, 4), (64, 9999, 300, 8)),
        *((8, 511, 100, 0), (8, 512, 100, 1), (8, 2047, 100, 3), (64, 2047, 15, 3)),
    ],
)
def test_the_number_of_workers(
    n_cpus: int, free_mib: int, n_kernels: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "usable_cpus", lambda: n_cpus)
    monkeypatch.setattr(worker_pool, "host_memory", lambda: (free_mib << 20, 99999 << 20))
    assert n_workers(n_kernels) == expected
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert n_workers(n_kernels) == 0


def test_code_size_counts_called_functions_once() -> None:
    def small(p, ith, nth):
        store_i64(p, 1)

    def large(p, ith, nth):
        small(p, ith, nth)
        small(p, ith, nth)

    def own_size(f: Callable[..., object]) -> int:
        return len(f.__code__.co_code)

    assert code_size(small) == own_size(small)
    assert code_size(large) == own_size(small) + own_size(large)
    assert code_size(test_count.function) < code_size(KERNELS["rms_norm_f32"].function)


def test_loading_many_uses_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: Started
) -> None:
    folder = cache_folder()
    monkeypatch.setattr(jit, "cache_folder", lambda: tmp_path / folder.name)
    kernels = [KERNELS[name] for name in SMALL]
    for k in kernels:
        monkeypatch.setattr(k, "_address", None)
    jit.load_all(kernels)
    assert len(started) == 1
    assert sorted(f.stem for f in (tmp_path / folder.name).glob("*.o")) == sorted(SMALL)
