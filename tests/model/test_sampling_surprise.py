"""Mirostat and Adaptive-P: against formulas in float64, their aims, and compiled against NumPy."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from sampling_toys import VOCABS, F32Array, ToyVocab, candidates, letters, outcome, random_logits

from lamella.base.settings import NO_JIT
from lamella.model.sampling import Sampler, SamplingParams
from lamella.model.sampling.chain import NumpyChain
from lamella.model.sampling.dist import MersenneTwister
from lamella.model.sampling.native import NativeChain
from lamella.model.sampling.rows import RowSampler
from lamella.model.sampling.surprise import AdaptiveP, Mirostat, n_of_zipf

KINDS: dict[str, SamplingParams] = {
    "mirostat 1": SamplingParams(seed=3, mirostat=1, mirostat_tau=3.0),
    "mirostat 2": SamplingParams(seed=3, mirostat=2, mirostat_tau=3.0, mirostat_eta=0.2),
    "adaptive_p": SamplingParams(
        seed=3, samplers=("adaptive_p", "top_k", "min_p"), adaptive_target=0.3
    ),
}
each_kind = pytest.mark.parametrize("params", KINDS.values(), ids=KINDS)


def zipf(n: int, exponent: float, rng: random.Random) -> F32Array:
    """Logits of tokens in random order whose probabilities follow Zipf's law."""
    logits = [-exponent * math.log(i + 1) for i in range(n)]
    rng.shuffle(logits)
    return np.array(logits, np.float32)


def probabilities(logits: Sequence[float]) -> list[float]:
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    return [w / sum(weights) for w in weights]


def pair(params: SamplingParams, vocab: ToyVocab) -> tuple[Sampler, Sampler]:
    """A sampler with a compiled chain, and one with its twin."""
    with NO_JIT.set(0):
        native = Sampler(params, vocab)
    with NO_JIT.set(1):
        twin = Sampler(params, vocab)
    assert isinstance(native.chain, NativeChain) and isinstance(twin.chain, NumpyChain)
    return native, twin


@each_kind
@pytest.mark.parametrize("n_vocab", [1, 2, 40, 1000, 3001])
def test_the_kernels_choose_as_the_twin(params: SamplingParams, n_vocab: int) -> None:
    rng = random.Random(n_vocab)
    native, twin = pair(params, VOCABS[n_vocab])
    for i in range(40):
        logits = random_logits(rng, n_vocab) if i % 4 else zipf(n_vocab, 1.1, rng)
        chosen = outcome(native, logits)
        assert chosen == outcome(twin, logits)
        if isinstance(chosen, str):
            continue
        ids, probs = native.candidates()
        twin_ids, twin_probs = twin.candidates()
        np.testing.assert_array_equal(ids, twin_ids)
        np.testing.assert_allclose(probs, twin_probs, rtol=1e-6)


@pytest.mark.parametrize(
    "params", [*KINDS.values(), SamplingParams(seed=3, samplers=("adaptive_p",))]
)
def test_a_single_candidate_takes_no_random_number(params: SamplingParams) -> None:
    native, twin = pair(params, VOCABS[1])
    for sampler in (native, twin):
        assert sampler.sample(np.zeros(1, np.float32)) == 0
    assert isinstance(native.chain, NativeChain) and isinstance(twin.chain, NumpyChain)
    first = MersenneTwister(params.seed)
    assert twin.chain._random.uniform_double() == first.uniform_double()
    np.testing.assert_array_equal(native.chain._twister, MersenneTwister(params.seed).state())


@each_kind
def test_a_failed_draw_changes_nothing(params: SamplingParams) -> None:
    for sampler in pair(params, letters(50)):
        (step,) = [s for s in sampler._steps if isinstance(s, Mirostat | AdaptiveP)]
        before = step.state.copy()
        assert "cannot sample" in str(outcome(sampler, np.full(50, np.nan, np.float32)))
        np.testing.assert_array_equal(step.state, before)
        assert isinstance(outcome(sampler, np.zeros(50, np.float32)), int)
        assert (step.state != before).any()


@pytest.mark.parametrize("version", [1, 2])
def test_one_step_of_mirostat_by_its_formula(version: int) -> None:
    rng = random.Random(version)
    n, tau, eta = 500, 4.0, 0.3
    logits = zipf(n, 1.2, rng)
    step = Mirostat(version, tau, eta, n)
    assert step.state[0] == 2 * tau
    step.state[0] = 5.5
    kept = step(candidates(*logits.tolist()))
    probs = sorted(probabilities(logits.tolist()), reverse=True)
    if version == 2:
        expected = sum(-math.log2(p) <= 5.5 for p in probs)
    else:
        ratios = [(math.log((i + 2) / (i + 1)), probs[i] / probs[i + 1]) for i in range(99)]
        s = sum(t * math.log(b) for t, b in ratios) / sum(t * t for t, _ in ratios)
        assert s == pytest.approx(1.2, rel=1e-3)
        e = s - 1
        expected = int(((e * 2**5.5) / (1 - n**-e)) ** (1 / s))
    assert 1 < kept.n == expected < n
    weights = np.exp(kept.logits - kept.logits.max())
    step.chose(weights, 2)
    surprise = -math.log2(weights[2] / weights.sum())
    assert step.state[0] == pytest.approx(5.5 - eta * (surprise - tau), rel=1e-5)


