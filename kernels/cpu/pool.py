"""A pool of threads that run compiled plans without Python.

A thread waits for work in native code: it spins for a short while, then sleeps in the operating
system, and never needs the interpreter. The calling thread is thread 0 and works along.
Tested by tests/kernels/test_cpu_pool.py.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from typing import Final

import numpy as np
from numba import types

from .jit import Kernel
from .simd import (
    atomic_add,
    atomic_load,
    atomic_store,
    call_kernel,
    inlined,
    load_i64,
    store_i64,
)

# words of a plan's entry
FN: Final = 0
PARAMS_AT: Final = 1
ONE_THREAD: Final = 2
BARRIER: Final = 3  # wait for all threads before this entry
ENTRY_WORDS: Final = 4

# words of the block that the threads of a pool share; those written by different threads lie
# in cache lines of their own
ARRIVED: Final = 0
GENERATION: Final = 8
JOB: Final = 16  # counts the jobs that were posted
STOP: Final = 24
PLAN: Final = 32
N_ENTRIES: Final = 33
SLEEPERS: Final = 40
MUTEX: Final = 48  # pthread_mutex_t and pthread_cond_t, at most 128 bytes each
COND: Final = 64
SYNC_WORDS: Final = 80

SPINS: Final = 4000  # about 100 us
SPINS_BEFORE_YIELD: Final = 4000

_yield = types.ExternalFunction(
    "SwitchToThread" if sys.platform == "win32" else "sched_yield", types.int32()
)
_PTHREAD = types.int32(types.int64)
_lock = types.ExternalFunction("pthread_mutex_lock", _PTHREAD)
_unlock = types.ExternalFunction("pthread_mutex_unlock", _PTHREAD)
_broadcast = types.ExternalFunction("pthread_cond_broadcast", _PTHREAD)
_wait = types.ExternalFunction("pthread_cond_wait", types.int32(types.int64, types.int64))


@inlined
def _barrier(sync, nth):
    generation = atomic_load(sync + 8 * GENERATION)
    if atomic_add(sync + 8 * ARRIVED, 1) == nth - 1:
        atomic_store(sync + 8 * ARRIVED, 0)
        atomic_add(sync + 8 * GENERATION, 1)
        return
    spins = 0
    while atomic_load(sync + 8 * GENERATION) == generation:
        spins += 1
        if spins % SPINS_BEFORE_YIELD == 0:
            _yield()  # another thread of ours may be waiting for this core


@inlined
def _run(plan, n, ith, nth, sync):
    for i in range(n):
        entry = plan + 8 * ENTRY_WORDS * i
        if nth > 1 and load_i64(entry + 8 * BARRIER) != 0:
            _barrier(sync, nth)
        if load_i64(entry + 8 * ONE_THREAD) == 0:
            call_kernel(load_i64(entry + 8 * FN), load_i64(entry + 8 * PARAMS_AT), ith, nth)
        elif ith == 0:
            call_kernel(load_i64(entry + 8 * FN), load_i64(entry + 8 * PARAMS_AT), 0, 1)
    if nth > 1:
        _barrier(sync, nth)


@inlined
def _next_job(sync, seen):
    """Wait until a job is posted that is not number `seen`; gives its number."""
    for _ in range(SPINS):
        job = atomic_load(sync + 8 * JOB)
        if job != seen:
            return job
    _lock(sync + 8 * MUTEX)
    # first counted as asleep, then a last look: whoever posts does it the other way round
    atomic_add(sync + 8 * SLEEPERS, 1)
    job = atomic_load(sync + 8 * JOB)
    while job == seen:
        _wait(sync + 8 * COND, sync + 8 * MUTEX)
        job = atomic_load(sync + 8 * JOB)
    atomic_add(sync + 8 * SLEEPERS, -1)
    _unlock(sync + 8 * MUTEX)
    return job


@inlined
def _post(sync):
    atomic_add(sync + 8 * JOB, 1)
    if atomic_load(sync + 8 * SLEEPERS) > 0:
        _lock(sync + 8 * MUTEX)
        _broadcast(sync + 8 * COND)
        _unlock(sync + 8 * MUTEX)


def pool_worker(sync, ith, nth):
    """Run what is posted until the pool stops."""
    seen = 0
    while True:
        seen = _next_job(sync, seen)
        if atomic_load(sync + 8 * STOP) != 0:
            return
        _run(load_i64(sync + 8 * PLAN), load_i64(sync + 8 * N_ENTRIES), ith, nth, sync)


def pool_run(sync, plan, n, nth):
    """Run a plan of `n` entries on all threads, this one among them."""
    if nth > 1:
        store_i64(sync + 8 * PLAN, plan)
        store_i64(sync + 8 * N_ENTRIES, n)
        _post(sync)
    _run(plan, n, 0, nth, sync)


def pool_stop(sync):
    """Let all workers return."""
    atomic_store(sync + 8 * STOP, 1)
    _post(sync)


WORKER: Final = Kernel(pool_worker)
RUN: Final = Kernel(pool_run, 4)
STOP_ALL: Final = Kernel(pool_stop, 1)


class ThreadPool:
    """`n_threads` threads, the caller's among them, that run plans together."""

    def __init__(self, n_threads: int) -> None:
        assert n_threads >= 1, f"{n_threads} threads"
        self.n_threads = n_threads
        # all bytes 0: an initialised mutex and condition on Linux; elsewhere they are set up
        self._sync = np.zeros(SYNC_WORDS + 8, np.int64)
        offset = -self._sync.ctypes.data % 64
        self._address = self._sync.ctypes.data + offset
        libc = ctypes.CDLL(None)
        libc.pthread_mutex_init(ctypes.c_void_p(self._address + 8 * MUTEX), None)
        libc.pthread_cond_init(ctypes.c_void_p(self._address + 8 * COND), None)
        word = ctypes.c_int64
        self._run = ctypes.CFUNCTYPE(None, word, word, word, word)(RUN.address)
        self._stop = ctypes.CFUNCTYPE(None, word)(STOP_ALL.address)
        work = ctypes.CFUNCTYPE(None, word, word, word)(WORKER.address)
        self._threads = [
            threading.Thread(
                target=work,
                args=(self._address, i, n_threads),
                name=f"lamella-cpu-{i}",
                daemon=True,
            )
            for i in range(1, n_threads)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, plan_address: int, n_entries: int) -> None:
        """Run a plan; returns when it is done. Not to be called by two threads at once."""
        self._run(self._address, plan_address, n_entries, self.n_threads)

    def close(self) -> None:
        """End the threads. Twice is fine."""
        threads, self._threads = self._threads, []
        if threads:
            self._stop(self._address)
        for thread in threads:
            thread.join()
