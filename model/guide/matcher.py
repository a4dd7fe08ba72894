"""Follows one text through its grammar, token by token.

Knows no sampling. Tested by tests/model/test_guide.py.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from ...base.errors import GrammarError
from .limits import (
    N_TOKENS_PER_STATES,
    SECONDS_AT_START,
    SECONDS_PER_TOKEN,
    SLOW_TOKEN_SECONDS,
)
from .native import cause
from .spec import Loosened

if TYPE_CHECKING:
    from llguidance import LLMatcher

_STATES_ARE_FULL: Final = "too many states"  # in messages of llguidance's earley/regexvec.rs


class MatcherSource(Protocol):
    """Gives matchers of one grammar."""

    @property
    def loosened(self) -> Sequence[Loosened]:
        """The keywords of a JSON schema that are not enforced."""

    def idle(self) -> LLMatcher | None:
        """One that an earlier text left, if there is one."""

    def compile(self) -> LLMatcher:
        """One without states of earlier texts. Raises what compiling raises."""

    def give_back(self, native: LLMatcher) -> None:
        """Keep one for later texts."""


class Matcher:
    """The state of a grammar after the tokens of one text. Not thread-safe.

    It has a budget of computing time, for no limit of llguidance bounds ambiguous grammars:
    `s: s s s | s s | "a" |` takes longer for each token.

    Attributes:
        loosened: the keywords of a JSON schema that are not enforced.
        n_guessed: the masks of the last `write_later_masks` that are sound, the first ones.
    """

    __slots__ = (
        "_failure",
        "_has_guessed",
        "_is_new",
        "_is_slow",
        "_may_guess",
        "_n_renewed",
        "_native",
        "_seconds_left",
        "_source",
        "_tokens",
        "loosened",
        "n_guessed",
    )

    def __init__(self, source: MatcherSource) -> None:
        """The matcher at the begin of a text."""
        self.loosened = source.loosened
        self._source = source
        self._native: LLMatcher | None = None
        self._failure: Exception | None = None
        self._is_new = True
        self._seconds_left = SECONDS_AT_START
        self._is_slow = False  # the last token took long: the next one is timed
        self._tokens = array("i")
        self.n_guessed = 0
        self._may_guess = True
        self._has_guessed = False  # copies share its cache of states, and may have filled it
        self._n_renewed = -N_TOKENS_PER_STATES  # an earlier text may have filled the states

    @property
    def native(self) -> LLMatcher:
        """llguidance's matcher, compiled on first use. Raises what compiling raises."""
        if self._native is None:
            self._native = self._source.idle() or self._source.compile()
        return self._native

    def is_compiled(self) -> bool:
        """True if there is nothing to compile. The first call, before any `prepare`, takes the
        matcher that an earlier text left."""
        if self._is_new and self._native is None:
            self._is_new = False
            self._native = self._source.idle()
        return self._native is not None

    def prepare(self) -> bool:
        """Compile the grammar now. Return False if it fails; `check` raises the error then."""
        if self._native is None and self._failure is None:
            try:
                _ = self.native
            except Exception as e:
                self._failure = e
        return self._failure is None

    def write_mask(self, address: int, n_bytes: int, *, timed: bool) -> None:
        """Write the mask of the next tokens, without the interpreter lock. If it is `timed`, its
        time counts. After a failure it has no meaning: `check` raises the error then."""
        native = self._native
        if native is None or self._failure is not None:
            if not self.prepare():
                return
            native = self.native
        begin = time.thread_time() if timed else 0.0
        native.unsafe_compute_mask_ptr(address, n_bytes)
        if timed:
            self._spend(time.thread_time() - begin)
        if native.is_error():
            if self._renew():
                self.native.unsafe_compute_mask_ptr(address, n_bytes)
            if self.native.is_error():
                self._note_error()

    def write_later_masks(self, address: int, n_bytes: int, guesses: Sequence[int]) -> None:
        """After `write_mask`, write the masks after each of `guesses`, which `n_valid` allows.

        The text does not change: a copy of the matcher follows the guesses. A mask has no meaning
        if its guess does not come true, or if it is not one of the first `n_guessed`.
        """
        self.n_guessed = 0
        ahead = self._ahead()
        if ahead is None:
            return
        begin = time.perf_counter()
        for n, guess in enumerate(guesses):
            if not ahead.consume_token(guess):
                break
            ahead.unsafe_compute_mask_ptr(address + n * n_bytes, n_bytes)
            if ahead.is_error():
                break
            self.n_guessed = n + 1
            if time.perf_counter() - begin > SLOW_TOKEN_SECONDS:
                self._may_guess = False  # no budget bounds this time
                break

    def n_valid(self, guesses: Sequence[int]) -> int:
        """The number of the first of `guesses` that can follow; 0 if there should be none."""
        ahead = self._ahead()
        if ahead is None:
            return 0
        begin = time.perf_counter()
        n = ahead.validate_tokens(list(guesses))
        self._may_guess = time.perf_counter() - begin < SLOW_TOKEN_SECONDS
        return n

    def forced(self) -> bytes:
        """The text that must follow: the model only chooses with which tokens."""
        ahead = self._ahead()
        return b"" if ahead is None else ahead.compute_ff_bytes()

    def _ahead(self) -> LLMatcher | None:
        """A copy to follow guesses with; None if they would cost much."""
        if self._native is None or self._is_slow or not self._may_guess:
            return None
        self._has_guessed = True
        return self._native.deep_copy()

    def accept(self, token: int) -> None:
        """Add a token, which the last mask allowed. An end token changes nothing.

        Raises:
            GrammarError: the token does not continue the text, or the grammar is too complex.
        """
        clock = time.thread_time if self._is_slow else time.perf_counter  # which is a fast call
        begin = clock()
        self._tokens.append(token)
        native = self._native or self.native
        if not native.consume_token(token) and not self._renew():
            self._note_error()
        seconds = clock() - begin
        if self._is_slow or self._seconds_left < SECONDS_AT_START:
            self._spend(seconds * self._is_slow - SECONDS_PER_TOKEN)
        self._is_slow = seconds > SLOW_TOKEN_SECONDS
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
        """Raise GrammarError if the last call or the last mask failed, or the budget is spent.

        Raises what compiling raised.
        """
        if self._failure is not None:
            raise self._failure
        if self._seconds_left < 0:
            raise GrammarError(
                "the grammar is too ambiguous: it takes too long to find the tokens that may follow"
            )

    def close(self) -> None:
        """Let later texts use what was computed for this one. The matcher ends."""
        native, self._native = self._native, None
        if native is not None and not native.is_error() and native.reset():
            self._source.give_back(native)

    def _spend(self, seconds: float) -> None:
        """Take computing time from the budget; add it if negative."""
        self._seconds_left = min(self._seconds_left - seconds, SECONDS_AT_START)

    def _note_error(self) -> None:
        if self._failure is None:
            why = cause(self.native.get_error())
            self._failure = GrammarError(f"the grammar became too complex for this text: {why}")

    def _renew(self) -> bool:
        """After a failure, continue with an empty cache of states if it was full. Return True if
        the matcher works again."""
        native, n_tokens = self.native, len(self._tokens)
        if not native.is_error() or _STATES_ARE_FULL not in native.get_error():
            return False
        if n_tokens - self._n_renewed < N_TOKENS_PER_STATES:
            if not self._has_guessed:
                return False
            self._may_guess = False
        self._n_renewed, self._has_guessed = n_tokens, False
        try:
            self._native = self._source.compile()
        except Exception as e:
            self._failure = e
            return False
        return self._native.consume_tokens(self._tokens.tolist())
