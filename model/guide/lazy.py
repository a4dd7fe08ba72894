"""Follows a text whose grammar begins late, with a trigger.

Tested by tests/server/test_http_lazy.py.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ...base.errors import GrammarError
from .triggers import Triggers, TriggerSearch

if TYPE_CHECKING:
    from ..vocab import Vocab
    from .matcher import Matcher

_N_SHOWN: Final = 40  # characters of a text in an error


class LazyMatcher:
    """Searches a text for triggers, and passes what the grammar begins with to its matcher.

    Attributes:
        matcher: follows the grammar, once `push` has returned True.
    """

    def __init__(
        self, matcher: Matcher, triggers: Triggers, vocab: Vocab, spelling: Mapping[bytes, int]
    ) -> None:
        """`spelling` has the token of each text, for the rest of a token that begins earlier."""
        self.matcher = matcher
        self._tokens_of = triggers.tokens
        self._search = TriggerSearch(triggers)
        self._vocab = vocab
        self._spelling = spelling
        # bytes that are not UTF-8 stay, so that characters have their bytes
        self._decoder = getincrementaldecoder("utf-8")(errors="surrogateescape")
        self._texts: list[str] = []
        self._tokens: list[tuple[int, int]] = []  # and the byte that each begins at
        self._n_bytes = 0

    def push(self, token: int) -> bool:
        """Add a token. Return True if the grammar has begun.

        Raises:
            GrammarError: it does not allow the text of its trigger.
        """
        piece = self._vocab.piece(token, special=True)
        begin = self._n_bytes
        self._tokens.append((token, begin))
        self._n_bytes += len(piece)
        text = self._decoder.decode(piece)
        self._texts.append(text)
        found = self._search.push(text)
        if token in self._tokens_of:
            self._begin(begin)
            return True
        if found is not None:
            self._begin(len("".join(self._texts)[:found].encode(errors="surrogateescape")))
            return True
        return False

    def _begin(self, at: int) -> None:
        """Pass all tokens from a byte of the text on to the matcher."""
        for token, begin in self._tokens:
            piece = self._vocab.piece(token, special=True)
            if begin + len(piece) <= at and piece:
                continue
            if begin >= at and self._allows(token):
                self.matcher.accept(token)
            else:
                self._spell(piece[max(at - begin, 0) :])
        self._texts, self._tokens = [], []

    def _allows(self, token: int) -> bool:
        return self.matcher.native.validate_tokens([token]) == 1

    def _spell(self, text: bytes) -> None:
        """Pass a text to the matcher, in the longest tokens."""
        at = 0
        while at < len(text):
            parts = (text[at:end] for end in range(len(text), at, -1))
            token = next((self._spelling[part] for part in parts if part in self._spelling), None)
            if token is None or not self._allows(token):
                shown = text.decode(errors="replace")[:_N_SHOWN]
                raise GrammarError(f"the grammar does not allow the text of its trigger: {shown!r}")
            at += len(self._vocab.piece(token))
            self.matcher.accept(token)
