"""Parallel generations: the same tokens as alone, in order, within the budget of a step."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from fake_context import (
    EOS,
    Clock,
    FakeContext,
    FakeVocab,
    Recorder,
    expected,
    job,
    make_engine,
    request,
    running,
    sampling,
)

from lamella.base.errors import RequestError
from lamella.model.context import Context
from lamella.model.layer_memory import Window
from lamella.model.sampling import Logprobs, SamplingParams
from lamella.runtime.engine.job import Job, StopType, Timings


def test_one_job() -> None:
    sink = Recorder()
    with running(FakeContext(), job(sink, 7, 8, 9, seed=5, n_predict=12, ignore_eos=True)):
        result = sink.result()
    assert len(sink.tokens) == 12
    assert (result.stop_type, result.truncated) == (StopType.LIMIT, False)
    assert (result.n_prompt, result.n_cached, result.n_predicted, result.seed) == (3, 0, 12, 5)


def test_the_end_token_counts_but_is_not_passed_on() -> None:
    sink = Recorder()
    with running(FakeContext(), job(sink, seed=3)):
        result = sink.result()
    assert sink.tokens == expected((7, 8, 9), sampling(3), 500)
    assert EOS not in sink.tokens
    assert result.stop_type == StopType.EOS
    assert result.n_predicted == len(sink.tokens) + 1


def test_tokens_that_the_file_forbids_are_never_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    often = expected((7, 8, 9), sampling(5), 30)[0]
    monkeypatch.setattr(FakeVocab, "suppressed", frozenset({often, EOS}))
    sink = Recorder()
    with running(FakeContext(), job(sink, seed=5, n_predict=30)):
        result = sink.result()
    assert (len(sink.tokens), result.stop_type) == (30, StopType.LIMIT)
    assert often not in sink.tokens


@pytest.mark.parametrize("n_parallel", [1, 3, 8])
def test_parallel_jobs_get_the_same_tokens_as_alone(n_parallel: int) -> None:
    prompts = [tuple(range(3, 4 + 3 * i)) for i in range(8)]
    sinks = [Recorder() for _ in prompts]
    jobs = [
        job(sink, *prompt, seed=i, n_predict=30)
        for i, (sink, prompt) in enumerate(zip(sinks, prompts, strict=True))
    ]
    with running(FakeContext(), *jobs, n_parallel=n_parallel):
        for sink in sinks:
            sink.result()
    for i, (sink, prompt) in enumerate(zip(sinks, prompts, strict=True)):
        assert sink.tokens == expected(prompt, sampling(i), 30)


def test_jobs_from_many_threads_get_the_same_tokens_as_alone() -> None:
    sinks = [Recorder() for _ in range(12)]
    with running(FakeContext()) as engine:

        def submit(i: int) -> None:
            engine.submit(job(sinks[i], 4, 5, i, seed=i, n_predict=20))

        threads = [threading.Thread(target=submit, args=(i,)) for i in range(12)]
        for thread in threads:
            thread.start()
        for sink in sinks:
            sink.result()
        for thread in threads:
            thread.join()
    for i, sink in enumerate(sinks):
        assert sink.tokens == expected((4, 5, i), sampling(i), 20)


def test_first_come_first_served() -> None:
    order: list[int] = []

    def record(i: int, _: int) -> bool:
        order.append(i)
        return True

    sinks = [Recorder(partial(record, i)) for i in range(5)]
    jobs = [job(sink, *([5] * (5 - i)), seed=i, n_predict=3) for i, sink in enumerate(sinks)]
    with running(FakeContext(), *jobs, n_parallel=1):
        sinks[-1].result()
    assert order == sorted(order)
    assert set(order) == set(range(5))


def test_a_waiting_job_starts_in_the_step_after_another_ends() -> None:
    context = FakeContext()
    sinks = [Recorder() for _ in range(3)]
    lengths = (2, 6, 4)
    jobs = [
        job(sink, 5, seed=i, n_predict=n, ignore_eos=True)
        for i, (sink, n) in enumerate(zip(sinks, lengths, strict=True))
    ]
    with running(context, *jobs, n_parallel=2):
        for sink in sinks:
            sink.result()
    assert [len(step) for step in context.steps] == [2] * 6


def test_a_step_decodes_all_sequences_and_then_prompts() -> None:
    context = FakeContext(n_ubatch=8)
    a, b, c = Recorder(), Recorder(), Recorder()
    jobs = [
        job(a, *[5] * 3, n_predict=6, ignore_eos=True),
        job(b, *[6] * 12, n_predict=2, ignore_eos=True),
        job(c, *[7] * 2, n_predict=1, ignore_eos=True),
    ]
    with running(context, *jobs):
        for sink in (a, b, c):
            sink.result()
    shapes = [[(pos, n, outputs) for _, pos, n, outputs in step] for step in context.steps]
    assert shapes[:4] == [
        [(0, 3, 1), (0, 5, 0)],
        [(3, 1, 1), (5, 7, 1)],
        [(4, 1, 1), (12, 1, 1), (0, 2, 1)],
        [(5, 1, 1)],
    ]


def test_prompts_make_progress_when_decoding_fills_the_budget() -> None:
    context = FakeContext(n_ubatch=2)
    old, new = [Recorder() for _ in range(2)], Recorder()
    jobs = [job(s, 5, seed=i, n_predict=20, ignore_eos=True) for i, s in enumerate(old)]
    with running(context, *jobs, job(new, 5, 6, 7, seed=3, n_predict=5)):
        for sink in (*old, new):
            sink.result()
    assert [len(step) for step in context.steps[:4]] == [2, 3, 3, 3]
    assert new.tokens == expected((5, 6, 7), sampling(3), 5)


def test_progress_is_reported_after_each_chunk() -> None:
    sink = Recorder()
    with running(FakeContext(n_ubatch=8), job(sink, *[5] * 20, n_predict=1)):
        sink.result()
    assert sink.progressed == [(8, 20), (16, 20), (20, 20)]


def test_the_engine_sleeps_when_idle_and_wakes_up() -> None:
    context = FakeContext()
    with running(context) as engine:
        for i in range(3):
            sink = Recorder()
            engine.submit(job(sink, seed=i, n_predict=2, ignore_eos=True))
            sink.result()
        n_steps = len(context.steps)
    assert n_steps == 6


def test_a_call_runs_on_the_engine_s_thread() -> None:
    context = FakeContext()
    sink = Recorder()
    with running(context, job(sink, n_predict=40, ignore_eos=True)) as engine:
        assert engine.call(lambda c: (c.n_ctx, threading.current_thread().name)) == (
            512,
            "lamella-engine",
        )
        with pytest.raises(ZeroDivisionError):
            engine.call(lambda c: 1 / 0)
        assert sink.result().n_predicted == 40


def test_a_call_gets_pages_in_a_full_pool() -> None:
    context = FakeContext(n_ctx=32)
    sinks = [Recorder() for _ in range(3)]
    jobs = [job(sink, 7, 8, i, n_predict=20) for i, sink in enumerate(sinks, 3)]

    def fill(context: Context) -> int:
        seq = context.pool.new_sequence()
        context.append(seq, 32)
        seq.free()
        return engine.n_running

    with running(context, *jobs) as engine:
        for _ in range(10):
            assert engine.call(fill, n_tokens=32) == 0
        for sink in sinks:
            sink.result()
    assert context.pool.n_free == context.pool.n_pages
    for i, sink in enumerate(sinks, 3):
        assert sink.tokens == expected((7, 8, i), sampling(1), 20)


@pytest.mark.parametrize("n_parallel", [0, 65])
def test_an_invalid_n_parallel(n_parallel: int) -> None:
    with pytest.raises(RequestError, match=f"n_parallel {n_parallel}: must be 1 to 64"):
        make_engine(FakeContext(), n_parallel=n_parallel)


def test_a_call_takes_the_place_of_a_job_in_pools_with_windows() -> None:
    """These have pages for two sequences only."""
    context = FakeContext(n_ctx=400, n_ubatch=8, windows=(Window(9),), n_seqs=2)
    sinks = [Recorder() for _ in range(2)]
    jobs = [job(sink, 7, 8, i, seed=i, n_predict=60) for i, sink in enumerate(sinks, 3)]

    def evaluate(context: Context) -> int:
        seq = context.pool.new_sequence()
        context.append(seq, 40)
        for pos in range(0, 40, 8):
            seq.prepare(pos, pos + 8)
        seq.free()
        return engine.n_running

    with running(context, *jobs, n_parallel=2) as engine:
        for _ in range(10):
            assert engine.call(evaluate, n_tokens=40) < 2
        for i, sink in enumerate(sinks, 3):
            sink.result()
            assert sink.tokens == expected((7, 8, i), sampling(i), 60)


def test_timings_have_llama_servers_fields() -> None:
    timings = Timings(cache_n=2, prompt_n=8, prompt_ms=4.0, predicted_n=11, predicted_ms=50.0)
    assert timings.as_dict() == {
        "cache_n": 2,
        "prompt_n": 8,
        "prompt_ms": 4.0,
        "prompt_per_token_ms": 0.5,
        "prompt_per_second": 2000.0,
        "predicted_n": 11,
        "predicted_ms": 50.0,
        "predicted_per_token_ms": 5.0,
        "predicted_per_second": 200.0,
    }


@pytest.mark.parametrize("predicted_n", [0, 1])
def test_timings_without_tokens_are_zero(predicted_n: int) -> None:
    timings = Timings(cache_n=0, prompt_n=0, prompt_ms=0, predicted_n=predicted_n, predicted_ms=0)
    assert set(timings.as_dict().values()) == {0, predicted_n}


def test_time_is_split_at_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, context, sink = Clock(), FakeContext(n_ubatch=8), Recorder()
    monkeypatch.setattr("lamella.runtime.engine.runner.time", clock)
    seconds = {1: 0.02, 2: 0.02, 3: 0.05}  # two chunks of prompt, one token after the first
    context.on_decode = lambda step: clock.wait(seconds.get(step, 0))
    with running(context, job(sink, *[5] * 12, n_predict=2, ignore_eos=True)):
        timings = sink.result().timings
    assert (timings.cache_n, timings.prompt_n, timings.predicted_n) == (0, 12, 2)
    assert timings.prompt_ms == pytest.approx(40)
    assert timings.predicted_ms == pytest.approx(50)


def test_probabilities_belong_to_the_logits_of_the_sampled_token() -> None:
    best: list[int] = []

    class Watching(Recorder):
        def token(self, token: int, logprobs: Logprobs | None) -> bool:
            assert logprobs is not None
            best.append(logprobs.top[0].id)
            return super().token(token, logprobs)

    sinks = [Watching() for _ in range(3)]
    greedy = request(SamplingParams(temperature=0.0), n_predict=5)
    jobs = [
        Job(prompt=(4, 5, i), params=greedy, sink=sink, n_probs=1) for i, sink in enumerate(sinks)
    ]
    with running(FakeContext(), *jobs, n_parallel=1):
        for sink in sinks:
            sink.result()
    assert best == [token for sink in sinks for token in sink.tokens]
