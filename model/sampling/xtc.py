"""XTC, "exclude top choices", and the coin that decides whether it does.

Tested by tests/model/test_sampling_chain.py.
"""

from __future__ import annotations

from .candidates import Candidates
from .dist import MersenneTwister
from .truncation import xtc


class Xtc:
    """A step that is `xtc` if its coin falls so; the coin is its own (llama_sample_xtc_apply)."""

    def __init__(self, probability: float, threshold: float, min_keep: int, seed: int) -> None:
        self.probability = probability
        self.threshold = threshold
        self.min_keep = min_keep
        self.coin = MersenneTwister(seed)

    def __call__(self, c: Candidates) -> Candidates:
        # a single candidate costs no throw
        if c.n < 2 or self.coin.uniform_float() > self.probability:
            return c
        return xtc(c, self.threshold, self.min_keep)
