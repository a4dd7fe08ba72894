"""Counters of an engine's work since its start.

Only the engine's thread writes them. Any thread may read them: each is one value, read atomically.
Knows no names of metrics. Tested by tests/server/test_metrics.py.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from .histogram import Histogram, of_seconds
from .ticket import Ticket


@dataclass(slots=True)
class Counters:
    """Sums over all requests, as llama-server's metrics count.

    A prompt counts when its last token is evaluated: `n_cached` of its tokens as cached, the others
    as evaluated. Predicted tokens count when their request ends, for any reason. Times are in
    seconds, summed over requests, which may run at the same time. `n_busy` sums the running
    requests of each of the `n_steps` steps. `n_tokens_max` is the length of the longest request.
    `n_reasoning` are the predicted tokens of reasoning. `n_constrained` counts ended requests with
    a grammar, and `n_masks` the masks of allowed tokens, one for each token. `mask_s` is the time
    that masks took, and `mask_wait_s` the part of it that steps waited for. `n_prompts` counts
    prompts, and `n_prefix_hits` those of which the cache had a part. The histograms are of the
    seconds from a request's arrival to its first step, and of those between two of its tokens.
    `n_drafts` counts drafts that were checked, `n_drafted` their tokens, and `n_accepted` those of
    them that came true.
    """

    n_prompt: int = 0
    n_cached: int = 0
    prompt_s: float = 0.0
    n_predicted: int = 0
    predicted_s: float = 0.0
    n_steps: int = 0
    n_busy: int = 0
    n_tokens_max: int = 0
    n_reasoning: int = 0
    n_constrained: int = 0
    n_masks: int = 0
    mask_s: float = 0.0
    mask_wait_s: float = 0.0
    n_prompts: int = 0
    n_prefix_hits: int = 0
    n_drafts: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    queue_seconds: Histogram = field(default_factory=of_seconds)
    token_seconds: Histogram = field(default_factory=of_seconds)

    def stepped(self, n_busy: int) -> None:
        """Count one computed step with `n_busy` running requests."""
        self.n_steps += 1
        self.n_busy += n_busy

    def started(self, ticket: Ticket, now: float) -> None:
        """Count the wait of a request whose first step begins."""
        self.queue_seconds.add(now - ticket.t_submitted)

    def prompt_done(self, ticket: Ticket) -> None:
        """Count an evaluated prompt; `t_first` must be set."""
        n_prompt = ticket.n_prompt
        self.n_prompts += 1
        self.n_prefix_hits += ticket.n_cached > 0
        self.n_prompt += n_prompt - ticket.n_cached
        self.n_cached += ticket.n_cached
        self.prompt_s += ticket.t_first - ticket.t_start
        self.n_tokens_max = max(self.n_tokens_max, n_prompt)

    def drafted(self, n: int, n_accepted: int) -> None:
        """Count a draft of `n` tokens that was checked."""
        self.n_drafts += 1
        self.n_drafted += n
        self.n_accepted += n_accepted

    def ended(self, ticket: Ticket) -> None:
        """Count a request that has ended."""
        self.n_constrained += ticket.matcher is not None
        self.n_reasoning += ticket.n_reasoning
        if ticket.t_first:
            self.n_predicted += ticket.n_predicted
            self.predicted_s += (ticket.t_end or time.perf_counter()) - ticket.t_first
            self.n_tokens_max = max(self.n_tokens_max, len(ticket.tokens))
