"""Functions of rows of floats for samplers: maxima, exponentials, sums in order, sort keys.

Sums add one element after the other, like the C loops of llama.cpp.
Tested by tests/model/test_sampling_native.py.
"""

from __future__ import annotations

import math

import numpy as np

from ..ops.sort import INDEX_BITS, N_INSERTED, insert_each, sort_by_bytes
from ..simd.calls import inlined
from ..simd.ints import f32_of_bits
from ..simd.memory import (
    load_f32,
    load_f32_part,
    load_f32x16,
    load_i64,
    store_f32,
    store_f32_part,
)
from ..simd.scan import count_bits, exp_rounded, f32_bits, mask_ge
from ..simd.vectors import LANES, hmax, join, splat, vmax
from .state import LOGITS, SORTED, N, word

_INF = np.float32(math.inf)
_ZERO = np.float32(0)
_SMALLEST = np.float32(np.finfo(np.float32).smallest_subnormal)
_FLIP = 0x7FFFFFFF


# --- floats as integers of the same order ---


@inlined
def order_of(x):
    """An integer with the order of a float32; 0 for both zeros. `x` must not be NaN."""
    bits = f32_bits(x + _ZERO)
    return bits if bits >= 0 else bits ^ _FLIP


@inlined
def of_order(n):
    """The float32 of an `order_of`."""
    return f32_of_bits(n if n >= 0 else n ^ _FLIP)


@inlined
def key_of(x, token):
    """A sort key above 0: descending by logit, then ascending by id."""
    return ((_FLIP - order_of(x)) << INDEX_BITS) + token


@inlined
def logit_of(key):
    return of_order(_FLIP - (key >> INDEX_BITS))


@inlined
def id_of(key):
    return key & _FLIP


@inlined
def _ids_ascend(keys, n):
    for i in range(1, n):
        if id_of(load_i64(keys + 8 * i)) < id_of(load_i64(keys + 8 * (i - 1))):
            return False
    return True


@inlined
def sort_keys(keys, other, n_vocab, n):
    """Sort `n` keys with the scratch memory `other`."""
    if n <= N_INSERTED:
        insert_each(keys, n)
    else:
        # if ids ascend, it is enough to sort by logit
        first_bit = INDEX_BITS if _ids_ascend(keys, n) else 0
        sort_by_bytes(keys, other, other + 8 * n_vocab, n, first_bit)


# --- rows ---


@inlined
def part(x, n):
    """The first `n` floats of a row; -inf in the other lanes."""
    return load_f32x16(x) if n >= LANES else join(load_f32_part(x, n), splat(-_INF), n)


@inlined
def reaching(x, n, limit):
    """Bit i is set if float i of a row reaches `limit`, for i < min(n, 16)."""
    hits = mask_ge(part(x, n), limit)
    return hits if n >= LANES else hits & ((1 << n) - 1)


@inlined
def n_reaching(x, n, bound):
    """The number of the `n` floats that are at least `bound`."""
    limit, count = splat(bound), 0
    for i in range(0, n, LANES):
        count += count_bits(reaching(x + 4 * i, n - i, limit))
    return count


@inlined
def largest(s):
    """The largest logit of the candidates."""
    x, n = word(s, LOGITS), word(s, N)
    if word(s, SORTED) != 0:
        return load_f32(x)
    best = splat(-_INF)
    for i in range(0, n, LANES):
        best = vmax(part(x + 4 * i, n - i), best)
    return hmax(best)


@inlined
def exps(x, n, top, out):
    """Write exp(logit - top) of `n` logits to `out`; `top` is the largest logit.

    If `top` is infinite, write 1 for logits equal to it, and 0 for others.
    """
    if abs(top) == _INF:
        for i in range(n):
            store_f32(out + 4 * i, np.float32(1) if load_f32(x + 4 * i) == top else _ZERO)
        return
    for i in range(0, n, LANES):
        left = n - i
        v = exp_rounded(part(x + 4 * i, left) - splat(top))
        store_f32_part(out + 4 * i, v, left)


@inlined
def sum_of(x, n):
    """The sum of `n` floats, in float32."""
    total = _ZERO
    for i in range(n):
        total += load_f32(x + 4 * i)
    return total


@inlined
def softmax(x, n, top, out):
    """Write the probabilities of `n` logits to `out`; `top` is the largest logit."""
    exps(x, n, top, out)
    total = splat(sum_of(out, n))
    for i in range(0, n, LANES):
        store_f32_part(out + 4 * i, load_f32_part(out + 4 * i, n - i) / total, n - i)


@inlined
def log_probability(p):
    """ln p, rounded once. A probability of 0 counts as the smallest float above 0."""
    return np.float32(math.log(np.float64(max(p, _SMALLEST))))


@inlined
def entropy(probs, n, logs):
    """Return the entropy of `n` probabilities. Write their logarithms to `logs`."""
    total = _ZERO
    for i in range(n):
        p = load_f32(probs + 4 * i)
        log = log_probability(p)
        store_f32(logs + 4 * i, log)
        total += -p * log
    return total
