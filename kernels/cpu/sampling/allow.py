"""Keeps the tokens that a mask of bits allows, before the first step of a chain.

Few tokens are gathered. If there are many, and top_k will drop the others, all logits are copied,
with -inf for the others. The results are the same. Tested by tests/model/test_sampling_mask.py.
"""

from __future__ import annotations

from typing import Final

from ..simd.calls import inlined
from ..simd.ints import store_u32
from ..simd.memory import load_f32, load_u16, load_u32, store_f32, store_f32_part
from ..simd.scan import count_bits, keep_lanes, lowest_bit
from ..simd.vectors import LANES
from .rows import part
from .state import IDS, LOGITS, MASK, MASKED, N_FIRST, OWN, WHOLE, N, put, word

_WORD: Final = 32  # tokens of a word of the mask
_FEW: Final = 8  # fewer than 1 of so many tokens are gathered


@inlined
def _bits(mask, i, n):
    """The bits of the tokens from `i` on, a multiple of 32, that are below `n`."""
    bits = load_u32(mask + i // 8)
    return bits if n - i >= _WORD else bits & ((1 << (n - i)) - 1)


@inlined
def _gather(s, x, n):
    mask, out, ids, m = word(s, MASK), word(s, OWN), word(s, IDS), 0
    for i in range(0, n, _WORD):
        bits = _bits(mask, i, n)
        while bits != 0:
            at = i + lowest_bit(bits)
            bits &= bits - 1
            store_f32(out + 4 * m, load_f32(x + 4 * at))
            store_u32(ids + 4 * m, at)
            m += 1
    put(s, WHOLE, 0)
    put(s, LOGITS, out)
    put(s, N, m)


@inlined
def _blend(s, x, n):
    mask, out = word(s, MASK), word(s, MASKED)
    for i in range(0, n, LANES):
        left = n - i
        kept = keep_lanes(part(x + 4 * i, left), load_u16(mask + i // 8))
        store_f32_part(out + 4 * i, kept, left)
    put(s, LOGITS, out)


@inlined
def allow(s, x, n):
    """Make the allowed of the `n` logits at `x` the candidates. Return their number."""
    count = 0
    for i in range(0, n, _WORD):
        count += count_bits(_bits(word(s, MASK), i, n))
    k = word(s, N_FIRST)
    if count < n // _FEW or not 0 < k <= count:
        _gather(s, x, n)
    elif count < n:
        _blend(s, x, n)
    return count
