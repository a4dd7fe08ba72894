"""Shared prefixes are evaluated once, and sharing changes no tokens.

The context's logits are a hash of its cells, so a wrong cell changes the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from fake_context import FakeContext, Recorder, expected, job, make_engine, running, sampling

from lamella.base.errors import BackendError, CancelledError
from lamella.model.kv_prefix import PrefixTree
from lamella.model.kv_sequence import KVSequence
from lamella.runtime.engine.engine import Engine
from lamella.runtime.engine.job import Result

PROMPT = tuple(range(3, 23))  # 5 pages of 4


def generate(engine: Engine, prompt: Sequence[int], n: int = 3, **values: bool) -> Result:
    """Run one job. Asserts that it gets the same tokens as alone."""
    sink = Recorder()
    engine.submit(job(sink, *prompt, n_predict=n, ignore_eos=True, **values))
    result = sink.result()
    assert len(sink.tokens) == n
    if n:
        assert sink.tokens == whole(prompt, n)
    assert result.n_cached == result.timings.cache_n
    assert result.timings.prompt_n == len(prompt) - result.n_cached
    return result


def whole(prompt: Sequence[int], n: int, seed: int = 1) -> list[int]:
    """The tokens that the job gets alone."""
    sink = Recorder()
    with running(FakeContext(), job(sink, *prompt, seed=seed, n_predict=n, ignore_eos=True)):
        sink.result()
    return sink.tokens


def n_evaluated(context: FakeContext) -> int:
    return sum(n for step in context.steps for _, _, n, _ in step)


def test_a_repeated_prompt_evaluates_one_token() -> None:
    context = FakeContext()
    with running(context) as engine:
        assert generate(engine, PROMPT).n_cached == 0
        before = n_evaluated(context)
        assert generate(engine, PROMPT).n_cached == len(PROMPT) - 1
        assert n_evaluated(context) - before == 1 + 2  # and all predicted tokens but the last


def test_a_prefix_is_not_searched_again_while_no_page_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search takes long for a long prompt, and each step would wait for it."""
    n_found, find = 0, PrefixTree.find

    def counted(*given: Any) -> KVSequence:
        nonlocal n_found
        n_found += 1
        return find(*given)

    monkeypatch.setattr(PrefixTree, "find", counted)
    context = FakeContext(108)
    sinks = [Recorder(), Recorder()]
    with running(context) as engine:
        engine.submit(job(sinks[0], *PROMPT[:9], n_predict=80, ignore_eos=True))
        engine.submit(job(sinks[1], *PROMPT * 5, n_predict=4, ignore_eos=True))
        for sink in sinks:
            sink.result()
    assert sinks[1].tokens == whole(PROMPT * 5, 4)
    n_steps = len(context.steps)
    assert n_steps > 80 and n_found < 20


def test_a_conversation_continues_from_the_cache() -> None:
    context, tokens = FakeContext(), list(PROMPT)
    with running(context) as engine:
        for turn in range(5):
            result = generate(engine, tokens, 6)
            # the last predicted token is in no cell
            assert result.n_cached == (len(tokens) - 4 if turn else 0)
            tokens += [*whole(tokens, 6), 5, 6, 7]


@pytest.mark.parametrize("n_shared", [1, 3, 4, 5, 8, 19])
def test_shared_prefixes_are_exact_to_the_token(n_shared: int) -> None:
    with running(FakeContext()) as engine:
        generate(engine, PROMPT)
        other = (*PROMPT[:n_shared], 30, 30, 30)
        assert generate(engine, other).n_cached == n_shared
        assert generate(engine, PROMPT).n_cached == len(PROMPT) - 1  # it is unchanged


def test_prompts_without_prediction_and_single_tokens() -> None:
    with running(FakeContext()) as engine:
        assert generate(engine, PROMPT, 0).n_cached == 0
        assert generate(engine, PROMPT, 0).n_cached == len(PROMPT) - 1
        assert generate(engine, PROMPT[:1]).n_cached == 0  # at least one token is evaluated
        assert generate(engine, PROMPT[:2]).n_cached == 1


def test_a_running_job_shares_its_full_pages() -> None:
    context, first, second = FakeContext(), Recorder(), Recorder()

    def submit(step: int) -> None:
        if step == 5:  # the first job is at its third token
            engine.submit(job(second, *PROMPT, 9, n_predict=30, ignore_eos=True))

    context.on_decode = submit
    engine = make_engine(context)
    engine.submit(job(first, *PROMPT, 9, n_predict=30, ignore_eos=True))
    engine.start()
    assert second.result().n_cached == len(PROMPT)
    first.result()
    engine.close()
    assert first.tokens == second.tokens == whole((*PROMPT, 9), 30)


@pytest.mark.parametrize("n_ubatch", [8, 64])
def test_one_of_many_parallel_jobs_evaluates_a_shared_prefix(n_ubatch: int) -> None:
    context, sinks = FakeContext(n_ubatch=n_ubatch), [Recorder() for _ in range(4)]
    jobs = [
        job(sink, *PROMPT, *[i] * i, seed=i, n_predict=5, ignore_eos=True)
        for i, sink in enumerate(sinks, 3)
    ]
    with running(context, *jobs):
        cached = [sink.result().n_cached for sink in sinks]
    assert cached == [0, 20, 20, 20]
    for i, sink in enumerate(sinks, 3):
        assert sink.tokens == whole((*PROMPT, *[i] * i), 5, seed=i)


