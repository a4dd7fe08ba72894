"""Runs jobs on a context, step by step, as the policy decides.

A step drops cancelled jobs, admits waiting ones, and decodes one batch. Knows token ids and
which of them have a new line: no other text, no HTTP, no threads. An error in one job ends neither
the thread nor another job.
Tested by tests/runtime/test_engine*.py and tests/runtime/test_prefix_bits.py.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np

from ...base.errors import (
    BackendError,
    CancelledError,
    ClosedError,
    LamellaError,
    RequestError,
)
from ...base.log import get_logger
from ...model.batch import Batch
from ...model.context import Context
from ...model.guide import Mask, MaskComputer, Matcher, n_mask_bits
from ...model.kv_sequence import KVSequence
from ...model.outputs import Row, Rows
from ...model.page_store import PageStore
from ...model.sampling import (
    Logprobs,
    RowSampler,
    Sampled,
    model_logprobs,
    sampler_logprobs,
)
from ...model.vocab import Vocab
from . import policy
from .counters import Counters
from .job import StopType
from .pace import Pace
from .prefixes import Prefixes
from .pulse import Pulse
from .queue import JobQueue
from .shares import Owner
from .slots import SlotContent, Slots
from .steps import Steps
from .ticket import Ticket

T = TypeVar("T")

AWAITED_S: Final = 0.1  # the longest wait for a grammar or a file before the queue is asked again

log = get_logger("engine")


@dataclass(slots=True)
class BatchPlan:
    """The batch of one call of `Context.decode_rows`, and the jobs it is for.

    `masks` will compute the masks of `guided`, in this order. `used` counts the tokens of each
    owner, `n_prompt` those of prompts.
    """

    masks: MaskComputer
    batch: Batch = field(default_factory=Batch)
    prefilled: list[Ticket] = field(default_factory=list)
    outputs: list[Ticket] = field(default_factory=list)  # one per row of logits
    guided: list[Ticket] = field(default_factory=list)  # those of `outputs` with a grammar
    used: Counter[Owner] = field(default_factory=Counter)
    n_prompt: int = 0

    def add(self, ticket: Ticket, tokens: list[int], pos: int, *, wanted: bool) -> None:
        """Add tokens of a job, the first at `pos`. If `wanted`, sample the next token after
        them."""
        assert ticket.seq is not None
        mask = None
        if wanted:
            self.outputs.append(ticket)
            if ticket.matcher is not None:
                mask = self.masks.late(len(self.guided))
                self.guided.append(ticket)
        self.used[ticket.owner] += len(tokens)
        self.batch.add(tokens, ticket.seq, pos, int(wanted), ticket.n_top, mask, ticket.lora_scales)

    def tickets(self) -> Iterable[Ticket]:
        """All jobs with tokens in the batch, each once."""
        return dict.fromkeys((*self.outputs, *self.prefilled))


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
    ) -> None:
        self.counters = Counters()
        self.steps = Steps()
        self.running: list[Ticket] = []
        self.prefixes = Prefixes(context, store)
        self.slots = Slots(n_parallel)
        self.n_ctx = context.n_ctx_seq
        self._context = context
        self._vocab = vocab
        self._queue = queue
        self._n_parallel = n_parallel
        self._pulse = pulse
        self._pace = Pace(context.n_ubatch, max_itl)
        self._sampler = RowSampler(n_parallel, context.host_threads)
        self._masks = MaskComputer(n_mask_bits(vocab), n_parallel, inline=context.is_on_host)
        self._compiler = ThreadPoolExecutor(1, "lamella-grammar")
        self._compiling: tuple[Matcher, Future[bool]] | None = None  # the last
        self._in_flight: list[Ticket] = []  # jobs whose tokens the context may still compute

    def step(self) -> None:
        """Handle the queue, then decode one batch if there is one."""
        if self._queue.has_changes():
            self._drop_cancelled()
            self._run_calls()
            self._admit()
        begin, n_built = time.perf_counter(), self._context.n_graphs_built
        plan = self._plan_batch()
        if len(plan.batch):
            n_running = len(self.running)
            self._compute(plan)
            is_new_graph = self._context.n_graphs_built != n_built
            self.steps.add(
                begin,
                n_decoded=len(plan.batch) - plan.n_prompt,
                n_prompt=plan.n_prompt,
                n_outputs=len(plan.outputs),
                n_running=n_running,
                is_new_graph=is_new_graph,
            )
            # building a graph takes long, but once; work in flight is not over
            if not is_new_graph and not self._context.in_flight:
                ms = 1e3 * (time.perf_counter() - begin)
                self._pace.measured(len(plan.batch), len(plan.outputs), ms)

    def fail_all(self, error: Exception) -> None:
        """Fail all running jobs with an internal error."""
        self._fail(tuple(self.running), error)

    def make_room(self, n_tokens: int) -> None:
        """Preempt jobs until a new sequence of `n_tokens` fits, or no job is left."""
        pool = self._context.pool
        seq = pool.new_sequence()
        while self.running and not (
            seq.can_append(n_tokens) and pool.has_room(len(self.running) + 1)
        ):
            self._preempt(policy.victim(self.running))

    def drain(self) -> None:
        """Cancel all jobs and calls, and close the queue."""
        tickets, calls = self._queue.drain(self.running)
        for ticket in tickets:
            self._release(ticket)
            _report(ticket.sink.failed, CancelledError("the engine was closed"))
        for call in calls:
            call.future.set_exception(ClosedError("the engine is closed"))
        self._masks.close()
        self._compiler.shutdown(wait=False)
        self.prefixes.close()

    # --- the queue ---

    def _drop_cancelled(self) -> None:
        for ticket in self._queue.take_cancelled():
            self._release(ticket)
            _report(ticket.sink.failed, CancelledError("the request was cancelled"))

    def _run_calls(self) -> None:
        calls = self._queue.take_calls()
        if calls:
            self._synchronize()
        for call in calls:
            call.run()

    def _admit(self) -> None:
        """Start waiting jobs: clients take turns.

        A job takes all pages of its prompt at once, except in pools with windows: these have pages
        for every step of `n_parallel` jobs. Others leave if their places or pages are needed, see
        `policy.leaves_for`. A job whose grammar or prefix is not ready lets others go first.
        """
        size = self._context.pool.page_size
        skipped: set[Owner] = set()
        awaited = list[Future[Any]]()
        while (ticket := self._queue.first(skipped)) is not None:
            is_full = len(self.running) >= self._n_parallel
            other = policy.leaves_for(ticket, self.running)
            if (is_full and other is None) or len(skipped) > self._n_parallel:
                break
            later = [each for each in self._awaited(ticket) if each is not None]
            if later:
                awaited += later
                skipped.add(ticket.owner)
                continue
            found = self.prefixes.find(ticket)
            seq = found.seq
            fits = seq.can_append(len(ticket.tokens) + 1 - seq.length)
            waits = policy.must_wait(ticket, found.length, fits, self.running, size)
            if waits and fits:
                seq.free()
                skipped.add(ticket.owner)
                continue
            if waits or is_full:
                seq.free()
                if other is None:
                    break
                self._preempt(other)
                continue
            if self._in_flight and (seq.last_is_shared or found.restorable):
                seq.free()
                self._synchronize()  # it may write the page to be copied, or use those to be taken
                continue  # if it failed, the shared prefix is shorter now
            self._queue.start(ticket)
            self.running.append(ticket)
            now = time.perf_counter()
            if not ticket.t_start:
                self.counters.started(ticket, now)
            ticket.slot = self.slots.take(ticket.slot)
            ticket.enter(seq, found.length, now, self.n_ctx)
            if self.prefixes.tree.is_unsure(seq):
                self._in_flight.append(ticket)  # it fails if the work that computes them does
            self._guard(ticket, partial(self.prefixes.begin, ticket, found))
        if awaited and not policy.has_work(self.running):
            wait(awaited, AWAITED_S, FIRST_COMPLETED)

    def _awaited(self, ticket: Ticket) -> tuple[Future[Any] | None, Future[Any] | None]:
        """What a job waits for, while others go on: its grammar and the files of its prefix."""
        return self._grammar(ticket), self.prefixes.awaited(ticket)

    def _grammar(self, ticket: Ticket) -> Future[bool] | None:
        """The grammar of a job that is not compiled yet, or the one before it. A thread compiles
        it: a large grammar takes half a second."""
        matcher = ticket.matcher if ticket.lazy is None else ticket.lazy.matcher
        if matcher is None or matcher.is_compiled():
            return None
        last = self._compiling
        if last is None or (last[0] is not matcher and last[1].done()):
            last = self._compiling = matcher, self._compiler.submit(matcher.prepare)
        return None if last[0] is matcher and last[1].done() else last[1]

    # --- a step ---

    def _plan_batch(self) -> BatchPlan:
        plan = BatchPlan(self._masks)
        decoding = policy.decoding(self.running)
        for ticket in decoding:
            if ticket.seq is not None and not ticket.seq.advance():
                self._grow(ticket, ticket.seq)
        for ticket in decoding:
            if ticket.decoding:  # else it was preempted
                plan.add(ticket, ticket.tokens[-1:], len(ticket.tokens) - 1, wanted=True)
        if len(plan.outputs) < len(self.running):
            self._add_prompts(plan)
        self._queue.charge(plan.used)
        return plan

    def _add_prompts(self, plan: BatchPlan) -> None:
        n_prompt = self._pace.n_prompt_tokens(len(plan.batch))
        for ticket, n in policy.prompt_chunks(self.running, n_prompt):
            begin, end = ticket.n_done, ticket.n_done + n
            wanted = policy.wants_output(ticket, end)
            plan.add(ticket, ticket.tokens[begin:end], begin, wanted=wanted)
            ticket.n_done = end
            plan.prefilled.append(ticket)
            plan.n_prompt += n

    def _grow(self, ticket: Ticket, seq: KVSequence) -> None:
        """Get a page for the next position, or preempt the job itself."""
        while not seq.can_append(1):
            other = policy.victim(self.running)
            self._preempt(other)
            if other is ticket:
                return
        self._context.append(seq, 1)

    def _preempt(self, ticket: Ticket) -> None:
        """Preempt a job: free its pages and let it wait, in front of the others of its request."""
        if ticket in self._in_flight:
            self._synchronize()
        if ticket.seq is not None:  # else it has just failed, in _synchronize
            self.running.remove(ticket)
            self.slots.leave(ticket.slot)
            self._share_prefix(ticket, ended=True)
            ticket.leave()
            self._queue.put_back(ticket)

    def _shift(self, ticket: Ticket) -> None:
        """Let a job whose context is full go on without its oldest tokens, as if the others were
        its prompt: it shares the kept prefix, and evaluates what follows at its new positions."""
        self._preempt(ticket)
        bos = self._vocab.bos
        ticket.shift(policy.shifted(ticket.tokens, ticket.n_prompt, ticket.params, bos))

    def _compute(self, plan: BatchPlan) -> None:
        self._in_flight = list(dict.fromkeys((*self._in_flight, *plan.tickets())))
        self._masks.begin([each.matcher for each in plan.guided if each.matcher is not None])
        try:
            rows = self._context.decode_rows(plan.batch)
        except Exception as e:
            self._masks.take()
            self._fail_in_flight(e)
            return
        masks = dict(zip(plan.guided, self._masks.take(), strict=True))
        self.counters.n_masks += len(masks)
        self.counters.mask_s, self.counters.mask_wait_s = self._masks.seconds, self._masks.waited
        # jobs with outputs have no tokens in flight any more
        in_flight = self._context.in_flight
        self._in_flight = [t for t in self._in_flight if in_flight and t not in plan.outputs]
        self.counters.stepped(len(self.running))
        for ticket in plan.prefilled:
            self._share_prefix(ticket, ended=False)  # later jobs can share these tokens now
        if not in_flight:
            self._pulse.computed()
            self.prefixes.tree.confirm()
        for ticket in plan.prefilled:
            self._prefilled(ticket)
        tokens = self._sample(plan, rows, masks)
        for ticket, row, token in zip(plan.outputs, rows, tokens, strict=True):
            if not ticket.settled:
                try:
                    stop = self._next_token(ticket, row, token, masks.get(ticket))
                except Exception as e:  # of this job only
                    self._fail((ticket,), e)
                    continue
                if stop is not None:
                    self._finish(ticket, stop)

    def _prefilled(self, ticket: Ticket) -> None:
        """Report a prompt's progress. End a job that requests no tokens."""
        if ticket.n_predicted > 0 or ticket.settled:
            return
        n_cached = min(ticket.n_cached, ticket.n_done)  # less is possible after a preemption
        report = partial(ticket.sink.progress, ticket.n_done, ticket.n_prompt, n_cached)
        self._guard(ticket, report)
        if ticket.n_done == ticket.n_prompt and ticket.params.n_predict == 0:
            self._synchronize()
            if not ticket.settled:
                self._begin_predicting(ticket)
                self._finish(ticket, StopType.LIMIT)

    def _sample(
        self, plan: BatchPlan, rows: Rows, masks: Mapping[Ticket, Mask]
    ) -> Sequence[Sampled]:
        """Sample the tokens of all outputs."""
        now = time.perf_counter()
        for ticket in plan.outputs:
            if ticket.t_first == 0:
                ticket.t_first = now
                self.counters.prompt_done(ticket)
            else:
                self.counters.token_seconds.add(now - ticket.t_last)
            ticket.t_last = now
        samplers = [ticket.sampler for ticket in plan.outputs]
        each = [masks.get(ticket) for ticket in plan.outputs] if masks else None
        return self._sampler.sample(samplers, rows, each)

    def _next_token(
        self, ticket: Ticket, row: Row, sampled: Sampled, mask: Mask | None
    ) -> StopType | None:
        """Pass a sampled token to the sink. Return why the job ends, None if it goes on."""
        sampler, matcher = ticket.sampler, ticket.matcher
        if matcher is not None:
            matcher.check()  # a failed one has a mask of no meaning
        if isinstance(sampled, Exception):
            if isinstance(sampled, RequestError) and matcher is not None and matcher.is_complete:
                return StopType.EOS  # ignore_eos or a bias bans the end token, and all others
            if isinstance(sampled, BackendError) and ticket.lora_scales is not None:
                raise RequestError(f"lora: these scales are too large: {sampled}") from sampled
            raise sampled
        token = sampled
        if ticket.thinking is not None:
            token = ticket.thinking.next(token, mask)
        if sampler.remembers:
            sampler.accept(token)
        ticket.tokens.append(token)
        ticket.decoding = True
        is_end = token in self._vocab.eog and not ticket.params.ignore_eos
        if is_end and not ticket.params.special:
            return StopType.EOS
        if matcher is not None and not is_end:
            matcher.accept(token)
        elif ticket.lazy is not None and not is_end and ticket.lazy.push(token):
            matcher = ticket.matcher = ticket.lazy.matcher
            ticket.lazy = None
        logprobs = _logprobs(ticket, row, token) if ticket.n_probs else None
        if not ticket.sink.token(token, logprobs):
            return StopType.WORD
        if is_end or (matcher is not None and matcher.is_finished):
            return StopType.EOS
        late = ticket.params.t_max_predict_ms > 0 and self._is_late(ticket, token)
        if late or len(ticket.tokens) >= ticket.n_most:
            n_predict = policy.n_predict_of(ticket.params, self.n_ctx)
            limit, is_full = policy.limit_of(
                ticket.n_predicted, n_predict, len(ticket.tokens), self.n_ctx, late
            )
            if is_full and ticket.params.context_shift:
                self._shift(ticket)
                return None
            ticket.truncated |= is_full
            return limit
        return None

    def _begin_predicting(self, ticket: Ticket) -> None:
        ticket.t_first = time.perf_counter()
        self.counters.prompt_done(ticket)

    def _is_late(self, ticket: Ticket, token: int) -> bool:
        ticket.has_new_line = ticket.has_new_line or b"\n" in self._vocab.piece(token)
        elapsed_ms = 1e3 * (time.perf_counter() - ticket.t_first)
        return policy.is_late(ticket.params.t_max_predict_ms, elapsed_ms, ticket.has_new_line)

    # --- work in flight ---

    def _synchronize(self) -> None:
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
        self.prefixes.tree.discard()
        lost, self._in_flight = self._in_flight, []
        self._fail(lost, error)

    # --- ends ---

    def _finish(self, ticket: Ticket, stop_type: StopType) -> None:
        if self._queue.settle(ticket):
            ticket.t_end = time.perf_counter()
            result = ticket.result(stop_type)
            self._release(ticket)
            _report(ticket.sink.finished, result)

    def _fail(self, tickets: Iterable[Ticket], error: Exception) -> None:
        self._pulse.failed(error)
        reported = _as_lamella_error(error)
        # of an error that the request causes, the place in the code says nothing
        cause = None if isinstance(reported, RequestError) else error
        log.error("a generation failed: %s", reported, exc_info=cause)
        for ticket in tickets:
            ticket.is_sound = False
            if self._queue.settle(ticket):
                self._release(ticket)
                _report(ticket.sink.failed, reported)

    def _guard(self, ticket: Ticket, call: Callable[[], T]) -> T | None:
        """The result of a call for one job. If it raises, only that job fails."""
        try:
            return call()
        except Exception as e:
            self._fail((ticket,), e)
            return None

    def _release(self, ticket: Ticket) -> None:
        """Remove a job from the running jobs and free its pages."""
        if ticket in self._in_flight:
            self._synchronize()
        self.counters.ended(ticket)
        if ticket.matcher is not None:
            ticket.matcher.close()
        if ticket.lazy is not None:
            ticket.lazy.matcher.close()
        if ticket.seq is not None:
            self.running.remove(ticket)
            tokens = ticket.tokens[: ticket.n_evaluated]
            self.slots.end(ticket.running, SlotContent(tokens, ticket.identity))
            self._queue.end(ticket)
            self._share_prefix(ticket, ended=True)
            ticket.leave()

    def _share_prefix(self, ticket: Ticket, *, ended: bool) -> None:
        """Let later jobs share a job's evaluated tokens, until their pages are needed."""
        if ticket.seq is not None and ticket.is_sound and ticket.params.cache_prompt:
            ticket.shared = self.prefixes.tree.insert(
                ticket.tokens[: ticket.n_evaluated],
                ticket.seq,
                ended=ended,
                after=ticket.shared,
                in_flight=ticket in self._in_flight,
                identity=ticket.identity,
            )


def _logprobs(ticket: Ticket, row: Row, token: int) -> Logprobs:
    if ticket.post_sampling_probs:
        return sampler_logprobs(ticket.sampler, token, ticket.n_probs)
    assert isinstance(row, np.ndarray), "all logits are needed"
    return model_logprobs(row, token, ticket.n_probs)


def _as_lamella_error(error: Exception) -> LamellaError:
    if isinstance(error, LamellaError):
        return error
    wrapped = BackendError(f"the generation failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _report(callback: Callable[[T], None], end: T) -> None:
    """Report a job's end to its sink. The job has ended already, so an error is only logged."""
    try:
        callback(end)
    except Exception:
        log.exception("a sink raised")