def test_at_least_one_token_is_kept() -> None:
    probs = np.array([0.9, 0.1, 0.0], np.float32)
    with np.errstate(all="ignore"):
        for most in (-50.0, 0.0, 1.0, 300.0, math.inf, math.nan):
            assert 1 <= n_of_zipf(probs, np.float32(most), 3) <= 3
        even = np.full(4, 0.25, np.float32)
        assert 1 <= n_of_zipf(even, np.float32(3), 4) <= 4
    for version in (1, 2):
        step = Mirostat(version, 5.0, 0.1, 3)
        step.state[0] = -20
        assert step(candidates(3, 2, 1)).n == 1


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tau", [2.0, 4.0])
def test_mirostat_reaches_its_surprise(version: int, tau: float) -> None:
    rng = random.Random(5)
    params = SamplingParams(seed=1, mirostat=version, mirostat_tau=tau, temperature=1)
    sampler, total, n = Sampler(params, letters(500)), 0.0, 600
    for _ in range(n):
        logits = zipf(500, rng.uniform(1.0, 1.4), rng)
        token = sampler.sample(logits)
        ids, probs = sampler.candidates()
        total -= math.log2(probs[ids == token][0])
    assert total / n == pytest.approx(tau, abs=0.15)


@pytest.mark.parametrize("target", [0.2, 0.3])
def test_adaptive_p_reaches_its_target(target: float) -> None:
    rng = random.Random(6)
    params = SamplingParams(seed=1, samplers=("min_p", "adaptive_p"), adaptive_target=target)
    sampler, total, n = Sampler(params, letters(100)), 0.0, 600
    for _ in range(n):
        logits = np.array([rng.gauss(0, 2.5) for _ in range(100)], np.float32)
        token = sampler.sample(logits)
        kept = [x for x in logits.tolist() if x >= max(logits.tolist()) + math.log(0.05)]
        total += math.exp(logits[token]) / sum(map(math.exp, kept))
    assert total / n == pytest.approx(target, abs=0.07)


def test_one_step_of_adaptive_p_by_its_formula() -> None:
    step = AdaptiveP(0.4, 0.9)
    np.testing.assert_allclose(step.state, [4, 10], rtol=1e-5)
    step.state[:] = 6, 10
    logits = [2.0, 1.0, 0.5, -math.inf]
    changed = step(candidates(*logits))
    probs = probabilities(logits)
    aim = 2 * 0.4 - 6 / 10
    for p, x in zip(probs[:3], changed.logits.tolist(), strict=False):
        d = abs(p - aim) / 0.3
        assert x == pytest.approx(5 - 10 * d * d / (1 + d), rel=1e-5)
    assert changed.logits[3] == -math.inf
    step.chose(np.ones(4, np.float32), 1)
    np.testing.assert_allclose(step.state, [probs[1] + 0.9 * 6, 1 + 0.9 * 10], rtol=1e-6)


def test_what_is_off_or_greedy() -> None:
    logits = np.array([1, 3, 2], np.float32)
    for params in (
        SamplingParams(mirostat=1, temperature=0),
        SamplingParams(mirostat=2, temperature=0, dynatemp_range=0),
        SamplingParams(samplers=("temperature", "adaptive_p"), adaptive_target=0.1, temperature=0),
    ):
        sampler = Sampler(params, letters(3))
        assert sampler.n_top == 1
        assert sampler.sample(logits) == 1
    assert _tokens(("top_k", "adaptive_p"), logits) == _tokens(("top_k",), logits)


def _tokens(names: tuple[str, ...], logits: F32Array) -> list[int]:
    sampler = Sampler(SamplingParams(seed=4, samplers=names), letters(3))
    return [sampler.sample(logits) for _ in range(5)]


@each_kind
def test_a_batch_has_the_tokens_of_each_alone(params: SamplingParams) -> None:
    rng, n = random.Random(9), 300
    rows = RowSampler(4, None)
    each = [replace(params, seed=seed) for seed in range(4)]
    alone, together = ([Sampler(p, letters(n)) for p in each] for _ in range(2))
    for step in range(20):
        logits = np.array([zipf(n, 1.1, rng) for _ in range(4)], np.float32)
        present = [i for i in range(4) if (step + i) % 3]  # others wait
        found = rows.sample([together[i] for i in present], logits[present])
        assert list(found) == [alone[i].sample(logits[i]) for i in present]
