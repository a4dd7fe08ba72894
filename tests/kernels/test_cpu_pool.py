"""The thread pool: every thread runs every call, in order, however long it has waited."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import toy_kernels
from toy_kernels import Job, Words, words

from lamella.base.errors import BackendError, ClosedError
from lamella.base.priority import NICE, lower_priority
from lamella.kernels.cpu import pool as pool_module
from lamella.kernels.cpu.pool import ThreadPool

each_size = pytest.mark.parametrize("n_threads", [1, 2, 3, 4, 8])  # the machine may have 2 cores

ASLEEP = 0.002  # seconds after which a thread without work sleeps, on an idle machine


@pytest.fixture(autouse=True, scope="module")
def _toys() -> None:
    toy_kernels.load()


@pytest.fixture
def pool(n_threads: int) -> Iterator[ThreadPool]:
    pool = ThreadPool(n_threads)
    yield pool
    pool.close()


def counting(n_threads: int, n_calls: int) -> tuple[Job, Words]:
    """A job that counts its calls, in a word for each thread."""
    counts = np.zeros(n_threads, np.int64)
    return Job([(toy_kernels.test_count, counts.ctypes.data, False)] * n_calls), counts


def n_workers() -> int:
    return sum(t.name.startswith("lamella-cpu") for t in threading.enumerate())


def assert_workers(n: int) -> None:
    """Wait until at most `n` threads of pools are left."""
    end = time.monotonic() + 120
    while n_workers() > n and time.monotonic() < end:
        time.sleep(0.001)
    assert n_workers() == n


def assert_ends_well(source: str) -> None:
    """Check that another process runs this to its end, without output."""
    # Python 3.12 warns of a fork beside other threads
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture(autouse=True)
def n_before() -> Iterator[int]:
    """The number of workers of other tests' pools. This test must not leave more."""
    n = n_workers()
    yield n
    assert_workers(n)


# --- runs ---


@each_size
def test_every_thread_runs_every_call_once(pool: ThreadPool, n_threads: int) -> None:
    job, counts = counting(n_threads, n_calls=3)
    for i in range(1, 301):
        job.run(pool)
        assert (counts == 3 * i).all(), f"run {i}"


@each_size
def test_a_job_without_calls(pool: ThreadPool, n_threads: int) -> None:
    for _ in range(100):
        Job([]).run(pool)


@each_size
def test_a_call_sees_what_other_threads_wrote_before(pool: ThreadPool, n_threads: int) -> None:
    ring = [np.zeros(16 * n_threads + 1, np.int64) for _ in range(2)]
    steps = [words(ring[i].ctypes.data, ring[1 - i].ctypes.data, ring[0].size) for i in range(2)]
    # calls of one thread, single or in a row, between calls of all threads
    alone = [False, True, False, False, True, True, True, False, False, True, False, False]
    calls = [
        (toy_kernels.test_pass_on, steps[i % 2].ctypes.data, one) for i, one in enumerate(alone)
    ]
    job = Job(calls)
    for i in range(1, 101):
        job.run(pool)
        assert (ring[0] == i * len(calls)).all(), f"run {i}"


def test_calls_of_one_thread_need_no_barrier_between_them() -> None:
    pool = ThreadPool(3)
    counts = words(0, 0, 0)
    job = Job([(toy_kernels.test_count, counts.ctypes.data, True)] * 5)
    job.entries[:, 3] = 0
    for _ in range(200):
        job.run(pool)
    assert counts.tolist() == [1000, 0, 0]
    pool.close()


@each_size
def test_threads_that_take_different_times(pool: ThreadPool, n_threads: int) -> None:
    lengths = [words(n, *[0] * n_threads) for n in (3000, 0, 10, 500)]
    job = Job([(toy_kernels.test_spin, w.ctypes.data, False) for w in lengths])
    for _ in range(20):
        job.run(pool)
    for w in lengths:
        assert w[1:].tolist() == [20 * w[0] * (i + 1) for i in range(n_threads)]


