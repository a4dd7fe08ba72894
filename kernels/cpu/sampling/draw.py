"""The native call that samples a token: it runs the steps of a chain, then draws.

Tested by tests/model/test_sampling_native.py.
"""

from __future__ import annotations

import math

import numpy as np

from ..compiler.jit import Kernel, kernel
from ..simd.calls import call_kernel, inlined
from ..simd.ints import copy_bytes
from ..simd.memory import load_f32, load_f64, load_i64
from .allow import allow
from .rows import exps, largest
from .select import group_maxima, largest_of_groups
from .state import (
    BROKEN,
    DONE,
    IDS,
    KEPT,
    LOGITS,
    MASK,
    N_STEPS,
    NOTHING_LEFT,
    OWN,
    SORTED,
    STATUS,
    STEP_WORDS,
    STEPS,
    TOKEN,
    WEIGHTS,
    WHOLE,
    N,
    U,
    id_at,
    put,
    word,
)

_INF = np.float32(math.inf)


@inlined
def _choose(weights, n, u):
    """The first index at which the running sum of weights reaches u times their sum, in float64."""
    total = 0.0
    for i in range(n):
        total += np.float64(load_f32(weights + 4 * i))
    wanted, reached = u * total, 0.0
    for i in range(n):
        reached += np.float64(load_f32(weights + 4 * i))
        if reached >= wanted:
            return i
    return n - 1


@kernel
def sample_draw(s, q, _):
    """The last step: compute WEIGHTS, and draw one of the candidates."""
    n, best = word(s, N), largest(s)
    if best == -_INF:
        put(s, STATUS, NOTHING_LEFT)
        return
    exps(word(s, LOGITS), n, best, word(s, WEIGHTS))
    put(s, TOKEN, id_at(s, _choose(word(s, WEIGHTS), n, load_f64(s + 8 * U))))


def sample_token(s, logits, ids, n):
    """Run all steps on the `n` logits at `logits`. They are those of the whole vocabulary if `ids`
    is 0, of which MASK may allow some; else those of the sorted tokens at `ids`."""
    put(s, N, n)
    put(s, KEPT, 0)
    nan = 0
    if ids == 0:
        put(s, LOGITS, logits)
        put(s, SORTED, 0)
        put(s, WHOLE, 1)
        if word(s, MASK) != 0 and allow(s, logits, n) == 0:
            put(s, STATUS, NOTHING_LEFT)
            return
        nan = group_maxima(s, word(s, LOGITS), word(s, N))
        best = largest_of_groups(s)
    else:
        copy_bytes(word(s, OWN), logits, 4 * n)
        copy_bytes(word(s, IDS), ids, 4 * n)
        put(s, LOGITS, word(s, OWN))
        put(s, SORTED, 1)
        put(s, WHOLE, 0)
        best = load_f32(logits)
    if nan != 0 or not abs(best) < _INF:
        put(s, STATUS, BROKEN)
        return
    put(s, STATUS, DONE)
    step = s + 8 * STEPS
    for _ in range(word(s, N_STEPS)):
        call_kernel(load_i64(step), s, load_i64(step + 8), 0)
        step += 8 * STEP_WORDS


SAMPLE_TOKEN = Kernel(sample_token, 4)
