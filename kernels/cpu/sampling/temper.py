"""Steps that change logits: temperature, biases and penalties.

The steps in model/sampling/temperature.py and penalties.py define results and roundings. The
docstring of a step here lists its parameters.
Tested by tests/model/test_sampling_native.py.
"""

from __future__ import annotations

import math

import numpy as np

from ..compiler.jit import kernel
from ..simd.calls import inlined
from ..simd.ints import store_u32
from ..simd.memory import (
    load_f32,
    load_f32_part,
    load_f64,
    load_i32,
    load_i64,
    store_f32,
    store_f32_part,
)
from ..simd.vectors import LANES, splat
from .rows import entropy, largest, softmax
from .select import sort_all
from .state import (
    IDS,
    LOGITS,
    MARKS,
    OTHER,
    OWN,
    SORTED,
    WEIGHTS,
    WHOLE,
    N,
    own_logits,
    put,
    word,
)

_INF = np.float32(math.inf)
_MOST = np.float32(np.finfo(np.float32).max)


@inlined
def _divide(s, t):
    """Divide by `t`. If t <= 0, mask all candidates but the first of the largest ones."""
    x, n, out = word(s, LOGITS), word(s, N), word(s, OWN)
    if t > 0:
        divisor = splat(t)
        for i in range(0, n, LANES):
            store_f32_part(out + 4 * i, load_f32_part(x + 4 * i, n - i) / divisor, n - i)
    else:
        best, left = largest(s), 1
        for i in range(n):
            logit = load_f32(x + 4 * i)
            if left != 0 and logit == best:
                left = 0
            else:
                logit = -_INF
            store_f32(out + 4 * i, logit)
    put(s, LOGITS, out)


@kernel
def sample_temperature(s, q, _):
    """Parameters: t."""
    _divide(s, np.float32(load_f64(q)))


@kernel
def sample_dynamic_temperature(s, q, _):
    """Parameters: the lowest and the highest temperature, the exponent."""
    n = word(s, N)
    if n <= 1:
        return
    low, high = np.float32(load_f64(q)), np.float32(load_f64(q + 8))
    sort_all(s)
    x, probs = word(s, LOGITS), word(s, WEIGHTS)
    softmax(x, n, load_f32(x), probs)
    most = -np.float32(math.log(np.float64(np.float32(1.0 / n))))
    share = entropy(probs, n, word(s, OTHER)) / most
    power = np.float32(math.pow(np.float64(share), load_f64(q + 16)))
    t = low + (high - low) * power
    # an exponent below 0 can reach infinity, where a masked logit would become NaN
    _divide(s, t if t < _MOST else _MOST)


@inlined
def _mark(s, tokens, m):
    """Mark `m` different tokens with their place in the list, from 1 on."""
    for j in range(m):
        store_u32(word(s, MARKS) + 4 * load_i64(tokens + 8 * j), j + 1)


@inlined
def _unmark(s, tokens, m):
    for j in range(m):
        store_u32(word(s, MARKS) + 4 * load_i64(tokens + 8 * j), 0)


@kernel
def sample_bias(s, q, _):
    """Parameters: the number of tokens; the addresses of their ids (int64, all different) and of
    their biases (float32)."""
    m, tokens, biases = load_i64(q), load_i64(q + 8), load_i64(q + 16)
    if m == 0:
        return
    x = own_logits(s)
    put(s, SORTED, 0)
    if word(s, WHOLE) != 0:
        for j in range(m):
            at = x + 4 * load_i64(tokens + 8 * j)
            store_f32(at, load_f32(at) + load_f32(biases + 4 * j))
        return
    ids, marks = word(s, IDS), word(s, MARKS)
    _mark(s, tokens, m)
    for i in range(word(s, N)):
        j = load_i32(marks + 4 * load_i32(ids + 4 * i))
        if j != 0:
            store_f32(x + 4 * i, load_f32(x + 4 * i) + load_f32(biases + 4 * (j - 1)))
    _unmark(s, tokens, m)


@inlined
def _penalize(at, count, q):
    """Penalize the logit of a token that occurred `count` times."""
    repeat, frequency = np.float32(load_f64(q + 24)), np.float32(load_f64(q + 32))
    presence, logit = np.float32(load_f64(q + 40)), load_f32(at)
    logit = logit * repeat if logit <= 0 else logit / repeat
    # clamped to finite values: a banned token (-inf) must not become NaN
    taken = min(max(count * frequency + presence, -_MOST), _MOST)
    store_f32(at, logit + -taken)


@kernel
def sample_penalties(s, q, _):
    """Parameters: the number of tokens; the addresses of their ids (int64, all different) and of
    their counts (float32); repeat, frequency, presence."""
    m, tokens, counts = load_i64(q), load_i64(q + 8), load_i64(q + 16)
    x = own_logits(s)
    put(s, SORTED, 0)
    if word(s, WHOLE) != 0:
        for j in range(m):
            _penalize(x + 4 * load_i64(tokens + 8 * j), load_f32(counts + 4 * j), q)
        return
    ids, marks = word(s, IDS), word(s, MARKS)
    _mark(s, tokens, m)
    for i in range(word(s, N)):
        j = load_i32(marks + 4 * load_i32(ids + 4 * i))
        if j != 0:
            _penalize(x + 4 * i, load_f32(counts + 4 * (j - 1)), q)
    _unmark(s, tokens, m)
