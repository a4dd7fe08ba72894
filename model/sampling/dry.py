"""DRY ("don't repeat yourself"): penalizes tokens that would continue a repetition.

The penalty grows with the length of the repetition. By p-e-w and pi6am (KoboldCpp pull request
982), as in llama_sampler_dry_apply.
Tested by tests/model/test_sampling_dry.py.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from .breakers import Breakers
from .candidates import Candidates
from .penalties import as_biases, logit_bias
from .softmax import F32Array, IdArray

_FLOAT_MAX_LOG: Final = np.float32(88.7228391)


class DryPenalty:
    """A step of the chain with a window of the last `last_n` accepted tokens.

    A token after n >= allowed_length repeated tokens is penalized by multiplier x base ** (n -
    allowed_length). A token that contains a whole breaker is not penalized.
    """

    def __init__(
        self, multiplier: float, base: float, allowed_length: int, last_n: int, breakers: Breakers
    ) -> None:
        assert multiplier != 0
        assert base >= 1, base
        assert last_n > 0, last_n
        self._multiplier = multiplier
        self._base = base
        self._allowed_length = allowed_length
        self._breakers = breakers
        self._window: deque[int] = deque(maxlen=last_n)

    def accept(self, token: int) -> None:
        self._window.append(token)

    def __call__(self, c: Candidates) -> Candidates:
        tokens, biases = self.biases()
        return logit_bias(c, tokens, biases) if len(tokens) else c

    def biases(self) -> tuple[IdArray, F32Array]:
        """Return distinct tokens [m] and the biases of their logits [m]."""
        recent = list(reversed(self._window))
        lengths = repeated(recent, self._allowed_length, self._breakers)
        costs = {t: n for t, n in lengths.items() if () not in self._breakers.tails(t)}
        tokens: IdArray = np.array(list(costs), np.int64)
        exponents = np.array(list(costs.values()), np.int64) - self._allowed_length
        return tokens, as_biases(self._penalties(exponents))

    def _penalties(self, exponents: IdArray) -> F32Array:
        """Return multiplier x base ** exponents, with the exponents clamped to float32's range."""
        if self._base > 1:
            most = int(_FLOAT_MAX_LOG / np.float32(math.log(self._base)))
            if most > 0:
                exponents = np.minimum(exponents, most)
        with np.errstate(over="ignore"):
            costs = self._multiplier * np.power(self._base, exponents.astype(np.float64))
            return costs.astype(np.float32)


def repeated(recent: Sequence[int], allowed_length: int, breakers: Breakers) -> dict[int, int]:
    """Return the tokens that would continue a repetition, with the length of the longest one.

    `recent` has the earlier tokens, the newest first. Repetitions do not extend over a breaker.
    """
    limit = _n_since_breaker(recent, breakers)
    longest: dict[int, int] = {}
    for k, n in enumerate(prefix_lengths(recent)[1:]):
        length = min(n, limit)  # the `length` newest tokens also precede recent[k]
        if length >= allowed_length:
            longest[recent[k]] = max(length, longest.get(recent[k], 0))
    return longest


def prefix_lengths(s: Sequence[int]) -> list[int]:
    """Return the length of the common prefix of `s` and `s[i:]` for each index i; 0 for i = 0.

    The Z algorithm (Gusfield, Algorithms on Strings, 1.4), in linear time.
    """
    z = [0] * len(s)
    left = right = 0  # s[left:right] equals the start of s
    for k in range(1, len(s)):
        n = min(z[k - left], right - k) if k < right else 0
        while k + n < len(s) and s[n] == s[k + n]:
            n += 1
        z[k] = n
        if k + n > right:
            left, right = k, k + n
    return z


def _n_since_breaker(recent: Sequence[int], breakers: Breakers) -> int:
    """Return the number of tokens after the last breaker; all if there is none."""
    for i, token in enumerate(recent):
        matching = [len(tail) for tail in breakers.tails(token) if _follows(recent, i, tail)]
        if matching:
            return i - max(matching)
    return len(recent)


def _follows(recent: Sequence[int], i: int, tail: tuple[int, ...]) -> bool:
    """True if the tokens after recent[i], which precede it in the list, begin with `tail`."""
    n = len(tail)
    return n <= i and tuple(reversed(recent[i - n : i])) == tail