def test_a_job_evaluates_the_prefix_if_the_awaited_job_fails() -> None:
    context, sinks = FakeContext(n_ubatch=8), [Recorder(), Recorder()]

    def fail(step: int) -> None:
        if step == 2:
            raise BackendError("the device is gone")

    context.on_decode = fail
    jobs = [job(sink, *PROMPT, n_predict=3, ignore_eos=True) for sink in sinks]
    with running(context, *jobs):
        assert isinstance(sinks[0].error(), BackendError)
        assert sinks[1].result().n_cached == 8  # those of the step before
    assert sinks[1].tokens == whole(PROMPT, 3)


def test_jobs_do_not_wait_for_a_job_that_does_not_share() -> None:
    context, sinks = FakeContext(n_ubatch=64), [Recorder(), Recorder()]
    jobs = [
        job(sink, *PROMPT, n_predict=3, ignore_eos=True, cache_prompt=cached)
        for sink, cached in zip(sinks, (False, True), strict=True)
    ]
    with running(context, *jobs):
        assert [sink.result().n_cached for sink in sinks] == [0, 0]
    assert [n for _, _, n, _ in context.steps[0]] == [20, 20]


def test_cache_prompt_off() -> None:
    with running(FakeContext()) as engine:
        generate(engine, PROMPT)
        assert generate(engine, PROMPT, cache_prompt=False).n_cached == 0
        other = tuple(reversed(PROMPT))
        generate(engine, other, cache_prompt=False)
        assert generate(engine, other).n_cached == 0  # and it leaves no cached prefix


def test_a_cancelled_job_leaves_its_evaluated_tokens() -> None:
    context, sink = FakeContext(n_ubatch=8), Recorder()
    engine = make_engine(context)
    ticket = engine.submit(job(sink, *PROMPT))
    context.on_decode = lambda step: engine.cancel(ticket) if step == 2 else None
    engine.start()
    assert isinstance(sink.error(), CancelledError)
    assert generate(engine, PROMPT).n_cached == 16  # two steps of 8
    engine.close()


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_failed_step_leaves_no_page_of_its_own(is_cancelled: bool) -> None:
    context, sink = FakeContext(n_ubatch=8), Recorder()
    engine = make_engine(context)
    ticket = engine.submit(job(sink, *PROMPT))

    def fail(step: int) -> None:
        if step == 2:
            if is_cancelled:  # while the step is computed
                engine.cancel(ticket)
            raise BackendError("the device is gone")

    context.on_decode = fail
    engine.start()
    assert isinstance(sink.error(), CancelledError if is_cancelled else BackendError)
    assert generate(engine, PROMPT).n_cached == 8  # those of the step before
    engine.close()


def test_cached_prefixes_are_evicted_for_running_jobs() -> None:
    context = FakeContext(32)  # 8 pages
    with running(context) as engine:
        for begin in range(3, 9):
            prompt = [begin] * 20
            assert generate(engine, prompt, 8).n_cached == 0
        assert generate(engine, [8] * 20, 8).n_cached == 19


@pytest.mark.parametrize("n_prompt", range(25, 32))
def test_a_prompt_that_fills_the_pool_shares_a_partial_page(n_prompt: int) -> None:
    """A partly shared page needs one more page until it is copied; here no page is free."""
    context, prompt = FakeContext(32), [*range(3, 31), 3, 4, 5, 6][:n_prompt]
    with running(context) as engine:
        generate(engine, prompt, 1)
        result = generate(engine, prompt, 1)
        assert result.n_cached in {n_prompt - 1, (n_prompt - 1) // 4 * 4}
        other = [*prompt[: n_prompt - 3], 9, 9, 9]
        assert generate(engine, other, 1).n_cached >= (n_prompt - 3) // 4 * 4


def test_a_preempted_job_reports_the_cached_tokens_of_its_first_start() -> None:
    a, b = Recorder(), Recorder()
    jobs = [
        job(a, *[5] * 4, seed=1, n_predict=24, ignore_eos=True),
        job(b, *[6] * 14, seed=2, n_predict=12, ignore_eos=True),
    ]
    context = FakeContext(32)
    with running(context, *jobs, n_parallel=2):
        assert a.result().n_cached == b.result().n_cached == 0
    assert b.tokens == whole([6] * 14, 12, seed=2)
    again = [n for step in context.steps for _, pos, n, _ in step if n > 1 and pos == 4]
    assert len(again) == 1  # its first page was still in the pool


def test_progress_begins_after_the_cached_tokens() -> None:
    context = FakeContext(n_ubatch=8)
    sinks = [Recorder(), Recorder()]
    with running(context) as engine:
        for sink in sinks:
            engine.submit(job(sink, *PROMPT, n_predict=1, ignore_eos=True))
            sink.result()
    assert sinks[0].progressed == [(8, 20), (16, 20), (20, 20)]
    assert sinks[1].progressed == [(20, 20)]
    assert engine.counters.n_cached == 19
    assert engine.counters.n_prompt == 21


def test_a_cached_prompt_gives_the_expected_tokens() -> None:
    sink = Recorder()
    with running(FakeContext()) as engine:
        for _ in range(3):
            sink = Recorder()
            engine.submit(job(sink, *PROMPT, n_predict=9))
            sink.result()
    assert sink.tokens == expected(PROMPT, sampling(1), 9)
