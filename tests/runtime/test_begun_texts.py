"""Texts that began on another engine: the same tokens, log-probabilities and ends, in few steps."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from fake_context import FakeContext, PipelineContext, running
from test_speculation import Sink, random_job, random_prompt, without

from lamella.base.errors import BackendError
from lamella.model.layer_memory import Window
from lamella.model.sampling import SamplingParams
from lamella.runtime.engine.job import Job, Result
from lamella.runtime.params import GenerationParams, RequestParams


def begun(job: Job, tokens: list[int]) -> Job:
    """A job whose text began elsewhere with these tokens."""
    assert isinstance(job.sink, Sink)
    return replace(job, sink=Sink(job.sink.n_max), sent=tuple(tokens))


def long_job(**generation: Any) -> Job:
    params = RequestParams(
        sampling=SamplingParams(seed=3),
        generation=GenerationParams(n_predict=100, ignore_eos=True, **generation),
    )
    return Job(prompt=(7, 8, 9), params=params, sink=Sink())


@pytest.mark.parametrize("seed", range(6))
def test_the_text_is_the_same(seed: int) -> None:
    """With random samplers, grammars, ends and lengths, beside others, in small contexts."""
    rng = random.Random(seed)
    options: dict[str, Any] = {
        "n_ctx": rng.choice([96, 160, 256]),
        "page_size": rng.choice([4, 8]),
        "windows": [Window(12)] if seed % 2 else (),
        "n_kept": [None, 20, 3][seed % 3],
        "n_ubatch": rng.choice([8, 16]),
        "tops": seed == 2,
    }
    jobs = [random_job(rng, prompt) for prompt in {random_prompt(rng) for _ in range(14)}]
    expected = [without(job, FakeContext(**options)) for job in jobs]
    again = [
        begun(job, sink.tokens[: rng.randint(0, len(sink.tokens))])
        for job, sink in zip(jobs, expected, strict=True)
    ]
    context = (PipelineContext if seed == 3 else FakeContext)(**options)
    with running(context, *again, n_parallel=rng.choice([1, 3, 6])):
        for job, sink in zip(again, expected, strict=True):
            assert isinstance(job.sink, Sink)
            end, other = job.sink.wait(), sink.wait()
            assert job.sink.tokens == sink.tokens
            assert repr(job.sink.logprobs) == repr(sink.logprobs)
            if isinstance(other, Result):
                assert isinstance(end, Result)
                assert (end.stop_type, end.n_predicted) == (other.stop_type, other.n_predicted)
                assert end.complete == other.complete


def test_sent_tokens_need_few_steps_and_are_no_drafts() -> None:
    job, plain = long_job(), FakeContext()
    expected = without(job, plain).tokens
    again, context = begun(job, expected[:80]), FakeContext(n_ubatch=32)
    with running(context, again) as engine:
        assert isinstance(again.sink, Sink)
        result = again.sink.result()
        assert again.sink.tokens == expected
        assert engine.counters.n_drafts == 0
    assert len(plain.steps) == 100
    # the first token with the prompt; 32, 32 and 16, of which one is new; then each of 19
    assert len(context.steps) == 1 + 3 + 19
    assert result.timings.draft_n == 0
    assert result.n_predicted == 100


def test_they_go_on_beside_prompts() -> None:
    """Prompts of others wait for sent tokens, not the other way round."""
    job = long_job()
    expected = without(job, FakeContext()).tokens
    again, context = begun(job, expected[:90]), FakeContext(n_ubatch=32)
    other = replace(long_job(), prompt=tuple(range(3, 30)) * 4)
    with running(context, other, again):
        assert isinstance(other.sink, Sink)
        assert isinstance(again.sink, Sink)
        other.sink.result()
        again.sink.result()
        assert again.sink.tokens == expected
    assert sum(any(outputs > 1 for *_, outputs in step) for step in context.steps) <= 4


def test_a_shifted_context() -> None:
    options: dict[str, Any] = {"n_ctx": 64, "page_size": 4}
    job = long_job(context_shift=True)
    expected = without(job, FakeContext(**options)).tokens
    again = begun(job, expected[:90])
    with running(FakeContext(**options), again):
        assert isinstance(again.sink, Sink)
        again.sink.result()
    assert again.sink.tokens == expected


def test_another_text_is_an_error() -> None:
    """Never a text of two halves that do not belong together."""
    job = long_job()
    tokens = without(job, FakeContext()).tokens[:40]
    tokens[30] = (tokens[30] + 1) % 20 + 3
    wrong, right = begun(job, tokens), long_job()
    with running(FakeContext(), wrong, right):
        assert isinstance(wrong.sink, Sink)
        assert isinstance(right.sink, Sink)
        error = wrong.sink.error()
        assert isinstance(error, BackendError)
        assert "token 31 of the text" in str(error)
        assert len(wrong.sink.tokens) == 30
        right.sink.result()  # the others go on
