"""How often guesses come true, from those that were checked.

A guess is only checked if those before it came true. Old results fade, and so do all of them while
nothing is guessed: then it is tried again. Tested by tests/runtime/test_drafts.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from typing import Final

PRIOR: Final = 0.5  # of guesses before any was checked
N_PRIOR: Final = 2.0  # guesses that the prior counts as
N_KEPT: Final = 32.0  # guesses of one text that count
N_SHARED: Final = 256.0  # of all texts
FADE: Final = 0.95  # of a text's rate, for each of its drafts that is not used
FADE_SHARED: Final = 0.998


class Rate:
    """The rate of one kind of draft."""

    __slots__ = ("_fade", "_n_kept", "_n_right", "_n_tried")

    def __init__(self, n_kept: float, fade: float) -> None:
        self._n_kept, self._fade = n_kept, fade
        self._n_right = self._n_tried = 0.0

    def value(self, prior: float) -> float:
        return (self._n_right + N_PRIOR * prior) / (self._n_tried + N_PRIOR)

    def add(self, n_right: int, n_tried: int) -> None:
        fade = max(1 - n_tried / self._n_kept, 0.0)
        self._n_right = self._n_right * fade + n_right
        self._n_tried = self._n_tried * fade + n_tried

    def fade(self) -> None:
        self._n_right *= self._fade
        self._n_tried *= self._fade


class Acceptance:
    """The rates of one text, by kind. `shared` are those of all texts: a text begins between these
    and no knowledge, as it may be another one."""

    def __init__(self, shared: Acceptance | None = None) -> None:
        kept = (N_SHARED, FADE_SHARED) if shared is None else (N_KEPT, FADE)
        self._rates = defaultdict[Hashable, Rate](lambda: Rate(*kept))
        self._shared = shared

    def rate(self, kind: Hashable) -> float:
        """The probability that a guess comes true after those before it did."""
        prior = PRIOR if self._shared is None else (PRIOR + self._shared.rate(kind)) / 2
        rate = self._rates.get(kind)
        return prior if rate is None else rate.value(prior)

    def add(self, kind: Hashable, n_right: int, n_guesses: int) -> None:
        """Count a draft of `n_guesses`, of which the first `n_right` came true."""
        n_tried = min(n_right + 1, n_guesses)
        self._rates[kind].add(n_right, n_tried)
        if self._shared is not None:
            self._shared.add(kind, n_right, n_guesses)

    def skip(self, kind: Hashable) -> None:
        """Count a draft that was not used."""
        self._rates[kind].fade()
        if self._shared is not None:
            self._shared.skip(kind)
