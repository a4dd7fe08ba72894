"""The step after the one that computes: prepared meanwhile, and started when its tokens are known.

Most steps give each text one token, after the token of the step before. All but that token is known
while the step before computes: positions, pages, the order of texts. So a GPU waits only until the
tokens are sampled. What they do to their texts is found out while the next step computes. If a text
then ends, or goes on with another token, its row of that step is dropped.

If all texts take the tokens of the largest logits, the GPU does not wait at all: it finds these
tokens itself, and the next step follows before the host knows them.

Knows no sinks. Tested by tests/runtime/test_engine_overlap.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from ...model.context import Context
from ...model.sampling import Sampled
from . import policy
from .batch_plan import BatchPlan
from .drafts.speculation import Speculation
from .ticket import Ticket
from .unsure import Unsure

N_UNFED: Final = 32  # tokens that a text waits for the host, after one that it did not go on with


class Ahead:
    """At most one prepared step. `eog`: the tokens that end a text."""

    def __init__(
        self, context: Context, eog: Collection[int], speculation: Speculation, unsure: Unsure
    ) -> None:
        self._context = context
        self._eog = frozenset(eog)
        self._speculation = speculation
        self._unsure = unsure
        self._prepared: BatchPlan | None = None

    def prepare(self, plan: BatchPlan, running: Sequence[Ticket]) -> None:
        """Prepare the step after `plan`, which computes, if all texts just go on."""
        is_plain = not plan.n_prompt and not plan.n_masks and plan.is_of(running)
        if not is_plain or not all(map(policy.goes_on, running)):
            return
        if not all(map(self._unsure.reserve, running)):
            return
        following = plan.following()
        following.prepared = self._context.prepare_rows(following.batch)
        if following.prepared is not None:
            self._prepared = following

    def drop(self) -> None:
        """Forget the prepared step. Its positions stay reserved."""
        self._prepared = None

    def plan(self, running: Sequence[Ticket]) -> BatchPlan | None:
        """The prepared step, with the last tokens of the texts; None if it is not one of these."""
        following, self._prepared = self._prepared, None
        if following is None or not following.is_of(running):
            return None
        following.set_tokens(ticket.tokens[-1] for ticket in running)
        return following

    def early_plan(self, running: Sequence[Ticket], tokens: Sequence[Sampled]) -> BatchPlan | None:
        """The prepared step, with tokens that were just sampled; None if more decides about it."""
        following = self._prepared
        if following is None or not following.is_of(running) or len(tokens) != len(running):
            return None
        known = [token for token in tokens if isinstance(token, int)]
        if len(known) < len(tokens) or not self._eog.isdisjoint(known):
            return None
        if not self._speculation.rests(running):
            return None
        self._prepared = None
        following.set_tokens(known)
        for ticket in running:
            self._unsure.need(ticket)
        return following

    def fed_plan(self, plan: BatchPlan, running: Sequence[Ticket]) -> BatchPlan | None:
        """The prepared step, if it can follow that of `plan` on the device; None if it cannot, or
        if more than the largest logits decides about it."""
        following, started = self._prepared, plan.started
        if following is None or started is None or isinstance(started, Exception):
            return None
        assert following.prepared is not None, "it is prepared"
        if not all(ticket.feeds for ticket in running):
            return None
        if not self._context.can_follow(started, following.prepared):
            return None
        if not self._speculation.rests(running):
            return None
        self._prepared = None
        for ticket in running:
            self._unsure.need(ticket)
        return following

    def drop_outputs(self, plan: BatchPlan) -> None:
        """Drop the rows of an early or fed step whose texts do not go on as it was started."""
        outputs, plan.outputs = plan.outputs, []
        for output, run in zip(outputs, plan.batch.runs, strict=True):
            if output.follows(run.tokens[0]):
                plan.outputs.append(output)
            else:
                self._unsure.again(output.ticket, run.pos)
                # a step for nothing, and some more may be: of a mark that is forced, or a ban
                output.ticket.fed_from = len(output.ticket.tokens) + N_UNFED
