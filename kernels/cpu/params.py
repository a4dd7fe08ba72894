"""Functions with which CPU kernels read their block of parameters, and the CPU's own words of it.

    p + 8 * i      word i: see `plan.params` for tensors, prepared sources and the op's parameters
    WORK ...       scratch memory, where to report an error
    TAKEN          the number of items that threads have taken, or of threads that have arrived

A kernel cannot raise: it calls `fail`, and the plan's run raises for it.
Tested by tests/kernels/test_cpu_plan.py.
"""

from __future__ import annotations

from typing import Final

from ..plan.params import OWN, PARAMS, PREPARED, TENSOR_WORDS
from .simd.calls import inlined
from .simd.memory import load_f64, load_i64, store_i64
from .simd.sync import atomic_add, atomic_store

WORK: Final = OWN  # shared scratch, each thread's scratch, its size
ERROR: Final = WORK + 3  # address of the plan's error word, this call's number; value, limit
TAKEN: Final = ERROR + 4 + 8  # counts for `take` and `take_any`; in a cache line of its own
N_WORDS: Final = TAKEN + 8


# --- for kernels ---


@inlined
def data(p, i):
    """Address of tensor `i`: 0 is the node, the next ones are its sources."""
    return load_i64(p + 8 * TENSOR_WORDS * i)


@inlined
def ne(p, i, d):
    """Elements of tensor `i` along dimension `d`."""
    return load_i64(p + 8 * (TENSOR_WORDS * i + 1 + d))


@inlined
def nb(p, i, d):
    """Stride in bytes of tensor `i` along dimension `d`."""
    return load_i64(p + 8 * (TENSOR_WORDS * i + 5 + d))


@inlined
def n_rows(p, i):
    """Rows of tensor `i`."""
    return ne(p, i, 1) * ne(p, i, 2) * ne(p, i, 3)


@inlined
def row(p, i, r):
    """Address of row `r` of tensor `i`, counted over dimensions 1, 2, 3."""
    n1 = ne(p, i, 1)
    if r < n1:  # always true for a matrix, which then needs no divisions
        return data(p, i) + r * nb(p, i, 1)
    n2 = ne(p, i, 2)
    return row_at(p, i, r % n1, r // n1 % n2, r // (n1 * n2))


@inlined
def row_at(p, i, i1, i2, i3):
    """Address of the row of tensor `i` at these indices of dimensions 1, 2 and 3."""
    return data(p, i) + i1 * nb(p, i, 1) + i2 * nb(p, i, 2) + i3 * nb(p, i, 3)


@inlined
def int_param(p, k):
    """Parameter `k` of the op, an int64."""
    return load_i64(p + 8 * (PARAMS + k))


@inlined
def float_param(p, k):
    """Parameter `k` of the op, a float64."""
    return load_f64(p + 8 * (PARAMS + k))


@inlined
def shared_work(p):
    """Scratch memory that all threads and all calls of this node share."""
    return load_i64(p + 8 * WORK)


@inlined
def work(p, ith):
    """The own scratch memory of thread `ith`."""
    return load_i64(p + 8 * (WORK + 1)) + ith * load_i64(p + 8 * (WORK + 2))


@inlined
def prepared(p, i):
    """Address of the `i`-th prepared source, or (0) of the one that the kernel makes."""
    return load_i64(p + 8 * (PREPARED + i))


@inlined
def first_of(n, ith, nth):
    """The first of the items of thread `ith`; they end before `first_of(n, ith + 1, nth)`."""
    return n * ith // nth


@inlined
def take_any(p):
    """Take the next item that no thread has taken yet, also if none is left: see `take`.

    For kernels that do not know the number of items before: they call `ends` afterwards.
    """
    return atomic_add(p + 8 * TAKEN, 1)


@inlined
def ends(p, item, n, nth):
    """True for the last of `nth` threads, of `n` items: it took `item` when the others had ended.

    It can read all data of the others. Resets the count for the next run.
    """
    if item != n + nth - 1:
        return False
    atomic_store(p + 8 * TAKEN, 0)
    return True


@inlined
def take(p, n, nth):
    """Take the next of `n` items that no thread has taken yet; n or more if none is left.

    Each of the `nth` threads must call this until no item is left. The last of these calls resets
    the count for the next run. An item has the same bits on every thread.
    """
    item = take_any(p)
    ends(p, item, n, nth)
    return item


@inlined
def fail(p, value, limit):
    """Report that an index `value` is not within 0..limit - 1. The kernel skips it and goes on.

    A plan reports one bad index. It is of the first call with one, unless calls ran at the same
    time.
    """
    word = load_i64(p + 8 * ERROR)
    if load_i64(word) == 0:
        store_i64(p + 8 * (ERROR + 2), value)
        store_i64(p + 8 * (ERROR + 3), limit)
        store_i64(word, load_i64(p + 8 * (ERROR + 1)))
