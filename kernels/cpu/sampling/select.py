"""The largest logits of a vocabulary in linear time: maxima of groups, a bound, and a short sort.

The logits are divided into N_GROUPS groups. If the maxima of k groups reach a bound, at least k
logits do. There are rarely many more, because the largest logits are usually in different groups.
Bisection finds the bound: one instruction compares 16 maxima.
Tested by tests/model/test_sampling_native.py.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from ..compiler.jit import kernel
from ..simd.calls import inlined
from ..simd.ints import store_u32
from ..simd.memory import (
    load_f32,
    load_f32x16,
    load_i64,
    load_u16,
    load_u32,
    store_f32,
    store_f32x16,
    store_i64,
)
from ..simd.scan import keep_lanes, lowest_bit, mask_nan
from ..simd.vectors import LANES, hmax, splat, vmax
from .rows import id_of, key_of, logit_of, n_reaching, of_order, order_of, part, reaching, sort_keys
from .state import (
    IDS,
    KEPT,
    KEYS,
    LOGITS,
    MAX_GROUPS,
    MAXIMA,
    N_GROUPS,
    N_VOCAB,
    OTHER,
    OWN,
    SORTED,
    WHOLE,
    N,
    first,
    id_at,
    put,
    sort,
    word,
)

_INF = np.float32(math.inf)
_ROWS: Final = MAX_GROUPS // LANES
_ALL: Final = (1 << 2 * LANES) - 1  # bits of a mask
_SLACK: Final = 4  # a bound is good enough if at most k + k / _SLACK maxima reach it


@inlined
def _write_maxima(s, x, n, kept):
    """`group_maxima`; the compiler makes a loop without masks if `kept` is a 0 in the source."""
    out = word(s, MAXIMA)
    vectors = (n + LANES - 1) // LANES
    length = (vectors + _ROWS - 1) // _ROWS * LANES  # logits of a stretch
    row, nan = 0, 0
    for begin in range(0, n, length):
        end = min(begin + length, n)
        best, other = splat(-_INF), splat(-_INF)
        i = begin
        while i + 2 * LANES <= end:
            v, w = load_f32x16(x + 4 * i), load_f32x16(x + 4 * i + 4 * LANES)
            if kept != 0:
                bits = load_u32(kept + i // 8)
                if bits != _ALL:
                    v, w = keep_lanes(v, bits), keep_lanes(w, bits >> LANES)
            nan |= mask_nan(v, w)
            best, other = vmax(v, best), vmax(w, other)
            i += 2 * LANES
        while i < end:
            v = part(x + 4 * i, end - i)
            if kept != 0:
                v = keep_lanes(v, load_u16(kept + i // 8))
            nan |= mask_nan(v, v)
            best = vmax(v, best)
            i += LANES
        store_f32x16(out + 4 * LANES * row, vmax(best, other))
        row += 1
    put(s, N_GROUPS, LANES * row)
    return nan


@inlined
def group_maxima(s, x, n):
    """Write the groups' maxima. Return nonzero if there is a NaN. Each lane of a stretch of vectors
    is a group, so that maxima need no shuffles. Logits that are not KEPT do not count."""
    kept = word(s, KEPT)
    return _write_maxima(s, x, n, 0) if kept == 0 else _write_maxima(s, x, n, kept)


@inlined
def largest_of_groups(s):
    best = splat(-_INF)
    for i in range(0, word(s, N_GROUPS), LANES):
        best = vmax(load_f32x16(word(s, MAXIMA) + 4 * i), best)
    return hmax(best)


@inlined
def _bound(x, n, k):
    """A bound that at least `k` of `n` floats reach, and few more if they differ."""
    low, high = order_of(-_INF), order_of(_INF)
    while low < high:
        middle = low + (high - low + 1) // 2
        count = n_reaching(x, n, of_order(middle))
        if count < k:
            high = middle - 1
        else:
            low = middle
            if count <= k + k // _SLACK:
                break
    return of_order(low)


@inlined
def _collect(s, bound, k):
    """Write the keys of all logits above `bound`, and of those equal to it: if ids ascend, of the
    first `k` only. Logits that are not KEPT have no key. Return the number of keys."""
    x, n, keys, kept = word(s, LOGITS), word(s, N), word(s, KEYS), word(s, KEPT)
    n_equal_max = k if word(s, WHOLE) != 0 else n
    limit = splat(bound)
    m, n_equal = 0, 0
    for i in range(0, n, LANES):
        hits = reaching(x + 4 * i, n - i, limit)
        while hits != 0:
            at = i + lowest_bit(hits)
            hits &= hits - 1
            if kept != 0 and load_u16(kept + i // 8) >> (at - i) & 1 == 0:
                continue
            value = load_f32(x + 4 * at)
            if value == bound:
                if n_equal == n_equal_max:
                    continue
                n_equal += 1
            store_i64(keys + 8 * m, key_of(value, id_at(s, at)))
            m += 1
    return m


@kernel
def sample_sort(s, q, _):
    """SORT: write the sorted keys of at least the k largest candidates, where k is the int at `q`.
    The candidates do not change."""
    x, n = word(s, LOGITS), word(s, N)
    k = min(load_i64(q), n)
    bound = -_INF
    if k < n:
        if n > MAX_GROUPS and k <= MAX_GROUPS // 4:  # a larger k would share many groups
            if x == word(s, OWN):
                group_maxima(s, x, n)
            x, n = word(s, MAXIMA), word(s, N_GROUPS)
        bound = _bound(x, n, k)
    m = _collect(s, bound, k)
    sort_keys(word(s, KEYS), word(s, OTHER), word(s, N_VOCAB), m)


@inlined
def take(s, k):
    """Make the first `k` sorted keys the candidates."""
    keys, ids, x = word(s, KEYS), word(s, IDS), word(s, OWN)
    for i in range(k):
        key = load_i64(keys + 8 * i)
        store_f32(x + 4 * i, logit_of(key))
        store_u32(ids + 4 * i, id_of(key))
    put(s, LOGITS, x)
    put(s, N, k)
    put(s, SORTED, 1)
    put(s, WHOLE, 0)
    put(s, KEPT, 0)


@inlined
def top(s, k):
    """Keep the `k` >= 1 largest candidates, sorted, or all if there are fewer."""
    if word(s, SORTED) != 0:
        first(s, k)
    else:
        sort(s, k)
        take(s, min(k, word(s, N)))


@inlined
def sort_all(s):
    top(s, word(s, N))


@kernel
def sample_top_k(s, q, _):
    """Keep the k largest candidates. Parameters: k."""
    top(s, load_i64(q))
