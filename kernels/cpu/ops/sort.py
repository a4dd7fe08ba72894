"""ARGSORT: stable, ascending or descending, NaN last. TOP_K: the first k of the descending order.

A row's elements become 64-bit keys: the rank of the value in the high bits, the index in the low
bits, so no two keys are equal. Short rows are sorted by insertion, others by an LSD radix sort, in
linear time. TOP_K uses a heap of the best k keys; few other keys enter it.
Tested by tests/kernels/test_sort.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ....graph.op import Op
from ....graph.tensor import Tensor
from ...plan.node_params import is_descending
from ..compiler.jit import kernel
from ..params import first_of, int_param, n_rows, nb, ne, row, work
from ..simd.calls import inlined
from ..simd.memory import load_i64, load_u32, store_i32, store_i64
from ..table import CpuCall, implements

N_INSERTED: Final = 64  # elements up to which insertion is faster
N_COUNTS: Final = 256  # values of a byte
INDEX_BITS: Final = 31  # low bits of a key; not 32, so that no key is negative
INDEX: Final = 2**INDEX_BITS - 1
NO_KEY: Final = 2**63 - 1  # larger than any key
NAN_PLACE: Final = 2**32 - 1  # the last rank, of NaN and of elements that a mask leaves out
SMALL: Final = 2048  # elements below which a second thread costs more than it gains


@inlined
def _place(bits, descending):
    """The rank of a float32 among all float32s, from its bits."""
    if bits & 0x7FFFFFFF > 0x7F800000:  # NaN
        return NAN_PLACE
    if bits == 0x80000000:  # -0.0 equals 0.0
        bits = 0
    place = bits ^ 0xFFFFFFFF if bits & 0x80000000 else bits | 0x80000000
    return place ^ 0xFFFFFFFF if descending else place


@inlined
def insert_each(keys, n):
    for i in range(1, n):
        key, j = load_i64(keys + 8 * i), i
        while j > 0 and load_i64(keys + 8 * (j - 1)) > key:
            store_i64(keys + 8 * j, load_i64(keys + 8 * (j - 1)))
            j -= 1
        store_i64(keys + 8 * j, key)


@inlined
def sort_by_bytes(keys, other, counts, n, first_bit):
    """Sort by the bits of the keys from `first_bit` on: 0, or INDEX_BITS for the ranks only. Keys
    that are equal there keep their order."""
    for shift in range(first_bit, INDEX_BITS + 32, 8):
        for c in range(N_COUNTS):
            store_i64(counts + 8 * c, 0)
        for i in range(n):
            at = counts + 8 * (load_i64(keys + 8 * i) >> shift & 255)
            store_i64(at, load_i64(at) + 1)
        before = 0
        for c in range(N_COUNTS):
            count = load_i64(counts + 8 * c)
            store_i64(counts + 8 * c, before)
            before += count
        for i in range(n):
            key = load_i64(keys + 8 * i)
            at = counts + 8 * (key >> shift & 255)
            store_i64(other + 8 * load_i64(at), key)
            store_i64(at, load_i64(at) + 1)
        keys, other = other, keys


@kernel
def argsort_f32(p, ith, nth):
    rows, n, stride, descending = n_rows(p, 0), ne(p, 0, 0), nb(p, 1, 0), int_param(p, 0) != 0
    keys = work(p, ith)
    for r in range(first_of(rows, ith, nth), first_of(rows, ith + 1, nth)):
        x, out = row(p, 1, r), row(p, 0, r)
        for i in range(n):
            place = _place(load_u32(x + stride * i), descending)
            store_i64(keys + 8 * i, (place << INDEX_BITS) + i)
        if n <= N_INSERTED:
            insert_each(keys, n)
        else:
            sort_by_bytes(keys, keys + 8 * n, keys + 16 * n, n, INDEX_BITS)
        for i in range(n):
            store_i32(out + 4 * i, load_i64(keys + 8 * i) & INDEX)


@inlined
def _sift_down(keys, n, key):
    """Insert `key` into a max-heap of `n` keys whose root is free."""
    at, child = 0, 1
    while child < n:
        if child + 1 < n and load_i64(keys + 8 * (child + 1)) > load_i64(keys + 8 * child):
            child += 1
        if load_i64(keys + 8 * child) < key:
            break
        store_i64(keys + 8 * at, load_i64(keys + 8 * child))
        at, child = child, 2 * child + 1
    store_i64(keys + 8 * at, key)


@inlined
def _sort_heap(keys, n):
    """Sort a heap of `n` keys."""
    for end in range(n - 1, 0, -1):
        key = load_i64(keys + 8 * end)
        store_i64(keys + 8 * end, load_i64(keys))
        _sift_down(keys, end, key)


@kernel
def top_k_f32(p, ith, nth):
    rows, k, n, stride = n_rows(p, 0), ne(p, 0, 0), ne(p, 1, 0), nb(p, 1, 0)
    keys, has_mask = work(p, ith), int_param(p, 0) != 0
    for r in range(first_of(rows, ith, nth), first_of(rows, ith + 1, nth)):
        x, out, mask = row(p, 1, r), row(p, 0, r), row(p, 2, r) if has_mask else 0
        for i in range(k):
            store_i64(keys + 8 * i, NO_KEY)  # the heap starts with the worst keys
        for i in range(n):
            place = _place(load_u32(x + stride * i), True)
            if has_mask and load_u32(mask + i // 32 * 4) >> (i & 31) & 1 == 0:
                place = NAN_PLACE
            key = (place << INDEX_BITS) + i
            if key < load_i64(keys):
                _sift_down(keys, k, key)
        _sort_heap(keys, k)
        for i in range(k):
            store_i32(out + 4 * i, load_i64(keys + 8 * i) & INDEX)


@implements(Op.ARGSORT)
def argsort(node: Tensor) -> Sequence[CpuCall]:
    small, work = node.n_elements < SMALL, 16 * node.ne[0] + 8 * N_COUNTS
    return [CpuCall(argsort_f32, (is_descending(node),), small, work)]


@implements(Op.TOP_K)
def top_k(node: Tensor) -> Sequence[CpuCall]:
    small = node.src[0].n_elements < SMALL
    return [CpuCall(top_k_f32, (len(node.src) > 1,), small, 8 * node.ne[0])]
