"""Greedy steps that follow each other on the device: it finds their tokens before the host does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from fake_context import (
    EOS,
    Clock,
    FakeContext,
    Recorder,
    expected,
    make_engine,
    request,
    running,
    sampling,
)

from lamella.base.errors import BackendError, CancelledError
from lamella.base.settings import NO_FEED, NO_OVERLAP
from lamella.model.batch import Batch
from lamella.model.chat.formats import Marks
from lamella.model.sampling import SamplingParams
from lamella.runtime.engine import ahead, runner
from lamella.runtime.engine.drafts.ngram import NgramSource
from lamella.runtime.engine.drafts.source import Draft
from lamella.runtime.engine.job import Job, StopType
from lamella.runtime.engine.thinking import Thinking
from lamella.runtime.speculative_params import SpecType, SpeculativeParams

PROMPT = (7, 8, 9)
GREEDY = SamplingParams(temperature=0.0)
AUTO = SpeculativeParams(spec_type=(SpecType.AUTO,), spec_ngram_size=3)
NO_GUESSES = SpeculativeParams(spec_type=(SpecType.NONE,))


def greedy(sink: Recorder, *prompt: int, params: SamplingParams = GREEDY, **options: Any) -> Job:
    thinking = options.pop("thinking", None)
    given = replace(request(params, **options), speculative=NO_GUESSES)
    return Job(prompt=prompt or PROMPT, params=given, sink=sink, thinking=thinking)


def prompt_of(is_wanted: Callable[[list[int]], bool]) -> tuple[int, ...]:
    """A prompt with a greedy text that `is_wanted`."""
    prompts = ((*PROMPT, i, j) for i in range(3, 30) for j in range(3, 30))
    return next(p for p in prompts if is_wanted(expected(p, GREEDY, 40)))


LONG = prompt_of(lambda text: len(text) == 40)  # without an end
SHORT = prompt_of(lambda text: 10 < len(text) < 30)


def test_a_step_starts_before_the_last_one_is_computed() -> None:
    log = list[str]()

    def on_token(n: int) -> bool:
        log.append(f"token {n}")
        return True

    context, sink = FakeContext(tops=True), Recorder(on_token)
    context.on_start = lambda step: log.append(f"start {step}")
    context.on_decode = lambda step: log.append(f"compute {step}")
    with running(context, greedy(sink, *LONG, n_predict=12)):
        sink.result()
    assert sink.tokens == expected(LONG, GREEDY, 12)
    # token n comes from step n; times are known after some steps
    assert log[-14:] == [
        *("start 9", "compute 8"),
        *("token 8", "start 10", "compute 9"),
        *("token 9", "start 11", "compute 10"),
        *("token 10", "start 12", "compute 11"),
        *("token 11", "compute 12", "token 12"),
    ]


@pytest.mark.parametrize("switch", [NO_FEED, NO_OVERLAP])
def test_switches_turn_it_off(switch: Any) -> None:
    context, sink = FakeContext(tops=True), Recorder()
    with switch.set(1), running(context, greedy(sink, *LONG, n_predict=12)):
        sink.result()
    assert sink.tokens == expected(LONG, GREEDY, 12)
    assert not context.n_fed


def test_a_long_step_does_not_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "FED_MS_MAX", 0.0)
    context, sink = FakeContext(tops=True), Recorder()
    with running(context, greedy(sink, *LONG, n_predict=12)):
        sink.result()
    assert context.n_prepared > 5 and not context.n_fed


def test_the_time_of_a_step_begins_when_the_last_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 6 ms are short enough, two of them would not be."""
    context, sink, clock = FakeContext(tops=True), Recorder(), Clock()
    monkeypatch.setattr(runner, "time", clock)
    context.on_decode = lambda step: clock.wait(0.006)
    with running(context, greedy(sink, *LONG, n_predict=30)):
        sink.result()
    assert context.n_fed > 15


@pytest.mark.parametrize("n", [1, 3, 7])
def test_texts_end_and_others_take_their_places(n: int) -> None:
    """Their end token, a limit or a stop string ends them while the next step computes."""
    prompts = [SHORT, LONG, *((*PROMPT, i) for i in range(3, 30))][:n]
    ends_at = [1000, 9, *[25] * n][:n]

    def sink_of(most: int) -> Recorder:
        return Recorder(lambda i: i < most)

    context = FakeContext(tops=True)
    sinks = [sink_of(most) for most in ends_at]
    jobs = [greedy(s, *p, n_predict=30 + len(p)) for s, p in zip(sinks, prompts, strict=True)]
    with running(context, *jobs, n_parallel=3):
        results = [sink.result() for sink in sinks]
    for sink, prompt, most in zip(sinks, prompts, ends_at, strict=True):
        assert sink.tokens == expected(prompt, GREEDY, 30 + len(prompt))[:most]
    assert results[0].stop_type is StopType.EOS
    assert context.n_fed > 5


