"""Small kernels, and their memory, for the tests of the CPU's pool and plans.

A pool knows no tensors: there, `p` is the address of the kernel's words.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from lamella.kernels.cpu import params
from lamella.kernels.cpu.compiler import jit
from lamella.kernels.cpu.compiler.jit import Kernel, kernel
from lamella.kernels.cpu.pool import ENTRY_WORDS, ThreadPool
from lamella.kernels.cpu.simd.memory import load_i64, store_i64
from lamella.kernels.cpu.simd.sync import atomic_add, atomic_load

Words = npt.NDArray[np.int64]


# Numba types kernels, mypy does not: they have no annotations
# mypy: disable-error-code="no-untyped-def, no-untyped-call"


@kernel
def test_count(p, ith, nth):
    """Add 1 to this thread's word."""
    store_i64(p + 8 * ith, load_i64(p + 8 * ith) + 1)


@kernel
def test_pass_on(p, ith, nth):
    """to[i] = from[i + 1] + 1, in a ring of n words. p: addresses of from and to, n.

    A thread reads words that others wrote in the call before.
    """
    source, to, n = load_i64(p), load_i64(p + 8), load_i64(p + 16)
    for i in range(params.first_of(n, ith, nth), params.first_of(n, ith + 1, nth)):
        store_i64(to + 8 * i, load_i64(source + 8 * ((i + 1) % n)) + 1)


@kernel
def test_spin(p, ith, nth):
    """Stay busy for a number of steps that the word gives, times the thread's index + 1."""
    for _ in range(load_i64(p) * (ith + 1)):
        atomic_add(p + 8 * (1 + ith), 1)  # LLVM cannot shorten the loop


@kernel
def test_await(p, ith, nth):
    """Wait some seconds for word 0 to change from 0. If it does, set word 1 + ith to 1."""
    for _ in range(1_000_000_000):
        if atomic_load(p) != 0:
            store_i64(p + 8 * (1 + ith), 1)
            break


# --- for plans: these kernels have a block of parameters ---


@kernel
def test_tell_work(p, ith, nth):
    """Write three words for each thread to source 1: its index, its scratch, shared scratch."""
    at = params.data(p, 1) + 24 * ith
    store_i64(at, ith)
    store_i64(at + 8, params.work(p, ith))
    store_i64(at + 16, params.shared_work(p))


@kernel
def test_put_work(p, ith, nth):
    """Fill the thread's scratch, of parameter 0 words, with 1000 + its index."""
    for i in range(params.int_param(p, 0)):
        store_i64(params.work(p, ith) + 8 * i, 1000 + ith)
    if ith == 0:
        store_i64(params.shared_work(p), 77)


@kernel
def test_get_work(p, ith, nth):
    """Count the right words of the thread's scratch; add 1000 if shared scratch is 77."""
    n = 1000 * (load_i64(params.shared_work(p)) == 77)
    for i in range(params.int_param(p, 0)):
        n += load_i64(params.work(p, ith) + 8 * i) == 1000 + ith
    store_i64(params.data(p, 1) + 8 * ith, n)


@kernel
def test_fail_at(p, ith, nth):
    """Add 1 to each word of source 1 below parameter 0; report the others as bad indices."""
    n, limit = params.ne(p, 1, 0), params.int_param(p, 0)
    for i in range(params.first_of(n, ith, nth), params.first_of(n, ith + 1, nth)):
        at = params.data(p, 1) + 8 * i
        if 0 <= load_i64(at) < limit:
            store_i64(at, load_i64(at) + 1)
        else:
            params.fail(p, load_i64(at), limit)


@kernel
def test_echo(p, ith, nth):
    """Write parameter 0, an int, and twice parameter 1, a float, to source 1."""
    store_i64(params.data(p, 1), params.int_param(p, 0))
    store_i64(params.data(p, 1) + 8, int(params.float_param(p, 1) * 2))


@kernel
def test_fill(p, ith, nth):
    """Set the node's words to parameter 0."""
    n = params.ne(p, 0, 0)
    for i in range(params.first_of(n, ith, nth), params.first_of(n, ith + 1, nth)):
        store_i64(params.data(p, 0) + 8 * i, params.int_param(p, 0))


@kernel
def test_double(p, ith, nth):
    """Prepare source 1: double its words."""
    n = params.ne(p, 1, 0)
    for i in range(params.first_of(n, ith, nth), params.first_of(n, ith + 1, nth)):
        store_i64(params.prepared(p, 0) + 8 * i, 2 * load_i64(params.data(p, 1) + 8 * i))


@kernel
def test_take(p, ith, nth):
    """Set the node's words to the sums of the prepared sources. Parameter 0 is their number.

    Threads read words that others prepared: from the last word to the first.
    """
    n = params.ne(p, 1, 0)
    for i in range(params.first_of(n, ith, nth), params.first_of(n, ith + 1, nth)):
        total = 0
        for j in range(params.int_param(p, 0)):
            total += load_i64(params.prepared(p, j) + 8 * (n - 1 - i))
        store_i64(params.data(p, 0) + 8 * (n - 1 - i), total)


@kernel
def test_arrive(p, ith, nth):
    """Add 1 to word 1 + ith of source 1; the last thread adds the sum of these to word 0."""
    at = params.data(p, 1)
    store_i64(at + 8 * (1 + ith), load_i64(at + 8 * (1 + ith)) + 1)
    if params.ends(p, params.take_any(p), 0, nth):
        total = load_i64(at)
        for i in range(nth):
            total += load_i64(at + 8 * (1 + i))
        store_i64(at, total)


TOYS = [
    *(test_count, test_pass_on, test_spin, test_await),
    *(test_tell_work, test_put_work, test_get_work, test_fail_at),
    *(test_echo, test_fill, test_double, test_take, test_arrive),
]


def load() -> None:
    """Compile the kernels without the cache: its key does not cover the sources of tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "read", lambda folder, name: None)
        patch.setattr(jit, "write", lambda folder, name, data: None)
        jit.load_all(TOYS)


class Job:
    """A job of a pool: calls of kernels, each (kernel, address of its words, one_thread)."""

    def __init__(self, calls: Sequence[tuple[Kernel, int, bool]]) -> None:
        self.entries = np.zeros((len(calls), ENTRY_WORDS), np.int64)
        for i, (called, p, one_thread) in enumerate(calls):
            self.entries[i] = (called.address, p, one_thread, i > 0)

    def run(self, pool: ThreadPool, n_threads: int | None = None) -> None:
        pool.run(self.entries.ctypes.data, len(self.entries), n_threads)


def words(*values: int) -> Words:
    """Memory for a kernel. It must live as long as the job runs."""
    return np.array(values, np.int64)
