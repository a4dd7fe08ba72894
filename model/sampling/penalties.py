"""Samplers that change the logits of some tokens: biases, and penalties for repetition.

Tested by tests/model/test_sampling_steps.py; the window by tests/model/test_sampling_chain.py.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import Final

import numpy as np

from .candidates import Candidates
from .softmax import F32Array, IdArray

_FLOAT_MAX: Final = np.finfo(np.float32).max


def logit_bias(c: Candidates, tokens: IdArray, biases: F32Array) -> Candidates:
    """Add biases [m] to the logits of distinct `tokens` [m]; -inf bans a token.

    llama_sampler_logit_bias_apply.
    """
    at, found = c.locate(tokens)
    logits = c.logits.copy()
    logits[at] += biases[found]
    return c.with_logits(logits)


def as_biases(penalties: F32Array) -> F32Array:
    """Return biases [m] that subtract penalties [m]."""
    # finite, so that a banned token's logit (-inf) does not become NaN
    biases: F32Array = -np.clip(penalties, -_FLOAT_MAX, _FLOAT_MAX)
    return biases


def penalties(
    c: Candidates,
    tokens: IdArray,
    counts: F32Array,
    repeat: float,
    frequency: float,
    presence: float,
) -> Candidates:
    """Penalize distinct `tokens` [m] that occurred counts [m] times before.

    llama_sampler_penalties_apply: positive logits are divided by `repeat`, others multiplied
    (arXiv 1909.05858 only divides, which would favor negative ones). Then count x frequency +
    presence is subtracted.
    """
    at, found = c.locate(tokens)
    before = c.logits[at]
    logits = c.logits.copy()
    logits[at] = np.where(before <= 0, before * np.float32(repeat), before / np.float32(repeat))
    costs = counts[found] * np.float32(frequency) + np.float32(presence)
    return logit_bias(c.with_logits(logits), tokens[found], as_biases(costs))


class RepeatPenalties:
    """A step of the chain: `penalties` for a window of the last `last_n` accepted tokens."""

    def __init__(self, last_n: int, repeat: float, frequency: float, presence: float) -> None:
        assert last_n > 0, last_n
        self.penalties = (repeat, frequency, presence)
        self.tokens = array("q")  # the distinct tokens of the window
        self.counts = array("f")  # the number of times that each of them occurs there
        self._indices: dict[int, int] = {}  # of each token in `tokens`
        self._window: deque[int] = deque(maxlen=last_n)

    def accept(self, token: int) -> None:
        if len(self._window) == self._window.maxlen:
            self._forget(self._window[0])
        self._window.append(token)
        at = self._indices.get(token)
        if at is None:
            self._indices[token] = len(self.tokens)
            self.tokens.append(token)
            self.counts.append(1)
        else:
            self.counts[at] += 1

    def _forget(self, token: int) -> None:
        at = self._indices[token]
        self.counts[at] -= 1
        if self.counts[at] == 0:  # the last token takes its index
            del self._indices[token]
            last, count = self.tokens.pop(), self.counts.pop()
            if last != token:
                self.tokens[at], self.counts[at], self._indices[last] = last, count, at

    def __call__(self, c: Candidates) -> Candidates:
        tokens, counts = np.array(self.tokens), np.array(self.counts)
        return penalties(c, tokens, counts, *self.penalties)
