"""Generations with a grammar: every finished text matches, and bits do not depend on others."""

from __future__ import annotations

import math
import re
import threading
from dataclasses import replace
from typing import Any

import pytest
from fake_context import (
    EOS,
    PIECES,
    WAIT_S,
    FakeContext,
    FakeVocab,
    Recorder,
    job,
    make_engine,
    running,
    sampling,
)
from llguidance import LLParserLimits

from lamella.base.errors import GrammarError, RequestError
from lamella.model.guide import GrammarParams, native
from lamella.model.sampling import SamplingParams
from lamella.runtime.engine.job import Job, StopType
from lamella.runtime.params import GenerationParams, RequestParams

REGEX = "([a-c]{2}( the|é))*[!?]"


def guided(sink: Recorder, seed: int = 1, regex: str = REGEX, **more: Any) -> Job:
    """A job whose text matches a regular expression."""
    params = RequestParams(
        sampling=more.pop("sampling", sampling(seed)),
        generation=GenerationParams(**more),
        grammar=GrammarParams(regex=regex),
    )
    return Job(prompt=(7, 8, 9), params=params, sink=sink)


def text_of(sink: Recorder) -> str:
    return FakeVocab().detokenize(sink.tokens)


def alone(job: Job) -> list[int]:
    """The tokens of a job that is the only one."""
    sink = Recorder()
    with running(FakeContext(), replace(job, sink=sink)):
        sink.result()
    return sink.tokens


def test_finished_texts_match() -> None:
    texts = set()
    for seed in range(30):
        sink = Recorder()
        with running(FakeContext(), guided(sink, seed)):
            result = sink.result()
        assert (result.stop_type, result.complete) == (StopType.EOS, True)
        assert re.fullmatch(REGEX, text_of(sink))
        texts.add(text_of(sink))
    assert len(texts) > 10


@pytest.mark.parametrize("tops", [False, True])
@pytest.mark.parametrize("n_ctx", [512, 64])
def test_parallel_texts_are_those_alone(n_ctx: int, tops: bool) -> None:
    """Also if jobs are preempted, because the pool is small, and with `tops` if the context
    returns the largest allowed logits only."""
    params = SamplingParams(top_k=5, temperature=1.5)
    plain = [guided(Recorder(), seed, sampling=replace(params, seed=seed)) for seed in range(8)]
    expected = [alone(each) for each in plain]
    sinks = [Recorder() for _ in range(9)]
    jobs = [replace(each, sink=sink) for each, sink in zip(plain, sinks, strict=False)]
    free = job(sinks[8], seed=3, n_predict=30)
    context = FakeContext(n_ctx, tops=tops)
    with running(context, *jobs, free, n_parallel=9 if n_ctx > 64 else 3) as engine:
        for sink in sinks:
            sink.result()
        assert engine.counters.mask_s > 0
        assert engine.counters.n_masks > 0
    assert [sink.tokens for sink in sinks[:8]] == expected


def test_a_text_ends_with_its_grammar() -> None:
    """Without an end token, also with `ignore_eos`."""
    for ignore_eos in (False, True):
        sink = Recorder()
        with running(FakeContext(), guided(sink, regex="abc", ignore_eos=ignore_eos)):
            result = sink.result()
        assert (text_of(sink), result.stop_type, result.complete) == ("abc", StopType.EOS, True)
        assert result.n_predicted == len(sink.tokens)


def test_a_limit_leaves_a_text_incomplete() -> None:
    for n_predict, complete in ((2, False), (3, True)):
        sink = Recorder()
        with running(FakeContext(), guided(sink, regex="d{3}[ef]*", n_predict=n_predict)):
            result = sink.result()
        assert (result.stop_type, result.complete) == (StopType.LIMIT, complete)


def test_a_text_without_a_grammar_is_neither_complete_nor_not() -> None:
    sink = Recorder()
    with running(FakeContext(), job(sink, n_predict=3)):
        assert sink.result().complete is None


def test_a_stopped_text_is_not_complete() -> None:
    sink = Recorder(on_token=lambda n: n < 2)
    with running(FakeContext(), guided(sink, regex="d+")):
        result = sink.result()
    assert (result.stop_type, result.complete) == (StopType.WORD, False)


def test_an_invalid_grammar_is_refused_before_it_is_queued() -> None:
    engine = make_engine(FakeContext())
    with pytest.raises(GrammarError):
        engine.submit(guided(Recorder(), regex="a{3,1}"))
    assert engine.n_waiting == 0
    engine.close()


def test_waiting_jobs_have_no_compiled_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else hundreds of them would fill the memory."""
    engine = make_engine(FakeContext())
    tickets = [engine.submit(guided(Recorder(), seed)) for seed in range(20)]
    assert all(ticket.matcher is not None for ticket in tickets)
    assert not any(ticket.matcher and ticket.matcher._native for ticket in tickets)
    engine.close()


def test_running_jobs_go_on_while_a_grammar_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    free, blocked, compiles = Recorder(), Recorder(), threading.Event()
    compile_lark = native.compile_lark

    def slow(*args: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            assert compiles.wait(WAIT_S)
        return compile_lark(*args)

    monkeypatch.setattr("lamella.model.guide.compiler.compile_lark", slow)
    engine = make_engine(FakeContext(), n_parallel=2)
    engine.submit(job(free, n_predict=100))
    engine.submit(guided(blocked))
    engine.compiler._idle.clear()
    engine.start()
    free.result()
    assert not blocked.tokens
    compiles.set()
    assert blocked.result().complete
    engine.close()


def test_a_grammar_that_no_longer_compiles_fails_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(FakeContext())
    broken, other = Recorder(), Recorder()
    engine.submit(guided(broken, regex="a{1,5}"))
    engine.submit(guided(other, regex="b{1,5}"))  # frees the first one's compiled grammar
    error = GrammarError("no memory")

    def fail(*_: object) -> None:
        raise error

    [compiled] = [each for spec, each in engine.compiler._cache.items() if "a{" in spec.source]
    monkeypatch.setattr(compiled, "compile", fail)
    engine.start()
    assert broken.error() is error
    assert other.result().complete
    engine.close()


def test_a_bias_against_all_allowed_tokens_fails_only_its_job() -> None:
    token = PIECES.index(b"d")
    params = SamplingParams(logit_bias=((token, -math.inf),))
    broken, other = Recorder(), Recorder()
    jobs = (guided(broken, regex="d", sampling=params), guided(other, regex="d"))
    with running(FakeContext(), *jobs):
        assert isinstance(broken.error(), RequestError)
        assert other.result().complete


def test_a_complete_text_ends_if_a_bias_bans_all_that_may_follow() -> None:
    banned = [token for token, piece in enumerate(PIECES) if piece == b"d" or token == EOS]
    params = SamplingParams(logit_bias=tuple((token, -math.inf) for token in banned))
    sink = Recorder()
    with running(FakeContext(), guided(sink, regex="ed*", sampling=params)):
        result = sink.result()
    assert (text_of(sink), result.stop_type, result.complete) == ("e", StopType.EOS, True)


def test_a_grammar_that_becomes_too_complex_fails_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = LLParserLimits(step_lexer_fuel=40, verbose_errors=False)
    monkeypatch.setattr(native, "parser_limits", lambda kind: limits)
    broken, other = Recorder(), Recorder()
    with running(
        FakeContext(), guided(broken, regex="eee(a|b)*a(a|b){9}!"), job(other, n_predict=5)
    ):
        assert isinstance(broken.error(), GrammarError)
        other.result()
