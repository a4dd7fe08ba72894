"""Samples a token of each output of a step, and notes when its job got it.

Knows no context, no sinks and no clock. Tested by tests/runtime/test_engine*.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...kernels.cpu.pool import ThreadPool
from ...model.guide import Mask
from ...model.outputs import Rows
from ...model.sampling import RowSampler, Sampled
from .batch_plan import Output
from .counters import Counters
from .ticket import Ticket


class OutputSampler:
    """Samples for at most `n_parallel` jobs, on `threads` if there are many logits."""

    def __init__(self, n_parallel: int, threads: ThreadPool | None, counters: Counters) -> None:
        self._first = RowSampler(n_parallel, threads)
        self._later = RowSampler(n_parallel, threads)  # of rows after guesses
        self._counters = counters

    def sample(
        self, outputs: Sequence[Output], rows: Rows, masks: Sequence[Mask], level: int, now: float
    ) -> Sequence[Sampled]:
        """Sample a token of each output, from its row after `level` guesses."""
        for output in outputs:
            self._got_token(output.ticket, now)
        samplers = [output.ticket.sampler for output in outputs]
        each = [None if o.matcher is None else masks[o.mask + level] for o in outputs]
        sampler = self._later if level else self._first
        return sampler.sample(samplers, rows, each if masks else None)

    def _got_token(self, ticket: Ticket, now: float) -> None:
        if ticket.t_first == 0:
            self.begin(ticket, now)
        else:
            self._counters.token_seconds.add(now - ticket.t_last)
        ticket.t_last = now

    def begin(self, ticket: Ticket, now: float) -> None:
        """Note the end of a job's prompt."""
        ticket.t_first = now
        self._counters.prompt_done(ticket)
