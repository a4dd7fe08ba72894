"""Samplers that drop or mask unlikely candidates (XTC: likely ones), as pure functions.

All parameters are rounded to float32, as in llama.cpp: `top_p = 0.95` means the nearest float32.
Tested by tests/model/test_sampling_steps.py.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import numpy as np

from .candidates import Candidates
from .softmax import F32Array, exps, log_probabilities, running_sum, softmax

_FEW: Final = 256  # candidates that top_p sorts first, as they are usually enough


def top_k(c: Candidates, k: int) -> Candidates:
    """Keep the k > 0 largest, sorted (llama_sampler_top_k_apply)."""
    return c.top(k)


def top_p(c: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """Keep the fewest of the largest whose probabilities sum to p (nucleus, arXiv 1904.09751).

    llama_sampler_top_p_apply: float32, with the softmax summed in the order before the sort. The
    result is sorted.
    """
    total = running_sum(exps(c.logits))[-1]
    for n in (c.n,) if c.sorted else (_FEW, c.n):
        top = c.top(n)
        n_kept = _n_reaching(exps(top.logits) / total, p, "left", min_keep)
        if n_kept <= n:
            return top.first(n_kept)
    return top


def min_p(c: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """Keep the candidates at least p > 0 times as likely as the largest (arXiv 2407.01082).

    llama_sampler_min_p_apply: compares logits. An unsorted list keeps its order, unless fewer than
    `min_keep` candidates are left.
    """
    least = c.logits.max() + np.float32(least_log(p))
    if not c.sorted:
        likely = np.flatnonzero(c.logits >= least)
        if len(likely) >= min_keep:
            return c.pick(likely)
    c = c.top(c.n)
    return c.first(max(int(np.count_nonzero(c.logits >= least)), min_keep))


def least_log(p: float) -> float:
    """Return ln(p) in float32: the largest difference of logits for a probability ratio p > 0."""
    return float(np.float32(math.log(p)))


def typical(c: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """Keep the fewest candidates nearest to the entropy whose probabilities sum to more than p.

    Locally typical sampling (arXiv 2202.00666), llama_sampler_typical_apply. The result is in the
    order of nearness, with ties by probability. Masked candidates, whose score is NaN in llama.cpp,
    count as the least likely.
    """
    c = c.top(c.n)
    probs = softmax(c.logits)
    logs = log_probabilities(probs)
    entropy = running_sum(-probs * logs)[-1]
    order = np.argsort(np.abs(-logs - entropy), kind="stable")
    return c.pick(order[: _n_reaching(probs[order], p, "right", min_keep)])


def top_n_sigma(c: Candidates, n: float) -> Candidates:
    """Mask (-inf) logits more than n > 0 standard deviations below the largest.

    arXiv 2411.07641, llama_sampler_top_n_sigma_apply: float32 sums over the logits that are not
    masked. No candidate is dropped, and the order stays the same.
    """
    logits = c.logits if c.logits.min() > -np.inf else c.logits[c.logits > -np.inf]
    if c.n <= 1 or not len(logits):
        return c
    deviations = logits - running_sum(logits)[-1] / np.float32(len(logits))
    sigma = np.sqrt(running_sum(deviations * deviations)[-1] / np.float32(len(logits)))
    least = logits.max() - np.float32(n) * sigma
    masked = np.where(c.logits < least, np.float32(-np.inf), c.logits)
    return c.with_logits(masked, keeps_order=True)


def xtc(c: Candidates, threshold: float, min_keep: int = 0) -> Candidates:
    """Drop all candidates with at least probability `threshold` but the least likely of them.

    "Exclude top choices": llama_sample_xtc_apply after its random draw. The result is sorted.
    """
    c = c.top(c.n)
    n_dropped = int(np.count_nonzero(softmax(c.logits) >= np.float32(threshold))) - 1
    if n_dropped <= 0 or c.n - n_dropped < min_keep:
        return c
    return Candidates(c.ids[n_dropped:], c.logits[n_dropped:], sorted=True)


def _n_reaching(probs: F32Array, p: float, side: Literal["left", "right"], min_keep: int) -> int:
    """Return the number of leading probs with a sum of at least p ("left") or above p ("right").

    The result is at least min_keep. It exceeds len(probs) if all of them are not enough.
    """
    return max(int(np.searchsorted(running_sum(probs), np.float32(p), side)) + 1, min_keep)
