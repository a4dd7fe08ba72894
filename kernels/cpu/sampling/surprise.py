"""Steps with a memory of what was chosen: Mirostat and Adaptive-P.

Each has two kernels: one changes the candidates before the draw, the other learns from the draw and
writes the new state. The steps in model/sampling/surprise.py define results and roundings. The
docstring of a step here lists its parameters. Tested by tests/model/test_sampling_surprise.py.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from ..compiler.jit import kernel
from ..simd.calls import inlined
from ..simd.memory import load_f32, load_f64, load_i64, store_f32, store_f64
from .rows import largest, softmax, sum_of
from .select import sort_all
from .state import (
    CHOSEN,
    DONE,
    KEYS,
    LOGITS,
    N_VOCAB,
    OWN,
    SORTED,
    STATUS,
    WEIGHTS,
    N,
    first,
    put,
    word,
)

_INF = np.float32(math.inf)
_ZERO = np.float32(0)
_ONE = np.float32(1)
_N_ZIPF: Final = 100
_INV_LN2: Final = 1 / math.log(2)
_INV_WIDTH = np.float32(1 / 0.3)
_PEAK = np.float32(5)
_SHARPNESS = np.float32(10)


@inlined
def _surprise(p):
    return np.float32(-math.log(np.float64(p)) * _INV_LN2)


@inlined
def _sorted_probs(s):
    """Sort all candidates. Write their probabilities to WEIGHTS, and return its address."""
    sort_all(s)
    probs = word(s, WEIGHTS)
    softmax(word(s, LOGITS), word(s, N), load_f32(word(s, LOGITS)), probs)
    return probs


@kernel
def sample_mirostat_2(s, q, _):
    """Parameters: the address of the most surprise (float64)."""
    probs, n, most = _sorted_probs(s), word(s, N), np.float32(load_f64(load_i64(q)))
    kept = n
    for i in range(1, n):
        p = load_f32(probs + 4 * i)
        if p == _ZERO or _surprise(p) > most:
            kept = i
            break
    first(s, kept)


@kernel
def sample_mirostat_1(s, q, _):
    """Parameters: the address of the most surprise (float64)."""
    probs, n, most = _sorted_probs(s), word(s, N), load_f64(load_i64(q))
    products, squares = _ZERO, _ZERO
    for i in range(min(_N_ZIPF, n) - 1):
        p, after = load_f32(probs + 4 * i), load_f32(probs + 4 * (i + 1))
        if after == _ZERO:
            break
        t = np.float32(math.log(np.float64(np.float32(i + 2) / np.float32(i + 1))))
        b = np.float32(math.log(np.float64(p / after)))
        products += t * b
        squares += t * t
    exponent = products / squares
    epsilon = exponent - _ONE
    above = epsilon * np.float32(math.pow(2.0, most))
    below = _ONE - np.float32(math.pow(np.float64(word(s, N_VOCAB)), -np.float64(epsilon)))
    k = np.float32(math.pow(np.float64(above / below), np.float64(_ONE / exponent)))
    kept = n
    if k < np.float32(n):  # it may be infinite, or NaN
        kept = max(np.int64(k), 1)
    first(s, kept)


@kernel
def sample_mirostat_end(s, q, _):
    """Parameters: the address of the most surprise (float64), tau, eta."""
    if word(s, STATUS) != DONE:
        return
    weights, state = word(s, WEIGHTS), load_i64(q)
    p = load_f32(weights + 4 * word(s, CHOSEN)) / sum_of(weights, word(s, N))
    error = _surprise(p) - np.float32(load_f64(q + 8))
    store_f64(state, np.float64(np.float32(load_f64(state)) - np.float32(load_f64(q + 16)) * error))


@kernel
def sample_adaptive_p(s, q, _):
    """Parameters: the address of the sum and the weight (float64s), the target. Writes the
    probabilities to KEYS, which the draw leaves as they are."""
    x, n, out, probs = word(s, LOGITS), word(s, N), word(s, OWN), word(s, KEYS)
    softmax(x, n, largest(s), probs)
    state = load_i64(q)
    average = np.float32(load_f64(state)) / np.float32(load_f64(state + 8))
    aim = np.float32(2) * np.float32(load_f64(q + 8)) - average
    aim = min(max(aim, _ZERO), _ONE)
    for i in range(n):
        logit = load_f32(x + 4 * i)
        if logit > -_INF:
            distance = abs((load_f32(probs + 4 * i) - aim) * _INV_WIDTH)
            logit = _PEAK - _SHARPNESS * distance * distance / (_ONE + distance)
        store_f32(out + 4 * i, logit)
    put(s, LOGITS, out)
    put(s, SORTED, 0)


@kernel
def sample_adaptive_p_end(s, q, _):
    """Parameters: the address of the sum and the weight (float64s), the decay."""
    if word(s, STATUS) != DONE:
        return
    state, decay = load_i64(q), np.float32(load_f64(q + 8))
    p = load_f32(word(s, KEYS) + 4 * word(s, CHOSEN))
    store_f64(state, np.float64(p + decay * np.float32(load_f64(state))))
    store_f64(state + 8, np.float64(_ONE + decay * np.float32(load_f64(state + 8))))
