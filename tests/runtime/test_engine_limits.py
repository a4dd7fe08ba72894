"""Limits of generations, rejected jobs, and a full KV pool."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from fake_context import (
    EOS,
    N_VOCAB,
    Clock,
    FakeContext,
    Recorder,
    expected,
    job,
    make_engine,
    running,
    sampling,
)

from lamella.base.errors import ContextSizeError, OverloadedError, RequestError
from lamella.model.sampling import Sampler, SamplingParams
from lamella.model.vocab import Vocab
from lamella.runtime.engine.job import StopType


def test_the_sink_can_stop_the_generation() -> None:
    sink = Recorder(lambda n: n < 3)
    with running(FakeContext(), job(sink, ignore_eos=True)):
        result = sink.result()
    assert (result.stop_type, result.n_predicted, len(sink.tokens)) == (StopType.WORD, 3, 3)


def test_a_stop_word_in_the_last_token_counts_before_the_limit() -> None:
    sink = Recorder(lambda n: n < 3)
    with running(FakeContext(), job(sink, n_predict=3, ignore_eos=True)):
        assert sink.result().stop_type == StopType.WORD


@pytest.mark.parametrize("n_prompt", [1, 8, 20])
def test_n_predict_0_evaluates_the_prompt(n_prompt: int) -> None:
    context, sink = FakeContext(n_ubatch=8), Recorder()
    with running(context, job(sink, *[5] * n_prompt, n_predict=0)):
        result = sink.result()
    assert (result.stop_type, result.n_predicted, sink.tokens) == (StopType.LIMIT, 0, [])
    assert sum(n for step in context.steps for _, _, n, _ in step) == n_prompt
    assert sum(outputs for step in context.steps for _, _, _, outputs in step) == 0
    assert result.timings.as_dict()["predicted_per_second"] == 0
    assert result.timings.prompt_ms > 0


@pytest.mark.parametrize("n_prompt", [1, 13, 31])
def test_a_job_ends_when_the_context_is_full(n_prompt: int) -> None:
    sink = Recorder()
    with running(FakeContext(32), job(sink, *[5] * n_prompt, ignore_eos=True)):
        result = sink.result()
    assert (result.stop_type, result.truncated) == (StopType.LIMIT, True)
    assert n_prompt + result.n_predicted == 32


def test_a_context_that_is_not_a_multiple_of_pages() -> None:
    sink = Recorder()
    with running(FakeContext(30), job(sink, 5, ignore_eos=True)):
        assert sink.result().n_predicted == 29


def test_a_prompt_as_large_as_the_context_is_refused() -> None:
    sink = Recorder()
    with running(FakeContext(32)) as engine:
        with pytest.raises(ContextSizeError) as caught:
            engine.submit(job(sink, *[5] * 32))
        assert (caught.value.n_prompt_tokens, caught.value.n_ctx) == (32, 32)


@pytest.mark.parametrize("token", [-1, N_VOCAB])
def test_an_invalid_token_is_refused(token: int) -> None:
    with running(FakeContext()) as engine, pytest.raises(RequestError, match=f"token {token} "):
        engine.submit(job(Recorder(), 4, token, 5))


def test_an_empty_prompt_is_refused() -> None:
    with (
        running(FakeContext()) as engine,
        pytest.raises(RequestError, match="prompt is empty"),
    ):
        engine.submit(replace(job(Recorder()), prompt=()))


def test_too_many_waiting_jobs_are_refused_until_one_is_admitted() -> None:
    engine = make_engine(FakeContext(), n_parallel=1, max_waiting=2)
    sinks = [Recorder() for _ in range(3)]
    for sink in sinks[:2]:
        engine.submit(job(sink, n_predict=2))
    with pytest.raises(OverloadedError, match="2 generations are waiting"):
        engine.submit(job(sinks[2]))
    engine.start()
    for sink in sinks[:2]:
        sink.result()
    engine.submit(job(sinks[2], n_predict=2))
    sinks[2].result()
    engine.close()


def test_a_refused_job_makes_no_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(FakeContext(), max_waiting=1)
    engine.submit(job(Recorder()))
    monkeypatch.delattr("lamella.runtime.engine.engine.Sampler")
    with pytest.raises(OverloadedError):
        engine.submit(job(Recorder()))
    engine.close()


def test_a_queue_that_becomes_full_during_a_submission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine(FakeContext(), max_waiting=1)

    def overtaken(params: SamplingParams, vocab: Vocab, *, is_constrained: bool) -> Sampler:
        monkeypatch.undo()
        engine.submit(job(Recorder()))
        return Sampler(params, vocab, is_constrained=is_constrained)

    monkeypatch.setattr("lamella.runtime.engine.engine.Sampler", overtaken)
    with pytest.raises(OverloadedError):
        engine.submit(job(Recorder()))
    engine.close()


def test_ignored_end_tokens_are_never_sampled() -> None:
    sinks = [Recorder() for _ in range(8)]
    jobs = [job(s, seed=i, n_predict=60, ignore_eos=True) for i, s in enumerate(sinks)]
    with running(FakeContext(), *jobs):
        for sink in sinks:
            assert sink.result().n_predicted == 60
            assert EOS not in sink.tokens


def test_the_time_limit_needs_a_new_line(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("lamella.runtime.engine.runner.time", clock)
    newline, other = 3, 10
    for token, n_predicted in ((newline, 4), (other, 20)):  # the fourth token comes after 6 ms
        context, sink = FakeContext(), Recorder()
        context.on_decode = lambda step: clock.wait(0.002)
        late = job(sink, n_predict=20, ignore_eos=True, t_max_predict_ms=5)
        biased = late.params.change(logit_bias=((token, 1e9),))
        with running(context, replace(late, params=biased)):
            result = sink.result()
        assert (result.stop_type, result.n_predicted) == (StopType.LIMIT, n_predicted)


# --- a full pool ---


def test_preemption_changes_no_token() -> None:
    context = FakeContext(48)
    sinks = [Recorder() for _ in range(4)]
    jobs = [job(s, *[5] * 5, seed=i, n_predict=24, ignore_eos=True) for i, s in enumerate(sinks)]
    with running(context, *jobs):
        for sink in sinks:
            sink.result()
    for i, sink in enumerate(sinks):
        assert sink.tokens == expected([5] * 5, endless(i), 24)
        assert sink.progressed[-1] == (5, 5)  # recomputed tokens are not reported
        assert sink.progressed.count((5, 5)) == 1
    n_computed = sum(n for step in context.steps for _, _, n, _ in step)
    n_needed = sum(5 + len(sink.tokens) for sink in sinks)
    assert n_computed > n_needed, "no job was preempted: the pool is too large"


def endless(seed: int) -> SamplingParams:
    return replace(sampling(seed), logit_bias=((EOS, -math.inf),))


def lengths(context: FakeContext) -> list[list[int]]:
    """The number of tokens per sequence of each step."""
    return [[n for _, _, n, _ in step] for step in context.steps]


def test_the_oldest_decodes_in_every_step_while_the_youngest_is_preempted() -> None:
    context = FakeContext(48)
    a, b, c = Recorder(), Recorder(), Recorder()
    jobs = [job(s, 5, seed=i, n_predict=30, ignore_eos=True) for i, s in enumerate((a, b, c))]
    n_steps_until: list[int] = []
    with running(context, *jobs):
        for sink in (a, b, c):
            sink.result()
            n_steps_until.append(len(context.steps))
    assert lengths(context)[:17] == [[1, 1, 1]] * 16 + [[1, 1]]  # 3 sequences of 4 pages: 12 pages
    assert n_steps_until[0] >= 30
    positions = [step[0][1] for step in context.steps[:30]]
    assert positions == list(range(30))


def test_a_preempted_job_returns_first_and_as_a_whole() -> None:
    context = FakeContext(32, n_ubatch=32)
    a, b, c = Recorder(), Recorder(), Recorder()
    jobs = [
        job(a, *[5] * 4, seed=1, n_predict=24, ignore_eos=True),  # 28 tokens, 7 pages
        job(b, *[6] * 14, seed=2, n_predict=12, ignore_eos=True),
        job(c, *[7] * 2, seed=3, n_predict=2, ignore_eos=True),  # would fit at any time
    ]
    with running(context, *jobs, n_parallel=2):
        for sink in (a, b, c):
            sink.result()
    assert lengths(context)[0] == [4, 14]
    n_together = lengths(context).index([1])
    assert lengths(context)[n_together:24] == [[1]] * (24 - n_together)
    # all of b again, except one page that a did not need; c starts only now
    assert lengths(context)[24] == [14 + n_together - 4, 2]
    assert (b.result().n_predicted, c.result().n_predicted) == (12, 2)


def test_a_job_waits_for_pages() -> None:
    context = FakeContext(32)
    a, b = Recorder(), Recorder()
    jobs = [
        job(a, *[5] * 20, n_predict=3, ignore_eos=True),
        job(b, *[6] * 20, n_predict=3, ignore_eos=True),
    ]
    with running(context, *jobs):
        a.result()
        b.result()
    assert max(len(step) for step in context.steps) == 1


def test_timings_of_a_preempted_job_start_with_its_first_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, context = Clock(), FakeContext(32)
    monkeypatch.setattr("lamella.runtime.engine.runner.time", clock)
    context.on_decode = lambda step: clock.wait(0.001)
    a, b = Recorder(), Recorder()
    jobs = [
        job(a, 5, seed=1, n_predict=28, ignore_eos=True),
        job(b, 6, seed=2, n_predict=28, ignore_eos=True),
    ]
    with running(context, *jobs):
        a.result()
        timings = b.result().timings
    assert (timings.prompt_n, timings.predicted_n) == (1, 28)
    assert timings.prompt_ms == pytest.approx(1)
    assert timings.predicted_ms >= 28
