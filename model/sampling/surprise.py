"""Samplers with a memory of what they chose: Mirostat and Adaptive-P.

Each is the last step before the draw, and learns from it: `chose` gets the weights of the draw. Its
`state` is shared with the kernels. Numbers are float32, as in llama.cpp.
Tested by tests/model/test_sampling_surprise.py.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from .candidates import Candidates
from .softmax import F32Array, running_sum, softmax

N_ZIPF: Final = 100  # of the most likely tokens, from which the exponent is estimated
INV_LN2: Final = 1 / math.log(2)
# of Adaptive-P's curve around its target
WIDTH: Final = 0.3
PEAK: Final = 5.0
SHARPNESS: Final = 10.0

F64Array = npt.NDArray[np.float64]
_ONE: Final = np.float32(1)


class Mirostat:
    """Keeps the surprise of the text near `tau` (arXiv 2007.14966; llama_sampler_mirostat_apply and
    llama_sampler_mirostat_v2_apply).

    Attributes:
        state: the most surprise of a token, in bits.
    """

    def __init__(self, version: int, tau: float, eta: float, n_vocab: int) -> None:
        self.version, self.tau, self.eta = version, tau, eta
        self.n_vocab = n_vocab
        self.state: F64Array = np.array([np.float32(2) * np.float32(tau)], np.float64)

    def __call__(self, c: Candidates) -> Candidates:
        c = c.top(c.n)
        probs, most = softmax(c.logits), np.float32(self.state[0])
        return c.first(
            n_likely(probs, most) if self.version == 2 else n_of_zipf(probs, most, self.n_vocab)
        )

    def chose(self, weights: F32Array, i: int) -> None:
        """Learn that candidate `i` was drawn by these weights."""
        error = surprise(weights[i] / running_sum(weights)[-1]) - np.float32(self.tau)
        self.state[0] = np.float32(self.state[0]) - np.float32(self.eta) * error


class AdaptiveP:
    """Prefers tokens whose probability is near a target, which it moves against what was chosen
    before (github.com/MrJackSpade/adaptive-p-docs; llama_sampler_adaptive_p_apply).

    Attributes:
        state: the decayed sum of the probabilities of the chosen tokens, and of their weights.
    """

    def __init__(self, target: float, decay: float) -> None:
        self.target, self.decay = min(target, 1.0), decay
        left = _ONE - np.float32(decay)
        self.state: F64Array = np.array([np.float32(self.target) / left, _ONE / left], np.float64)
        self._probs: F32Array | None = None

    def __call__(self, c: Candidates) -> Candidates:
        self._probs = probs = softmax(c.logits)
        total, weight = self.state.astype(np.float32)
        aim = np.clip(np.float32(2) * np.float32(self.target) - total / weight, 0, 1)
        distance = np.abs((probs - aim) * np.float32(1 / WIDTH))
        curve = np.float32(PEAK) - np.float32(SHARPNESS) * distance * distance / (_ONE + distance)
        return c.with_logits(np.where(c.logits > -np.inf, curve, c.logits))

    def chose(self, weights: F32Array, i: int) -> None:
        """Learn that candidate `i` was drawn."""
        assert self._probs is not None, "nothing was drawn"
        total, weight = self.state.astype(np.float32)
        decay = np.float32(self.decay)
        self.state[:] = self._probs[i] + decay * total, _ONE + decay * weight


def surprise(p: np.float32) -> np.float32:
    """Return -log2(p) of a probability above 0."""
    return np.float32(-math.log(np.float64(p)) * INV_LN2)


def n_likely(probs: F32Array, most: np.float32) -> int:
    """Return the number of first probabilities [n], in descending order, whose surprise is at most
    `most`; at least 1."""
    for i in range(1, len(probs)):
        if probs[i] == 0 or surprise(probs[i]) > most:
            return i
    return len(probs)


def n_of_zipf(probs: F32Array, most: np.float32, n_vocab: int) -> int:
    """Return k such that the surprise of the k most likely tokens is about `most`, if their
    probabilities [n] follow Zipf's law; at least 1, at most n.

    The law's exponent is estimated from the ratios of the first `N_ZIPF` probabilities.
    """
    products = squares = np.float32(0)
    for i in range(min(N_ZIPF, len(probs)) - 1):
        if probs[i + 1] == 0:
            break
        t = np.float32(math.log(np.float32(i + 2) / np.float32(i + 1)))
        b = np.float32(math.log(probs[i] / probs[i + 1]))
        products += t * b
        squares += t * t
    exponent = products / squares
    epsilon = exponent - _ONE
    above = epsilon * np.float32(np.power(2.0, np.float64(most)))
    below = _ONE - np.float32(np.power(np.float64(n_vocab), -np.float64(epsilon)))
    k = np.float32(np.power(np.float64(above / below), np.float64(_ONE / exponent)))
    return max(int(k), 1) if k < len(probs) else len(probs)  # k may be infinite, or NaN
