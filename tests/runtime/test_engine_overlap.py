"""Sinks get the tokens of a step while the next one computes: none is lost, and none comes after
the end of its text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Thread
from typing import Any

import pytest
from fake_context import (
    PIECES,
    FakeContext,
    Recorder,
    expected,
    job,
    make_engine,
    request,
    running,
    sampling,
)

from lamella.base.errors import BackendError, CancelledError
from lamella.base.settings import NO_OVERLAP
from lamella.model.batch import Batch
from lamella.model.chat.formats import Marks
from lamella.model.kv_sequence import KVSequence
from lamella.model.layer_memory import Window
from lamella.runtime.engine.engine import Engine
from lamella.runtime.engine.job import Job, StopType
from lamella.runtime.engine.thinking import Thinking
from lamella.runtime.engine.ticket import Ticket
from lamella.runtime.engine.unsure import Unsure
from lamella.runtime.speculative_params import SpecType, SpeculativeParams

PROMPT = (7, 8, 9)
NO_GUESSES = SpeculativeParams(spec_type=(SpecType.NONE,))
N = 9  # tokens before a sink ends its text
TOKENS = expected(PROMPT, sampling(1), 40)
assert len(TOKENS) > N


def until(n: int, then: Callable[[], bool] = lambda: False) -> Recorder:
    """A sink that calls `then` for its token `n`."""
    return Recorder(lambda i: then() if i == n else True)


def raising(error: Exception) -> Callable[[], bool]:
    def call() -> bool:
        raise error

    return call


@pytest.mark.parametrize("off", [0, 1])
def test_a_token_is_told_while_the_next_step_computes(off: int) -> None:
    log = list[str]()
    context = FakeContext(aside=True)
    context.on_start = lambda step: log.append(f"start {step}")
    context.on_decode = lambda step: log.append(f"compute {step}")

    def on_token(n: int) -> bool:
        log.append(f"token {n}")
        return True

    sink = Recorder(on_token)
    with NO_OVERLAP.set(off), running(context) as engine:
        engine.when_stepped(lambda: log.append("sent"))
        engine.submit(job(sink, n_predict=3, ignore_eos=True))
        sink.result()
    events = [each for each in log if each != "sent"]
    if off:
        steps = ([f"start {i}", f"compute {i}", f"token {i}"] for i in (1, 2, 3))
        assert events == [event for step in steps for event in step]
        return
    assert events == [
        *("start 1", "compute 1"),
        *("start 2", "token 1", "compute 2"),
        *("start 3", "token 2", "compute 3", "token 3"),
    ]
    assert log[log.index("token 2") + 1] == "sent"  # at once: the step may take long


CONTEXTS: dict[str, dict[str, Any]] = {
    "pages": {},
    "tops": {"tops": True},
    "window": {"windows": [Window(6)]},
    "states": {"n_kept": 8},
}


@pytest.mark.parametrize("options", CONTEXTS.values(), ids=CONTEXTS)
def test_a_text_that_its_sink_ends_has_no_further_token(options: dict[str, Any]) -> None:
    """The step that computed one more token did so in the text's own pages, which can be shared."""
    context = FakeContext(aside=True, **options)
    sink, other = until(N), Recorder()
    jobs = job(sink, ignore_eos=True, n_probs=0), job(other, 5, seed=4, n_predict=30, n_probs=0)
    with running(context, *jobs) as engine:
        result = sink.result()
        assert (result.stop_type, result.n_predicted) == (StopType.WORD, N)
        assert sink.tokens == TOKENS[:N]
        other.result()
        assert other.tokens == expected((5,), sampling(4), 30)
        later = Recorder()
        prompt = (*PROMPT, *TOKENS[:N], 5, 6)
        engine.submit(job(later, *prompt, n_predict=8, n_probs=0))
        n_cached = later.result().n_cached
        assert later.tokens == expected(prompt, sampling(1), 8)
        if "n_kept" not in options:
            assert n_cached == len(PROMPT) + N  # the last one was evaluated, too
    assert len(sink.ends) == 1


def test_a_sink_that_raises_ends_its_text_only() -> None:
    sink, other = until(N, raising(ValueError("broken"))), Recorder()
    with running(FakeContext(aside=True), job(sink), job(other, 5, seed=4, n_predict=30)):
        assert "broken" in str(sink.error())
        other.result()
    assert other.tokens == expected((5,), sampling(4), 30)


