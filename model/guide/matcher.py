"""Follows one text through its grammar, token by token.

Knows no sampling. Tested by tests/model/test_guide.py.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from typing import Final

from llguidance import LLMatcher

from ...base.errors import GrammarError
from .limits import N_TOKENS_PER_STATES, SECONDS_AT_START, SECONDS_PER_TOKEN
from .native import cause
from .spec import Loosened

_STATES_ARE_FULL: Final = "too many states"  # in messages of llguidance's earley/regexvec.rs


class Matcher:
    """The state of a grammar after the tokens of one text. Not thread-safe.

    It has a budget of computing time, for no limit of llguidance bounds ambiguous grammars:
    `s: s s s | s s | "a" |` takes longer for each token.

    Attributes:
        loosened: the keywords of a JSON schema that are not enforced.
    """

    __slots__ = (
        "_compile",
        "_failure",
        "_n_renewed",
        "_native",
        "_seconds_left",
        "_tokens",
        "loosened",
    )

    def __init__(self, compile: Callable[[], LLMatcher], loosened: Sequence[Loosened] = ()) -> None:
        """`compile` returns llguidance's matcher at the begin of a text."""
        self.loosened = loosened
        self._native: LLMatcher | None = None
        self._failure: Exception | None = None
        self._seconds_left = SECONDS_AT_START
        self._compile = compile
        self._tokens = array("i")
        self._n_renewed = 0

    @property
    def native(self) -> LLMatcher:
        """llguidance's matcher, compiled on first use. Raises what compiling raises."""
        if self._native is None:
            self._native = self._compile()
        return self._native

    def prepare(self) -> bool:
        """Compile the grammar now. Return False if it fails; `check` raises the error then."""
        if self._failure is None:
            try:
                _ = self.native
            except Exception as e:
                self._failure = e
        return self._failure is None

    def accept(self, token: int) -> None:
        """Add a token, which the last mask allowed. An end token changes nothing.

        Raises:
            GrammarError: the token does not continue the text, or the grammar is too complex.
        """
        begin = time.thread_time()
        self._tokens.append(token)
        if not self.native.consume_token(token):
            self.renew()
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
        """Raise GrammarError if the last call or the last mask failed, or the budget is spent.

        Raises what compiling raised.
        """
        if self._failure is not None:
            raise self._failure
        if self.native.is_error():
            why = cause(self.native.get_error())
            raise GrammarError(f"the grammar became too complex for this text: {why}")
        if self._seconds_left < 0:
            raise GrammarError(
                "the grammar is too ambiguous: it takes too long to find the tokens that may follow"
            )

    def renew(self) -> bool:
        """After a failure, continue with an empty cache of states if it was full. Return True if
        the matcher works again."""
        native, n_tokens = self.native, len(self._tokens)
        if not native.is_error() or _STATES_ARE_FULL not in native.get_error():
            return False
        if n_tokens - self._n_renewed < N_TOKENS_PER_STATES:
            return False
        self._native, self._n_renewed = None, n_tokens
        return self.prepare() and self.native.consume_tokens(self._tokens.tolist())
