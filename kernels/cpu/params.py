"""What a kernel is given: one block of 64-bit words for each call, the same for every op.

    p + 0          the node, then its sources: data address, ne[0..3], nb[0..3] each
    p + WORK ...   scratch memory, where to report an error, sources in another form
    p + PARAMS     the op's own parameters: int64, float64 or the address of a kernel
    p + TAKEN      how many items of the call's work threads have taken, or threads have arrived

Kernels read it with the functions here. A kernel cannot raise: it `fail`s, and the plan's run
raises for it. Tested by tests/kernels/test_cpu_plan.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ...graph.tensor import Tensor
from ..plan.steps import MAX_PREPARED
from .compiler.jit import Kernel
from .simd.vectors import atomic_add, atomic_store, inlined, load_f64, load_i64, store_i64

MAX_TENSORS: Final = 7  # a node and up to 6 sources
TENSOR_WORDS: Final = 9
WORK: Final = MAX_TENSORS * TENSOR_WORDS  # shared scratch, each thread's scratch, its size
ERROR: Final = WORK + 3  # address of the plan's error word, this call's number; value, limit
PREPARED: Final = ERROR + 4  # addresses of sources that were brought into another form
PARAMS: Final = PREPARED + MAX_PREPARED
MAX_PARAMS: Final = 16
TAKEN: Final = PARAMS + MAX_PARAMS + 8  # counts for `take` or `is_last`; a cache line of its own
N_WORDS: Final = TAKEN + 8

Words = npt.NDArray[np.int64]
Param = int | float | Kernel  # a kernel stands for its address


def write_params(
    words: Words,
    node: Tensor,
    tensors: Sequence[Tensor],
    params: Sequence[Param],
    address_of: Callable[[Tensor, Tensor], int],
) -> None:
    """Fill a block for a call of `node`: its tensors and the op's parameters."""
    assert len(tensors) <= MAX_TENSORS and len(params) <= MAX_PARAMS, f"{node!r} has too many"
    for i, t in enumerate(tensors):
        at = i * TENSOR_WORDS
        words[at : at + TENSOR_WORDS] = (address_of(node, t), *t.ne, *t.nb)
    floats = words.view(np.float64)
    for i, value in enumerate(params):
        if isinstance(value, float):
            floats[PARAMS + i] = value
        else:
            words[PARAMS + i] = value.address if isinstance(value, Kernel) else value


# --- for kernels ---


@inlined
def data(p, i):
    """Address of tensor `i`: 0 is the node, 1.. its sources."""
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
    if r < n1:  # always so for a matrix: no divisions
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
    """Scratch memory that all threads, and all calls of this node, see."""
    return load_i64(p + 8 * WORK)


@inlined
def work(p, ith):
    """Scratch memory of thread `ith` alone."""
    return load_i64(p + 8 * (WORK + 1)) + ith * load_i64(p + 8 * (WORK + 2))


@inlined
def prepared(p, i):
    """Address of the `i`-th source that was brought into another form; where to put it, for a
    kernel that makes one (0)."""
    return load_i64(p + 8 * (PREPARED + i))


@inlined
def first_of(n, ith, nth):
    """The first of `n` items that thread `ith` of `nth` works on; it ends where the next begins."""
    return n * ith // nth


@inlined
def take(p, n, nth):
    """The next of `n` items that no thread has taken yet; n or more: none is left.

    Each of the `nth` threads must ask until none is left: the last one to hear so makes the block
    ready for the next run. Which thread computes an item changes no bit of it.
    """
    item = atomic_add(p + 8 * TAKEN, 1)
    if item == n + nth - 1:
        atomic_store(p + 8 * TAKEN, 0)
    return item


@inlined
def is_last(p, nth):
    """Whether this is the last of `nth` threads to ask: it sees what all others have written.

    For kernels that do not `take`. Each thread asks once; the last one makes the block ready for
    the next run.
    """
    if atomic_add(p + 8 * TAKEN, 1) != nth - 1:
        return False
    atomic_store(p + 8 * TAKEN, 0)
    return True


@inlined
def fail(p, value, limit):
    """Report that an index `value` is not within 0..limit - 1. The kernel goes on without it.

    Reported is one call of a plan that fails, the first one unless several of them need not wait
    for each other, with any one of its bad indices.
    """
    word = load_i64(p + 8 * ERROR)
    if load_i64(word) == 0:
        store_i64(p + 8 * (ERROR + 2), value)
        store_i64(p + 8 * (ERROR + 3), limit)
        store_i64(word, load_i64(p + 8 * (ERROR + 1)))
