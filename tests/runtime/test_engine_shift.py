"""Context shift: a job whose context is full goes on as if its newest tokens were a new prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_context import (
    EOS,
    VOCAB,
    FakeContext,
    PipelineContext,
    Recorder,
    fake_logits,
    job,
    running,
    sampling,
)
from open_params import open_params
from tiny_models import TINY, write_model
from window_models import write_window_model

from lamella.base.errors import CancelledError
from lamella.graph import GGMLType
from lamella.model.sampling import Sampler, TokenLogprob
from lamella.runtime.engine import policy
from lamella.runtime.engine.job import StopType
from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance
from lamella.runtime.params import GenerationParams, RequestParams
from lamella.runtime.text import generate

BOS = 1
N_CTX = 32
PROMPT = (7, 8, 9, 10, 11)


def params(**options: Any) -> GenerationParams:
    return GenerationParams(context_shift=True, ignore_eos=True, **options)


@pytest.mark.parametrize(
    ("options", "n_prompt", "kept", "next"),
    [
        ({}, 6, [], 16),
        ({"n_keep": 4}, 6, [0, 1, 2, 3], 18),
        ({"n_keep": 9}, 6, [0, 1, 2, 3, 4, 5], 19),  # no more than the prompt
        ({"n_keep": -1}, 6, [0, 1, 2, 3, 4, 5], 19),
        ({"n_keep": -1}, 32, [*range(28)], 30),  # some tokens are always left
        ({"n_discard": 5}, 6, [], 5),
        ({"n_keep": 2, "n_discard": 5}, 6, [0, 1], 7),
        ({"n_keep": 2, "n_discard": 99}, 6, [0, 1], 31),
    ],
)
def test_the_tokens_that_stay(
    options: dict[str, int], n_prompt: int, kept: list[int], next: int
) -> None:
    tokens = [*range(32)]
    assert policy.shifted(tokens, n_prompt, params(**options), BOS) == [*kept, *range(next, 32)]


def test_the_token_that_begins_a_text_stays() -> None:
    tokens = [BOS, *range(2, 33)]
    assert policy.shifted(tokens, 6, params(), BOS)[:2] == [BOS, 17]
    assert policy.shifted(tokens, 6, params(n_keep=2), BOS)[:4] == [BOS, 2, 3, 18]
    assert policy.shifted(tokens, 6, params(), None)[0] == 17


def text(prompt: Sequence[int], generation: GenerationParams, seed: int, n: int) -> list[int]:
    """The tokens of a job, generated without an engine."""
    bans = ((EOS, -float("inf")),)
    sampler = Sampler(replace(sampling(seed), logit_bias=bans), VOCAB)
    tokens, found = [*prompt], list[int]()
    for token in prompt:
        sampler.accept(token)
    while len(found) < n:
        token = sampler.sample(fake_logits(np.array(tokens, np.int64)))
        sampler.accept(token)
        found.append(token)
        tokens.append(token)
        if len(tokens) == N_CTX:
            tokens = policy.shifted(tokens, len(prompt), generation, VOCAB.bos)
    return found


@pytest.mark.parametrize("options", [{}, {"n_keep": 3}, {"n_keep": -1, "n_discard": 1}])
@pytest.mark.parametrize("context", [FakeContext, PipelineContext])
def test_jobs_go_on_with_the_tokens_that_stay(
    context: type[FakeContext], options: dict[str, int]
) -> None:
    # 4 jobs in a pool for 2, so that they are preempted too
    prompts, sinks = [(*PROMPT, 12 + i) for i in range(4)], [Recorder() for _ in range(4)]
    jobs = [
        job(sink, *prompt, seed=i, n_predict=100, context_shift=True, ignore_eos=True, **options)
        for i, (sink, prompt) in enumerate(zip(sinks, prompts, strict=True))
    ]
    pool = context(2 * N_CTX)
    pool.n_ctx_seq = N_CTX
    with running(pool, *jobs):
        results = [sink.result() for sink in sinks]
    for i, (sink, prompt, result) in enumerate(zip(sinks, prompts, results, strict=True)):
        assert sink.tokens == text(prompt, params(**options), i, 100), i
        assert (result.stop_type, result.n_predicted) == (StopType.LIMIT, 100)
        assert (result.truncated, result.n_prompt) == (True, 6)


def test_without_a_limit_a_text_is_as_long_as_the_context() -> None:
    sink = Recorder()
    with running(FakeContext(N_CTX), job(sink, *PROMPT, context_shift=True, ignore_eos=True)):
        result = sink.result()
    assert (result.n_predicted, result.stop_type, result.truncated) == (32, StopType.LIMIT, True)


def test_a_limit_in_the_last_place_needs_no_shift() -> None:
    sink = Recorder()
    with running(
        FakeContext(N_CTX), job(sink, *PROMPT, n_predict=27, context_shift=True, ignore_eos=True)
    ):
        result = sink.result()
    assert (result.n_predicted, result.truncated) == (27, False)


def test_a_kept_prompt_is_not_evaluated_again() -> None:
    context, sink = FakeContext(256), Recorder()
    prompt = tuple(7 + i % 20 for i in range(200))
    one = job(sink, *prompt, n_predict=80, n_keep=-1, context_shift=True, ignore_eos=True)
    with running(context, one):
        sink.result()
    n_evaluated = sum(n for step in context.steps for _, _, n, _ in step)
    # 56 are predicted, then 28 leave; the last 8 of the 200 share a page with what follows
    assert n_evaluated < 200 + 80 + 28 + 32


def test_a_shifted_job_can_be_cancelled() -> None:
    sink = Recorder(lambda n: n < 10_000)
    with running(FakeContext(N_CTX)) as engine:
        ticket = engine.submit(
            job(sink, *PROMPT, n_predict=10**6, context_shift=True, ignore_eos=True)
        )
        while ticket.n_dropped < 3 * N_CTX:
            pass
        engine.cancel(ticket)
        assert isinstance(sink.error(), CancelledError)


# --- real models ---

Probs = list[tuple[TokenLogprob, ...]]


def probs_of(instance: Instance, prompt: Sequence[int], n: int, **options: Any) -> Probs:
    """The exact probabilities at each position."""
    options = {"temperature": 0, "n_predict": n, "ignore_eos": True, **options}
    made = generate(instance.engine, instance.vocab, prompt, RequestParams.make(options), n_probs=9)
    return [(at.chosen, *at.top) for piece in made for at in piece.probs]


@pytest.mark.parametrize("has_windows", [False, True])
def test_bits_are_those_of_a_new_prompt(tmp_path: Path, has_windows: bool) -> None:
    path, n_ctx = tmp_path / "tiny.gguf", 64
    if has_windows:
        write_window_model(path, n_layer=6, n_swa=24)
    else:
        write_model(TINY["llama"], path, GGMLType.Q8_0)
    opened = open_params("", devices=("none",)).change(path=path, n_ctx=n_ctx, n_ubatch=32)
    prompt = [1, *range(10, 40)]
    with open_instance(opened) as instance:
        found = probs_of(instance, prompt, 90, context_shift=True, n_keep=10)
        tokens, expected = [*prompt], Probs()
        while len(expected) < 90:
            n = min(n_ctx - len(tokens), 90 - len(expected))
            more = probs_of(instance, tokens, n, cache_prompt=False)
            expected += more
            tokens += [each[0].id for each in more]
            if len(tokens) == n_ctx:
                kept = GenerationParams(n_keep=10)
                tokens = policy.shifted(tokens, len(prompt), kept, instance.vocab.bos)
        assert found == expected
