"""Guesses change no token, no log-probability and no page, however good or bad they are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from fake_context import (
    EOS,
    N_VOCAB,
    FakeContext,
    PipelineContext,
    Recorder,
    make_engine,
    running,
)

from lamella.base.errors import CancelledError
from lamella.model.guide import GrammarParams
from lamella.model.layer_memory import Window
from lamella.model.sampling import Logprobs, SamplingParams
from lamella.runtime.engine.drafts import speculation
from lamella.runtime.engine.drafts.guesser import Guesser
from lamella.runtime.engine.drafts.source import Draft
from lamella.runtime.engine.drafts.widths import Wish
from lamella.runtime.engine.job import Job, Result, StopType
from lamella.runtime.params import GenerationParams, RequestParams
from lamella.runtime.speculative_params import SpecType, SpeculativeParams

OFF = SpeculativeParams(spec_type=(SpecType.NONE,))
ON = SpeculativeParams()
REGEX = "([a-c]{2}( the|é))*[!?]"


class Sink(Recorder):
    """A sink that records log-probabilities too, and stops after `n_max` tokens."""

    def __init__(self, n_max: int = 1000) -> None:
        super().__init__(lambda n: n < n_max)
        self.n_max = n_max
        self.logprobs: list[Logprobs | None] = []

    def token(self, token: int, logprobs: Logprobs | None) -> bool:
        self.logprobs.append(logprobs)
        return super().token(token, logprobs)


@dataclass
class Guessed:
    """The guesses of a test: by the tokens of a text, those that follow."""

    truth: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    kind: str = "oracle"
    most: int = 0  # tokens of the largest step

    def draft(self, tokens: Sequence[int], n_max: int) -> Draft:
        right = self._right(tokens)[:n_max]
        if self.kind == "random":
            return Draft([self.rng.randrange(N_VOCAB) for _ in range(n_max)])
        if self.kind == "mixed":
            right = [t if self.rng.random() < 0.8 else self.rng.randrange(N_VOCAB) for t in right]
        return Draft(right)

    def _right(self, tokens: Sequence[int]) -> Sequence[int]:
        for prompt, text in self.truth.items():
            n = len(prompt)
            if tuple(tokens[:n]) == prompt and list(tokens[n:]) == text[: len(tokens) - n]:
                return text[len(tokens) - n :]
        return ()


def widest(wishes: Sequence[Wish], n_texts: int, n_max: int, ms_of: object) -> list[int]:
    """All guesses for which there is room."""
    found, room = [], n_max - n_texts
    for wish in wishes:
        found.append(min(wish.n, room))
        room -= found[-1]
    return found


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a fake context take no time, so nothing is measured: guess all that there is."""
    monkeypatch.setattr(speculation, "best_widths", widest)


def random_job(rng: random.Random, prompt: tuple[int, ...]) -> Job:
    """A job whose options are random; its sink may stop it."""
    constrained = rng.random() < 0.3
    sampling = SamplingParams(
        seed=rng.randint(0, 9999),
        temperature=rng.choice([0.0, 0.3, 0.8, 1.5]),
        top_k=rng.choice([0, 5, 40]),
        repeat_penalty=rng.choice([1.0, 1.3]),
        dry_multiplier=rng.choice([0.0, 0.8]),
        mirostat=rng.choice([0, 0, 0, 1, 2]),
        xtc_probability=rng.choice([0.0, 0.5]),
    )
    n_probs = rng.choice([0, 0, 3])
    params = RequestParams(
        sampling=sampling,
        generation=GenerationParams(
            n_predict=rng.choice([1, 2, 7, 40, -1]), ignore_eos=rng.random() < 0.3
        ),
        grammar=GrammarParams(regex=REGEX if constrained else ""),
        speculative=ON,
    )
    post = n_probs > 0 and rng.random() < 0.5
    sink = Sink(rng.choice([1, 4, 9, 1000, 1000]))
    return Job(prompt=prompt, params=params, sink=sink, n_probs=n_probs, post_sampling_probs=post)


def random_prompt(rng: random.Random) -> tuple[int, ...]:
    shared = random.Random(1)
    n, n_shared = rng.choice([1, 3, 12, 30]), rng.choice([0, 2, 30])
    return tuple((shared if i < n_shared else rng).randint(3, N_VOCAB - 1) for i in range(n))


def without(job: Job, context: FakeContext) -> Sink:
    """The same job alone, without guesses."""
    assert isinstance(job.sink, Sink)
    sink = Sink(job.sink.n_max)
    with running(context, replace(job, sink=sink, params=replace(job.params, speculative=OFF))):
        sink.wait()
    return sink


