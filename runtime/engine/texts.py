"""What a sampled token does to its job: it extends the text, moves its grammar on, or ends it.

Knows one job at a time: no batch, no pool, no queue.
Tested by tests/runtime/test_engine*.py.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

import numpy as np

from ...base.errors import BackendError, RequestError
from ...model.guide import Mask
from ...model.outputs import Row
from ...model.sampling import Logprobs, Sampled, model_logprobs, sampler_logprobs
from ...model.vocab import Vocab
from . import policy
from .job import StopType
from .ticket import Ticket

NO_TOKEN: Final = -1


class Full(Enum):
    """What a job with a full context does, other than ending."""

    SHIFTS = "shifts"


class Taken(NamedTuple):
    """A token that its job has taken, for `Texts.tell`.

    Attributes:
        logprobs: those that the job requests; None: none.
        is_shown: the sink gets it; False: it only ends the text.
        stop: why the job ends, if the sink does not end it; None if it goes on, `Full.SHIFTS` if it
            goes on without its oldest tokens.
        is_cut: the text would go on, but for the size of the context.
    """

    ticket: Ticket
    token: int
    logprobs: Logprobs | None = None
    is_shown: bool = True
    stop: StopType | Full | None = None
    is_cut: bool = False

    @property
    def goes_on(self) -> bool:
        return self.stop is None


class Texts:
    """Extends texts by sampled tokens. `n_ctx`: the most tokens of a job."""

    def __init__(self, vocab: Vocab, n_ctx: int) -> None:
        self._vocab = vocab
        self._n_ctx = n_ctx

    def take(self, ticket: Ticket, row: Row, sampled: Sampled, mask: Mask | None) -> Taken:
        """Extend a job's tokens. Its sink is told by `tell`, before its next token is taken.

        `sampled` is the token sampled from `row`, or the error of its sampler; `mask` has the
        tokens that the grammar allowed.

        Raises:
            LamellaError: of this job only.
        """
        sampler, matcher = ticket.sampler, ticket.matcher
        if matcher is not None:
            matcher.check()  # a failed one has a mask of no meaning
        if isinstance(sampled, Exception):
            if isinstance(sampled, RequestError) and matcher is not None and matcher.is_complete:
                # ignore_eos or a bias bans the end token, and all others
                return Taken(ticket, NO_TOKEN, is_shown=False, stop=StopType.EOS)
            if isinstance(sampled, BackendError) and ticket.lora_scales is not None:
                raise RequestError(f"lora: these scales are too large: {sampled}") from sampled
            raise sampled
        token = sampled
        if ticket.thinking is not None:
            token = ticket.thinking.next(token, mask)
        if sampler.remembers:
            sampler.accept(token)
        ticket.tokens.append(token)
        ticket.check_sent(token)
        ticket.decoding = True
        is_end = token in self._vocab.eog and not ticket.params.ignore_eos
        if is_end and not ticket.params.special:
            return Taken(ticket, token, is_shown=False, stop=StopType.EOS)
        if matcher is not None and not is_end:
            matcher.accept(token)
        elif ticket.lazy is not None and not is_end and ticket.lazy.push(token):
            matcher = ticket.matcher = ticket.lazy.matcher
            ticket.lazy = None
        logprobs = _logprobs(ticket, row, token) if ticket.n_probs else None
        if is_end or (matcher is not None and matcher.is_finished):
            return Taken(ticket, token, logprobs, stop=StopType.EOS)
        late = ticket.params.t_max_predict_ms > 0 and self._is_late(ticket, token)
        if late or len(ticket.tokens) >= ticket.n_most:
            n_predict = policy.n_predict_of(ticket.params, self._n_ctx)
            limit, is_full = policy.limit_of(
                ticket.n_predicted, n_predict, len(ticket.tokens), self._n_ctx, late
            )
            stop = Full.SHIFTS if is_full and ticket.params.context_shift else limit
            return Taken(ticket, token, logprobs, stop=stop, is_cut=is_full)
        return Taken(ticket, token, logprobs)

    def tell(self, taken: Taken) -> StopType | Full | None:
        """Pass a token on to the sink. Return why the job ends, or how it goes on: see `Taken`."""
        ticket = taken.ticket
        if taken.is_shown and not ticket.sink.token(taken.token, taken.logprobs):
            return StopType.WORD
        ticket.truncated |= taken.is_cut and taken.stop is not Full.SHIFTS
        return taken.stop

    def _is_late(self, ticket: Ticket, token: int) -> bool:
        ticket.has_new_line = ticket.has_new_line or b"\n" in self._vocab.piece(token)
        elapsed_ms = 1e3 * (ticket.t_last - ticket.t_first)
        return policy.is_late(ticket.params.t_max_predict_ms, elapsed_ms, ticket.has_new_line)


def _logprobs(ticket: Ticket, row: Row, token: int) -> Logprobs:
    if ticket.post_sampling_probs:
        return sampler_logprobs(ticket.sampler, token, ticket.n_probs)
    assert isinstance(row, np.ndarray), "all logits are needed"
    return model_logprobs(row, token, ticket.n_probs)
