"""Temperature, fixed or following the entropy.

Tested by tests/model/test_sampling_steps.py.
"""

from __future__ import annotations

import math

import numpy as np

from .candidates import Candidates
from .softmax import log_probabilities, running_sum, softmax


def temperature(c: Candidates, t: float) -> Candidates:
    """Divides the logits by t; t <= 0 masks all but the first of the largest with -inf.

    llama_sampler_temp_impl. Nobody is dropped, the order stays.
    """
    if t > 0:
        return c.with_logits(c.logits / np.float32(t), keeps_order=True)
    best = c.logits.argmax()
    logits = np.full(c.n, -np.inf, np.float32)
    logits[best] = c.logits[best]
    return c.with_logits(logits, keeps_order=True)


def dynamic_temperature(c: Candidates, t: float, delta: float, exponent: float) -> Candidates:
    """A temperature from t - delta to t + delta, delta > 0: the flatter the candidates the higher.

    llama_sampler_temp_ext_apply: the entropy, as a share of its maximum, to the power of
    `exponent`. Even t = 0 is not greedy then. Sorted, but for a single candidate, which stays.
    """
    if c.n <= 1:
        return c
    c = c.top(c.n)
    probs = softmax(c.logits)
    entropy = running_sum(-probs * log_probabilities(probs))[-1]
    share = entropy / -np.float32(math.log(np.float32(1 / c.n)))
    low, high = map(np.float32, dynamic_temperature_limits(t, delta))
    dynamic = low + (high - low) * np.float32(np.power(np.float64(share), exponent))
    # an exponent below 0 can reach infinity, where a masked logit would become NaN
    return temperature(c, float(np.fmin(dynamic, np.finfo(np.float32).max)))


def dynamic_temperature_limits(t: float, delta: float) -> tuple[float, float]:
    """The lowest and the highest dynamic temperature, as a float32 holds them."""
    low = max(np.float32(t) - np.float32(delta), np.float32(0))
    with np.errstate(over="ignore"):
        return float(low), float(np.float32(t + delta))