def test_a_step_that_fails_does_not_fail_a_text_that_had_ended() -> None:
    context = FakeContext(aside=True)

    def fail(step: int) -> None:
        if step == N + 1:
            raise BackendError("the device failed")

    context.on_decode = fail
    sink, other = until(N), Recorder()
    with running(context, job(sink, ignore_eos=True), job(other, 5, ignore_eos=True)) as engine:
        assert sink.result().n_predicted == N
        assert "the device failed" in str(other.error())
        assert len(other.tokens) == N  # the last token before the failure is not lost
        assert tokens_of(engine, PROMPT) == TOKENS[:8]  # nothing of the failed step is shared


def test_a_step_that_cannot_start_loses_no_token() -> None:
    context = FakeContext(aside=True)

    def fail(step: int) -> None:
        if step == N + 1:
            raise BackendError("the device failed")

    context.on_start = fail
    sink = Recorder()
    with running(context, job(sink, ignore_eos=True)):
        sink.error()
    assert sink.tokens == TOKENS[:N]


def test_a_step_is_over_before_its_jobs_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step cannot be prepared, so its rows are not read: it may still use the pages."""
    context, log = FakeContext(aside=True), list[str]()

    def fail(_: object) -> None:
        log.append("prepare")
        raise BackendError("no inputs")

    monkeypatch.setattr(context, "prepare_rows", fail)
    monkeypatch.setattr(context, "synchronize", lambda: log.append("synchronize"))
    monkeypatch.setattr(KVSequence, "free", free_logged(KVSequence.free, log))
    sink = Recorder()
    with running(context, job(sink, ignore_eos=True)):
        assert "no inputs" in str(sink.error())
    at = log.index("prepare")
    assert log[at : at + 3] == ["prepare", "synchronize", "free"]


def free_logged(free: Callable[[KVSequence], None], log: list[str]) -> Callable[[KVSequence], None]:
    def logged(self: KVSequence) -> None:
        log.append("free")
        free(self)

    return logged


def tokens_of(engine: Engine, prompt: Sequence[int]) -> list[int]:
    sink = Recorder()
    engine.submit(job(sink, *prompt, n_predict=8))
    sink.result()
    return sink.tokens


def alone(sink: Recorder, n_predict: int) -> list[int]:
    with running(FakeContext(), job(sink, *PROMPT, n_predict=n_predict, ignore_eos=True)):
        sink.result()
    return sink.tokens


@pytest.mark.parametrize("end", ["word", "error", "cancel"])
def test_a_full_pool_tells_a_text_before_it_leaves(end: str) -> None:
    """A text whose last token is not told yet may end when others need its pages."""
    truth = alone(Recorder(), 40)
    for n in range(1, 30):
        engine = make_engine(FakeContext(48, aside=True))

        tickets = list[Ticket]()

        def then(engine: Engine = engine, tickets: list[Ticket] = tickets) -> bool:
            if end == "error":
                raise ValueError("broken")
            if end == "cancel":
                engine.cancel(*tickets)
            return end == "cancel"

        old, sink = Recorder(), until(n, then)
        engine.submit(job(old, *PROMPT, n_predict=40, ignore_eos=True))
        young = job(sink, *PROMPT, 5, seed=2, n_predict=30, ignore_eos=True)
        tickets.append(engine.submit(young))
        engine.start()
        assert old.result().n_predicted == 40
        last = sink.wait()
        engine.call(lambda context: None)
        assert (engine.n_running, engine.n_waiting) == (0, 0)
        engine.close()
        assert old.tokens == truth
        assert len(sink.tokens) == n
        assert isinstance(last, CancelledError) == (end == "cancel")
        assert engine.context.pool.n_free == engine.context.pool.n_pages


def test_a_text_may_end_while_others_leave_for_it() -> None:
    truth = alone(Recorder(), 30)
    for n in range(1, 30):
        old, young = until(n), Recorder()
        jobs = (
            job(old, *PROMPT, n_predict=40, ignore_eos=True),
            job(young, *PROMPT, n_predict=30, ignore_eos=True),
        )
        with running(FakeContext(48, aside=True), *jobs):
            assert old.result().n_predicted == n
            young.result()
        assert young.tokens == truth


@pytest.mark.parametrize("guesses", [False, True])
@pytest.mark.parametrize("n_jobs", [1, 3, 5])
def test_steps_are_prepared(n_jobs: int, guesses: bool) -> None:
    """With more jobs than places, too. Texts are those of steps that are planned one by one."""
    prompts = [(*PROMPT, i) for i in range(3, 3 + n_jobs)]
    truth = [expected(prompt, sampling(i), 25) for i, prompt in enumerate(prompts)]
    context = FakeContext(aside=True, tops=True)
    sinks = [Recorder() for _ in prompts]
    jobs = [
        job(sink, *prompt, seed=i, n_predict=25, n_probs=0)
        for i, (sink, prompt) in enumerate(zip(sinks, prompts, strict=True))
    ]
    if not guesses:
        jobs = [replace(j, params=replace(j.params, speculative=NO_GUESSES)) for j in jobs]
    with running(context, *jobs, n_parallel=3):
        for sink in sinks:
            sink.result()
    assert [sink.tokens for sink in sinks] == truth
    assert context.n_prepared > 10


def thoughtful(sink: Recorder, i: int) -> Job:
    """A job whose reasoning ends after 9 tokens, with a mark that is forced."""
    params = request(sampling(i), n_predict=40, ignore_eos=True, reasoning_budget=9)
    params = replace(params, speculative=NO_GUESSES)
    marks = Marks("xy", "zz")
    thinking = Thinking(marks=(marks,), opened=marks)
    return Job(prompt=(*PROMPT, 3 + i), params=params, sink=sink, thinking=thinking)


def test_a_row_is_dropped_if_its_text_goes_on_with_another_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dropped = list[Ticket]()
    again = Unsure.again

    def seen(self: Unsure, ticket: Ticket, pos: int) -> None:
        dropped.append(ticket)
        again(self, ticket, pos)

    monkeypatch.setattr(Unsure, "again", seen)
    found = list[list[list[int]]]()
    for aside in (False, True):
        sinks = [Recorder() for _ in range(3)]
        jobs = [thoughtful(sink, i) for i, sink in enumerate(sinks)]
        with running(FakeContext(aside=aside, tops=True), *jobs):
            for sink in sinks:
                assert sink.result().n_reasoning == 9
        found.append([sink.tokens for sink in sinks])
        assert (len(dropped) > 0) == aside
    assert found[0] == found[1]


def test_a_token_that_was_not_evaluated_is_not_shared() -> None:
    """A text ends with a token that is forced, when the next step has started with the sampled
    one: its time is over at the begin of the message that ends its reasoning."""
    context = FakeContext(aside=True, tops=True)
    context.on_decode = lambda step: time.sleep(0.002)
    params = request(
        *(sampling(1),),
        ignore_eos=True,
        reasoning_budget=9,
        reasoning_budget_message="\n",
        t_max_predict_ms=1,
    )
    params = replace(params, speculative=NO_GUESSES)
    marks = Marks("xy", "zz")
    thinking = Thinking(marks=(marks,), opened=marks)
    sink, later = Recorder(), Recorder()
    with running(
        context, Job(prompt=PROMPT, params=params, sink=sink, thinking=thinking)
    ) as engine:
        assert sink.result().stop_type is StopType.LIMIT
        newline = PIECES.index(b"\n")
        assert sink.tokens == [*TOKENS[:9], newline] and TOKENS[9] != newline
        assert context.n_prepared > 5
        prompt = (*PROMPT, *sink.tokens, 5, 6)
        engine.submit(job(later, *prompt, n_predict=8))
        later.result()
    assert later.tokens == expected(prompt, sampling(1), 8)


def test_a_call_may_use_the_context_between_two_steps() -> None:
    """It overwrites the inputs of a step that was prepared."""
    context, calls = FakeContext(aside=True, tops=True), list[Thread]()
    engine = make_engine(context)

    def work(_: object) -> None:
        seq = context.pool.new_sequence()
        context.append(seq, 1)
        batch = Batch()
        batch.add([5], seq, 0, 1)
        context.decode(batch)
        seq.free()

    def call(step: int) -> None:
        if step in (5, 12) and len(calls) < 2:
            calls.append(Thread(target=engine.call, args=(work,)))
            calls[-1].start()
            while engine._queue.only_waits:
                time.sleep(0.001)

    context.on_decode = call
    sink = Recorder()
    one = job(sink, ignore_eos=True, n_predict=30)
    engine.submit(replace(one, params=replace(one.params, speculative=NO_GUESSES)))
    engine.start()
    assert sink.result().n_predicted == 30
    for thread in calls:
        thread.join()
    engine.close()
    assert sink.tokens == TOKENS[:30]
    assert context.n_prepared > 10 and len(calls) == 2


def test_closing_tells_the_last_tokens() -> None:
    context = FakeContext(aside=True)
    engine = make_engine(context)
    sink = Recorder()
    engine.submit(job(sink, ignore_eos=True))

    def close(step: int) -> None:
        if step == N:
            engine._queue.close()

    context.on_decode = close
    engine.start()
    assert isinstance(sink.error(), CancelledError)
    engine.close()
    assert sink.tokens == TOKENS[:N]
