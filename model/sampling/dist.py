"""Random draws: C++'s std::mt19937 with its uniform distributions, and the choice by probability.

With them, a seed gives the same text as in llama-server.
Tested by tests/model/test_sampling_dist.py.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .softmax import F32Array

_N_AHEAD: Final = 64
_BELOW_ONE: Final = math.nextafter(1.0, 0.0)
_FLOAT_BELOW_ONE: Final = np.nextafter(np.float32(1), np.float32(0))


class MersenneTwister:
    """std::mt19937 with a 32-bit seed, and libstdc++'s std::uniform_real_distribution.

    NumPy's RandomState has the same seeding, but makes floats in another way.
    """

    def __init__(self, seed: int) -> None:
        assert 0 <= seed < 2**32, seed
        self._bits = np.random.MT19937(0)
        np.random.RandomState(self._bits).seed(seed)
        # draws made in advance, as NumPy takes as long for one; the next draw is the last element
        self._drawn: list[int] = []

    def state(self) -> npt.NDArray[np.uint32]:
        """Return the 624 words of the state, and the index of the next one. No number was drawn."""
        assert not self._drawn, "numbers were drawn in advance"
        state: Any = self._bits.state["state"]
        return np.append(state["key"], state["pos"]).astype(np.uint32)

    def uniform_double(self) -> float:
        """Return a float64 in [0, 1) from two draws: std::generate_canonical<double, 53>."""
        low, high = self._draw(), self._draw()
        return min((low + high * 2.0**32) / 2.0**64, _BELOW_ONE)

    def uniform_float(self) -> float:
        """Return a float32 in [0, 1) from one draw: std::generate_canonical<float, 24>."""
        u = np.float32(self._draw()) / np.float32(2**32)
        return float(min(u, _FLOAT_BELOW_ONE))

    def peek_float(self) -> float:
        """Return the next result of `uniform_float` without consuming it."""
        draw = self._draw()
        self._drawn.append(draw)
        u = self.uniform_float()
        self._drawn.append(draw)
        return u

    def _draw(self) -> int:
        if not self._drawn:
            self._drawn = self._bits.random_raw(_N_AHEAD).tolist()[::-1]
        return self._drawn.pop()


def choose(weights: F32Array, u: float) -> int:
    """Return the first index at which the running sum of weights [n] reaches u times their sum.

    Both sums are in float64 (llama_sampler_dist_apply).
    """
    sums: npt.NDArray[np.float64] = np.cumsum(weights, dtype=np.float64)
    return int(np.searchsorted(sums, u * sums[-1]))
