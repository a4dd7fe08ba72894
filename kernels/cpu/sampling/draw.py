"""The native call that samples a token of each row: it runs the steps of a chain, then draws.

Rows are independent, so threads take them in turns. Tested by tests/model/test_sampling_native.py
and test_sampling_rows.py.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from ..compiler.jit import kernel
from ..simd.calls import call_kernel, inlined
from ..simd.ints import copy_bytes
from ..simd.memory import load_f32, load_f64, load_i64, store_f64
from ..simd.sync import atomic_add
from .allow import allow
from .rows import exps, largest
from .select import group_maxima, largest_of_groups
from .state import (
    BROKEN,
    CHOSEN,
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
    TWISTER,
    WEIGHTS,
    WHOLE,
    N,
    U,
    id_at,
    put,
    word,
)
from .twister import uniform_double

_INF = np.float32(math.inf)

# the parameters of sample_rows
NEXT: Final = 0  # the next row that a thread takes
N_ROWS: Final = 1
ROWS: Final = 2  # the rows, ROW_WORDS each
# a row
BLOCK: Final = 0  # address of a sampler's block, see state.py
ROW_LOGITS: Final = 1  # address of float32s
ROW_IDS: Final = 2  # address of int32s; 0: the logits are those of the whole vocabulary
ROW_N: Final = 3
RESULT: Final = 4  # the token, or less than 0: -1 - status
ROW_WORDS: Final = 5


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
    """The last step: compute WEIGHTS, and draw one of the candidates.

    Parameter: 0 if a single candidate is chosen without a random number."""
    n, best = word(s, N), largest(s)
    if best == -_INF:
        put(s, STATUS, NOTHING_LEFT)
        return
    exps(word(s, LOGITS), n, best, word(s, WEIGHTS))
    if word(s, TWISTER) != 0:
        draws = n > 1 or load_i64(q) != 0
        store_f64(s + 8 * U, uniform_double(word(s, TWISTER)) if draws else 0.0)
    chosen = _choose(word(s, WEIGHTS), n, load_f64(s + 8 * U))
    put(s, CHOSEN, chosen)
    put(s, TOKEN, id_at(s, chosen))


@inlined
def _sample(s, logits, ids, n):
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


@kernel
def sample_rows(p, ith, nth):
    """Sample a token of each row. A sampler may have one row only."""
    while True:
        i = atomic_add(p + 8 * NEXT, 1)
        if i >= load_i64(p + 8 * N_ROWS):
            return
        row = p + 8 * (ROWS + ROW_WORDS * i)
        s = word(row, BLOCK)
        _sample(s, word(row, ROW_LOGITS), word(row, ROW_IDS), word(row, ROW_N))
        status = word(s, STATUS)
        put(row, RESULT, word(s, TOKEN) if status == DONE else -1 - status)
