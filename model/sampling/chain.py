"""A chain of samplers run in NumPy, and what any way of running one is asked for.

The twin of the compiled chain in native.py. Tested by tests/model/test_sampling_native.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol, TypeAlias

import numpy as np

from ...base.errors import BackendError, RequestError
from ..outputs import I32Array
from .candidates import Candidates
from .dist import choose
from .softmax import F32Array, IdArray, exps

Step: TypeAlias = Callable[[Candidates], Candidates]


class Chain(Protocol):
    """Steps, one after the other, and the draw from what they leave."""

    def draw(self, logits: F32Array, u: float, ids: I32Array | None = None) -> int:
        """A token, by raw logits [n_vocab] and a number u in [0, 1).

        With `ids` [n], the logits [n] are those of the largest, in order, and the first step must
        be one that drops all others.

        Raises BackendError if the logits are broken (NaN, +inf, or none above -inf), and
        RequestError if the steps leave no token.
        """

    def last(self) -> tuple[IdArray, F32Array]:
        """(ids, weights) [n] that the last `draw` chose from; valid until the next one."""


class NumpyChain:
    """Computes with the steps themselves."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._last: tuple[IdArray, F32Array] | None = None

    def draw(self, logits: F32Array, u: float, ids: I32Array | None = None) -> int:
        """See Chain."""
        if not np.isfinite(logits.max()):
            raise broken(logits)
        if ids is None:
            c = Candidates(_all_ids(len(logits)), logits, whole=True)
        else:
            c = Candidates(ids.astype(np.int64), logits, sorted=True)
        with np.errstate(all="ignore"):  # infinities are expected, and sound at each step
            for step in self._steps:
                c = step(c)
            if c.logits.max() == -np.inf:
                raise nothing_left()
            weights = exps(c.logits)
            self._last = c.ids, weights
            return int(c.ids[choose(weights, u)])

    def last(self) -> tuple[IdArray, F32Array]:
        """See Chain."""
        assert self._last is not None, "nothing was drawn"
        return self._last


def broken(logits: F32Array) -> BackendError:
    """What is wrong with the logits of a model."""
    n_nan, n_inf = np.count_nonzero(np.isnan(logits)), np.count_nonzero(logits == np.inf)
    what = f"{n_nan} NaN and {n_inf} infinite" if n_nan or n_inf else "no finite"
    return BackendError(f"the model gave {what} logits among {len(logits)}: no token can be chosen")


def nothing_left() -> RequestError:
    """A request's samplers made every token impossible."""
    return RequestError("logit_bias and penalties leave no token that could come next")


@lru_cache(maxsize=4)
def _all_ids(n_vocab: int) -> IdArray:
    ids = np.arange(n_vocab)
    ids.flags.writeable = False
    return ids
