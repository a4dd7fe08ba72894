"""Steps that drop or mask unlikely candidates (XTC: likely ones).

The steps in model/sampling/truncation.py define results and roundings. The docstring of a step here
lists its parameters. Tested by tests/model/test_sampling_native.py.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from ..compiler.jit import kernel
from ..simd.calls import inlined
from ..simd.ints import copy_bytes, store_u32
from ..simd.memory import (
    load_f32,
    load_f32_part,
    load_f64,
    load_i32,
    load_i64,
    store_f32,
    store_f32_part,
    store_i64,
)
from ..simd.scan import f32_bits, lowest_bit
from ..simd.vectors import LANES, choose, splat
from .rows import entropy, exps, largest, logit_of, n_reaching, reaching, softmax, sort_keys, sum_of
from .select import sort_all, take
from .state import (
    IDS,
    KEYS,
    LOGITS,
    N_VOCAB,
    OTHER,
    OWN,
    SORTED,
    WEIGHTS,
    WHOLE,
    N,
    first,
    id_at,
    own_logits,
    put,
    sort,
    word,
)

_INF = np.float32(math.inf)
_INDEX: Final = 31  # bits of an index in a key
_FEW: Final = 256  # candidates that top_p sorts first: usually enough for p
_TIMES: Final = 16  # if not enough, sort this many times as many


@inlined
def _n_to_reach(weights, n, total, p):
    """The number of first weights, each divided by `total`, whose sum reaches `p`; n + 1 if that of
    all does not."""
    reached = np.float32(0)
    for i in range(n):
        reached += load_f32(weights + 4 * i) / total
        if reached >= p:
            return i + 1
    return n + 1


@inlined
def _n_of_sorted(s, n, total, p):
    """`_n_to_reach` for the `n` largest candidates, whose keys are sorted."""
    keys, x, w = word(s, KEYS), word(s, OTHER), word(s, WEIGHTS)
    for i in range(n):
        store_f32(x + 4 * i, logit_of(load_i64(keys + 8 * i)))
    exps(x, n, load_f32(x), w)
    return _n_to_reach(w, n, total, p)


@kernel
def sample_top_p(s, q, _):
    """Parameters: p, min_keep."""
    p, min_keep = np.float32(load_f64(q)), load_i64(q + 8)
    n, w = word(s, N), word(s, WEIGHTS)
    exps(word(s, LOGITS), n, largest(s), w)
    total = sum_of(w, n)
    if word(s, SORTED) != 0:
        first(s, max(_n_to_reach(w, n, total, p), min_keep))
        return
    n_sorted = min(_FEW, n)
    sort(s, n_sorted)
    n_kept = max(_n_of_sorted(s, n_sorted, total, p), min_keep)
    while n_kept > n_sorted and n_sorted < n:
        n_sorted = min(_TIMES * n_sorted, n)
        sort(s, n_sorted)
        n_kept = max(_n_of_sorted(s, n_sorted, total, p), min_keep)
    take(s, min(n_kept, n))


@inlined
def _keep_likely(s, least):
    """Keep the candidates whose logits are at least `least`, in their order."""
    x, n, out, ids = word(s, LOGITS), word(s, N), word(s, OWN), word(s, IDS)
    limit, m = splat(least), 0
    for i in range(0, n, LANES):
        hits = reaching(x + 4 * i, n - i, limit)
        while hits != 0:
            at = i + lowest_bit(hits)
            hits &= hits - 1
            store_u32(ids + 4 * m, id_at(s, at))
            store_f32(out + 4 * m, load_f32(x + 4 * at))
            m += 1
    put(s, LOGITS, out)
    put(s, N, m)
    put(s, WHOLE, 0)


@kernel
def sample_min_p(s, q, _):
    """Parameters: ln p, min_keep."""
    least, min_keep = largest(s) + np.float32(load_f64(q)), load_i64(q + 8)
    n_likely = n_reaching(word(s, LOGITS), word(s, N), least)
    if word(s, SORTED) == 0:
        if n_likely >= min_keep:
            _keep_likely(s, least)
            return
        sort_all(s)
    first(s, max(n_likely, min_keep))


@kernel
def sample_typical(s, q, _):
    """Parameters: p, min_keep."""
    p, min_keep = np.float32(load_f64(q)), load_i64(q + 8)
    sort_all(s)
    x, ids, n = word(s, LOGITS), word(s, IDS), word(s, N)
    probs, logs, keys = word(s, WEIGHTS), word(s, OTHER), word(s, KEYS)
    softmax(x, n, load_f32(x), probs)
    middle = entropy(probs, n, logs)
    for i in range(n):
        score = abs(-load_f32(logs + 4 * i) - middle)
        store_i64(keys + 8 * i, (f32_bits(score) << _INDEX) + i)
    sort_keys(keys, word(s, OTHER), word(s, N_VOCAB), n)
    reached, n_kept = np.float32(0), n
    for i in range(n):
        reached += load_f32(probs + 4 * (load_i64(keys + 8 * i) & 0x7FFFFFFF))
        if reached > p:
            n_kept = i + 1
            break
    n_kept = min(max(n_kept, min_keep), n)
    out = word(s, OTHER)
    for i in range(n_kept):
        at = load_i64(keys + 8 * i) & 0x7FFFFFFF
        store_f32(out + 8 * i, load_f32(x + 4 * at))
        store_u32(out + 8 * i + 4, load_i32(ids + 4 * at))
    for i in range(n_kept):
        store_f32(x + 4 * i, load_f32(out + 8 * i))
        store_u32(ids + 4 * i, load_i32(out + 8 * i + 4))
    put(s, N, n_kept)
    put(s, SORTED, 0)


@kernel
def sample_top_n_sigma(s, q, _):
    """Parameters: n."""
    x, n, sigmas = word(s, LOGITS), word(s, N), np.float32(load_f64(q))
    count, total = 0, np.float32(0)
    for i in range(n):
        logit = load_f32(x + 4 * i)
        if logit > -_INF:
            total += logit
            count += 1
    if n <= 1 or count == 0:
        return
    mean, squares = total / np.float32(count), np.float32(0)
    for i in range(n):
        logit = load_f32(x + 4 * i)
        if logit > -_INF:
            squares += (logit - mean) * (logit - mean)
    sigma = np.float32(math.sqrt(squares / np.float32(count)))
    least, masked, out = splat(largest(s) - sigmas * sigma), splat(-_INF), word(s, OWN)
    for i in range(0, n, LANES):
        v = load_f32_part(x + 4 * i, n - i)
        store_f32_part(out + 4 * i, choose(v, least, masked, v), n - i)
    put(s, LOGITS, out)


# the parameters of sample_xtc
XTC_USED: Final = 3  # the step writes 1 if it used the coin


@kernel
def sample_xtc(s, q, _):
    """Parameters: coin, probability, threshold, USED, min_keep."""
    n = word(s, N)
    if n < 2:
        return
    put(q, XTC_USED, 1)
    if load_f64(q) > load_f64(q + 8):
        return
    threshold, min_keep = np.float32(load_f64(q + 16)), load_i64(q + 32)
    sort_all(s)
    x, ids, probs = own_logits(s), word(s, IDS), word(s, WEIGHTS)
    softmax(x, n, load_f32(x), probs)
    n_dropped = -1
    for i in range(n):
        if load_f32(probs + 4 * i) >= threshold:
            n_dropped += 1
    if n_dropped <= 0 or n - n_dropped < min_keep:
        return
    left, other = n - n_dropped, word(s, OTHER)
    for row in (x, ids):  # through other memory, because source and target overlap
        copy_bytes(other, row + 4 * n_dropped, 4 * left)
        copy_bytes(row, other, 4 * left)
    put(s, N, left)
