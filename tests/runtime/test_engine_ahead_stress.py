"""Random runs of an engine that is ahead of its device: texts are those of one that is not, cached
pages are right after every step, and none is lost."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from threading import Thread
from typing import Any, NamedTuple

import pytest
from fake_context import FakeContext, PipelineContext, Recorder, make_engine, request, sampling
from matrix import first
from test_engine_prefix_stress import check_pool

from lamella.base.errors import BackendError, CancelledError, ClosedError
from lamella.model.batch import Batch
from lamella.model.chat.formats import Marks
from lamella.model.layer_memory import Window
from lamella.model.sampling import SamplingParams
from lamella.runtime.engine.job import Job, Result
from lamella.runtime.engine.thinking import Thinking
from lamella.runtime.engine.ticket import Ticket
from lamella.runtime.speculative_params import SpecType, SpeculativeParams

MARKS = Marks("xy", "zz")
WINDOWS = [(), (Window(6),), (Window(5), Window(8, chunked=True))]


class Wanted(NamedTuple):
    """What a random job is."""

    prompt: tuple[int, ...]
    seed: int
    given: tuple[tuple[str, Any], ...]
    thinks: bool
    guesses: bool
    is_greedy: bool
    n_probs: int
    is_post: bool

    def job(self, sink: Recorder) -> Job:
        chain = SamplingParams(temperature=0.0) if self.is_greedy else sampling(self.seed)
        params = request(chain, **dict(self.given))
        if not self.guesses:
            params = replace(params, speculative=SpeculativeParams(spec_type=(SpecType.NONE,)))
        thinking = Thinking(marks=(MARKS,), opened=MARKS) if self.thinks else None
        return Job(
            prompt=self.prompt,
            params=params,
            sink=sink,
            thinking=thinking,
            n_probs=self.n_probs,
            post_sampling_probs=self.is_post,
        )


@cache
def truth(wanted: Wanted, n_ctx: int) -> tuple[int, ...]:
    """The tokens of a job that runs alone, on a context that computes on the host."""
    engine = make_engine(FakeContext(n_ctx, aside=False))
    sink = Recorder()
    engine.submit(wanted.job(sink))
    engine.start()
    sink.result()
    engine.close()
    return tuple(sink.tokens)


class RandomRun:
    """One engine, its jobs, and random events."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.n_ctx = rng.choice([32, 64, 128])
        self.context = PipelineContext(
            self.n_ctx,
            n_ubatch=rng.choice([2, 5, 16]),
            page_size=rng.choice([1, 4, 8]),
            tops=rng.random() < 0.7,
            windows=rng.choice(WINDOWS),
            n_kept=rng.choice([None, None, 0, 1, 5]),
        )
        self.engine = make_engine(self.context, n_parallel=rng.choice([1, 2, 4]))
        self.guesses, self.is_greedy = rng.random() < 0.3, rng.random() < 0.5
        self.p_event, self.p_fail = rng.choice([0.01, 0.1, 0.3]), rng.choice([0, 0, 0.01])
        self.context.on_decode, self.context.on_start = self.on_decode, self.on_start
        self.waiting = [self.new_job() for _ in range(20)]
        self.tickets: list[Ticket] = []
        self.threads: list[Thread] = []
        self.checks: list[Callable[[], None]] = []
        self.sinks: list[Recorder] = []

    def new_job(self) -> Callable[[], None]:
        rng = self.rng
        n = rng.choice([1, 3, 9, 20])
        common = random.Random(7)
        n_shared = rng.choice([0, n])
        prompt = [(common if i < n_shared else rng).randint(3, 30) for i in range(n)]
        given: dict[str, Any] = {"n_predict": rng.choice([1, 2, 3, 20, 40])}
        given["ignore_eos"] = rng.random() < 0.8
        given["context_shift"] = rng.random() < 0.3
        if thinks := rng.random() < 0.3:
            given["reasoning_budget"] = rng.choice([0, 3, 8])
        wanted = Wanted(
            tuple(prompt),
            rng.randint(0, 9),
            tuple(given.items()),
            thinks,
            self.guesses,
            self.is_greedy,
            *rng.choice([(0, False), (2, False), (2, True)]),
        )
        ends_at, how = rng.choice([(1000, ""), (rng.randint(1, 15), rng.choice(["word", "raise"]))])

        def on_token(i: int) -> bool:
            if i == ends_at and how == "raise":
                raise ValueError("broken")
            return i < ends_at

        def submit() -> None:
            sink = Recorder(on_token)
            self.sinks.append(sink)
            self.tickets.append(self.engine.submit(wanted.job(sink)))
            self.checks.append(lambda: self.check(wanted, sink, ends_at))

        return submit

    def check(self, wanted: Wanted, sink: Recorder, ends_at: int) -> None:
        (end,) = sink.ends
        tokens = list(truth(wanted, self.n_ctx))[:ends_at]
        if isinstance(end, Result) or "broken" in str(end):
            assert sink.tokens == tokens
        else:
            assert isinstance(end, CancelledError | BackendError), end
            assert sink.tokens == tokens[: len(sink.tokens)]
            assert "device" in str(end) or isinstance(end, CancelledError)

    def on_start(self, step: int) -> None:
        if self.rng.random() < self.p_fail:
            raise BackendError("the device cannot start")

    def on_decode(self, step: int) -> None:
        rng = self.rng
        if rng.random() < self.p_event:
            rng.choice([self.submit, self.cancel, self.pause, self.resume, self.call])()
        if rng.random() < self.p_fail:
            raise BackendError("the device is gone")

    def submit(self) -> None:
        if self.waiting:
            self.waiting.pop()()

    def cancel(self) -> None:
        if self.rng.random() < 0.3:
            self.engine.cancel(self.rng.choice(self.tickets))

    def pause(self) -> None:
        self.engine.pause(self.rng.choice(self.tickets))

    def resume(self) -> None:
        for ticket in self.tickets:
            self.engine.resume(ticket)

    def call(self) -> None:
        """Let the context compute something else between two steps."""

        def work(_: object) -> None:
            seq = self.context.pool.new_sequence()
            self.context.append(seq, 1)
            (batch := Batch()).add([5], seq, 0, 1)
            on_decode, self.context.on_decode = self.context.on_decode, lambda step: None
            self.context.decode(batch)
            self.context.on_decode = on_decode
            seq.free()

        def call() -> None:
            with suppress(ClosedError):
                self.engine.call(work, n_tokens=1)

        n = len(self.engine._queue._calls)
        thread = Thread(target=call)
        thread.start()
        self.threads.append(thread)
        while len(self.engine._queue._calls) == n and thread.is_alive():
            time.sleep(0.0001)

    def run(self, *, closes: bool = False) -> tuple[int, int]:
        """Run to the end, and check all. Return how many steps were prepared, and how many of them
        were fed."""
        step, wrong = self.engine._runner.step, list[BaseException]()

        def checked_step() -> None:
            step()
            try:
                check_pool(self.engine, self.context)
            except AssertionError as e:
                wrong.append(e)

        self.engine._runner.step = checked_step  # type: ignore[method-assign]
        for _ in range(20 if closes else 5):
            self.submit()
        self.engine.start()
        if closes:
            time.sleep(self.rng.random() * 0.05)
            self.engine._worker.end(self.engine._queue.close, lambda: None)
        else:
            self.wait()
        self.engine.close()
        assert not wrong, wrong[0]
        for check in self.checks:
            check()
        assert self.context.pool.n_free == self.context.pool.n_pages
        assert (self.engine.n_running, self.engine.n_waiting) == (0, 0)
        assert not self.engine._runner._unsure._lengths
        return self.context.n_prepared, self.context.n_fed

    def wait(self) -> None:
        end = time.monotonic() + 60
        while self.waiting or not all(sink.ended.is_set() for sink in self.sinks):
            assert time.monotonic() < end, "jobs wait for ever"
            time.sleep(0.002)
            self.resume()
            if all(sink.ended.is_set() for sink in self.sinks):
                self.submit()
        for thread in self.threads:
            thread.join()


@pytest.mark.parametrize("seed", first(6, range(12)))
def test_texts_are_those_of_steps_one_after_the_other(seed: int) -> None:
    RandomRun(seed).run()


def test_most_steps_are_prepared_and_many_are_fed() -> None:
    runs = [RandomRun(seed).run() for seed in range(100, 106)]
    n_prepared, n_fed = map(sum, zip(*runs, strict=True))
    assert n_prepared > 50 and n_fed > 5


@pytest.mark.parametrize("seed", first(3, range(200, 205)))
def test_closing_at_any_time_loses_nothing(seed: int) -> None:
    RandomRun(seed).run(closes=True)
