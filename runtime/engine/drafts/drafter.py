"""What a model that guesses has: a context of its own, and samplers that follow those of the texts.

An error of it ends guesses, never a request.
Tested by tests/runtime/test_draft_model.py and test_draft_block.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar, Final

import numpy as np

from ....base.errors import LamellaError
from ....base.log import get_logger
from ....model.batch import Batch
from ....model.context import Context
from ....model.outputs import Row, TopLogits
from ....model.sampling import Sampler
from ....model.vocab import Vocab
from ...speculative_params import SpecType
from ..pace import Pace
from ..ticket import Ticket
from .source import NO_DRAFT, Draft

KIND: Final = "model"

log = get_logger("drafts")


class Drafter(ABC):
    """A model that guesses. Used by the engine's thread only.

    Attributes:
        spec_type: the type of requests that ask for it.
        context: of the model.
        is_broken: it failed, and guesses no more.
    """

    spec_type: ClassVar[SpecType]

    def __init__(self, context: Context, vocab: Vocab) -> None:
        """`context` and `vocab` are those of the model that guesses."""
        self.context = context
        self.is_broken = False
        self._vocab = vocab
        self._pace = Pace(context.n_ubatch)

    def ms_of(self, n_texts: int) -> float | None:
        """The milliseconds of one guess of each of `n_texts`; None: not known."""
        return self._pace.ms_of(n_texts)

    def draft(self, tickets: Sequence[Ticket], sizes: Sequence[int]) -> list[Draft]:
        """A number of guesses for each text; fewer or none where the model is not ready or not
        sure."""
        found = [NO_DRAFT] * len(tickets)
        if not self.is_broken:
            with self._broken_by_errors():
                found = self._draft(tickets, sizes)
        return found

    def computed(self, tickets: Iterable[Ticket], batch: Batch) -> None:
        """The model that checks guesses has computed a batch with tokens of these texts."""
        if not self.is_broken:
            with self._broken_by_errors():
                self._computed(tickets, batch)

    @contextmanager
    def _broken_by_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as e:
            self.is_broken = True
            cause = None if isinstance(e, LamellaError) else e
            log.error("the draft model failed, and guesses no more: %s", e, exc_info=cause)

    @abstractmethod
    def forget(self, ticket: Ticket) -> None:
        """Free the pages of a text that leaves."""

    @abstractmethod
    def _draft(self, tickets: Sequence[Ticket], sizes: Sequence[int]) -> list[Draft]:
        """What `draft` returns."""

    @abstractmethod
    def _computed(self, tickets: Iterable[Ticket], batch: Batch) -> None:
        """What `computed` does."""

    def _sampler(self, ticket: Ticket) -> Sampler:
        """A sampler like that of a text. Its penalties ignore guesses."""
        params, n = ticket.sampler.params, self._vocab.n_tokens
        bias = tuple(pair for pair in params.logit_bias if pair[0] < n)
        return Sampler(replace(params, logit_bias=bias), self._vocab)

    def _guess(self, ticket: Ticket, sampler: Sampler, row: Row) -> int:
        """The token that the text would go on with; -1 if there is none, or it is too unlikely."""
        token = sampler.sample(row)
        p_min = ticket.speculative.spec_p_min
        if token in self._vocab.eog or (p_min > 0 and probability(row, token) < p_min):
            return -1
        return token


def follow(sampler: Sampler, ticket: Ticket, n_accepted: int) -> int:
    """Let a sampler, which has seen `n_accepted` tokens of a text, draw what the text's own will
    draw next. Return how many tokens it has seen now."""
    sampler.follow(ticket.sampler)
    if not sampler.remembers:
        return n_accepted
    for token in ticket.tokens[n_accepted:]:
        sampler.accept(token)
    return len(ticket.tokens)


def probability(row: Row, token: int) -> float:
    """The model's probability of a token. Of a row with few logits, among those."""
    ids, logits = (row.ids, row.logits) if isinstance(row, TopLogits) else (None, row)
    weights = np.exp(logits - logits.max())
    own = weights[token] if ids is None else weights[ids == token].sum()
    return float(own / weights.sum())
