"""Exponentials, softmax and log-probabilities of logits, rounded as in llama.cpp.

Knows no candidates and no samplers. Tested by tests/model/test_sampling_steps.py.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

F32Array: TypeAlias = npt.NDArray[np.float32]
IdArray: TypeAlias = npt.NDArray[np.int64]


def exps(logits: F32Array) -> F32Array:
    """Return exp(logit - largest) [n] in float32: the softmax before the division by its sum.

    Computed in float64 and rounded once, so that every processor computes the same bits. If the
    largest logit is infinite, the logits equal to it have weight 1 and the others 0, so that no
    weight is NaN.
    """
    top = logits.max()
    if np.isinf(top):
        share: F32Array = (logits == top).astype(np.float32)
        return share
    return rounded(np.exp(logits - top, dtype=np.float64))


def softmax(logits: F32Array) -> F32Array:
    """Return probabilities [n] (llama_sampler_softmax_impl: float32, summed in order)."""
    weights = exps(logits)
    probs: F32Array = weights / running_sum(weights)[-1]
    return probs


def running_sum(x: F32Array) -> F32Array:
    """Return the running sums [n], in float32 and in order, as a C loop computes them."""
    sums: F32Array = np.add.accumulate(x)
    return sums


def log_probabilities(probs: F32Array) -> F32Array:
    """Return ln(p) [n] in float32. A probability of 0 counts as the smallest positive float32."""
    smallest = np.float32(np.finfo(np.float32).smallest_subnormal)
    return rounded(np.log(np.maximum(probs, smallest), dtype=np.float64))


def log_softmax(logits: F32Array) -> F32Array:
    """Return log-probabilities [n_vocab] of logits [n_vocab]: a float64 sum; -inf stays -inf."""
    shifted = logits - logits.max()
    return rounded(shifted - np.log(np.exp(shifted).sum(dtype=np.float64)))


def rounded(x: npt.NDArray[np.float64]) -> F32Array:
    """Round float64 to float32."""
    return x.astype(np.float32)
