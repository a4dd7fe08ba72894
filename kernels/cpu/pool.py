"""A pool of threads that run compiled plans without Python.

A thread waits for work in native code: it spins for a while, then sleeps in the operating system.
It never needs the interpreter. The calling thread is thread 0. A plan runs on the first n threads;
the others continue to sleep.

The words that threads wait for are sequentially consistent: a thread that has read a new JOB or
GENERATION can read everything that was written before it. A run ends with a barrier. So when the
next run begins, no worker reads PLAN and N_ENTRIES any more, and all wait for a new JOB.
Tested by tests/kernels/test_cpu_pool.py.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from ...alloc.buffer import Bytes
from ...alloc.host import aligned_zeros
from ...base.errors import BackendError, ClosedError
from ...base.priority import lower_priority, show_thread_name
from ..host import POLL
from .compiler.jit import Kernel
from .compiler.native import native
from .simd import types
from .simd.calls import call_kernel, external, inlined
from .simd.memory import load_i64, store_i64
from .simd.sync import atomic_add, atomic_load, atomic_store, now_ns, pause

# words of a plan's entry
FN: Final = 0
PARAMS_AT: Final = 1
ONE_THREAD: Final = 2
BARRIER: Final = 3  # 1: wait for all threads before this entry
ENTRY_WORDS: Final = 4

# words of the block that the threads of a pool share; words with different writers are in different
# cache lines
ARRIVED: Final = 0
GENERATION: Final = 8
JOB: Final = 16  # the number of the last job, and the number of its threads
STOP: Final = 24
PLAN: Final = 32
N_ENTRIES: Final = 33
N_THREADS: Final = 34  # this word and the next two are written only once
SPIN_JOB: Final = 35  # nanoseconds that a thread spins for a job; the next word: at a barrier
SPIN_BARRIER: Final = 36
SLEEPERS: Final = 40
THREADS: Final = 48  # the words of thread 0, then those of thread 1 ...
# words of a thread
ASLEEP: Final = 0
MUTEX: Final = 8  # pthread_mutex_t and pthread_cond_t, at most 128 bytes each
COND: Final = 24
THREAD_WORDS: Final = 40
LINE: Final = 64  # bytes of a cache line

JOB_STEP: Final = 1 << 16  # JOB is number * JOB_STEP + threads: both are read at once

# A waiting thread reads a word repeatedly. After about a microsecond it yields the core, because
# the thread that it waits for may need it. In the end it sleeps.
LOOKS: Final = 16
SPIN_NS: Final = 20_000  # for each level of polling: 1 ms by default
SPIN_BARRIER_NS: Final = 100_000  # the minimum at a barrier: the other threads are running

_yield = external("sched_yield", types.int32)
_lock = external("pthread_mutex_lock", types.int32, types.int64)
_unlock = external("pthread_mutex_unlock", types.int32, types.int64)
_signal = external("pthread_cond_signal", types.int32, types.int64)
_wait = external("pthread_cond_wait", types.int32, types.int64, types.int64)


@inlined
def _thread(sync, ith):
    return sync + 8 * (THREADS + THREAD_WORDS * ith)


@inlined
def _sleep_until_changed(sync, ith, at, seen):
    me = _thread(sync, ith)
    _lock(me + 8 * MUTEX)
    # set ASLEEP, then check the word again; a writer does both in the opposite order
    atomic_store(me + 8 * ASLEEP, 1)
    atomic_add(sync + 8 * SLEEPERS, 1)
    while atomic_load(at) == seen:
        _wait(me + 8 * COND, me + 8 * MUTEX)
    atomic_add(sync + 8 * SLEEPERS, -1)
    atomic_store(me + 8 * ASLEEP, 0)
    _unlock(me + 8 * MUTEX)


@inlined
def _wait_for_change(sync, ith, at, seen, spin):
    """Wait until the word at `at` is not `seen`: spin for `spin` nanoseconds, then sleep."""
    if spin > 0:
        end = 0
        while True:
            for _ in range(LOOKS):
                if atomic_load(at) != seen:
                    return
                pause()
            now = now_ns()
            if end == 0:
                end = now + spin
            elif now >= end:
                break
            _yield()
    _sleep_until_changed(sync, ith, at, seen)


@inlined
def _wake(sync, nth):
    """Wake those of the first `nth` threads that sleep. Call it after the word has changed."""
    if atomic_load(sync + 8 * SLEEPERS) == 0:
        return
    for i in range(nth):
        thread = _thread(sync, i)
        if atomic_load(thread + 8 * ASLEEP) != 0:
            _lock(thread + 8 * MUTEX)
            _signal(thread + 8 * COND)
            _unlock(thread + 8 * MUTEX)


@inlined
def _barrier(sync, ith, nth):
    generation = atomic_load(sync + 8 * GENERATION)
    if atomic_add(sync + 8 * ARRIVED, 1) == nth - 1:
        # in this order: after the new generation, a thread may arrive at the next barrier
        atomic_store(sync + 8 * ARRIVED, 0)
        atomic_add(sync + 8 * GENERATION, 1)
        _wake(sync, nth)
        return
    # the other threads usually arrive within some ten nanoseconds
    for _ in range(LOOKS):
        if atomic_load(sync + 8 * GENERATION) != generation:
            return
    spin = load_i64(sync + 8 * SPIN_BARRIER)
    _wait_for_change(sync, ith, sync + 8 * GENERATION, generation, spin)


@inlined
def _call(entry, ith, nth):
    if load_i64(entry + 8 * ONE_THREAD) == 0:
        call_kernel(load_i64(entry + 8 * FN), load_i64(entry + 8 * PARAMS_AT), ith, nth)
    elif ith == 0:
        call_kernel(load_i64(entry + 8 * FN), load_i64(entry + 8 * PARAMS_AT), 0, 1)


@inlined
def _run(plan, n, ith, nth, sync):
    for i in range(n):
        entry = plan + 8 * ENTRY_WORDS * i
        if nth > 1 and load_i64(entry + 8 * BARRIER) != 0:
            _barrier(sync, ith, nth)
        _call(entry, ith, nth)
    if nth > 1:
        _barrier(sync, ith, nth)


@inlined
def _post(sync, nth):
    """Post a job for the first `nth` threads."""
    number = atomic_load(sync + 8 * JOB) // JOB_STEP
    atomic_store(sync + 8 * JOB, (number + 1) * JOB_STEP + nth)
    _wake(sync, nth)


def pool_worker(sync, ith, nth):
    """Run posted jobs until the pool stops."""
    seen = 0
    while True:
        _wait_for_change(sync, ith, sync + 8 * JOB, seen, load_i64(sync + 8 * SPIN_JOB))
        seen = atomic_load(sync + 8 * JOB)
        if atomic_load(sync + 8 * STOP) != 0:
            return
        n_active = seen % JOB_STEP
        if ith < n_active:
            plan, n = load_i64(sync + 8 * PLAN), load_i64(sync + 8 * N_ENTRIES)
            _run(plan, n, ith, n_active, sync)


@inlined
def _post_plan(sync, plan, n, nth):
    """Post a plan of `n` entries to the workers among the first `nth` threads."""
    if nth > 1:
        store_i64(sync + 8 * PLAN, plan)
        store_i64(sync + 8 * N_ENTRIES, n)
        _post(sync, nth)


def pool_run(sync, plan, n, nth):
    """Run a plan of `n` entries on the first `nth` threads, including this one."""
    _post_plan(sync, plan, n, nth)
    _run(plan, n, 0, nth, sync)


def pool_run_timed(sync, plan, n, nth, times):
    """Like `pool_run`, for entries that all have a barrier. Write the begin of each entry and the
    end of the last one, in nanoseconds, to `times` [n + 1]."""
    _post_plan(sync, plan, n, nth)
    for i in range(n):
        if nth > 1:
            _barrier(sync, 0, nth)
        store_i64(times + 8 * i, now_ns())
        _call(plan + 8 * ENTRY_WORDS * i, 0, nth)
    if nth > 1:
        _barrier(sync, 0, nth)
    store_i64(times + 8 * n, now_ns())


def pool_stop(sync):
    """Stop all workers."""
    atomic_store(sync + 8 * STOP, 1)
    _post(sync, load_i64(sync + 8 * N_THREADS))


WORKER: Final = Kernel(pool_worker)
RUN: Final = Kernel(pool_run, 4)
RUN_TIMED: Final = Kernel(pool_run_timed, 5)  # compiled when something is profiled
STOP_ALL: Final = Kernel(pool_stop, 1)
POOL_KERNELS: Final = (WORKER, RUN, STOP_ALL)


def entry_of(kernel: Kernel, params: int) -> npt.NDArray[np.int64]:
    """A plan of one call, of a kernel with the parameters at this address, on all threads.

    Raises:
        BackendError: the kernel cannot be compiled or loaded.
    """
    entry = np.zeros(ENTRY_WORDS, np.int64)
    entry[FN], entry[PARAMS_AT] = kernel.address, params
    return entry


class ThreadPool:
    """`n_threads` threads, including the caller's, that run plans together.

    `poll`: how long threads without work spin before they sleep, 0 (not at all) to 100 (2 ms).
    The threads end when the pool is closed or no longer referenced. Sleeping threads do not delay
    the end of the process, because they do not use the interpreter.

    Raises:
        BackendError: the system cannot start more threads.
    """

    def __init__(self, n_threads: int, poll: int = POLL) -> None:
        assert 1 <= n_threads < JOB_STEP, f"{n_threads} threads"
        assert 0 <= poll <= 100, f"poll is {poll}"
        self.n_threads = n_threads
        self._process = os.getpid()
        self._lock = threading.RLock()
        sync = _new_sync(n_threads, poll)
        self._address = sync.ctypes.data
        self._run = native(RUN)
        self._end = weakref.finalize(self, _stop, native(STOP_ALL), sync, self._process)
        self._end.atexit = False
        self._threads: list[threading.Thread] = []
        work = native(WORKER)
        for i in range(1, n_threads):
            self._start(
                threading.Thread(
                    target=_work,
                    args=(work, sync, i, n_threads),
                    name=f"lamella-cpu-{i}",
                    daemon=True,
                )
            )

    def run(
        self,
        plan_address: int,
        n_entries: int,
        n_threads: int | None = None,
        times: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Run a plan on `n_threads` of the threads (None: all), and wait for its end.

        Only one caller at a time runs a plan; others wait. With `times` [n_entries + 1], all
        entries must have a barrier: it gets the begin of each and the end of the last, in ns.

        Raises:
            ClosedError: the pool is closed.
            BackendError: this process is a fork of the pool's process and lacks its threads.
        """
        n = self.n_threads if n_threads is None else n_threads
        assert 1 <= n <= self.n_threads, f"{n} threads, of {self.n_threads}"
        if os.getpid() != self._process:
            raise BackendError(
                f"this process is a fork of process {self._process} and lacks its CPU threads: "
                "open a new backend"
            )
        with self._lock:
            if not self._end.alive:
                raise ClosedError("the CPU's threads have ended: their backend was freed")
            if times is None:
                self._run(self._address, plan_address, n_entries, n)
            else:
                assert times.size == n_entries + 1, f"{times.size} times, {n_entries} entries"
                timed = native(RUN_TIMED)
                timed(self._address, plan_address, n_entries, n, times.ctypes.data)

    def lower_priority(self) -> None:
        """Let other programs go first on busy cores; see `base.priority`."""
        for thread in self._threads:
            lower_priority(thread.native_id)

    def close(self) -> None:
        """Stop the threads after a run in flight. A second call does nothing."""
        if os.getpid() != self._process:
            return  # a fork: the thread that holds the lock does not exist here
        with self._lock:
            self._end()
            for thread in self._threads:
                thread.join()
            self._threads.clear()

    def _start(self, thread: threading.Thread) -> None:
        try:
            thread.start()
        except RuntimeError as e:
            n = 1 + len(self._threads)
            raise BackendError(
                f"cannot start {self.n_threads} threads: the system gives only {n}"
            ) from e
        self._threads.append(thread)


def _new_sync(n_threads: int, poll: int) -> Bytes:
    """The initial block that the threads of a pool share."""
    sync = aligned_zeros(8 * (THREADS + THREAD_WORDS * n_threads), LINE, "thread pool")
    words = sync.view(np.int64)
    words[N_THREADS] = n_threads
    words[SPIN_JOB] = poll * SPIN_NS
    words[SPIN_BARRIER] = max(poll * SPIN_NS, SPIN_BARRIER_NS)
    libc = ctypes.CDLL(None)
    for i in range(n_threads):
        thread = sync.ctypes.data + 8 * (THREADS + THREAD_WORDS * i)
        libc.pthread_mutex_init(ctypes.c_void_p(thread + 8 * MUTEX), None)
        libc.pthread_cond_init(ctypes.c_void_p(thread + 8 * COND), None)
    return sync


def _work(work: Callable[..., None], sync: Bytes, ith: int, nth: int) -> None:
    show_thread_name()
    work(sync.ctypes.data, ith, nth)  # the parameter keeps `sync` alive


def _stop(stop: Callable[..., None], sync: Bytes, process: int) -> None:
    # must not wait, because the garbage collector may call this at any point
    if os.getpid() == process:
        stop(sync.ctypes.data)
