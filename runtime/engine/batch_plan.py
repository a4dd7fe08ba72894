"""The batch of one step, and the jobs that its rows of logits are for.

Tested by tests/runtime/test_engine.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...model.batch import Batch
from ...model.context import Prepared, Started
from ...model.guide import MaskComputer, Matcher
from .drafts.speculation import Guesses
from .shares import Owner
from .ticket import Ticket


class Output(NamedTuple):
    """The rows of logits of one job: one after its last token, and one after each guess.

    Attributes:
        row: the first of its rows.
        mask: the first of its masks, if it has a matcher.
        matcher: what its masks are of; None: it has none.
        guesses: of the tokens that follow; None: there are none.
    """

    ticket: Ticket
    row: int
    mask: int
    matcher: Matcher | None
    guesses: Guesses | None

    @property
    def tokens(self) -> Sequence[int]:
        """The guesses."""
        return () if self.guesses is None else self.guesses.draft.tokens

    def follows(self, token: int) -> bool:
        """True if the text goes on with a token that was assumed to be its last one."""
        ticket = self.ticket
        return ticket.decoding and ticket.tokens[-1] == token and ticket.matcher is self.matcher

    def may_go_on(self, level: int) -> bool:
        """True if the text goes on as it was guessed, after `level` + 1 guesses that came true."""
        ticket, matcher = self.ticket, self.matcher
        return (
            not (ticket.settled or ticket.paused)
            and ticket.matcher is matcher  # no trigger began a grammar
            and (matcher is None or level < matcher.n_guessed)
        )


@dataclass(slots=True)
class BatchPlan:
    """The batch of one call of `Context.start_rows`, and the jobs it is for.

    `masks` will compute the masks of the outputs with a matcher, in this order. `used` counts the
    tokens of each owner, `n_prompt` those of prompts.

    Attributes:
        begin, planned: time.perf_counter before and after it was planned.
        prepared: its inputs, if they are written already.
        started: what computes it, or why it could not be started; None: not started yet.
        is_new_graph: a graph was built for it.
    """

    masks: MaskComputer
    batch: Batch = field(default_factory=Batch)
    prefilled: list[Ticket] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    n_masks: int = 0
    used: Counter[Owner] = field(default_factory=Counter)
    n_prompt: int = 0
    begin: float = 0.0
    planned: float = 0.0
    prepared: Prepared | None = None
    started: Started | Exception | None = None
    is_new_graph: bool = False

    def add_prompt(self, ticket: Ticket, n: int, *, wanted: bool) -> None:
        """Add the next `n` tokens of a prompt. If `wanted`, sample a token after them."""
        begin = ticket.n_done
        self._add(ticket, ticket.tokens[begin : begin + n], begin, n_outputs=int(wanted))
        if wanted:
            self._want(ticket, None)
        self.prefilled.append(ticket)
        self.n_prompt += n

    def add_last(self, ticket: Ticket, guesses: Guesses | None = None) -> None:
        """Add the last token of a job, and guesses: sample a token after each of them."""
        last = len(ticket.tokens) - 1
        tokens = ticket.tokens[last:]
        if guesses is not None:
            tokens = [*tokens, *guesses.draft.tokens]
        self._add(ticket, tokens, last, n_outputs=len(tokens))
        self._want(ticket, guesses)

    def is_of(self, tickets: Sequence[Ticket]) -> bool:
        """True if it gives each of these one token, in this order, and checks no guesses."""
        return len(self.outputs) == len(tickets) == len(self.batch) and all(
            output.ticket is ticket for output, ticket in zip(self.outputs, tickets, strict=True)
        )

    def following(self) -> BatchPlan:
        """The plan that gives each text one more token, after one that is not known yet."""
        plan = BatchPlan(self.masks)
        for output in self.outputs:
            plan._add(output.ticket, [0], len(output.ticket.tokens), n_outputs=1)
            plan._want(output.ticket, None)
        return plan

    def set_tokens(self, tokens: Iterable[int]) -> None:
        """Set the tokens of a plan that was `following`."""
        for run, token in zip(self.batch.runs, tokens, strict=True):
            run.tokens[0] = token

    def begin_masks(self) -> None:
        """Start computing the masks."""
        guided = [(o.matcher, o.tokens) for o in self.outputs if o.matcher is not None]
        self.masks.begin([matcher for matcher, _ in guided], [tokens for _, tokens in guided])

    def tickets(self) -> Iterable[Ticket]:
        """All jobs with tokens in the batch, each once."""
        return dict.fromkeys((*(output.ticket for output in self.outputs), *self.prefilled))

    def _add(self, ticket: Ticket, tokens: list[int], pos: int, *, n_outputs: int) -> None:
        assert ticket.seq is not None
        n_masks = 0 if ticket.matcher is None else n_outputs
        masks = [self.masks.late(self.n_masks + i) for i in range(n_masks)]
        self.used[ticket.owner] += len(tokens)
        self.batch.add(tokens, ticket.seq, pos, n_outputs, ticket.n_top, masks, ticket.lora_scales)

    def _want(self, ticket: Ticket, guesses: Guesses | None) -> None:
        """Note the outputs that were added last."""
        n = 1 if guesses is None else 1 + len(guesses.draft.tokens)
        row = self.batch.n_outputs - n
        self.outputs.append(Output(ticket, row, self.n_masks, ticket.matcher, guesses))
        self.n_masks += n if ticket.matcher is not None else 0
