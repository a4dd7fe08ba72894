"""Guesses of a draft model with another vocabulary, translated by their text.

The tokens of one vocabulary become text, and the text tokens of the other one. Guesses are spelled
in tokens that are as long as possible. Tested by tests/runtime/test_draft_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....model.vocab import Vocab
from ..ticket import Ticket
from .guesser import spelled


def same_vocabulary(a: Vocab, b: Vocab) -> bool:
    """True if the tokens of both have the same texts. The larger one may have more tokens."""
    n = min(a.n_tokens, b.n_tokens)
    return a.bos == b.bos and a.pieces()[:n] == b.pieces()[:n]


class Translation:
    """Translates the tokens of texts to those of a draft model, and its guesses back."""

    def __init__(self, vocab: Vocab, draft_vocab: Vocab, spelling: Mapping[bytes, int]) -> None:
        """`spelling`: the token of each text, in `vocab`."""
        self._vocab = vocab
        self._draft_vocab = draft_vocab
        self._spelling = spelling
        self._prompts: dict[Ticket, list[int]] = {}

    def tokens(self, ticket: Ticket) -> list[int]:
        """The draft model's tokens of a text. The prompt is translated once."""
        n = ticket.n_prompt
        if ticket.n_dropped:  # the context was shifted
            return self._translated(ticket.tokens, is_prompt=True)
        prompt = self._prompts.get(ticket)
        if prompt is None:
            prompt = self._translated(ticket.tokens[:n], is_prompt=True)
            self._prompts[ticket] = prompt
        return [*prompt, *self._translated(ticket.tokens[n:], is_prompt=False)]

    def back(self, guesses: Sequence[int], n_max: int) -> list[int]:
        """At most `n_max` tokens for guesses of the draft model."""
        text = b"".join(map(self._draft_vocab.piece, guesses))
        return spelled(text, self._spelling, n_max)

    def forget(self, ticket: Ticket) -> None:
        """A text has left."""
        self._prompts.pop(ticket, None)

    def _translated(self, tokens: Sequence[int], *, is_prompt: bool) -> list[int]:
        text = b"".join(self._vocab.piece(token, special=True) for token in tokens)
        return self._draft_vocab.tokenize(
            text.decode(errors="ignore"), add_special=is_prompt, parse_special=True
        )
