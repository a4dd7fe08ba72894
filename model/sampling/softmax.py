"""Exponentials and softmax of logits, rounded where llama.cpp rounds; log-probabilities.

Knows nothing of candidates or samplers. Tested by tests/model/test_sampling_steps.py.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

F32Array: TypeAlias = npt.NDArray[np.float32]
IdArray: TypeAlias = npt.NDArray[np.int64]


def exps(logits: F32Array) -> F32Array:
    """exp(logit - largest) [n] in float32: the softmax before it is divided by its sum.

    Taken in float64 and rounded once, as a good expf is, so that every processor gives the same.
    Where the largest is infinite those that equal it share everything, and nothing becomes NaN.
    """
    top = logits.max()
    if np.isinf(top):
        share: F32Array = (logits == top).astype(np.float32)
        return share
    return rounded(np.exp(logits - top, dtype=np.float64))


def softmax(logits: F32Array) -> F32Array:
    """Probabilities [n] of candidates (llama_sampler_softmax_impl: float32, summed in order)."""
    weights = exps(logits)
    probs: F32Array = weights / running_sum(weights)[-1]
    return probs


def running_sum(x: F32Array) -> F32Array:
    """Sums of the first 1, 2, ... values [n]: one float32 addition after the other, as a C loop."""
    sums: F32Array = np.add.accumulate(x)
    return sums


def log_probabilities(probs: F32Array) -> F32Array:
    """ln(p) [n] in float32; a probability of 0 counts as the smallest above it."""
    smallest = np.float32(np.finfo(np.float32).smallest_subnormal)
    return rounded(np.log(np.maximum(probs, smallest), dtype=np.float64))


def log_softmax(logits: F32Array) -> F32Array:
    """Log-probabilities [n_vocab] of raw logits [n_vocab], summed in float64; -inf stays -inf."""
    shifted = logits - logits.max()
    return rounded(shifted - np.log(np.exp(shifted).sum(dtype=np.float64)))


def rounded(x: npt.NDArray[np.float64]) -> F32Array:
    """float64 to float32."""
    return x.astype(np.float32)
