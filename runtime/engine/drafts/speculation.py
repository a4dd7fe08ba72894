"""Decides what each step guesses: of which texts, and how many tokens.

A step checks guesses only if no prompt is evaluated in it, and only in idle pages: guesses never
delay a prompt, and never take memory from what others use.
Tested by tests/runtime/test_speculation.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from ....model.batch import Batch
from ....model.sampling import Sampled
from ....model.vocab import Vocab
from ..ticket import Ticket
from .acceptance import Acceptance
from .drafter import KIND as MODEL
from .drafter import Drafter
from .guesser import Guesser, allowed
from .source import NO_DRAFT, Draft
from .table import NgramTables
from .widths import Wish, best_depth, best_widths

N_TEXTS_MAX: Final = 32  # a step with more texts than this has no room for guesses that pay

SENT: Final = "sent"  # the kind of guesses that another engine has sampled
N_SENT_MAX: Final = 128  # of a step: the logits of each are in memory
N_GUIDED_MAX: Final = 16  # of them in a text with a grammar: masks after them must not take long

LIKELY: Final = ("forced", "table", ("ngram", 2), ("ngram", 3))  # kinds that need no draft model


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
        model: Drafter | None = None,
        *,
        rests: bool = False,
    ) -> None:
        """
        Args:
            vocab: the vocabulary of the texts.
            spelling: the token of each text, for texts that a grammar forces.
            n_max: most tokens of a step with guesses.
            ms_of: see `best_widths`.
            model: guesses where the texts themselves give no likely guess.
            rests: texts without guesses are not asked for some in each step.
        """
        self._vocab = vocab
        self._spelling = spelling
        self._n_max = n_max
        self._ms_of = ms_of
        self._model = model
        self._rests = rests
        self._n_steps = 0
        self._acceptance = Acceptance()
        self._tables = NgramTables()

    def guesses(self, tickets: Sequence[Ticket]) -> list[Guesses]:
        """What the next step checks, beside a token of each of `tickets`."""
        self._n_steps += 1
        if len(tickets) > N_TEXTS_MAX or len(tickets) >= self._n_max:
            return []
        found: dict[Ticket, Draft] = {}
        for ticket in tickets:
            guesser = ticket.guesser or self._guesser(ticket)
            if guesser.is_on and (draft := self._draft(ticket, guesser)).tokens:
                found[ticket] = draft
        if self._model is not None and not self._model.is_broken:
            found |= self._of_model(self._model, tickets, found)
        if not found:
            return []
        wishes = [
            Wish(self._guesser(ticket).acceptance.rate(draft.kind), len(draft.tokens))
            for ticket, draft in found.items()
        ]
        widths = best_widths(wishes, len(tickets), self._n_max, self._ms_of)
        return [
            Guesses(ticket, draft._replace(tokens=draft.tokens[:n]))
            for (ticket, draft), n in zip(found.items(), widths, strict=True)
            if self._pays(ticket, draft, n)
        ]

    def rests(self, tickets: Sequence[Ticket]) -> bool:
        """True if the next step checks no guesses, whatever the next tokens are. Called instead of
        `guesses`, then."""
        if len(tickets) > N_TEXTS_MAX or len(tickets) >= self._n_max:
            return True
        if self._model is not None and not self._model.is_broken:
            return False
        guessers = [ticket.guesser or self._guesser(ticket) for ticket in tickets]
        if not all(guesser.rest.lasts or not guesser.is_on for guesser in guessers):
            return False
        for guesser in guessers:
            guesser.rest.goes_on()
        self._n_steps += 1
        return True

    def sent(self, tickets: Sequence[Ticket], n_max: int) -> list[Guesses]:
        """The next tokens of texts that began elsewhere, the oldest first: at most `n_max` in all,
        beside a token of each of `tickets`."""
        n_left = min(n_max, N_SENT_MAX, self._n_max - len(tickets))
        found = []
        for ticket in tickets:
            # the last token of a text needs no guess: it ends anyway
            n = max(min(n_left, ticket.n_most - len(ticket.tokens) - 1), 0)
            if ticket.matcher is not None:
                n = min(n, N_GUIDED_MAX)
            draft = Draft(ticket.sent_left[:n], SENT)
            if draft.tokens:
                draft = self._possible(ticket, draft, n, forces=False)
            if draft.tokens:
                found.append(Guesses(ticket, draft))
                n_left -= len(draft.tokens)
        return found

    def taken(self, guesses: Guesses, i: int, sampled: Sampled) -> Sampled:
        """The token after `i` guesses: the sampled one. In a benchmark with synthetic rates it may
        be the next guess."""
        if guesses.draft.kind == SENT:
            return sampled
        tokens, synthetic = guesses.draft.tokens, self._guesser(guesses.ticket).synthetic
        if synthetic is not None and i < len(tokens) and synthetic.takes(i):
            return tokens[i]
        return sampled

    def checked(self, guesses: Guesses, n_right: int) -> None:
        """Count guesses, of which the first `n_right` came true."""
        ticket, draft = guesses
        self._guesser(ticket).acceptance.add(draft.kind, n_right, len(draft.tokens))
        ticket.n_draft += len(draft.tokens)
        ticket.n_draft_accepted += n_right

    def computed(self, tickets: Iterable[Ticket], batch: Batch) -> None:
        """A batch with tokens of these texts was computed."""
        if self._model is not None:
            self._model.computed(tickets, batch)

    def forget(self, ticket: Ticket) -> None:
        """A text leaves: it ends, or it is preempted."""
        if self._model is not None:
            self._model.forget(ticket)

    def _pays(self, ticket: Ticket, draft: Draft, n: int) -> bool:
        guesser = self._guesser(ticket)
        pays = n > 0 and n >= guesser.params.spec_n_min
        (guesser.model_rest if draft.kind == MODEL else guesser.rest).add(pays=pays)
        if not pays:
            guesser.acceptance.skip(draft.kind)
        return pays

    def _draft(self, ticket: Ticket, guesser: Guesser) -> Draft:
        """The guesses of the sources that cost little."""
        n_max = self._n_guesses(ticket, guesser)
        if n_max <= 0 or guesser.rest.goes_on():
            return NO_DRAFT
        draft = guesser.draft(ticket.tokens, n_max)
        if not draft.tokens and ticket.matcher is None:
            if self._rests:
                guesser.rest.miss(self._n_steps)
            return NO_DRAFT
        return self._possible(ticket, draft, n_max, forces=guesser.synthetic is None)

    def _n_guesses(self, ticket: Ticket, guesser: Guesser) -> int:
        # the last token of a text needs no guess: it ends anyway
        return min(guesser.n_max, ticket.n_most - len(ticket.tokens) - 1)

    def _possible(self, ticket: Ticket, draft: Draft, n_max: int, *, forces: bool) -> Draft:
        """The guesses that may come true: a grammar allows them, and none ends the text."""
        if ticket.matcher is not None:
            draft = allowed(draft, ticket.matcher, self._spelling() if forces else {}, n_max)
        ends = self._vocab.eog
        if not ends.isdisjoint(draft.tokens):
            draft = Draft(list(takewhile(lambda t: t not in ends, draft.tokens)), draft.kind)
        return draft

    def _of_model(
        self, model: Drafter, texts: Sequence[Ticket], found: Mapping[Ticket, Draft]
    ) -> dict[Ticket, Draft]:
        """The guesses of the draft model, for those of `texts` without likely ones."""
        tickets, sizes, rates = list[Ticket](), list[int](), list[float]()
        for ticket in texts:
            guesser = self._guesser(ticket)
            n = self._n_guesses(ticket, guesser)
            is_likely = ticket in found and found[ticket].kind in LIKELY
            wants = ticket.speculative.uses(model.spec_type) and n > 0 and not is_likely
            if wants and not guesser.model_rest.goes_on():
                tickets.append(ticket)
                sizes.append(n)
                rates.append(guesser.acceptance.rate(MODEL))
        if not tickets:
            return {}
        ms_draft = model.ms_of(len(tickets))
        depth = best_depth(rates, len(texts), max(sizes), self._n_max, self._ms_of, ms_draft)
        if not depth:
            for ticket in tickets:
                self._pays(ticket, Draft((), MODEL), 0)
            return {}
        drafts = model.draft(tickets, [min(size, depth) for size in sizes])
        possible = {
            ticket: self._possible(ticket, draft, depth, forces=False)
            for ticket, draft in zip(tickets, drafts, strict=True)
        }
        return {ticket: draft for ticket, draft in possible.items() if draft.tokens}

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