@pytest.mark.parametrize("n_threads", [2, 4])
def test_no_wake_up_is_lost(pool: ThreadPool, n_threads: int) -> None:
    # pauses about as long as threads poll before they sleep, and longer
    job, counts = counting(n_threads, n_calls=1)
    rng = random.Random(0)
    n = 0
    end = time.monotonic() + 0.7
    while time.monotonic() < end:
        until = time.perf_counter() + rng.choice(
            [0, 0, rng.uniform(5e-5, 2e-4), rng.expovariate(2e3)]
        )
        while time.perf_counter() < until:
            pass
        job.run(pool)
        n += 1
    for _ in range(30):
        time.sleep(ASLEEP)
        job.run(pool)
        n += 1
    assert counts.tolist() == [n] * n_threads


@pytest.fixture
def drowsy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadPool]:
    """A pool whose threads sleep at once, even at barriers."""
    monkeypatch.setattr(pool_module, "SPIN_BARRIER_NS", 0)
    pool = ThreadPool(3, poll=0)
    yield pool
    pool.close()


def test_no_wake_up_of_drowsy_threads_is_lost(drowsy: ThreadPool) -> None:
    # most runs begin just when the threads fall asleep
    rng = random.Random(0)
    for _ in range(10_000):
        until = time.perf_counter() + rng.uniform(0, 3e-5)
        while time.perf_counter() < until:
            pass
        drowsy.run(0, 0)


def test_threads_sleep_at_barriers(drowsy: ThreadPool) -> None:
    counted, counts = counting(3, n_calls=20)
    spins = [words(n, 0, 0, 0) for n in (0, 3000, 1, 100)]
    slow = Job([(toy_kernels.test_spin, w.ctypes.data, False) for w in spins])
    for i in range(1, 201):
        counted.run(drowsy)
        slow.run(drowsy)
        assert (counts == 20 * i).all(), f"run {i}"
    for w in spins:
        assert w[1:].tolist() == [200 * w[0] * i for i in (1, 2, 3)]


def test_runs_on_some_of_the_threads(drowsy: ThreadPool) -> None:
    wakeful = ThreadPool(3)
    rng = random.Random(0)
    for pool in (wakeful, drowsy):
        job, counts = counting(3, n_calls=4)
        expected = np.zeros(3, np.int64)
        for i in range(3000):
            n = rng.choice([1, 2, 3])
            job.run(pool, n)
            expected[:n] += 4
            assert (counts == expected).all(), f"run {i}, on {n}"
    wakeful.close()


def test_unneeded_threads_are_not_woken() -> None:
    pool = ThreadPool(3, poll=100)  # a woken thread stays awake for 2 ms
    sync = (ctypes.c_int64 * 1000).from_address(pool._address)
    first, second = (pool_module.THREADS + pool_module.THREAD_WORDS * i for i in (1, 2))
    end = time.monotonic() + 120
    while not (sync[first] and sync[second]) and time.monotonic() < end:
        time.sleep(ASLEEP)
    for n_threads in (1, 2):
        for _ in range(100):
            Job([]).run(pool, n_threads)
            assert sync[second] == 1, f"woken by a run on {n_threads}"
            assert sync[first] == 1 or n_threads > 1
    pool.close()