def test_a_text_without_guesses_is_fed_in_most_steps() -> None:
    """It is asked for guesses in every eighth step only."""
    context, sink = FakeContext(tops=True), Recorder()
    asked = list[int]()
    draft = NgramSource.draft

    def seen(self: NgramSource, tokens: Sequence[int], n_max: int) -> Draft:
        found = draft(self, tokens, n_max)
        asked.append(len(found.tokens))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NgramSource, "draft", seen)
        params = replace(request(GREEDY, n_predict=120, ignore_eos=True), speculative=AUTO)
        with running(context, Job(prompt=LONG, params=params, sink=sink)):
            sink.result()
    assert len(sink.tokens) == 120
    assert sum(asked) < 20  # tokens of the fake text are random
    assert len(asked) < 40 and context.n_fed > 50


def test_a_sampled_text_lets_the_others_wait() -> None:
    context, sinks = FakeContext(tops=True), [Recorder(), Recorder()]
    jobs = greedy(sinks[0], *LONG), greedy(sinks[1], params=sampling(3), ignore_eos=True)
    with running(context, *jobs) as engine:
        sinks[0].result()
        engine.call(lambda _: None)
        assert not context.n_fed
        sinks[1].on_token = lambda n: False


def test_what_ended_can_be_shared() -> None:
    """All evaluated tokens of a text that has ended, its end token too, and no others."""
    text = expected(SHORT, GREEDY, 40)
    context, sink, later = FakeContext(tops=True, page_size=1), Recorder(), Recorder()
    with running(context, greedy(sink, *SHORT)) as engine:
        assert sink.result().stop_type is StopType.EOS
        prompt = (*SHORT, *text, EOS, 5)
        engine.submit(greedy(later, *prompt, n_predict=8))
        assert later.result().n_cached == len(SHORT) + len(text) + 1
    assert later.tokens == expected(prompt, GREEDY, 8)


@pytest.mark.parametrize("n_unfed", [5, 32])
def test_a_text_that_goes_on_otherwise_is_not_fed_for_a_while(
    n_unfed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step for nothing happens once: here its reasoning ends with tokens that are forced."""
    monkeypatch.setattr(ahead, "N_UNFED", n_unfed)
    marks = Marks("xy", "zz")
    thinking = Thinking(marks=(marks,), opened=marks)
    options: dict[str, Any] = {
        "reasoning_budget": 12,
        "n_predict": 40,
        "ignore_eos": True,
        "thinking": thinking,
    }
    found, fed = list[list[int]](), 0
    for off in (1, 0):
        context, sink = FakeContext(tops=True), Recorder()
        with NO_FEED.set(off), running(context, greedy(sink, *LONG, **options)):
            assert sink.result().n_reasoning == 12
        found.append(sink.tokens)
        fed = context.n_fed
    assert found[0] == found[1]
    assert 3 < fed < 15 if n_unfed == 32 else 20 < fed < 36


@pytest.mark.parametrize("what", ["start", "decode", "read"])
def test_a_failure_fails_both_steps(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    context, sink, later = FakeContext(tops=True), Recorder(), Recorder()

    def fail(step: int) -> None:
        if step == 10 and not sink.ends:
            raise BackendError("the device failed")

    if what == "read":  # when it has computed
        decode = context.decode

        def failing(batch: Batch) -> Any:
            rows = decode(batch)
            fail(len(context.steps))
            return rows

        monkeypatch.setattr(context, "decode", failing)
    else:
        setattr(context, f"on_{what}", fail)
    engine = make_engine(context)
    engine.submit(greedy(sink, *LONG))
    engine.start()
    assert "the device failed" in str(sink.error())
    n = 8 if what == "start" else 9  # that of step 9 is lost with step 10
    assert sink.tokens == expected(LONG, GREEDY, 40)[:n]
    engine.submit(greedy(later, *LONG, n_predict=20))
    later.result()
    assert later.tokens == expected(LONG, GREEDY, 20)
    engine.close()
    assert context.pool.n_free == context.pool.n_pages
    assert "the step before has failed" not in caplog.text  # it was not read


@pytest.mark.parametrize("n_kept", [None, 0])
def test_a_text_that_is_cancelled_leaves_the_others(n_kept: int | None) -> None:
    """It takes no token of the step that another one follows already."""
    context, sinks = FakeContext(tops=True, n_kept=n_kept), [Recorder(), Recorder()]
    engine = make_engine(context, n_parallel=2)
    first, _ = [engine.submit(greedy(sink, *LONG, n_predict=20)) for sink in sinks]

    def cancel(step: int) -> None:
        if context.n_fed == 3:
            engine.cancel(first)

    context.on_decode = cancel
    engine.start()
    assert isinstance(sinks[0].error(), CancelledError)
    sinks[1].result()
    engine.close()
    assert sinks[1].tokens == expected(LONG, GREEDY, 20)
    assert context.pool.n_free == context.pool.n_pages
