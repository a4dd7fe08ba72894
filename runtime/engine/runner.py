"""Runs jobs on a context, step by step, as the policy decides.

A step drops cancelled jobs, admits waiting ones, and decodes one batch. Knows token ids: no text,
no HTTP, no threads. An error in one job ends neither the thread nor another job.
Tested by tests/runtime/test_engine*.py and tests/runtime/test_prefix_bits.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from ...base.errors import (
    CancelledError,
    ClosedError,
    DeviceLostError,
    RequestError,
)
from ...base.log import get_logger
from ...base.settings import NO_FEED, NO_OVERLAP
from ...model.context import Context
from ...model.guide import MaskComputer, n_mask_bits
from ...model.kv_sequence import KVSequence
from ...model.outputs import Rows
from ...model.page_store import PageStore
from ...model.sampling import Sampled
from ...model.vocab import Vocab
from . import policy
from .admission import Admission
from .ahead import Ahead
from .batch_plan import BatchPlan
from .counters import Counters
from .delivery import Delivery
from .drafts.drafter import Drafter
from .drafts.speculation import Guesses, Speculation
from .job import StopType
from .output_sampler import OutputSampler
from .pace import Pace
from .prefixes import Found, Prefixes
from .pulse import Pulse
from .queue import JobQueue
from .reports import as_lamella_error, report
from .slots import SlotContent, Slots
from .steps import Steps
from .texts import Texts
from .ticket import Ticket
from .unsure import Unsure

FED_MS_MAX: Final = 10.0  # of a longer step, the time between two steps is less than 1%

log = get_logger("engine")


class Runner:
    """Runs jobs from a queue, at most `n_parallel` at a time. Used by the engine's thread only.

    Attributes:
        running: the running jobs, oldest first.
        slots: the numbers of running jobs.
        steps: the last steps.
        prefixes: tokens that jobs need not evaluate, of those that run or have ended.
        n_ctx: the most tokens of a job. A job that runs alone always gets pages for that many.
    """

    def __init__(
        self,
        context: Context,
        vocab: Vocab,
        queue: JobQueue,
        n_parallel: int,
        max_itl: int,
        pulse: Pulse,
        store: PageStore | None = None,
        spelling: Callable[[], Mapping[bytes, int]] = dict,
        draft_model: Drafter | None = None,
        when_told: Callable[[], None] = lambda: None,
    ) -> None:
        """`when_told` is called when sinks got tokens and the next step computes already."""
        self.counters = Counters()
        self.steps = Steps()
        self.running: list[Ticket] = []
        self.prefixes = Prefixes(context, store, vocab.eog)
        self.slots = Slots(n_parallel)
        self.n_ctx = context.n_ctx_seq
        self._context = context
        self._vocab = vocab
        self._queue = queue
        self._pulse = pulse
        self._pace = Pace(context.n_ubatch, max_itl)
        self._sampler = OutputSampler(n_parallel, context.host_threads, self.counters)
        is_late = context.computes_aside and not NO_OVERLAP()
        self._speculation = Speculation(
            *(vocab, spelling, context.n_checked_max, self._pace.ms_of, draft_model),
            rests=is_late,
        )
        page_size = context.pool.page_size
        self._admission = Admission(self, queue, self.prefixes, n_parallel, page_size)
        self._masks = MaskComputer(n_mask_bits(vocab), n_parallel, inline=context.is_on_host)
        self._unsure = Unsure()
        self._in_flight: list[Ticket] = []  # jobs whose tokens the context may still compute
        self._is_computing = False  # a step has started
        self._delivery = Delivery(
            self,
            Texts(vocab, self.n_ctx),
            self._sampler,
            self._speculation,
            self._unsure,
            self.counters,
            when_told,
            is_late=is_late,
        )
        self._ahead = Ahead(context, vocab.eog, self._speculation, self._unsure)
        self._may_feed = not NO_FEED()
        self._next: BatchPlan | None = None  # a step that has started already
        self._ended: list[Ticket] = []  # meanwhile: to be released after it

    def step(self) -> None:
        """Handle the queue, then decode one batch if there is one."""
        plan, self._next = self._next, None
        if plan is None:
            if self._queue.has_changes():
                self._drop_cancelled()
                self._run_calls()
                self._admission.admit()
            plan = self._plan_batch()
            if not len(plan.batch):
                self._delivery.tell()
                return
            self._start(plan)
        n_running = len(self.running)
        n_outputs = self._complete(plan)
        self.steps.add(
            plan.begin,
            n_decoded=len(plan.batch) - plan.n_prompt,
            n_prompt=plan.n_prompt,
            n_outputs=n_outputs,
            n_running=n_running,
            is_new_graph=plan.is_new_graph,
        )
        # building a graph takes long, but once; work in flight is not over
        if not plan.is_new_graph and (self._next is not None or not self._context.in_flight):
            ms = 1e3 * (time.perf_counter() - plan.planned)  # a draft model may take long before
            self._pace.measured(len(plan.batch), plan.batch.n_outputs, ms)

    def is_idle(self) -> bool:
        """True if no job can go on. Then all sinks have all tokens."""
        if self._next is not None or policy.has_work(self.running):
            return False
        self._delivery.tell()
        return not policy.has_work(self.running)

    def fail_all(self, error: Exception) -> None:
        """Fail all running jobs with an internal error."""
        self._pulse.failed(error)
        self._abandon()
        self.fail(tuple(self.running), error)

    def make_room(self, n_tokens: int) -> None:
        """Preempt jobs until a new sequence of `n_tokens` fits, or no job is left."""
        pool = self._context.pool
        seq = pool.new_sequence()
        while self.running and not (
            seq.can_append(n_tokens) and pool.has_room(len(self.running) + 1)
        ):
            self.preempt(policy.victim(self.running))

    def drain(self) -> None:
        """Cancel all jobs and calls, and close the queue."""
        self._abandon()
        tickets, calls = self._queue.drain(self.running)
        for ticket in tickets:
            self._release(ticket)
            report(ticket.sink.failed, CancelledError("the engine was closed"))
        for call in calls:
            call.future.set_exception(ClosedError("the engine is closed"))
        self._masks.close()
        self._admission.close()
        self.prefixes.close()

    # --- the queue ---

    def _drop_cancelled(self) -> None:
        for ticket in self._queue.take_cancelled():
            self._release(ticket)
            report(ticket.sink.failed, CancelledError("the request was cancelled"))

    def _run_calls(self) -> None:
        calls = self._queue.take_calls()
        if calls:
            self._ahead.drop()  # they may compute, in the memory of its inputs
            self.synchronize()
            self.prefixes.lack(None)
        for call in calls:
            call.run()

    def begin(self, ticket: Ticket, found: Found) -> None:
        """Let a waiting job run, from the prefix that was found for it."""
        self._queue.start(ticket)
        self.running.append(ticket)
        now = time.perf_counter()
        if not ticket.t_start:
            self.counters.started(ticket, now)
        ticket.slot = self.slots.take(ticket.slot)
        ticket.enter(found.seq, found.length, now, self.n_ctx)
        if self.prefixes.tree.is_unsure(found.seq):
            self._in_flight.append(ticket)  # it fails if the work that computes them does
        try:
            self.prefixes.begin(ticket, found)
        except Exception as e:  # the device cannot restore a prefix
            self._pulse.failed(e)
            self.fail((ticket,), e)

    # --- a step ---

    def _plan_batch(self) -> BatchPlan:
        begin = time.perf_counter()
        decoding = policy.decoding(self.running)
        for ticket in decoding:
            is_reserved = self._unsure.need(ticket)
            if ticket.seq is not None and not is_reserved and not ticket.seq.advance():
                self._grow(ticket, ticket.seq)
        decoding = [ticket for ticket in decoding if ticket.decoding]  # others were preempted
        sent = self._sent(decoding)
        guesses = sent or self._guesses(decoding)
        if not guesses and len(decoding) == len(self.running):
            following = self._ahead.plan(decoding)
            if following is not None:
                following.begin = begin
                return following
        self._ahead.drop()
        plan = BatchPlan(self._masks, begin=begin)
        for ticket in decoding:
            plan.add_last(ticket, guesses.get(ticket))
        if not sent and len(plan.outputs) < len(self.running):
            self._add_prompts(plan)
        return plan

    def _add_prompts(self, plan: BatchPlan) -> None:
        n_prompt = self._pace.n_prompt_tokens(len(plan.batch))
        for ticket, n in policy.prompt_chunks(self.running, n_prompt):
            end = ticket.n_done + n
            plan.add_prompt(ticket, n, wanted=policy.wants_output(ticket, end))
            ticket.n_done = end

    def _guesses(self, decoding: Sequence[Ticket]) -> Mapping[Ticket, Guesses]:
        """Guesses that this step checks, each with an idle position in its sequence."""
        if not policy.may_guess(self.running):
            return {}
        return self._unsure.with_places(self._speculation.guesses(decoding))

    def _sent(self, decoding: Sequence[Ticket]) -> Mapping[Ticket, Guesses]:
        """The tokens of texts that began on another engine, as guesses that come true: as many as
        prompts may have in a step. So samplers, grammars and sinks see each token, as there."""
        begun = [ticket for ticket in decoding if ticket.sent_left]
        if not begun:
            return {}
        n_max = self._pace.n_prompt_tokens(len(decoding) - len(begun))
        return self._unsure.with_places(self._speculation.sent(decoding, n_max))

    def _grow(self, ticket: Ticket, seq: KVSequence) -> None:
        """Get a page for the next position, or preempt the job itself."""
        while not seq.can_append(1):
            other = policy.victim(self.running)
            self.preempt(other)
            if ticket.seq is not seq:  # it was the other one, or it has ended
                return
        self._context.append(seq, 1)

    def preempt(self, ticket: Ticket) -> None:
        """Preempt a job: free its pages and let it wait, in front of the others of its request."""
        if ticket in self._in_flight:
            self.synchronize()
        self._delivery.tell()
        if ticket.seq is not None:  # else it has just failed, in `synchronize`, or ended
            self.running.remove(ticket)
            self._ahead.drop()
            self.slots.leave(ticket.slot)
            self._leave(ticket)
            self._queue.put_back(ticket)

    def shift(self, ticket: Ticket) -> None:
        """Let a job whose context is full go on without its oldest tokens, as if the others were
        its prompt: it shares the kept prefix, and evaluates what follows at its new positions."""
        try:
            self.preempt(ticket)
            bos = self._vocab.bos
            ticket.shift(policy.shifted(ticket.tokens, ticket.n_prompt, ticket.params, bos))
        except Exception as e:  # of this job only
            self.fail((ticket,), e)

    def _start(self, plan: BatchPlan, behind: BatchPlan | None = None) -> None:
        """Start to compute the batch of a plan; `behind` one that still computes, with the tokens
        that the device finds. An error is raised when it is completed."""
        plan.planned = time.perf_counter()
        self._queue.charge(plan.used)
        self._in_flight = list(dict.fromkeys((*self._in_flight, *plan.tickets())))
        plan.begin_masks()
        self._is_computing, n_built = True, self._context.n_graphs_built
        try:
            if plan.prepared is not None and behind is not None:
                assert behind.started is not None
                assert not isinstance(behind.started, Exception)
                behind.started, plan.started = self._context.follow(behind.started, plan.prepared)
            elif plan.prepared is not None:
                plan.started = self._context.start_prepared(plan.prepared)
            else:
                plan.started = self._context.start_rows(plan.batch)
        except Exception as e:
            plan.started = e
            if behind is not None:
                behind.started = e  # all work in flight is lost
        plan.is_new_graph = self._context.n_graphs_built != n_built

    def _rows_of(self, plan: BatchPlan) -> Rows:
        """Wait for the batch of a plan. Meanwhile, do what needs no rows."""
        if not isinstance(plan.started, Exception):
            self._delivery.tell()
            if (
                self._delivery.is_late
                and self._context.can_prepare
                and not self._admission.has_news()
            ):
                self._ahead.prepare(plan, self.running)
                self._feed_next(plan)
        assert plan.started is not None, "the batch was not started"
        if isinstance(plan.started, Exception):
            raise plan.started
        return self._context.read_rows(plan.started)

    def _complete(self, plan: BatchPlan) -> int:
        """Pass on what the rows of a started batch give. Return how many tokens were sampled."""
        try:
            rows = self._rows_of(plan)
        except Exception as e:
            self._fail_step(e)
            return 0
        masks = self._masks.take()
        in_flight = self._note_computed(plan)
        outputs = [output for output in plan.outputs if not output.ticket.settled]
        first = rows
        if len(outputs) != len(rows):
            first = [rows[output.row] for output in outputs]
        now = time.perf_counter()
        tokens = self._sampler.sample(outputs, first, masks, 0, now)
        # before the next step, which has hidden states of its own
        self._speculation.computed(plan.tickets(), plan.batch)
        self._start_next(tokens)
        self.counters.n_masks += len(masks)
        self.counters.mask_s, self.counters.mask_wait_s = self._masks.seconds, self._masks.waited
        if not in_flight:
            self._pulse.computed()
            self.prefixes.tree.confirm()
        n_tokens = self._delivery.take(outputs, tokens, rows, masks, now)
        if self._next is not None:
            self._ahead.drop_outputs(self._next)
        return n_tokens

    def _note_computed(self, plan: BatchPlan) -> bool:
        """Note that the outputs of a batch are computed: jobs with outputs have nothing in flight,
        but in a step that follows. Return True if others have."""
        self.counters.stepped(len(self.running))
        if self._next is not None:
            self._next.begin = self._next.planned = time.perf_counter()  # now it computes
            self._in_flight = list(self._next.tickets())
            return False
        in_flight = self._context.in_flight
        done = {output.ticket for output in plan.outputs} if in_flight else ()
        self._in_flight = [t for t in self._in_flight if t not in done] if in_flight else []
        self._end_step()
        for ticket in plan.prefilled:
            self._share_prefix(ticket, ended=False)  # later jobs can share these tokens now
        for ticket in plan.prefilled:
            self._prefilled(ticket)
        return in_flight

    def _fail_step(self, error: Exception) -> None:
        self._next = None
        with suppress(Exception):  # the first error counts, not what follows
            self._context.synchronize()
        self._ahead.drop()
        self._delivery.tell()
        self._masks.take()
        self._fail_in_flight(error)
        self._end_step()

    def _start_next(self, tokens: Sequence[Sampled]) -> None:
        """Start the next step now, if it is prepared and nothing but these tokens decides about
        it."""
        if self._admission.has_news():
            return
        following = self._ahead.early_plan(self.running, tokens)
        if following is not None:
            following.begin = time.perf_counter()
            self._next = following
            self._start(following)

    def _feed_next(self, plan: BatchPlan) -> None:
        """Start the next step behind that of `plan`, if the device knows its tokens by itself, and
        steps are short: what comes in meanwhile has to wait for both."""
        ms = self._pace.ms_of(len(plan.batch)) if self._may_feed else None
        following = None
        if ms is not None and ms <= FED_MS_MAX:
            following = self._ahead.fed_plan(plan, self.running)
        if following is not None:
            self._next = following
            self._start(following, behind=plan)

    def _abandon(self) -> None:
        """Drop what has started, and tell the last tokens."""
        self._delivery.tell()
        self._ahead.drop()
        self._next = None
        if self._is_computing:
            self.synchronize()
            self._masks.take()
        self._end_step()

    def _end_step(self) -> None:
        """Release the jobs that have ended since the step started."""
        self._is_computing = False
        ended, self._ended = self._ended, []
        for ticket in ended:
            self._unsure.take_back(ticket)
            seq = ticket.seq
            if ticket.decoding and seq is not None and seq.length == len(ticket.tokens):
                ticket.n_done, ticket.decoding = seq.length, False  # the step was too much
            self._release(ticket)

    def _prefilled(self, ticket: Ticket) -> None:
        """Report a prompt's progress. End a job that requests no tokens."""
        if ticket.n_predicted > 0 or ticket.settled:
            return
        n_cached = min(ticket.n_cached, ticket.n_done)  # less is possible after a preemption
        try:
            ticket.sink.progress(ticket.n_done, ticket.n_prompt, n_cached)
        except Exception as e:  # of this job only
            self.fail((ticket,), e)
        if ticket.n_done == ticket.n_prompt and ticket.params.n_predict == 0:
            self.synchronize()
            if not ticket.settled:
                self._sampler.begin(ticket, time.perf_counter())
                self.finish(ticket, StopType.LIMIT)

    # --- work in flight ---

    @property
    def is_in_flight(self) -> bool:
        """True if the context may still compute tokens of a job."""
        return bool(self._in_flight)

    def synchronize(self) -> None:
        """Wait until nothing is in flight. Errors go to the jobs in flight.

        Called before a job with tokens in flight leaves, and before other work uses the context.
        """
        if self._in_flight:
            try:
                self._context.synchronize()
                self._in_flight = []
                self.prefixes.tree.confirm()
            except Exception as e:
                self._fail_in_flight(e)

    def _fail_in_flight(self, error: Exception) -> None:
        """Fail all jobs with tokens in flight: the error does not name the job that caused it.

        Jobs that share pages of these tokens are in flight too.
        """
        self._pulse.failed(error)
        self.prefixes.tree.discard()
        lost, self._in_flight = self._in_flight, []
        self.fail(lost, error)

    # --- ends ---

    def finish(self, ticket: Ticket, stop_type: StopType) -> None:
        """End a job whose text is complete."""
        if self._queue.settle(ticket):
            ticket.t_end = time.perf_counter()
            result = ticket.result(stop_type)
            self._release(ticket)
            report(ticket.sink.finished, result)

    def fail(self, tickets: Iterable[Ticket], error: Exception) -> None:
        """End jobs with an error."""
        reported = as_lamella_error(error)
        # of an error of the request, or of another machine, the place in the code says nothing
        is_outside = isinstance(reported, RequestError | DeviceLostError)
        cause = None if is_outside else error
        log.error("a generation failed: %s", reported, exc_info=cause)
        for ticket in tickets:
            ticket.is_sound = False
            if self._queue.settle(ticket):
                self._release(ticket)
                report(ticket.sink.failed, reported)

    def _release(self, ticket: Ticket) -> None:
        """Remove a job from the running jobs and free its pages, after the step that computes."""
        if self._is_computing:
            self._ended.append(ticket)
            return
        if ticket in self._in_flight:
            self.synchronize()
        self.counters.ended(ticket)
        if ticket.matcher is not None:
            ticket.matcher.close()
        if ticket.lazy is not None:
            ticket.lazy.matcher.close()
        if ticket.seq is not None:
            self.running.remove(ticket)
            self._ahead.drop()
            tokens = ticket.tokens[: ticket.n_evaluated]
            self.slots.end(ticket.running, SlotContent(tokens, ticket.identity))
            self._queue.end(ticket)
            self._leave(ticket)

    def _leave(self, ticket: Ticket) -> None:
        """Take the pages of a job, and let later jobs share them."""
        try:
            self._speculation.forget(ticket)
            self._share_prefix(ticket, ended=True)
        except Exception:  # a bug of ours, which must not keep a client waiting
            log.exception("the tokens of a request are not shared")
        ticket.leave()

    def _share_prefix(self, ticket: Ticket, *, ended: bool) -> None:
        """Let later jobs share a job's evaluated tokens, until their pages are needed."""
        self._unsure.take_back(ticket)
        self.prefixes.lack(None)
        if ticket.seq is not None and ticket.is_sound and ticket.params.cache_prompt:
            ticket.shared = self.prefixes.tree.insert(
                ticket.tokens[: ticket.n_evaluated],
                ticket.seq,
                ended=ended,
                after=ticket.shared,
                in_flight=ticket in self._in_flight,
                identity=ticket.identity,
            )
