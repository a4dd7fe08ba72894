"""What an engine has done since its start, in numbers.

Its thread alone writes them and any thread may read them: each is one value, whole at any time.
Knows no names of metrics. Tested by tests/server/test_metrics.py.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from .ticket import Ticket


@dataclass(slots=True)
class Counters:
    """Sums over all requests, as llama-server's metrics count.

    A prompt counts once its end is evaluated, `n_cached` of its tokens as not evaluated; what is
    predicted counts when its request ends, however it does. Times are in seconds, summed over
    requests, which may run at once. `n_busy` sums the requests that had a place in each of
    `n_steps`; `n_tokens_max` is the longest request so far.
    """

    n_prompt: int = 0
    n_cached: int = 0
    prompt_s: float = 0.0
    n_predicted: int = 0
    predicted_s: float = 0.0
    n_steps: int = 0
    n_busy: int = 0
    n_tokens_max: int = 0

    def stepped(self, n_busy: int) -> None:
        """One step was computed, with so many requests in their places."""
        self.n_steps += 1
        self.n_busy += n_busy

    def prompt_done(self, ticket: Ticket) -> None:
        """A prompt was evaluated; `t_first` is set."""
        n_prompt = ticket.n_prompt
        self.n_prompt += n_prompt - ticket.n_cached
        self.n_cached += ticket.n_cached
        self.prompt_s += ticket.t_first - ticket.t_start
        self.n_tokens_max = max(self.n_tokens_max, n_prompt)

    def ended(self, ticket: Ticket) -> None:
        """A request has left for good."""
        if ticket.t_first:
            self.n_predicted += ticket.n_predicted
            self.predicted_s += (ticket.t_end or time.perf_counter()) - ticket.t_first
            self.n_tokens_max = max(self.n_tokens_max, len(ticket.tokens))
