"""The block of 64-bit words that the kernels of a sampler share, and functions that read it.

    s + 8 * word    the candidates, scratch memory, the result; then the steps: (kernel, parameters)

A step is a kernel `(s, q, 0)`: `s` is the block, `q` the address of its own parameters. It changes
the candidates: N logits at LOGITS, and their ids at IDS. WHOLE: the ids are 0..N - 1 and are not
stored. SORTED: descending by logit, equal logits ascending by id. The caller's logits are never
written: a step that changes logits copies them first.
Tested by tests/model/test_sampling_native.py.
"""

from __future__ import annotations

from typing import Final

from ..simd.calls import call_kernel, inlined
from ..simd.ints import copy_bytes
from ..simd.memory import load_i32, load_i64, store_i64

# the candidates
LOGITS: Final = 0  # address of float32s: the caller's, or OWN
IDS: Final = 1  # address of int32s
N: Final = 2
SORTED: Final = 3
WHOLE: Final = 4
# memory of the sampler, with room for all tokens of the vocabulary
N_VOCAB: Final = 5
OWN: Final = 6  # float32s
WEIGHTS: Final = 7  # float32s: the results of `exps`
KEYS: Final = 8  # int64s: the sort keys that SORT writes, see rows.key_of
OTHER: Final = 9  # int64s, and N_COUNTS more: scratch, until another kernel is called
MARKS: Final = 10  # int32s, all 0 between steps
MAXIMA: Final = 11  # float32s: the largest logit of each group, see select.py
N_GROUPS: Final = 12  # the number of groups, a multiple of 16
# kernels that steps call
SORT: Final = 13
# the result
STATUS: Final = 14
TOKEN: Final = 15
U: Final = 16  # float64 in [0, 1): the random number of the draw
SCRATCH: Final = 17  # 8 words
MASK: Final = 25  # address of uint32s, bit i % 32 of word i // 32: token i is allowed; 0: all are
KEPT: Final = 26  # MASK if all logits are candidates, but only the allowed ones count; else 0
N_FIRST: Final = 27  # k of top_k, if the steps before it only change single logits; else 0
TWISTER: Final = 28  # address of the generator that U comes from, see twister.py; 0: U is given
N_STEPS: Final = 29
CHOSEN: Final = 30  # the index of the candidate that was drawn
STEPS: Final = 31  # the steps, STEP_WORDS each
STEP_WORDS: Final = 2

# a status
DONE: Final = 0
BROKEN: Final = 1  # a logit is NaN or +inf, or all are -inf
NOTHING_LEFT: Final = 2  # all logits were -inf at the draw

MAX_GROUPS: Final = 1024
N_COUNTS: Final = 256


@inlined
def word(s, i):
    return load_i64(s + 8 * i)


@inlined
def put(s, i, value):
    store_i64(s + 8 * i, value)


@inlined
def id_at(s, i):
    """The token of candidate `i`."""
    return i if word(s, WHOLE) != 0 else load_i32(word(s, IDS) + 4 * i)


@inlined
def first(s, k):
    """Keep the first `k` >= 1 of sorted candidates, or all if there are fewer."""
    put(s, N, min(k, word(s, N)))


@inlined
def own_logits(s):
    """Copy the logits to OWN, which may be written. Return its address."""
    own = word(s, OWN)
    if word(s, LOGITS) != own:
        copy_bytes(own, word(s, LOGITS), 4 * word(s, N))
        put(s, LOGITS, own)
    return own


@inlined
def sort(s, k):
    """Write the keys of at least the `k` largest candidates to KEYS, sorted, by a call of SORT."""
    put(s, SCRATCH, k)
    call_kernel(word(s, SORT), s, s + 8 * SCRATCH, 0)
