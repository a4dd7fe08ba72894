"""The interface of a chain of samplers, and its implementation in NumPy.

The compiled twin is in native.py. Tested by tests/model/test_sampling_native.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Protocol, Self, TypeAlias

import numpy as np

from ...base.errors import BackendError, RequestError
from ..batch import Mask
from ..outputs import I32Array
from .candidates import Candidates
from .dist import MersenneTwister, choose
from .softmax import F32Array, IdArray, exps
from .surprise import AdaptiveP, Mirostat

SamplerStep: TypeAlias = Callable[[Candidates], Candidates]


class Chain(Protocol):
    """A sequence of sampler steps, then a draw from the remaining candidates."""

    def draw(
        self,
        logits: F32Array,
        u: float | None = None,
        ids: I32Array | None = None,
        mask: Mask | None = None,
    ) -> int:
        """Return a token, drawn with a number u in [0, 1).

        Args:
            logits: raw logits [n_vocab]; with `ids`, the n largest of them in descending order.
            u: a number in [0, 1); None: the next random number of the chain.
            ids: the tokens of `logits` [n]. The steps must then drop all other tokens: the first
                one, or the one after biases that lower logits.
            mask: the allowed tokens; only without `ids`.

        Raises:
            BackendError: the logits of allowed tokens are invalid: NaN, +inf, or none above -inf.
            RequestError: the mask or the steps leave no token.
        """

    def follow(self, other: Self) -> None:
        """Draw next the random numbers that `other` will draw next."""

    def last(self) -> tuple[IdArray, F32Array]:
        """Return (ids, weights) [n] of the last draw's candidates, valid until the next draw."""


class NumpyChain:
    """Runs the steps as Python functions."""

    def __init__(
        self, steps: Sequence[SamplerStep], seed: int, *, draws_for_one: bool = True
    ) -> None:
        """Without `draws_for_one`, a single candidate takes no random number."""
        self._steps = steps
        self._draws_for_one = draws_for_one
        self._learning = [step for step in steps if isinstance(step, Mirostat | AdaptiveP)]
        self._random = MersenneTwister(seed)
        self._last: tuple[IdArray, F32Array] | None = None

    def draw(
        self,
        logits: F32Array,
        u: float | None = None,
        ids: I32Array | None = None,
        mask: Mask | None = None,
    ) -> int:
        """See Chain."""
        if ids is not None:
            c = Candidates(ids.astype(np.int64), logits, sorted=True)
        elif mask is not None:
            allowed = _allowed(mask, len(logits))
            if not len(allowed):
                raise no_token_left(mask)
            c = Candidates(allowed, logits[allowed])
        else:
            c = Candidates(_all_ids(len(logits)), logits, whole=True)
        if not np.isfinite(c.logits.max()):
            raise invalid_logits(logits)
        with np.errstate(all="ignore"):  # each step handles infinities
            for step in self._steps:
                c = step(c)
            if c.logits.max() == -np.inf:
                raise no_token_left(mask)
            weights = exps(c.logits)
            self._last = c.ids, weights
            if u is None:
                draws = c.n > 1 or self._draws_for_one
                u = self._random.uniform_double() if draws else 0.0
            chosen = choose(weights, u)
            for step in self._learning:
                step.chose(weights, chosen)
            return int(c.ids[chosen])

    def follow(self, other: Self) -> None:
        """See Chain."""
        self._random = deepcopy(other._random)

    def last(self) -> tuple[IdArray, F32Array]:
        """See Chain."""
        assert self._last is not None, "nothing was drawn"
        return self._last


def invalid_logits(logits: F32Array) -> BackendError:
    """Return an error for logits that cannot be sampled from."""
    n_nan, n_inf = np.count_nonzero(np.isnan(logits)), np.count_nonzero(logits == np.inf)
    what = f"{n_nan} NaN and {n_inf} infinite" if n_nan or n_inf else "no finite"
    return BackendError(f"the model computed {what} logits among {len(logits)}: cannot sample")


def no_token_left(mask: Mask | None = None) -> RequestError:
    """Return an error for samplers that gave every token a probability of 0."""
    of = "" if mask is None else " of those that the grammar allows"
    return RequestError(f"logit_bias and penalties leave no possible token{of}")


def _allowed(mask: Mask, n_vocab: int) -> IdArray:
    """The tokens of a mask, ascending."""
    bits = np.unpackbits(mask.view(np.uint8), count=n_vocab, bitorder="little")
    return np.flatnonzero(bits)


@lru_cache(maxsize=4)
def _all_ids(n_vocab: int) -> IdArray:
    ids = np.arange(n_vocab)
    ids.flags.writeable = False
    return ids
