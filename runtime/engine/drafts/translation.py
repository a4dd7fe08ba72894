"""Guesses of a draft model with another vocabulary, translated by their text.

The tokens of one vocabulary become text, and the text tokens of the other one. Guesses are spelled
in tokens that are as long as possible. Tested by tests/runtime/test_draft_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ....model.vocab import Vocab
from ..ticket import Ticket
from .guesser import spelled

N_END: Final = 64  # tokens at the end of a text that are translated each time


def same_vocabulary(a: Vocab, b: Vocab) -> bool:
    """True if the tokens of both have the same texts. The larger one may have more tokens."""
    n = min(a.n_tokens, b.n_tokens)
    return a.bos == b.bos and a.pieces()[:n] == b.pieces()[:n]


class Known(NamedTuple):
    """The first `n` tokens of a text, translated, after shifts of the context that dropped some."""

    n_dropped: int
    n: int
    tokens: list[int]


class Translation:
    """Translates the tokens of texts to those of a draft model, and its guesses back."""

    def __init__(self, vocab: Vocab, draft_vocab: Vocab, spelling: Mapping[bytes, int]) -> None:
        """`spelling`: the token of each text, in `vocab`."""
        self._vocab = vocab
        self._draft_vocab = draft_vocab
        self._spelling = spelling
        self._known: dict[Ticket, Known] = {}

    def tokens(self, ticket: Ticket) -> list[int]:
        """The draft model's tokens of a text. Only its end is translated each time."""
        known = self._known.get(ticket)
        if known is None or known.n_dropped != ticket.n_dropped:  # the context was shifted
            known = Known(ticket.n_dropped, 0, [])
        n_more = len(ticket.tokens) - known.n
        if n_more > 2 * N_END:
            end = len(ticket.tokens) - N_END
            part = self._translated(ticket.tokens[known.n : end], begins=known.n == 0)
            known = self._known[ticket] = Known(known.n_dropped, end, [*known.tokens, *part])
        return [*known.tokens, *self._translated(ticket.tokens[known.n :], begins=known.n == 0)]

    def back(self, guesses: Sequence[int], n_max: int) -> list[int]:
        """At most `n_max` tokens for guesses of the draft model."""
        text = b"".join(map(self._draft_vocab.piece, guesses))
        return spelled(text, self._spelling, n_max)

    def forget(self, ticket: Ticket) -> None:
        """A text has left."""
        self._known.pop(ticket, None)

    def _translated(self, tokens: Sequence[int], *, begins: bool) -> list[int]:
        text = b"".join(self._vocab.piece(token, special=True) for token in tokens)
        return self._draft_vocab.tokenize(
            text.decode(errors="ignore"), add_special=begins, parse_special=True
        )
