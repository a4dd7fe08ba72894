"""Samplers that change the logits of some tokens: given biases, and penalties for repetition.

Tested by tests/model/test_sampling_steps.py; the window by tests/model/test_sampling_chain.py.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

import numpy as np

from .candidates import Candidates
from .softmax import F32Array, IdArray

_FLOAT_MAX: Final = np.finfo(np.float32).max


def logit_bias(c: Candidates, tokens: IdArray, biases: F32Array) -> Candidates:
    """Adds biases [m] to the logits of `tokens` [m], all different; -inf bans a token.

    llama_sampler_logit_bias_apply.
    """
    at, found = c.locate(tokens)
    logits = c.logits.copy()
    logits[at] += biases[found]
    return c.with_logits(logits)


def subtract(c: Candidates, tokens: IdArray, penalties: F32Array) -> Candidates:
    """Takes penalties [m] from the logits of `tokens` [m], all different."""
    # held finite: a banned token (-inf) must not become NaN
    return logit_bias(c, tokens, -np.clip(penalties, -_FLOAT_MAX, _FLOAT_MAX))


def penalties(
    c: Candidates,
    tokens: IdArray,
    counts: F32Array,
    repeat: float,
    frequency: float,
    presence: float,
) -> Candidates:
    """Penalises `tokens` [m], all different, that occurred counts [m] times before.

    llama_sampler_penalties_apply: positive logits are divided by `repeat`, others multiplied
    (arXiv 1909.05858 only divides, which would favour negative ones); then count x frequency +
    presence is taken off.
    """
    at, found = c.locate(tokens)
    before = c.logits[at]
    logits = c.logits.copy()
    logits[at] = np.where(before <= 0, before * np.float32(repeat), before / np.float32(repeat))
    taken = counts[found] * np.float32(frequency) + np.float32(presence)
    return subtract(c.with_logits(logits), tokens[found], taken)


class RepeatPenalties:
    """`penalties` for the last `last_n` tokens accepted: a step of the chain with a memory."""

    def __init__(self, last_n: int, repeat: float, frequency: float, presence: float) -> None:
        assert last_n > 0, last_n
        self._window: deque[int] = deque(maxlen=last_n)
        self._counts: Counter[int] = Counter()
        self._penalties = (repeat, frequency, presence)

    def accept(self, token: int) -> None:
        if len(self._window) == self._window.maxlen:
            oldest = self._window[0]
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        self._window.append(token)
        self._counts[token] += 1

    def __call__(self, c: Candidates) -> Candidates:
        tokens = np.array(list(self._counts), np.int64)
        counts = np.array(list(self._counts.values()), np.float32)
        return penalties(c, tokens, counts, *self._penalties)
