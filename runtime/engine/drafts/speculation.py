"""Decides what each step guesses: of which texts, and how many tokens.

A step checks guesses only if no prompt is evaluated in it, and only in idle pages: guesses never
delay a prompt, and never take memory from what others use.
Tested by tests/runtime/test_speculation.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from ....model.sampling import Sampled
from ....model.vocab import Vocab
from ..ticket import Ticket
from .acceptance import Acceptance
from .guesser import Guesser, allowed
from .source import NO_DRAFT, Draft
from .table import NgramTables
from .widths import Wish, best_widths

N_TEXTS_MAX: Final = 32  # a step with more texts than this has no room for guesses that pay


class Guesses(NamedTuple):
    """The guesses of one text that a step checks."""

    ticket: Ticket
    draft: Draft


class Speculation:
    """Guesses for the jobs of an engine. Used by its thread only."""

    def __init__(
        self,
        vocab: Vocab,
        spelling: Callable[[], Mapping[bytes, int]],
        n_max: int,
        ms_of: Callable[[int], float | None],
    ) -> None:
        """
        Args:
            vocab: the vocabulary of the texts.
            spelling: the token of each text, for texts that a grammar forces.
            n_max: most tokens of a step with guesses.
            ms_of: see `best_widths`.
        """
        self._vocab = vocab
        self._spelling = spelling
        self._n_max = n_max
        self._ms_of = ms_of
        self._acceptance = Acceptance()
        self._tables = NgramTables()

    def guesses(self, tickets: Sequence[Ticket]) -> list[Guesses]:
        """What the next step checks, beside a token of each of `tickets`."""
        if len(tickets) > N_TEXTS_MAX or len(tickets) >= self._n_max:
            return []
        found = [
            Guesses(ticket, draft)
            for ticket in tickets
            if ticket.speculates and (draft := self._draft(ticket)).tokens
        ]
        if not found:
            return []
        wishes = [
            Wish(self._guesser(ticket).acceptance.rate(draft.kind), len(draft.tokens))
            for ticket, draft in found
        ]
        widths = best_widths(wishes, len(tickets), self._n_max, self._ms_of)
        return [
            Guesses(ticket, draft._replace(tokens=draft.tokens[:n]))
            for (ticket, draft), n in zip(found, widths, strict=True)
            if self._pays(ticket, draft, n)
        ]

    def taken(self, guesses: Guesses, i: int, sampled: Sampled) -> Sampled:
        """The token after `i` guesses: the sampled one. In a benchmark with synthetic rates it may
        be the next guess."""
        tokens, synthetic = guesses.draft.tokens, self._guesser(guesses.ticket).synthetic
        if synthetic is not None and i < len(tokens) and synthetic.takes(i):
            return tokens[i]
        return sampled

    def checked(self, guesses: Guesses, n_right: int) -> None:
        """Count guesses, of which the first `n_right` came true."""
        ticket, draft = guesses
        self._guesser(ticket).checked(draft.kind, n_right, len(draft.tokens))
        ticket.n_draft += len(draft.tokens)
        ticket.n_draft_accepted += n_right

    def _pays(self, ticket: Ticket, draft: Draft, n: int) -> bool:
        guesser = self._guesser(ticket)
        if n and n >= guesser.params.spec_n_min:
            return True
        guesser.skip(draft.kind)
        return False

    def _draft(self, ticket: Ticket) -> Draft:
        guesser = self._guesser(ticket)
        if guesser.n_rest:
            guesser.n_rest -= 1
            return NO_DRAFT
        # the last token of a text needs no guess: it ends anyway
        n_max = min(guesser.params.spec_n_max, ticket.n_most - len(ticket.tokens) - 1)
        if n_max <= 0:
            return NO_DRAFT
        draft = guesser.draft(ticket.tokens, n_max)
        if ticket.matcher is not None:
            forces = guesser.synthetic is None
            draft = allowed(draft, ticket.matcher, self._spelling() if forces else {}, n_max)
        ends = self._vocab.eog
        if not ends.isdisjoint(draft.tokens):
            draft = Draft(list(takewhile(lambda t: t not in ends, draft.tokens)), draft.kind)
        return draft

    def _guesser(self, ticket: Ticket) -> Guesser:
        if ticket.guesser is None:
            owner = ticket.owner.client, ticket.identity.salt
            ticket.guesser = Guesser(
                ticket.speculative,
                Acceptance(self._acceptance),
                lambda n_gram: self._tables.of(owner, n_gram),
                ticket.sampler.seed,
            )
        return ticket.guesser
