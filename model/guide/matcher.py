"""Follows one text through its grammar, token by token.

Knows no sampling. Tested by tests/model/test_guide.py.
"""

from __future__ import annotations

import time

from llguidance import LLMatcher

from ...base.errors import GrammarError
from .limits import SECONDS_AT_START, SECONDS_PER_TOKEN


class Matcher:
    """The state of a grammar after the tokens of one text. Not thread-safe.

    It has a budget of computing time, for no limit of llguidance bounds ambiguous grammars:
    `s: s s s | s s | "a" |` takes longer for each token.
    """

    __slots__ = ("_seconds_left", "native")

    def __init__(self, native: LLMatcher) -> None:
        self.native = native
        self._seconds_left = SECONDS_AT_START

    def accept(self, token: int) -> None:
        """Add a token, which the last mask allowed. An end token changes nothing.

        Raises:
            GrammarError: the token does not continue the text, or the grammar is too complex.
        """
        begin = time.thread_time()
        self.native.consume_token(token)
        self.spend(time.thread_time() - begin - SECONDS_PER_TOKEN)
        self.check()

    def spend(self, seconds: float) -> None:
        """Take computing time from the budget; add it if negative."""
        self._seconds_left = min(self._seconds_left - seconds, SECONDS_AT_START)

    @property
    def is_complete(self) -> bool:
        """True if the text so far matches the whole grammar."""
        return self.native.is_accepting()

    @property
    def is_finished(self) -> bool:
        """True if the text is complete and no token can follow it."""
        return self.native.is_stopped() and self.native.is_accepting()

    def check(self) -> None:
        """Raise GrammarError if the last call failed, or the budget is spent."""
        if self.native.is_error():
            raise GrammarError(_cause(self.native.get_error()))
        if self._seconds_left < 0:
            raise GrammarError(
                "the grammar is too ambiguous: it takes too long to find the tokens that may follow"
            )


def _cause(message: str) -> str:
    """A sentence from llguidance's message, which may repeat the grammar after its first line."""
    first = message.partition("\n")[0].strip()
    return f"the grammar cannot be followed any further: {first:.300}"
