"""The engine: many generations at once, one batch per step, on a thread of its own.

A batch has one token of every decoding sequence, then chunks of prompts: at most `n_ubatch` tokens
together, and so few that decoding sequences do not wait long (`pace.py`). Shared prefixes that the
pool still holds are not computed again. When the pool is full, a young sequence is preempted:
it waits until it fits as a whole, and continues with the same bits. The oldest always makes
progress. Clients take turns (`shares.py`): none waits for all jobs of another.

`policy.py` decides, `runner.py` acts, `queue.py` receives jobs. Knows token ids only.
Tested by tests/runtime/test_engine*.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Final, TypeVar

from ...base.errors import ClosedError, ContextSizeError, RequestError
from ...model.adapters import Adapters
from ...model.batch import F32Array
from ...model.context import Context
from ...model.guide import Compiler, LazyMatcher, Matcher
from ...model.page_store import PageStore
from ...model.sampling import Sampler, SamplingParams
from ...model.vocab import Vocab
from ..params import EngineParams
from ..speculative_params import SpecType
from .counters import Counters
from .drafts.drafter import Drafter
from .job import Job
from .prefixes import Prefixes
from .pulse import Pulse
from .queue import Call, JobQueue
from .reports import Observers
from .runner import Runner
from .slots import Slots
from .steps import Steps
from .thinking import ThinkingTracker
from .ticket import RunningJob, Ticket
from .worker import Worker

T = TypeVar("T")

# what requests for the guesses of a model need
MODELS: Final = {
    SpecType.DRAFT_SIMPLE: "a draft model: start with -md MODEL",
    SpecType.DRAFT_MTP: "the block of the model's file: start with --mtp",
}


class Engine:
    """Runs jobs on a context: at most `n_parallel` at a time; clients take turns.

    The context and its pool belong to the engine's thread from `start` to the end of `close`. The
    other methods may be called from any thread.
    """

    def __init__(
        self,
        context: Context,
        vocab: Vocab,
        *,
        n_parallel: int,
        params: EngineParams,
        compiler: Compiler | None = None,
        adapters: Adapters | None = None,
        store: PageStore | None = None,
        draft_model: Drafter | None = None,
    ) -> None:
        """`compiler`: of grammars; None: a new one. `adapters`: those of the context's model.
        `store`: of pages that leave the pool; None: they are lost. `draft_model`: guesses tokens.
        Raises RequestError: `n_parallel` is out of range."""
        if not 1 <= n_parallel <= context.n_seq_max:
            raise RequestError(f"n_parallel {n_parallel}: must be 1 to {context.n_seq_max}")
        self.context = context
        self.vocab = vocab
        self.n_parallel = n_parallel
        self._queue = JobQueue(params.max_waiting, params.max_client_waiting)
        self.compiler = compiler or Compiler(vocab)
        self._adapters = adapters or Adapters()
        self._store = store
        self.draft_model = draft_model
        self._worker = Worker("lamella-engine", self._run)
        self._observers = Observers()
        self._runner = Runner(
            *(context, vocab, self._queue, n_parallel, params.max_itl, self._worker.pulse),
            store=store,
            spelling=lambda: self.compiler.spelling,
            draft_model=draft_model,
            when_told=self._observers.tell,
        )

    @property
    def n_ctx(self) -> int:
        """The most tokens that one job may use."""
        return self._runner.n_ctx

    @property
    def counters(self) -> Counters:
        """Counters since the start."""
        return self._runner.counters

    @property
    def slots(self) -> Slots:
        """The slots of running jobs. Other threads may read `last` and `ended`."""
        return self._runner.slots

    @property
    def prefixes(self) -> Prefixes:
        """The prefixes in the pool. Only for the work of `call`."""
        return self._runner.prefixes

    @property
    def store(self) -> PageStore | None:
        """The pages that left the pool; None: they are lost. Other threads may read its sizes."""
        return self._store

    @property
    def steps(self) -> Steps:
        """The last steps."""
        return self._runner.steps

    @property
    def n_running(self) -> int:
        """Number of running jobs."""
        return len(self._runner.running)

    @property
    def running(self) -> list[RunningJob]:
        """What each running job does, the oldest first. Does not wait for the engine."""
        return [ticket.running for ticket in tuple(self._runner.running)]

    @property
    def n_waiting(self) -> int:
        """Number of jobs that wait for their turn, or for pages."""
        return len(self._queue)

    @property
    def pulse(self) -> Pulse:
        """What the steps show: they go on, hang or fail."""
        return self._worker.pulse

    @property
    def closed(self) -> bool:
        return self._queue.closed

    def start(self) -> None:
        """Start the thread. Jobs may be submitted before.

        Raises:
            ClosedError: the engine was closed.
        """
        self._worker.start()

    def submit(self, job: Job) -> Ticket:
        """Queue a job and return its ticket. The sampler is made here, on the caller's thread, and
        the grammar is compiled here.

        Raises:
            RequestError: an empty prompt, an invalid token.
            GrammarError: the grammar is invalid, too large or cannot be enforced.
            ContextSizeError: the prompt leaves no room for a token.
            ClientLimitError: `max_client_waiting` jobs of the client are already waiting.
            OverloadedError: `max_waiting` jobs are already waiting.
            ClosedError: the engine is closed.
        """
        self._check(job)
        self.check_room(job.owner.client)
        sampler = self._sampler(job)
        for token in job.prompt:
            sampler.accept(token)
        scales = self._lora_scales(job)
        matcher, lazy = self._matcher(job), None
        if matcher is not None and job.triggers is not None:
            lazy = LazyMatcher(matcher, job.triggers, self.vocab, self.compiler.spelling)
            matcher = None
        ticket = Ticket(job, sampler, matcher, self._thinking(job), scales)
        ticket.lazy = lazy
        self._queue.put(ticket)
        return ticket

    def check_room(self, client: str, n_jobs: int = 1) -> None:
        """Check that `submit` would take so many jobs of a client now.

        Raises:
            RequestError: it never would.
            ClientLimitError, OverloadedError, ClosedError: it would not now.
        """
        if not self.closed and self._worker.is_lost:
            raise ClosedError("the process was forked: the engine's thread is not in the child")
        self._queue.check_room(client, n_jobs)

    def cancel(self, ticket: Ticket) -> None:
        """End a job early: its sink gets CancelledError, and its pages are free within one step.

        Does nothing if the job has ended or is already cancelled.
        """
        self._queue.cancel(ticket)

    def pause(self, ticket: Ticket) -> None:
        """Give a job no more tokens until `resume`: at most two more come.

        A paused job keeps its pages and its place until another job needs them.
        """
        self._queue.pause(ticket)

    def resume(self, ticket: Ticket) -> None:
        """End the pause of a job. Does nothing if it is not paused."""
        self._queue.resume(ticket)

    def end_thinking(self, ticket: Ticket) -> bool:
        """End the reasoning of a job at its next token. Return False if the job has ended or its
        reasoning is over."""
        thinking = ticket.thinking
        if thinking is None or ticket.settled or thinking.is_over:
            return False
        thinking.end()
        return True

    def call(self, work: Callable[[Context], T], *, n_tokens: int = 0) -> T:
        """Return `work(context)`, called between two steps on the engine's thread.

        The youngest jobs are preempted until the pool has pages for `n_tokens` tokens of `work`.

        Raises:
            ClosedError: the engine is closed, or was closed before the call.
            Exception: any exception of `work`.
        """
        assert not self._worker.is_current, "the engine would wait for itself"
        future: Future[T] = Future()

        def run() -> None:
            try:
                self._runner.make_room(n_tokens)
                future.set_result(work(self.context))
            except Exception as e:
                future.set_exception(e)

        self._queue.put_call(Call(run, future))
        return future.result()

    def close(self) -> None:
        """Cancel all jobs, and stop the thread after the running step. May be called twice."""
        self._worker.end(self._queue.close, self._drain)

    def when_stepped(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the engine's thread when sinks have news: after each step, and after
        the tokens that they get while the next step computes. An error of it is only logged."""
        self._observers.add(callback)

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call `callback` when no step can run any more: now, or on the engine's thread after its
        last step."""
        self._worker.when_ended(callback)

    def _check(self, job: Job) -> None:
        n_prompt, n_tokens = len(job.prompt), self.vocab.n_tokens
        if n_prompt == 0:
            raise RequestError("the prompt is empty: it must have at least 1 token")
        for name, tokens in (("prompt", job.prompt), ("text that was sent", job.sent)):
            for token in (min(tokens, default=0), max(tokens, default=0)):
                if not 0 <= token < n_tokens:
                    raise RequestError(f"token {token} of the {name}: must be 0 to {n_tokens - 1}")
        own = None if self.draft_model is None else self.draft_model.spec_type
        for wanted, instead in MODELS.items():
            if wanted in job.params.speculative.spec_type and own is not wanted:
                raise RequestError(f"spec_type: {wanted} needs {instead}")
        if n_prompt >= self.n_ctx:
            raise ContextSizeError(n_prompt, self.n_ctx)

    def _sampler(self, job: Job) -> Sampler:
        is_constrained = (job.grammar or job.params.grammar.spec) is not None
        return Sampler(self._sampling(job), self.vocab, is_constrained=is_constrained)

    def _matcher(self, job: Job) -> Matcher | None:
        spec = job.grammar or job.params.grammar.spec
        if spec is None:
            return None
        return self.compiler.compile(replace(spec, salt=job.salt)).matcher()

    def _lora_scales(self, job: Job) -> F32Array | None:
        """The scales of a job's adapters: fixed now. A job that sets none has none."""
        lora = job.params.generation.lora
        if not lora:
            return None
        n = len(self._adapters.all)
        if [id for id, _ in lora] != list(range(n)):
            raise RequestError(f"lora must have a scale for each of the {n} adapters")
        return self._adapters.scales([scale for _, scale in lora])

    def _thinking(self, job: Job) -> ThinkingTracker | None:
        if job.thinking is None:
            return None
        params = job.params.generation
        budget, message = params.reasoning_budget, params.reasoning_budget_message
        return ThinkingTracker(job.thinking, self.vocab, budget, message)

    def _sampling(self, job: Job) -> SamplingParams:
        sampling = job.params.sampling
        never = self.vocab.suppressed
        if job.params.generation.ignore_eos:
            never |= self.vocab.eog
        if not never:
            return sampling
        bans = tuple((token, -math.inf) for token in sorted(never))
        return replace(sampling, logit_bias=sampling.logit_bias + bans)

    def _run(self) -> None:
        """The thread."""
        runner, pulse = self._runner, self.pulse
        try:
            while self._queue.wait_for_work(is_idle=runner.is_idle()):
                pulse.begin()
                try:
                    runner.step()
                except Exception as e:  # a bug of ours: the running jobs fail, the engine continues
                    runner.fail_all(e)
                pulse.end()
                self._observers.tell()
        finally:
            self._drain()

    def _drain(self) -> None:
        self._runner.drain()
        self._observers.tell()
