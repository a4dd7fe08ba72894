"""Samplers that drop or mask unlikely candidates (XTC: likely ones), each a pure function.

All parameters are values that a float32 holds, as llama.cpp keeps them: `top_p = 0.95` means
the float32 next to it. Tested by tests/model/test_sampling_steps.py.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import numpy as np

from .candidates import Candidates
from .softmax import F32Array, exps, log_probabilities, running_sum, softmax

_FEW: Final = 256  # candidates that top_p sorts first: they mostly hold the probability asked for


def top_k(c: Candidates, k: int) -> Candidates:
    """The k > 0 largest, sorted (llama_sampler_top_k_apply)."""
    return c.top(k)


def top_p(c: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """The fewest, largest first, whose probabilities sum to p (nucleus, arXiv 1904.09751).

    llama_sampler_top_p_apply: float32, the softmax summed in the order before the sort. Sorted.
    """
    total = running_sum(exps(c.logits))[-1]
    for n in (c.n,) if c.sorted else (_FEW, c.n):
        top = c.top(n)
        n_kept = _n_reaching(exps(top.logits) / total, p, "left", min_keep)
        if n_kept <= n:
            return top.first(n_kept)
    return top


def min_p(c: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """Those at least p > 0 times as likely as the largest (arXiv 2407.01082).

    llama_sampler_min_p_apply: compared as logits; an unsorted list keeps its order unless
    fewer than `min_keep` are left.
    """
    least = c.logits.max() + np.float32(least_log(p))
    if not c.sorted:
        likely = np.flatnonzero(c.logits >= least)
        if len(likely) >= min_keep:
            return c.pick(likely)
    c = c.top(c.n)
    return c.first(max(int(np.count_nonzero(c.logits >= least)), min_keep))


def least_log(p: float) -> float:
    """How far below the largest a logit may lie to be p > 0 times as likely, in float32."""
    return float(np.float32(math.log(p)))


def typical(c: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """The fewest whose probabilities sum to more than p, nearest to the entropy first.

    Locally typical sampling (arXiv 2202.00666), llama_sampler_typical_apply. Left in that order,
    not sorted; of equally near ones the more likely first. Masked candidates, whose score is NaN
    in llama.cpp, count as the least likely.
    """
    c = c.top(c.n)
    probs = softmax(c.logits)
    logs = log_probabilities(probs)
    entropy = running_sum(-probs * logs)[-1]
    order = np.argsort(np.abs(-logs - entropy), kind="stable")
    return c.pick(order[: _n_reaching(probs[order], p, "right", min_keep)])


def top_n_sigma(c: Candidates, n: float) -> Candidates:
    """Masks (-inf) logits more than n > 0 standard deviations below the largest.

    arXiv 2411.07641, llama_sampler_top_n_sigma_apply: masked ones count neither in the mean nor
    in the deviation; float32 sums. Nobody is dropped, the order stays.
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
    """Drops all of probability `threshold` and more but the least likely of them. Sorted.

    "Exclude top choices", llama_sample_xtc_apply once its coin has fallen.
    """
    c = c.top(c.n)
    n_dropped = int(np.count_nonzero(softmax(c.logits) >= np.float32(threshold))) - 1
    if n_dropped <= 0 or c.n - n_dropped < min_keep:
        return c
    return Candidates(c.ids[n_dropped:], c.logits[n_dropped:], sorted=True)


def _n_reaching(probs: F32Array, p: float, side: Literal["left", "right"], min_keep: int) -> int:
    """How many in order sum to p or more (left) or more than p (right), at least min_keep.

    More than there are if they do not reach it.
    """
    return max(int(np.searchsorted(running_sum(probs), np.float32(p), side)) + 1, min_keep)
