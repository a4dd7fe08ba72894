"""The draws: C++'s std::mt19937 with its uniform distributions, and the choice by probability.

They are what makes the same seed give llama-server's text.
Tested by tests/model/test_sampling_dist.py.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from .softmax import F32Array

_N_AHEAD: Final = 64
_BELOW_ONE: Final = math.nextafter(1.0, 0.0)
_FLOAT_BELOW_ONE: Final = np.nextafter(np.float32(1), np.float32(0))


class MersenneTwister:
    """std::mt19937 seeded with 32 bits, and std::uniform_real_distribution as libstdc++ draws it.

    Its seeding is that of NumPy's RandomState, whose own floats are built otherwise.
    """

    def __init__(self, seed: int) -> None:
        assert 0 <= seed < 2**32, seed
        self._bits = np.random.MT19937(0)
        np.random.RandomState(self._bits).seed(seed)
        self._drawn: list[int] = []  # ahead of their use: NumPy takes as long for one; next is last

    def uniform_double(self) -> float:
        """A float64 in [0, 1) from two draws: std::generate_canonical<double, 53>."""
        low, high = self._draw(), self._draw()
        return min((low + high * 2.0**32) / 2.0**64, _BELOW_ONE)

    def uniform_float(self) -> float:
        """A float32 in [0, 1) from one draw: std::generate_canonical<float, 24>."""
        u = np.float32(self._draw()) / np.float32(2**32)
        return float(min(u, _FLOAT_BELOW_ONE))

    def peek_float(self) -> float:
        """What `uniform_float` will be."""
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
    """The first place where the running sum of weights [n] reaches u times their sum.

    Both sums in float64 (llama_sampler_dist_apply).
    """
    sums: npt.NDArray[np.float64] = np.cumsum(weights, dtype=np.float64)
    return int(np.searchsorted(sums, u * sums[-1]))