# by default, each kind with two of the four contexts
@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        pytest.param(kind, seed, marks=pytest.mark.full if (i + seed) % 2 else ())
        for i, kind in enumerate(["oracle", "random", "mixed", "ngram"])
        for seed in range(4)
    ],
)
def test_guesses_change_nothing(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    options: dict[str, Any] = {
        "n_ctx": rng.choice([96, 160, 256]),
        "page_size": rng.choice([4, 8]),
        "windows": [Window(12)] if seed % 2 else (),
        "n_kept": [None, 20, 3, None][seed],
        "n_ubatch": rng.choice([8, 16]),
    }
    prompts = list({random_prompt(rng) for _ in range(14)})
    jobs = [random_job(rng, prompt) for prompt in prompts]
    expected = [without(job, FakeContext(**options, tops=seed == 2)) for job in jobs]
    if kind != "ngram":
        truth = {j.prompt: sink.tokens for j, sink in zip(jobs, expected, strict=True)}
        guessed = Guessed(truth, rng, kind)
        monkeypatch.setattr(Guesser, "draft", guessed.draft)
    made = PipelineContext if seed == 3 else FakeContext
    context = made(**options, tops=seed == 2)
    with running(context, *jobs, n_parallel=rng.choice([1, 3, 6])) as engine:
        for job, sink in zip(jobs, expected, strict=True):
            assert isinstance(job.sink, Sink)
            end, other = job.sink.wait(), sink.wait()
            assert job.sink.tokens == sink.tokens
            assert repr(job.sink.logprobs) == repr(sink.logprobs)
            if not isinstance(other, Result):
                assert (type(end), str(end)) == (type(other), str(other))
                continue
            assert isinstance(end, Result)
            assert (end.stop_type, end.n_predicted) == (other.stop_type, other.n_predicted)
        counters = engine.counters
    if kind != "ngram":
        assert counters.n_drafts > 0
        assert kind != "oracle" or counters.n_accepted > 0.5 * counters.n_drafted


def test_right_guesses_save_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(
        prompt=(7, 8, 9),
        params=RequestParams(
            sampling=SamplingParams(seed=3),
            generation=GenerationParams(n_predict=41, ignore_eos=True),
        ),
        sink=Sink(),
    )
    plain = FakeContext()
    expected = without(job, plain)
    guessed = Guessed({job.prompt: expected.tokens})
    monkeypatch.setattr(Guesser, "draft", guessed.draft)
    context = FakeContext()
    with running(context, job) as engine:
        assert isinstance(job.sink, Sink)
        result = job.sink.result()
        assert job.sink.tokens == expected.tokens
        # one token of the prompt, then 8 of each step
        assert (len(plain.steps), len(context.steps)) == (41, 6)
        assert (result.timings.draft_n, result.timings.draft_n_accepted) == (35, 35)
        assert (engine.counters.n_drafts, engine.counters.n_accepted) == (5, 35)
        assert engine.call(lambda _: engine.steps.n_outputs) == 41  # once the last step is noted


def test_guesses_take_idle_pages_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached prefix stays, and no other job is preempted."""
    guessed = Guessed(kind="random")
    monkeypatch.setattr(Guesser, "draft", guessed.draft)
    context = FakeContext(64, page_size=4)
    params = RequestParams(generation=GenerationParams(n_predict=1))
    longer = RequestParams(generation=GenerationParams(n_predict=11, ignore_eos=True))
    kept = tuple(range(3, 27)) * 2  # 48 tokens: 12 of 16 pages
    first, second, third = Sink(), Sink(), Sink()
    with running(context, Job(prompt=kept, params=params, sink=first)) as engine:
        first.result()
        engine.submit(Job(prompt=(5, 6, 7), params=longer, sink=second))
        second.result()  # 13 tokens need 4 pages: with 7 guesses they would need 5
        engine.submit(Job(prompt=(*kept, 4), params=params, sink=third))
        assert third.result().n_cached == 48
        assert engine.counters.n_drafts > 0


def test_nothing_is_guessed_while_a_prompt_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    guessed = Guessed(kind="random")
    monkeypatch.setattr(Guesser, "draft", guessed.draft)
    context = FakeContext(n_ubatch=8)
    params = RequestParams(generation=GenerationParams(n_predict=20, ignore_eos=True))
    short, long = Sink(), Sink()
    engine = make_engine(context)
    engine.submit(Job(prompt=(7,), params=params, sink=short))
    engine.submit(Job(prompt=tuple(range(3, 30)) * 2, params=params, sink=long))
    engine.start()
    long.result()
    short.result()
    engine.close()
    for step in context.steps:
        prompts = [n for _, pos, n, outputs in step if n > 1 and outputs <= 1]
        guesses = [n for _, pos, n, outputs in step if outputs > 1]
        assert not (prompts and guesses), step
    assert any(outputs > 1 for step in context.steps for *_, outputs in step)


def test_a_stopped_text_shares_no_wrong_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job stops within a round: what its guesses wrote is no prefix of a later job."""
    monkeypatch.setattr(Guesser, "draft", lambda self, tokens, n: Draft([5] * n))
    context = FakeContext(page_size=4)
    params = RequestParams(
        sampling=SamplingParams(seed=1), generation=GenerationParams(n_predict=30)
    )
    with running(context) as engine:
        for n_max in (1, 2, 3, 5):
            sink = Sink(n_max)
            engine.submit(Job(prompt=(7, 8, 9, n_max), params=params, sink=sink))
            result = sink.result()
            again, other = Sink(), Sink()
            prompt = (7, 8, 9, n_max, *sink.tokens)
            engine.submit(Job(prompt=prompt, params=params, sink=again))
            with running(FakeContext(), Job(prompt=prompt, params=params, sink=other)):
                other.result()
            again.result()
            assert again.tokens == other.tokens
            assert result.stop_type in (StopType.WORD, StopType.EOS)


def test_a_paused_job_gets_one_more_token(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(
        prompt=(7, 8, 9),
        params=RequestParams(
            sampling=SamplingParams(seed=1),
            generation=GenerationParams(n_predict=30, ignore_eos=True),
        ),
        sink=Sink(),
    )
    truth = without(job, FakeContext()).tokens
    guessed = Guessed({job.prompt: truth})
    monkeypatch.setattr(Guesser, "draft", guessed.draft)
    counts: list[int] = []
    engine = make_engine(FakeContext())
    sink = Sink()

    def on_token(n: int) -> bool:
        if n == 4:
            engine.pause(ticket)
            counts.append(n)
        return True

    sink.on_token = on_token
    ticket = engine.submit(replace(job, sink=sink))
    engine.start()
    while not counts:
        pass
    engine.call(lambda context: None)
    assert len(sink.tokens) == 4
    engine.resume(ticket)
    sink.result()
    engine.close()
    assert sink.tokens == truth


def test_an_end_token_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(Guesser, "draft", lambda self, tokens, n: Draft([6, EOS, 6]))
    context = FakeContext()
    original = context.start_rows

    def start_rows(batch: Any) -> Any:
        seen.extend(token for run in batch.runs for token in run.tokens)
        return original(batch)

    monkeypatch.setattr(context, "start_rows", start_rows)
    sink = Sink()
    with running(context, Job(prompt=(7, 8), params=RequestParams(), sink=sink)):
        sink.wait()
    assert seen.count(6) > 1
    assert EOS not in seen


def states_context() -> FakeContext:
    return FakeContext(96, page_size=4, n_kept=32)


@pytest.mark.parametrize("make", [FakeContext, states_context])
def test_a_cancel_during_a_step_leaves_nothing(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client cancels while guesses are computed: none is checked."""
    monkeypatch.setattr(Guesser, "draft", lambda self, tokens, n: Draft([5] * n))
    context = make()
    tickets: list[Any] = []

    def on_decode(step: int) -> None:
        if any(outputs > 1 for *_, outputs in context.steps[-1]):
            for ticket in tickets:
                engine.cancel(ticket)
            tickets.clear()

    context.on_decode = on_decode
    params = RequestParams(
        sampling=SamplingParams(seed=1),
        generation=GenerationParams(n_predict=60, ignore_eos=True),
    )
    with running(context) as engine:
        for n in range(3):
            sink = Sink()
            tickets.append(engine.submit(Job(prompt=(7, 8, 9, n + 3), params=params, sink=sink)))
            assert isinstance(sink.wait(), CancelledError)
        alone, other = Sink(), Sink()
        engine.submit(Job(prompt=(7, 8, 9, 3), params=params, sink=alone))
        alone.result()
        with running(make(), Job(prompt=(7, 8, 9, 3), params=params, sink=other)):
            other.result()
        assert alone.tokens == other.tokens


@pytest.mark.parametrize("make", [FakeContext, states_context])
def test_a_shift_in_a_round_with_guesses(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The context becomes full within a round: the text goes on as without guesses."""
    params = RequestParams(
        sampling=SamplingParams(seed=1),
        generation=GenerationParams(n_predict=150, ignore_eos=True, context_shift=True, n_keep=4),
    )
    job = Job(prompt=(7, 8, 9, 10), params=params, sink=Sink())
    expected = without(job, make() if make is states_context else FakeContext(96, page_size=4))
    texts = expected.tokens
    monkeypatch.setattr(Guesser, "draft", lambda self, tokens, n: Draft(_after(texts, tokens)[:n]))
    sink = Sink()
    context = make() if make is states_context else FakeContext(96, page_size=4)
    with running(context, replace(job, sink=sink)) as engine:
        assert sink.result().truncated
        assert engine.counters.n_accepted > 50
    assert sink.tokens == texts


def _after(text: Sequence[int], tokens: Sequence[int]) -> Sequence[int]:
    """What follows in a text after its last tokens."""
    end = list(tokens[-6:])
    for at in range(len(text) - 6, -1, -1):
        if list(text[at : at + 6]) == end:
            return text[at + 6 :]
    return ()


def test_synthetic_rates_take_no_draft_model() -> None:
    params = SpeculativeParams(spec_synth_rates=(0.5,))
    assert not params.uses(SpecType.DRAFT_SIMPLE)
    assert SpeculativeParams().uses(SpecType.DRAFT_SIMPLE)
