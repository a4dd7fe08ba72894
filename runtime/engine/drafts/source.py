"""What a source of guesses gives: the tokens that may follow in a text.

Tested by tests/runtime/test_drafts.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol


class Draft(NamedTuple):
    """Guesses for one text.

    Attributes:
        tokens: the guesses, in order.
        kind: drafts of equal kind come true equally often.
    """

    tokens: Sequence[int]
    kind: Hashable = ""


NO_DRAFT = Draft(())


class Source(Protocol):
    """Guesses what follows in one text. It costs so little that it is asked before each step."""

    def draft(self, tokens: Sequence[int], n_max: int) -> Draft:
        """At most `n_max` guesses of what follows `tokens`: those of the last call and more, unless
        the text lost its oldest tokens."""
