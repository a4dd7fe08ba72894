"""Temperature, fixed or dynamic by entropy.

Tested by tests/model/test_sampling_steps.py.
"""

from __future__ import annotations

import math

import numpy as np

from .candidates import Candidates
from .softmax import log_probabilities, running_sum, softmax


def temperature(c: Candidates, t: float) -> Candidates:
    """Divide the logits by t. With t <= 0, mask all but the first of the largest with -inf.

    llama_sampler_temp_impl. No candidate is dropped, and the order stays the same.
    """
    if t > 0:
        return c.with_logits(c.logits / np.float32(t), keeps_order=True)
    best = c.logits.argmax()
    logits = np.full(c.n, -np.inf, np.float32)
    logits[best] = c.logits[best]
    return c.with_logits(logits, keeps_order=True)


def dynamic_temperature(c: Candidates, t: float, delta: float, exponent: float) -> Candidates:
    """Apply a temperature from t - delta to t + delta (delta > 0) that rises with the entropy.

    llama_sampler_temp_ext_apply: the entropy, divided by its maximum, to the power of `exponent`,
    is the position in this range. So t = 0 is not greedy. The result is sorted; a single candidate
    is returned unchanged.
    """
    if c.n <= 1:
        return c
    c = c.top(c.n)
    probs = softmax(c.logits)
    entropy = running_sum(-probs * log_probabilities(probs))[-1]
    share = entropy / -np.float32(math.log(np.float32(1 / c.n)))
    low, high = map(np.float32, dynamic_temperature_limits(t, delta))
    dynamic = low + (high - low) * np.float32(np.power(np.float64(share), exponent))
    # with a negative exponent it can be infinite, which would turn a masked logit into NaN
    return temperature(c, float(np.fmin(dynamic, np.finfo(np.float32).max)))


def dynamic_temperature_limits(t: float, delta: float) -> tuple[float, float]:
    """Return the lowest and the highest dynamic temperature, rounded to float32."""
    low = max(np.float32(t) - np.float32(delta), np.float32(0))
    with np.errstate(over="ignore"):
        return float(low), float(np.float32(t + delta))
