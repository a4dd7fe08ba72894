"""The step for texts between a prefix and a suffix.

The step in model/sampling/infill.py defines the result. Tested by
tests/model/test_sampling_infill.py.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from ..compiler.jit import kernel
from ..simd.calls import inlined
from ..simd.ints import store_u32
from ..simd.memory import load_f32, load_i32, load_i64, load_u8, load_u32, store_f32
from .rows import softmax
from .select import top
from .state import IDS, LOGITS, OTHER, OWN, SORTED, WEIGHTS, WHOLE, N, put, word

_INF = np.float32(math.inf)
_ZERO = np.float32(0)
_ONE = np.float32(1)
_LEAST = np.float32(0.2)
_N_MAX: Final = 512

# the parameters: addresses of the texts' bytes, of their ends and of the flags; the end token
_BYTES: Final = 0
_ENDS: Final = 1
_FLAGS: Final = 2
_END: Final = 3


@inlined
def _ends_text(q, id):
    return load_u8(word(q, _FLAGS) + id) != 0


@inlined
def _begins(q, id, other):
    """True if the text of `other` begins with that of `id`, which is not empty."""
    ends = word(q, _ENDS)
    a, b = load_i64(ends + 8 * id), load_i64(ends + 8 * other)
    n = load_i64(ends + 8 * id + 8) - a
    if n == 0 or n > load_i64(ends + 8 * other + 8) - b:
        return False
    texts = word(q, _BYTES)
    same = 0
    while same < n and load_u8(texts + a + same) == load_u8(texts + b + same):
        same += 1
    return same == n


@inlined
def _merge(s, q, n, probs):
    """Add the probabilities of tokens with a common begin to the likelier one; the others' become
    0. Words of OTHER are 1 for those that are gone."""
    x, ids, gone = word(s, LOGITS), word(s, IDS), word(s, OTHER)
    for i in range(n):
        store_u32(gone + 4 * i, 1 if load_f32(x + 4 * i) == -_INF else 0)
    for i in range(n):
        for j in range(n):
            if load_u32(gone + 4 * i) != 0:
                break
            if i == j or load_u32(gone + 4 * j) != 0:
                continue
            if not _begins(q, load_i32(ids + 4 * i), load_i32(ids + 4 * j)):
                continue
            p, other = load_f32(probs + 4 * i), load_f32(probs + 4 * j)
            into, of = (j, i) if other > p else (i, j)
            store_f32(probs + 4 * into, p + other)
            store_f32(probs + 4 * of, _ZERO)
            store_u32(gone + 4 * of, 1)


@inlined
def _keep(s, q, n, least, total):
    """Keep the tokens that end the text, and those whose share of `total` is at least `least`."""
    x, ids, out, probs = word(s, LOGITS), word(s, IDS), word(s, OWN), word(s, WEIGHTS)
    m = 0
    for i in range(n):
        id = load_i32(ids + 4 * i)
        p = load_f32(probs + 4 * i)
        # a token must be likely also before it is compared with the others that are kept
        if _ends_text(q, id) or (p >= _LEAST and p / total >= least):
            store_f32(out + 4 * m, load_f32(x + 4 * i))
            store_u32(ids + 4 * m, id)
            m += 1
    put(s, LOGITS, out)
    put(s, N, m)
    put(s, SORTED, 0)


@inlined
def _end(s, q, n, n_ends):
    """Leave the end token alone. If there is none, the others that end the text, else all."""
    id = word(q, _END)
    if id >= 0:
        store_f32(word(s, OWN), _ONE)
        store_u32(word(s, IDS), id)
        put(s, LOGITS, word(s, OWN))
        put(s, N, 1)
        put(s, SORTED, 0)
    elif n_ends != 0:
        _keep(s, q, n, _INF, _ONE)


@kernel
def sample_infill(s, q, _):
    """Parameters: see above."""
    top(s, _N_MAX)
    put(s, WHOLE, 0)
    x, ids, n, probs = word(s, LOGITS), word(s, IDS), word(s, N), word(s, WEIGHTS)
    softmax(x, n, load_f32(x), probs)
    of_ends, of_text, n_ends = _ZERO, _ZERO, 0
    for i in range(n):
        if _ends_text(q, load_i32(ids + 4 * i)):
            of_ends += load_f32(probs + 4 * i)
            n_ends += 1 if load_f32(x + 4 * i) > -_INF else 0
        else:
            of_text += load_f32(probs + 4 * i)
    if np.float32(3) * of_ends * np.float32(n) > of_text:
        _keep(s, q, n, _INF, _ONE)
        return
    _merge(s, q, n, probs)
    total, n_text = _ZERO, 0
    for i in range(n):
        p, ends = load_f32(probs + 4 * i), _ends_text(q, load_i32(ids + 4 * i))
        if ends or p >= _LEAST:
            total += p
            n_text += 0 if ends else 1
    if n_text == 0:
        _end(s, q, n, n_ends)
        return
    _keep(s, q, n, _ONE / np.float32(n_text + 1), total)
