"""Random numbers for draws: std::mt19937, as in model/sampling/dist.py.

The state is 624 uint32s and, after them, the index of the next one.
Tested by tests/model/test_sampling_rows.py.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from ..simd.calls import inlined
from ..simd.ints import store_u32
from ..simd.memory import load_u32

N_STATE: Final = 624
_M: Final = 397
_UPPER: Final = 0x80000000
_LOWER: Final = 0x7FFFFFFF
_MATRIX: Final = 0x9908B0DF
_BELOW_ONE: Final = math.nextafter(1.0, 0.0)


@inlined
def _twist(state):
    for i in range(N_STATE):
        high = load_u32(state + 4 * i) & _UPPER
        low = load_u32(state + 4 * ((i + 1) % N_STATE)) & _LOWER
        mixed = load_u32(state + 4 * ((i + _M) % N_STATE)) ^ ((high | low) >> 1)
        store_u32(state + 4 * i, mixed ^ _MATRIX if low & 1 != 0 else mixed)


@inlined
def _next(state):
    at = load_u32(state + 4 * N_STATE)
    if at == N_STATE:
        _twist(state)
        at = 0
    store_u32(state + 4 * N_STATE, at + 1)
    y = load_u32(state + 4 * at)
    y ^= y >> 11
    y ^= (y << 7) & 0x9D2C5680
    y ^= (y << 15) & 0xEFC60000
    return y ^ (y >> 18)


@inlined
def uniform_double(state):
    """The next number of `MersenneTwister.uniform_double`."""
    low = np.float64(_next(state))
    high = np.float64(_next(state))
    return min((low + high * 4294967296.0) / 18446744073709551616.0, _BELOW_ONE)
