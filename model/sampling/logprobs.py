"""Log-probabilities of the sampled token and of the most likely tokens.

Knows no texts. Tested by tests/model/test_sampling_logprobs.py.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from .sampler import Sampler
from .softmax import F32Array, log_softmax

LOWEST: Final = float(np.finfo(np.float32).min)  # replaces -inf, which JSON cannot express


class TokenLogprob(NamedTuple):
    """A token and the natural logarithm of its probability."""

    id: int
    logprob: float


class Logprobs(NamedTuple):
    """The sampled token, and the most likely tokens at its position, in descending order."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


def model_logprobs(logits: F32Array, token: int, n: int) -> Logprobs:
    """Return log-probabilities of `token` and of the `n` largest of the model's logits [n_vocab].

    Ties are ordered by id.
    """
    logprobs = log_softmax(logits)
    top = (TokenLogprob(i, _finite(logprobs[i])) for i in _largest(logprobs, n))
    return Logprobs(TokenLogprob(token, _finite(logprobs[token])), tuple(top))


def sampler_logprobs(sampler: Sampler, token: int, n: int) -> Logprobs:
    """Return log-probabilities of `token` and of the sampler's `n` most likely candidates."""
    ids, probs = sampler.candidates()  # the most likely first
    known = {int(i): _finite(np.log(p)) for i, p in zip(ids[:n], probs[:n], strict=True)}
    top = tuple(TokenLogprob(i, logprob) for i, logprob in known.items())
    found = np.flatnonzero(ids == token)
    chosen = _finite(np.log(probs[found[0]])) if len(found) else LOWEST
    return Logprobs(TokenLogprob(token, chosen), top)


def _finite(logprob: np.float32) -> float:
    return max(float(logprob), LOWEST)


def _largest(values: F32Array, n: int) -> list[int]:
    """Return the indices of the `n` largest values in descending order, ties by index."""
    candidates = np.arange(len(values))
    if n < len(values):
        nth = np.partition(values, len(values) - n)[len(values) - n]
        candidates = np.flatnonzero(values >= nth)  # all ties: `partition` may order them freely
    order = np.argsort(-values[candidates], kind="stable")[:n]
    return [int(i) for i in candidates[order]]