def test_two_pools_at_once() -> None:
    pools = [ThreadPool(2), ThreadPool(3)]
    jobs = [counting(p.n_threads, n_calls=2) for p in pools]

    def work(i: int) -> None:
        for _ in range(500):
            jobs[i][0].run(pools[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for pool, (_, counts) in zip(pools, jobs, strict=True):
        assert counts.tolist() == [1000] * pool.n_threads
        pool.close()


def test_threads_that_run_on_one_pool_take_turns() -> None:
    pool = ThreadPool(2)
    job, counts = counting(2, n_calls=2)

    def work() -> None:
        for _ in range(300):
            job.run(pool)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert counts.tolist() == [1200, 1200]
    pool.close()


def test_other_python_threads_run_during_a_run() -> None:
    pool = ThreadPool(2)
    flags = words(0, 0, 0)
    job = Job([(toy_kernels.test_await, flags.ctypes.data, False)])
    runner = threading.Thread(target=job.run, args=(pool,))
    runner.start()
    flags[0] = 1  # the run waits for it
    runner.join()
    assert flags.tolist() == [1, 1, 1]
    pool.close()


# --- the end ---


@each_size
def test_closed_at_once_after_a_pause_and_twice(n_threads: int, n_before: int) -> None:
    for pause in (0, ASLEEP):
        for n_runs in (0, 1):
            pool = ThreadPool(n_threads)
            for _ in range(n_runs):
                Job([]).run(pool)
            time.sleep(pause)
            pool.close()
            pool.close()
            assert_workers(n_before)


def test_a_closed_pool_refuses_to_run() -> None:
    for n_threads in (1, 2):
        pool = ThreadPool(n_threads)
        pool.close()
        with pytest.raises(ClosedError, match="have ended"):
            Job([]).run(pool)


def test_closed_while_another_thread_runs() -> None:
    def work(pool: ThreadPool) -> None:
        with contextlib.suppress(ClosedError):
            while True:
                Job([]).run(pool)

    rng = random.Random(0)
    for _ in range(50):
        pool = ThreadPool(2)
        runner = threading.Thread(target=work, args=(pool,), daemon=True)
        runner.start()
        time.sleep(rng.uniform(0, 5e-4))
        pool.close()
        runner.join(timeout=120)
        assert not runner.is_alive()


def test_a_pool_that_is_dropped_ends_its_threads(n_before: int) -> None:
    job, counts = counting(4, n_calls=2)
    for i in range(1, 31):
        pool = ThreadPool(4)  # may reuse the previous pool's memory
        job.run(pool)
        assert counts.tolist() == [2 * i] * 4
    dropped = weakref.ref(pool)
    del pool
    assert dropped() is None
    assert_workers(n_before)


def test_a_system_that_starts_too_few_threads(
    monkeypatch: pytest.MonkeyPatch, n_before: int
) -> None:
    start = threading.Thread.start

    def starting(thread: threading.Thread) -> None:
        if thread.name == "lamella-cpu-3":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starting)
    with pytest.raises(BackendError, match="cannot start 6 threads: the system gives only 3"):
        ThreadPool(6)
    assert_workers(n_before)


# --- the end of the process ---

HEADER = """
import os, sys, threading, time
from lamella.kernels.cpu.pool import ThreadPool
pools = [ThreadPool(n) for n in (2, 4)]
for _ in range(3):
    for pool in pools:
        pool.run(0, 0)
"""

ENDS = {
    "with busy workers": "",
    "with sleeping workers": "time.sleep(0.02)",
    "with dropped pools": "del pools, pool; time.sleep(0.001)",
    "with a cycle": "me = pools; me.append(me); pool.me = pool",
    "by sys.exit in a daemon's run": """
def go():
    while True:
        pools[0].run(0, 0)
threading.Thread(target=go, daemon=True).start()
time.sleep(0.01)
sys.exit(0)
""",
    "in a fork": """
from lamella.base.errors import BackendError
def go():
    while True:
        pools[0].run(0, 0)
threading.Thread(target=go, daemon=True).start()
for i in range(4):
    child = os.fork()
    if child == 0:
        try:
            pools[i % 2].run(0, 0)
        except BackendError as e:
            assert "is a fork" in str(e)
        else:
            os._exit(1)
        pools[0].close()
        if i % 2:
            del pool, pools
        own = ThreadPool(3)
        own.run(0, 0)
        if i > 1:
            own.close()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
pools[1].run(0, 0)
""",
}


@pytest.mark.parametrize("way", ENDS)
def test_a_process_ends_without_closing(way: str) -> None:
    assert_ends_well(HEADER + ENDS[way])


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_low_priority() -> None:
    with contextlib.closing(ThreadPool(3)) as pool:
        before = [os.getpriority(os.PRIO_PROCESS, t.native_id or 0) for t in pool._threads]
        pool.lower_priority()
        after = [os.getpriority(os.PRIO_PROCESS, t.native_id or 0) for t in pool._threads]
    assert after == [max(NICE, nice) for nice in before]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before[0]


def test_a_forbidden_priority_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError("not in this sandbox")

    monkeypatch.setattr(os, "setpriority", refuse)
    lower_priority()
