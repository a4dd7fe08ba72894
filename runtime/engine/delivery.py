"""What sampled tokens do: they extend texts, go to sinks, and let the next guesses be checked.

Sinks get the tokens of a step while the next one computes, if the host is free then. A sink may end
its text: that step then computes one token too many. Knows no context, no queue and no pages.
Tested by tests/runtime/test_engine*.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ...model.guide import Mask
from ...model.outputs import Row, Rows
from ...model.sampling import Sampled
from .batch_plan import Output
from .counters import Counters
from .drafts.speculation import SENT, Speculation
from .job import StopType
from .output_sampler import OutputSampler
from .texts import Full, Taken, Texts
from .ticket import Ticket
from .unsure import Unsure


class Ends(Protocol):
    """What happens to jobs that do not go on."""

    def finish(self, ticket: Ticket, stop_type: StopType) -> None:
        """End a job whose text is complete."""

    def fail(self, tickets: Iterable[Ticket], error: Exception) -> None:
        """End jobs with an error."""

    def shift(self, ticket: Ticket) -> None:
        """Let a job go on without its oldest tokens."""


class Delivery:
    """Passes tokens on.

    Attributes:
        is_late: sinks get the last token of a step in `tell`, not in `take`.
    """

    def __init__(
        self,
        ends: Ends,
        texts: Texts,
        sampler: OutputSampler,
        speculation: Speculation,
        unsure: Unsure,
        counters: Counters,
        when_told: Callable[[], None],
        *,
        is_late: bool,
    ) -> None:
        """`when_told` is called when `tell` has told tokens."""
        self.is_late = is_late
        self._ends = ends
        self._texts = texts
        self._sampler = sampler
        self._speculation = speculation
        self._unsure = unsure
        self._counters = counters
        self._when_told = when_told
        self._untold: list[Taken] = []

    def take(
        self,
        outputs: Sequence[Output],
        tokens: Sequence[Sampled],
        rows: Rows,
        masks: Sequence[Mask],
        now: float,
    ) -> int:
        """Pass on the first token of each output, sampled at `now`. Then sample those after guesses
        that came true. Return how many tokens there were."""
        n, level = 0, 0
        while outputs:
            n += len(outputs)
            outputs = [
                output
                for output, token in zip(outputs, tokens, strict=True)
                if self._goes_on(output, level, rows[output.row + level], token, masks)
            ]
            level += 1
            if outputs:
                next_rows = [rows[output.row + level] for output in outputs]
                tokens = self._sampler.sample(outputs, next_rows, masks, level, now)
        return n

    def tell(self) -> None:
        """Tell all sinks the tokens that they have not got yet. They may end their texts."""
        if not self._untold:
            return
        untold, self._untold = self._untold, []
        for taken in untold:
            if not taken.ticket.settled:
                self._end(taken.ticket, self._tell_one(taken))
        self._when_told()

    def _goes_on(
        self, output: Output, level: int, row: Row, token: Sampled, masks: Sequence[Mask]
    ) -> bool:
        """Pass on the token after `level` guesses. Return True if the next guess came true."""
        ticket = output.ticket
        if ticket.settled:
            self._unsure.take_back(ticket)
            return False
        mask = None if output.matcher is None else masks[output.mask + level]
        if output.guesses is not None:
            token = self._speculation.taken(output.guesses, level, token)
        try:
            taken = self._texts.take(ticket, row, token, mask)
        except Exception as e:  # of this job only
            self._ends.fail((ticket,), e)
            return False
        is_last = level == len(output.tokens) or ticket.tokens[-1] != output.tokens[level]
        stop = None
        if self.is_late and is_last and taken.stop is None:
            self._untold.append(taken)
        else:
            stop = self._tell_one(taken)
        if output.guesses is not None:
            if stop is None and not is_last and output.may_go_on(level):
                return True
            self._end_guesses(output, level)
        self._end(ticket, stop)
        return False

    def _tell_one(self, taken: Taken) -> StopType | Full | None:
        try:
            return self._texts.tell(taken)
        except Exception as e:  # of this job only
            self._ends.fail((taken.ticket,), e)
            return None

    def _end(self, ticket: Ticket, stop: StopType | Full | None) -> None:
        if stop is Full.SHIFTS:
            self._ends.shift(ticket)
        elif stop is not None:
            self._ends.finish(ticket, stop)

    def _end_guesses(self, output: Output, n_right: int) -> None:
        """Count guesses, and take those back that did not come true."""
        assert output.guesses is not None
        if output.guesses.draft.kind != SENT:
            self._counters.drafted(len(output.tokens), n_right)
            self._speculation.checked(output.guesses, n_right)
        self._unsure.take_back(output.ticket)
