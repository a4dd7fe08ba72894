"""XTC, "exclude top choices", with its random draw.

Tested by tests/model/test_sampling_chain.py.
"""

from __future__ import annotations

from .candidates import Candidates
from .dist import MersenneTwister
from .truncation import xtc


class Xtc:
    """A step that applies `xtc` with a probability, from its own random numbers.

    As llama_sample_xtc_apply.
    """

    def __init__(self, probability: float, threshold: float, min_keep: int, seed: int) -> None:
        self.probability = probability
        self.threshold = threshold
        self.min_keep = min_keep
        self.coin = MersenneTwister(seed)

    def __call__(self, c: Candidates) -> Candidates:
        # a single candidate uses no random number
        if c.n < 2 or self.coin.uniform_float() > self.probability:
            return c
        return xtc(c, self.threshold, self.min_keep)
