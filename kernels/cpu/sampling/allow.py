"""Keeps the tokens that a mask of bits allows, before the first step of a chain.

Few tokens are gathered. If there are many, and top_k will drop most of them, the candidates stay
the whole vocabulary, and functions of select.py skip the others. The results are the same.
Tested by tests/model/test_sampling_mask.py.
"""

from __future__ import annotations

from typing import Final

from ..simd.calls import inlined
from ..simd.ints import store_u32
from ..simd.memory import load_f32, load_i64, load_u32, store_f32
from ..simd.scan import lowest_bit
from .state import IDS, KEPT, LOGITS, MASK, MAX_GROUPS, N_FIRST, OWN, WHOLE, N, put, word

_WORD: Final = 32  # tokens of a word of the mask
_STRETCH: Final = 256  # tokens that are skipped together
_MANY: Final = 1024  # so many tokens are not gathered


@inlined
def _bits(mask, i, n):
    """The bits of the tokens from `i` on, a multiple of 32, that are below `n`."""
    bits = load_u32(mask + i // 8)
    return bits if n - i >= _WORD else bits & ((1 << (n - i)) - 1)


@inlined
def _is_empty(mask, i):
    """True if no token of a stretch is allowed."""
    at = mask + i // 8
    return (load_i64(at) | load_i64(at + 8) | load_i64(at + 16) | load_i64(at + 24)) == 0


@inlined
def _gather(s, x, n, n_max):
    """Gather the allowed tokens. Return their number, or `n_max` as soon as there are so many."""
    mask, out, ids, m = word(s, MASK), word(s, OWN), word(s, IDS), 0
    for begin in range(0, n, _STRETCH):
        end = min(begin + _STRETCH, n)
        if end - begin == _STRETCH and _is_empty(mask, begin):
            continue
        for i in range(begin, end, _WORD):
            bits = _bits(mask, i, n)
            while bits != 0:
                if m == n_max:
                    return m
                at = i + lowest_bit(bits)
                bits &= bits - 1
                store_f32(out + 4 * m, load_f32(x + 4 * at))
                store_u32(ids + 4 * m, at)
                m += 1
    return m


@inlined
def allow(s, x, n):
    """Make the allowed of the `n` logits at `x` the candidates. Return 0 if there is none."""
    # select.py skips the others only where it looks at groups of logits
    skips = n > MAX_GROUPS and 0 < word(s, N_FIRST) <= MAX_GROUPS // 4
    n_max = _MANY if skips else n
    m = _gather(s, x, n, n_max)
    if skips and m == n_max:
        put(s, KEPT, word(s, MASK))
    else:
        put(s, WHOLE, 0)
        put(s, LOGITS, word(s, OWN))
        put(s, N, m)
    return m
