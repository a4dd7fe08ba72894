"""The engine: many generations at once, one batch per step, on a thread of its own.

A step drops what was cancelled, admits waiting jobs, and decodes one batch: a token of every
decoding sequence, then chunks of prompts up to `n_ubatch` tokens, so that no step takes longer than
one ubatch. What a sequence begins with and the pool still holds is not computed again. When the
pool is full the youngest sequence is preempted: it waits in front of all others until it fits as a
whole, and goes on to the same bits. The oldest always goes on.

Knows token ids only: no text, no HTTP. No fault of one job ends the thread or another job.
Tests: tests/runtime/test_engine.py, test_engine_limits.py, test_engine_faults.py,
test_engine_stress.py, test_engine_pipeline.py, test_engine_prefix.py, test_prefix_bits.py.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from ...base.errors import (
    BackendError,
    CancelledError,
    ClosedError,
    ContextSizeError,
    LamellaError,
    OverloadedError,
    RequestError,
)
from ...base.log import get_logger
from ...model.batch import Batch
from ...model.context import Context
from ...model.kv_pages import KVSequence
from ...model.kv_prefix import PrefixTree
from ...model.outputs import Row
from ...model.sampling import Sampler, SamplingParams
from ...model.vocab import Vocab
from .counters import Counters
from .job import Job, StopType
from .ticket import Ticket

CLOSE_TIMEOUT_S = 30.0  # for the step that is running when the engine is closed

T = TypeVar("T")

logger = get_logger("server")


@dataclass(slots=True)
class Step:
    """What one call of `Context.decode_rows` computes, and for whom."""

    batch: Batch = field(default_factory=Batch)
    prefilled: list[Ticket] = field(default_factory=list)
    outputs: list[Ticket] = field(default_factory=list)  # one per row of logits

    def add(self, ticket: Ticket, tokens: list[int], pos: int, *, wanted: bool) -> None:
        """Tokens of a ticket, the first at `pos`; `wanted`: the next one is sampled after them."""
        assert ticket.seq is not None
        self.batch.add(tokens, ticket.seq, pos, int(wanted), ticket.n_top)
        if wanted:
            self.outputs.append(ticket)

    def tickets(self) -> Iterable[Ticket]:
        """All who have a token in the batch, each once."""
        return dict.fromkeys((*self.outputs, *self.prefilled))


class Engine:
    """Runs jobs on a context: at most `n_parallel` at a time, first come first served.

    The context and its pool belong to the engine's thread from `start` to the end of `close`.
    """

    def __init__(
        self, context: Context, vocab: Vocab, *, n_parallel: int = 4, max_waiting: int = 512
    ) -> None:
        """Raises RequestError: more parallel sequences than the context was made for."""
        if not 1 <= n_parallel <= context.n_seq_max:
            raise RequestError(f"n_parallel {n_parallel}: must be 1 to {context.n_seq_max}")
        if max_waiting < 1:
            raise RequestError(f"max_waiting {max_waiting}: must be at least 1")
        pool = context.pool
        self.context = context
        self.vocab = vocab
        self.n_parallel = n_parallel
        self.max_waiting = max_waiting
        self.counters = Counters()
        self._prefixes = PrefixTree(pool)  # the thread's own
        # a sequence alone always finds the pages for that many tokens
        self.n_ctx = min(context.n_ctx, pool.n_pages * pool.page_size)
        self._running: list[Ticket] = []  # oldest first; the thread's own
        self._in_flight: list[Ticket] = []  # whose tokens the context may still be computing
        # guarded by _changed, as `settled` of every ticket; only the thread takes anything out
        self._changed = threading.Condition()
        self._waiting: deque[Ticket] = deque()
        self._cancelled: list[Ticket] = []
        self._calls: list[tuple[Callable[[], None], Future[Any]]] = []
        self._closed = False
        self._thread: threading.Thread | None = None
        self._ended = False
        self._at_end: list[Callable[[], None]] = []

    @property
    def n_running(self) -> int:
        """Jobs that have a place."""
        return len(self._running)

    @property
    def n_waiting(self) -> int:
        """Jobs that wait for a place, or for pages."""
        return len(self._waiting)

    # --- called from any thread ---

    def start(self) -> None:
        """Start the thread; jobs may have been submitted before.

        Raises:
            ClosedError: the engine was closed.
        """
        with self._changed:
            if self._closed:
                raise ClosedError("the engine is closed and cannot be started")
            assert self._thread is None, "the engine was started twice"
            self._thread = threading.Thread(target=self._run, name="lamella-engine", daemon=True)
            self._thread.start()

    def submit(self, job: Job) -> Ticket:
        """Queue a job. The cost of a long prompt's samplers is paid here, not by the thread.

        Raises:
            RequestError: an empty prompt, a token that is none, a negative number of tokens.
            ContextSizeError: the prompt leaves no room for a token.
            OverloadedError: `max_waiting` jobs are waiting already.
            ClosedError: the engine is closed.
        """
        self._check(job)
        self._check_room()
        sampler = Sampler(self._sampling(job), self.vocab)
        for token in job.prompt:
            sampler.accept(token)
        ticket = Ticket(job, sampler)
        with self._changed:
            self._check_room()
            self._waiting.append(ticket)
            self._changed.notify()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """End a job early: its sink gets CancelledError, its place is free within one step.

        A job that has ended, or was cancelled, is left as it is.
        """
        with self._changed:
            if ticket.settled:
                return
            ticket.settled = True
            self._cancelled.append(ticket)  # the thread is awake: it waits or runs

    def call(self, work: Callable[[Context], T], *, n_tokens: int = 0) -> T:
        """What `work` makes of the context, between two steps, on the engine's thread; waits.

        For the `n_tokens` that `work` puts into the pool the youngest jobs give up their pages.

        Raises:
            ClosedError: the engine is closed, or was before it came to that.
            Exception: what `work` raises.
        """
        assert threading.current_thread() is not self._thread, "the engine would wait for itself"
        future: Future[T] = Future()

        def run() -> None:
            try:
                self._make_room(n_tokens)
                future.set_result(work(self.context))
            except Exception as e:
                future.set_exception(e)

        with self._changed:
            if self._closed:
                raise ClosedError("the engine is closed")
            self._calls.append((run, future))
            self._changed.notify()
        return future.result()

    def close(self) -> None:
        """Cancel everything and stop the thread, waiting for the step that runs. Twice is fine."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is None:
            self._drain()
        elif thread is not threading.current_thread():
            thread.join(CLOSE_TIMEOUT_S)
            if thread.is_alive():
                logger.error("the engine's step did not end within %g s", CLOSE_TIMEOUT_S)

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call something once no step can run any more: now, or at the end of a step that `close`
        could not wait for, on the engine's thread."""
        with self._changed:
            thread = self._thread
            runs = thread is not None and thread.is_alive() and not self._ended
            if runs:
                self._at_end.append(callback)
        if not runs:
            callback()

    def _check(self, job: Job) -> None:
        n_prompt, n_tokens = len(job.prompt), self.vocab.n_tokens
        if n_prompt == 0:
            raise RequestError("the prompt is empty: it must have at least 1 token")
        for token in (min(job.prompt), max(job.prompt)):
            if not 0 <= token < n_tokens:
                raise RequestError(f"token {token} of the prompt: must be 0 to {n_tokens - 1}")
        if job.n_predict < -1:
            raise RequestError(f"n_predict {job.n_predict}: must be -1 (no limit) or more")
        if n_prompt >= self.n_ctx:
            raise ContextSizeError(n_prompt, self.n_ctx)

    def _check_room(self) -> None:
        if self._closed:
            raise ClosedError("the engine is closed")
        if self._thread is not None and not self._thread.is_alive():
            raise ClosedError("the engine's thread is not in this process: it was forked")
        if len(self._waiting) >= self.max_waiting:
            raise OverloadedError(f"{len(self._waiting)} requests are waiting, no more may")

    def _sampling(self, job: Job) -> SamplingParams:
        if not job.ignore_eos:
            return job.sampling
        never = tuple((token, -math.inf) for token in sorted(self.vocab.eog))
        return replace(job.sampling, logit_bias=job.sampling.logit_bias + never)

    # --- the thread ---

    def _run(self) -> None:
        try:
            while self._has_work():
                try:
                    self._step()
                except Exception as e:  # a fault of ours: whoever it hit fails, the engine goes on
                    self._fail(tuple(self._running), e)
        finally:
            self._drain()
            with self._changed:
                self._ended = True
            for callback in self._at_end:
                callback()

    def _has_work(self) -> bool:
        """Wait until there is something to do; False if the engine was closed."""
        if not self._running:
            with self._changed:
                while not (self._waiting or self._calls or self._closed):
                    self._changed.wait()
        return not self._closed

    def _step(self) -> None:
        if self._cancelled:
            self._drop_cancelled()
        if self._calls:
            self._answer_calls()
        if self._waiting:
            self._admit()
        step = Step()
        self._add_decoding(step)
        self._add_prompts(step)
        if len(step.batch) == 0:
            return
        self._in_flight = list(dict.fromkeys((*self._in_flight, *step.tickets())))
        try:
            rows = self.context.decode_rows(step.batch)
        except Exception as e:
            self._lose(e)
            return
        # whoever has an output is done
        flies = self.context.in_flight
        self._in_flight = [t for t in self._in_flight if flies and t not in step.outputs]
        self.counters.stepped(len(self._running))
        for ticket in step.prefilled:
            self._prefilled(ticket)
        for ticket, row in zip(step.outputs, rows, strict=True):
            self._decoded(ticket, row)

    def _land(self) -> None:
        """Wait for what the context computes, before one of those leaves who have tokens there, or
        somebody comes who waits for it: an error of it is theirs, not that of who comes."""
        if self._in_flight:
            try:
                self.context.synchronize()
                self._in_flight = []
            except Exception as e:
                self._lose(e)

    def _lose(self, error: Exception) -> None:
        """Fail all whose tokens were being computed: nobody knows which of them were."""
        lost, self._in_flight = self._in_flight, []
        self._fail(lost, error)

    def _answer_calls(self) -> None:
        self._land()
        with self._changed:
            calls, self._calls = self._calls, []
        for run, _ in calls:
            run()

    def _admit(self) -> None:
        """Give places to those in front of the queue, as long as their tokens and one more fit.

        All pages of a prompt are taken at once: one that is under way never waits for pages.
        """
        while self._waiting and len(self._running) < self.n_parallel:
            ticket = self._waiting[0]
            seq = self._known_prefix(ticket)
            if self._running and (
                not seq.can_append(len(ticket.tokens) + 1 - seq.length)
                or self._is_evaluated_now(ticket, seq.length)
            ):
                seq.free()
                return
            with self._changed:
                self._waiting.popleft()
            if seq.last_is_shared:
                self._land()  # its cells are copied, behind what is in flight
            self._running.append(ticket)
            ticket.enter(seq, time.perf_counter())
            self._guard(ticket, partial(self.context.append, seq, len(ticket.tokens) - seq.length))

    def _known_prefix(self, ticket: Ticket) -> KVSequence:
        """A sequence with what the pool holds of a ticket's tokens, but for the last: its logits
        are wanted."""
        if not ticket.job.cache_prompt:
            return self.context.pool.new_sequence()
        tokens = ticket.tokens
        seq = self._prefixes.find(tokens[:-1])
        if not seq.can_append(len(tokens) + 1 - seq.length):
            # the page that is shared in part costs one more, until it is copied
            seq.truncate(seq.length - seq.length % seq.pool.page_size)
        return seq

    def _is_evaluated_now(self, ticket: Ticket, n_known: int) -> bool:
        """Whether a running job is at the next page of a ticket's tokens, or comes to it: to wait
        for it costs a step at most, as prompts are evaluated one after the other."""
        size = self.context.pool.page_size
        end = (n_known // size + 1) * size
        return ticket.job.cache_prompt and any(
            not other.decoding
            and other.job.cache_prompt
            and len(other.tokens) >= end < len(ticket.tokens)
            and other.tokens[:end] == ticket.tokens[:end]
            for other in self._running
        )

    def _remember(self, ticket: Ticket, *, ended: bool) -> None:
        """Keep what was evaluated of a ticket, as long as nobody needs its pages."""
        if ticket.seq is not None and ticket.is_sound and ticket.job.cache_prompt:
            tokens = ticket.tokens[: ticket.n_evaluated]
            self._prefixes.insert(tokens, ticket.seq, ended=ended)

    def _add_decoding(self, step: Step) -> None:
        for ticket in tuple(self._running):  # making room shortens the list, from its young end
            if ticket.decoding and self._grow(ticket):
                tokens = ticket.tokens
                step.add(ticket, tokens[-1:], len(tokens) - 1, wanted=True)

    def _grow(self, ticket: Ticket) -> bool:
        """Reserve the next position, at the cost of the youngest; False if that was itself."""
        seq = ticket.seq
        assert seq is not None
        while not seq.can_append(1):
            youngest = self._running[-1]
            self._preempt(youngest)
            if youngest is ticket:
                return False
        self.context.append(seq, 1)
        return True

    def _make_room(self, n_tokens: int) -> None:
        """See that a new sequence of so many tokens finds its pages, if the pool has as many."""
        seq = self.context.pool.new_sequence()
        while self._running and not seq.can_append(n_tokens):
            self._preempt(self._running[-1])

    def _preempt(self, ticket: Ticket) -> None:
        if ticket in self._in_flight:
            self._land()
        if ticket.seq is not None:  # else it has just failed
            self._running.remove(ticket)
            self._remember(ticket, ended=True)
            ticket.leave()
            with self._changed:
                self._waiting.appendleft(ticket)

    def _add_prompts(self, step: Step) -> None:
        budget = max(self.context.n_ubatch - len(step.batch), 1)  # at least one: prompts go on
        for ticket in self._running:
            if budget == 0:
                return
            if not ticket.decoding and not ticket.settled:  # settled: may have got no pages
                budget -= self._add_chunk(step, ticket, budget)

    def _add_chunk(self, step: Step, ticket: Ticket, n_max: int) -> int:
        tokens, begin = ticket.tokens, ticket.n_done
        end = min(begin + n_max, len(tokens))
        wanted = end == len(tokens) and ticket.job.n_predict != 0
        step.add(ticket, tokens[begin:end], begin, wanted=wanted)
        ticket.n_done = end
        step.prefilled.append(ticket)
        return end - begin

    def _prefilled(self, ticket: Ticket) -> None:
        job = ticket.job
        if ticket.n_predicted == 0 and not ticket.settled:
            n_prompt = len(job.prompt)
            n_cached = min(ticket.n_cached, ticket.n_done)  # preempted, it may have less
            progress = partial(job.sink.progress, ticket.n_done, n_prompt, n_cached)
            self._guard(ticket, progress)
            if ticket.n_done == n_prompt and job.n_predict == 0:
                self._land()
                if not ticket.settled:
                    self._begin_predicting(ticket)
                    self._finish(ticket, StopType.LIMIT)

    def _decoded(self, ticket: Ticket, logits: Row) -> None:
        if not ticket.settled:
            stop = self._guard(ticket, partial(self._next_token, ticket, logits))
            if stop is not None:
                self._finish(ticket, stop)

    def _next_token(self, ticket: Ticket, logits: Row) -> StopType | None:
        """Sample, tell the sink, and say whether that was the end."""
        sampler, job = ticket.sampler, ticket.job
        token = sampler.sample(logits)
        sampler.accept(token)
        if ticket.n_predicted == 0:
            self._begin_predicting(ticket)
        if not ticket.decoding:
            self._remember(ticket, ended=False)  # for those who come before this one has ended
        ticket.tokens.append(token)
        ticket.decoding = True
        if token in self.vocab.eog and not job.ignore_eos:
            return StopType.EOS
        if not job.sink.token(token, logits, sampler):
            return StopType.WORD
        if ticket.n_predicted == job.n_predict or self._is_late(ticket, token):
            return StopType.LIMIT
        if len(ticket.tokens) >= self.n_ctx:
            ticket.truncated = True
            return StopType.LIMIT
        return None

    def _begin_predicting(self, ticket: Ticket) -> None:
        ticket.t_first = time.perf_counter()
        self.counters.prompt_done(ticket)

    def _is_late(self, ticket: Ticket, token: int) -> bool:
        """llama-server's rule for t_max_predict_ms: a generation has a line before time is up."""
        t_max = ticket.job.t_max_predict_ms
        if t_max <= 0:
            return False
        ticket.has_new_line = ticket.has_new_line or b"\n" in self.vocab.piece(token)
        return ticket.has_new_line and 1e3 * (time.perf_counter() - ticket.t_first) >= t_max

    # --- ends ---

    def _finish(self, ticket: Ticket, stop_type: StopType) -> None:
        if self._settle(ticket):
            ticket.t_end = time.perf_counter()
            self._release(ticket)
            _tell(ticket.job.sink.finished, ticket.result(stop_type))

    def _fail(self, tickets: Iterable[Ticket], error: Exception) -> None:
        known = _known(error)
        logger.error("a generation failed: %s", known, exc_info=error)
        for ticket in tickets:
            ticket.is_sound = False
            if self._settle(ticket):
                self._release(ticket)
                _tell(ticket.job.sink.failed, known)

    def _guard(self, ticket: Ticket, call: Callable[[], T]) -> T | None:
        """The result of something that concerns one job; if it raises, that job alone fails."""
        try:
            return call()
        except Exception as e:
            self._fail((ticket,), e)
            return None

    def _settle(self, ticket: Ticket) -> bool:
        """Whether how the ticket ends was still open; it is not any more."""
        with self._changed:
            was_open, ticket.settled = not ticket.settled, True
        return was_open

    def _release(self, ticket: Ticket) -> None:
        if ticket in self._in_flight:
            self._land()
        self.counters.ended(ticket)
        if ticket.seq is not None:
            self._running.remove(ticket)
            self._remember(ticket, ended=True)
            ticket.leave()

    def _drop_cancelled(self) -> None:
        with self._changed:
            cancelled, self._cancelled = self._cancelled, []
            for ticket in cancelled:
                if ticket.seq is None:
                    self._waiting.remove(ticket)
        for ticket in cancelled:
            self._release(ticket)
            _tell(ticket.job.sink.failed, CancelledError("the request was cancelled"))

    def _drain(self) -> None:
        """Cancel all there is; nothing comes in any more."""
        with self._changed:
            self._closed = True
            # who was cancelled is among them still: nobody here has been told of an end
            tickets = [*self._running, *self._waiting]
            self._waiting.clear()
            calls, self._calls = self._calls, []
            for ticket in tickets:
                ticket.settled = True
        for ticket in tickets:
            self._release(ticket)
            _tell(ticket.job.sink.failed, CancelledError("the engine was closed"))
        for _, future in calls:
            future.set_exception(ClosedError("the engine is closed"))


def _known(error: Exception) -> LamellaError:
    if isinstance(error, LamellaError):
        return error
    known = BackendError(f"the generation failed: {type(error).__name__}: {error}")
    known.__cause__ = error
    return known


def _tell(callback: Callable[[T], None], news: T) -> None:
    """Tell a sink its end; what it raises is its own fault, and too late to matter."""
    try:
        callback(news)
    except Exception:
        logger.exception("a sink raised")
