"""Follows one text through its grammar, token by token.

Knows no sampling. Tested by tests/model/test_guide.py.
"""

from __future__ import annotations

from llguidance import LLMatcher

from ...base.errors import GrammarError


class Matcher:
    """The state of a grammar after the tokens of one text. Not thread-safe."""

    __slots__ = ("native",)

    def __init__(self, native: LLMatcher) -> None:
        self.native = native

    def accept(self, token: int) -> None:
        """Add a token, which the last mask allowed. An end token changes nothing.

        Raises:
            GrammarError: the token does not continue the text, or the grammar is too complex.
        """
        self.native.consume_token(token)
        self.check()

    @property
    def is_complete(self) -> bool:
        """True if the text so far matches the whole grammar."""
        return self.native.is_accepting()

    @property
    def is_finished(self) -> bool:
        """True if the text is complete and no token can follow it."""
        return self.native.is_stopped() and self.native.is_accepting()

    def check(self) -> None:
        """Raise GrammarError if the last call failed."""
        if self.native.is_error():
            raise GrammarError(_cause(self.native.get_error()))


def _cause(message: str) -> str:
    """A sentence from llguidance's message, which may repeat the grammar after its first line."""
    first = message.partition("\n")[0].strip()
    return f"the grammar cannot be followed any further: {first:.300}"
