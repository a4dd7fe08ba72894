"""Samplers that change the logits of some tokens: given biases, and penalties for repetition.

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
    """Adds biases [m] to the logits of `tokens` [m], all different; -inf bans a token.

    llama_sampler_logit_bias_apply.
    """
    at, found = c.locate(tokens)
    logits = c.logits.copy()
    logits[at] += biases[found]
    return c.with_logits(logits)


def taken_off(penalties: F32Array) -> F32Array:
    """Biases [m] that take penalties [m] off."""
    # held finite: a banned token (-inf) must not become NaN
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
    return logit_bias(c.with_logits(logits), tokens[found], taken_off(taken))


class RepeatPenalties:
    """`penalties` for the last `last_n` tokens accepted: a step of the chain with a memory."""

    def __init__(self, last_n: int, repeat: float, frequency: float, presence: float) -> None:
        assert last_n > 0, last_n
        self.penalties = (repeat, frequency, presence)
        # the tokens of the window, each once, and how often it is there; where a token stands
        self.tokens = array("q")
        self.counts = array("f")
        self._places: dict[int, int] = {}
        self._window: deque[int] = deque(maxlen=last_n)

    def accept(self, token: int) -> None:
        if len(self._window) == self._window.maxlen:
            self._forget(self._window[0])
        self._window.append(token)
        at = self._places.get(token)
        if at is None:
            self._places[token] = len(self.tokens)
            self.tokens.append(token)
            self.counts.append(1)
        else:
            self.counts[at] += 1

    def _forget(self, token: int) -> None:
        at = self._places[token]
        self.counts[at] -= 1
        if self.counts[at] == 0:  # the last one takes its place
            del self._places[token]
            last, count = self.tokens.pop(), self.counts.pop()
            if last != token:
                self.tokens[at], self.counts[at], self._places[last] = last, count, at

    def __call__(self, c: Candidates) -> Candidates:
        tokens, counts = np.array(self.tokens), np.array(self.counts)
        return penalties(c, tokens, counts, *self.penalties)
