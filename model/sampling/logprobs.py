"""Log-probabilities of the sampled token and of the most likely tokens.

Knows no texts. Tested by tests/model/test_sampling_logprobs.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..outputs import I32Array
from .sampler import Sampler
from .softmax import F32Array, IdArray, log_softmax

LOWEST: Final = float(np.finfo(np.float32).min)  # replaces -inf, which JSON cannot express


class TokenLogprob(NamedTuple):
    """A token and the natural logarithm of its probability."""

    id: int
    logprob: float


@dataclass(frozen=True, slots=True, eq=False)
class Logprobs:
    """The sampled token, and the most likely tokens at its position, in descending order.

    A request may have millions of them, so they are arrays.

    Attributes:
        ids: [1 + n]; the sampled token comes first.
        values: [1 + n], the natural logarithms of the probabilities.
    """

    ids: I32Array
    values: F32Array

    @property
    def chosen(self) -> TokenLogprob:
        """The sampled token."""
        return TokenLogprob(int(self.ids[0]), float(self.values[0]))

    @property
    def top(self) -> tuple[TokenLogprob, ...]:
        """The most likely tokens."""
        return tuple(map(TokenLogprob, self.ids[1:].tolist(), self.values[1:].tolist()))


def model_logprobs(logits: F32Array, token: int, n: int) -> Logprobs:
    """Return log-probabilities of `token` and of the `n` largest of the model's logits [n_vocab].

    Ties are ordered by id.
    """
    logprobs = log_softmax(logits)
    ids = np.append(token, _largest(logprobs, n))
    return _logprobs(ids, logprobs[ids])


def sampler_logprobs(sampler: Sampler, token: int, n: int) -> Logprobs:
    """Return log-probabilities of `token` and of the sampler's `n` most likely candidates."""
    ids, probs = sampler.candidates()  # the most likely first
    found = np.flatnonzero(ids == token)[:1]
    chosen = np.log(probs[found]) if len(found) else LOWEST
    return _logprobs(np.append(token, ids[:n]), np.append(chosen, np.log(probs[:n])))


def _logprobs(ids: IdArray, values: npt.NDArray[np.floating]) -> Logprobs:
    return Logprobs(ids.astype(np.int32), np.maximum(values, LOWEST).astype(np.float32))


def _largest(values: F32Array, n: int) -> IdArray:
    """Return the indices of the `n` largest values in descending order, ties by index."""
    candidates = np.arange(len(values))
    if n < len(values):
        nth = np.partition(values, len(values) - n)[len(values) - n]
        candidates = np.flatnonzero(values >= nth)  # all ties: `partition` may order them freely
    order = np.argsort(-values[candidates], kind="stable")[:n]
    return candidates[order]
