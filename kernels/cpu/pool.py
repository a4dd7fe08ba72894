"""A pool of threads that run compiled plans without Python.

A thread waits for work in native code: it spins for a short while, then sleeps in the operating
system, and never needs the interpreter. The calling thread is thread 0 and works along.

The words that threads wait for are read and written in one order (sequentially consistent): who
has seen a new JOB or GENERATION sees all that was written before it. A run ends with a barrier, so
the next one finds all workers done with PLAN and N_ENTRIES and waiting for a new JOB.
Tested by tests/kernels/test_cpu_pool.py.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from typing import Final

from numba import types

from ...alloc.buffer import Bytes
from ...alloc.host import aligned_empty
from ...base.errors import BackendError, ClosedError
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
LINE: Final = 64  # bytes of a cache line

# A waiting thread looks at a word again and again. After a few looks it lets others have the core:
# the thread it waits for may need it. After many it goes to sleep, if it has nothing to do.
LOOKS_BEFORE_YIELD: Final = 200
LOOKS_BEFORE_SLEEP: Final = 50_000  # about 100 us

_yield = types.ExternalFunction("sched_yield", types.int32())
_PTHREAD = types.int32(types.int64)
_lock = types.ExternalFunction("pthread_mutex_lock", _PTHREAD)
_unlock = types.ExternalFunction("pthread_mutex_unlock", _PTHREAD)
_broadcast = types.ExternalFunction("pthread_cond_broadcast", _PTHREAD)
_wait = types.ExternalFunction("pthread_cond_wait", types.int32(types.int64, types.int64))


@inlined
def _barrier(sync, nth):
    generation = atomic_load(sync + 8 * GENERATION)
    if atomic_add(sync + 8 * ARRIVED, 1) == nth - 1:
        # in this order: with the new generation, the first may arrive at the next barrier
        atomic_store(sync + 8 * ARRIVED, 0)
        atomic_add(sync + 8 * GENERATION, 1)
        return
    looks = 0
    while atomic_load(sync + 8 * GENERATION) == generation:
        looks += 1
        if looks % LOOKS_BEFORE_YIELD == 0:
            _yield()


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
    for looks in range(LOOKS_BEFORE_SLEEP):
        job = atomic_load(sync + 8 * JOB)
        if job != seen:
            return job
        if looks % LOOKS_BEFORE_YIELD == LOOKS_BEFORE_YIELD - 1:
            _yield()
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
POOL_KERNELS: Final = (WORKER, RUN, STOP_ALL)


class ThreadPool:
    """`n_threads` threads, the caller's among them, that run plans together.

    The threads end when the pool is closed or no longer referenced. When the process ends they may
    sleep on: they hold nothing of the interpreter.

    Raises:
        BackendError: the system gives no more threads.
    """

    def __init__(self, n_threads: int) -> None:
        assert n_threads >= 1, f"{n_threads} threads"
        self.n_threads = n_threads
        self._process = os.getpid()
        self._lock = threading.RLock()
        sync = _new_sync()
        self._address = sync.ctypes.data
        self._run = _native(RUN, 4)
        self._end = weakref.finalize(self, _stop, _native(STOP_ALL, 1), sync, self._process)
        self._end.atexit = False
        self._threads: list[threading.Thread] = []
        work = _native(WORKER, 3)
        for i in range(1, n_threads):
            self._start(
                threading.Thread(
                    target=_work,
                    args=(work, sync, i, n_threads),
                    name=f"lamella-cpu-{i}",
                    daemon=True,
                )
            )

    def run(self, plan_address: int, n_entries: int) -> None:
        """Run a plan; returns when it is done. Threads that call this take turns.

        Raises:
            ClosedError: the pool is closed.
            BackendError: this process was forked from that of the pool, whose threads it lacks.
        """
        if os.getpid() != self._process:
            raise BackendError(
                f"the CPU's threads belong to process {self._process}, of which this is a fork: "
                "it needs a backend of its own"
            )
        with self._lock:
            if not self._end.alive:
                raise ClosedError("the CPU's threads have ended: their backend was freed")
            self._run(self._address, plan_address, n_entries, self.n_threads)

    def close(self) -> None:
        """End the threads, once a run that is under way is done. Twice is fine."""
        if os.getpid() != self._process:
            return  # a fork: nobody is left who would give the lock back
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


def _new_sync() -> Bytes:
    """The block that the threads of a pool share, at its start."""
    sync = aligned_empty(8 * SYNC_WORDS, LINE, "thread pool")
    sync[:] = 0
    libc = ctypes.CDLL(None)
    libc.pthread_mutex_init(ctypes.c_void_p(sync.ctypes.data + 8 * MUTEX), None)
    libc.pthread_cond_init(ctypes.c_void_p(sync.ctypes.data + 8 * COND), None)
    return sync


def _native(kernel: Kernel, n_args: int) -> Callable[..., None]:
    """A kernel as a function that lets go of the interpreter."""
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * n_args)(kernel.address)


def _work(work: Callable[..., None], sync: Bytes, ith: int, nth: int) -> None:
    work(sync.ctypes.data, ith, nth)  # `sync` lives as long as a thread that looks at it


def _stop(stop: Callable[..., None], sync: Bytes, process: int) -> None:
    # waits for nobody: the garbage collector may call this, anywhere
    if os.getpid() == process:
        stop(sync.ctypes.data)
