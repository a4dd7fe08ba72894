"""Samplers with only the largest logits: the same tokens as with all logits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from matrix import first
from sampling_toys import (
    SIZES,
    VOCABS,
    F32Array,
    array,
    letters,
    outcome,
    random_logits,
    random_params,
)

from lamella.base.errors import BackendError
from lamella.base.settings import NO_JIT
from lamella.model.outputs import TopLogits
from lamella.model.sampling import DEFAULT_SAMPLERS, Sampler, SamplingParams

# every test runs with the compiled chain and with its NumPy twin
pytestmark = pytest.mark.usefixtures("no_jit")

INF = float("inf")


@pytest.fixture(params=[0, 1], ids=["native", "numpy"])
def no_jit(request: pytest.FixtureRequest) -> Iterator[None]:
    with NO_JIT.set(request.param):
        yield


def largest(logits: F32Array, n: int) -> TopLogits:
    ids = np.argsort(-logits, kind="stable")[:n].astype(np.int32)
    return TopLogits(ids, logits[ids])


def leading_top_k(rng: random.Random, n_vocab: int) -> SamplingParams:
    """Return random parameters of a chain that needs only the largest logits."""
    while True:
        p = random_params(rng, n_vocab)
        values: dict[str, Any] = p.values()
        values["samplers"] = ("top_k", *p.samplers)
        values["top_k"] = rng.choice([1, 2, 5, 40, 200, 1000])
        if rng.random() < 0.2:
            values |= {"samplers": ("min_p", "temperature"), "temperature": 0, "dynatemp_range": 0}
        lowered = rng.sample(range(n_vocab), min(rng.choice([0, 0, 1, 4]), n_vocab - 1))
        biases = [(token, rng.choice([-INF, -INF, -3.0, 0.0])) for token in lowered]
        p = SamplingParams(**values | {"logit_bias": biases})
        if Sampler(p, VOCABS[n_vocab]).n_top:
            return p


@pytest.mark.parametrize("seed", first(4, range(20)))
def test_top_logits_give_the_same_token_and_candidates(seed: int) -> None:
    rng = random.Random(seed)
    n_greedy = n_drawn = 0
    for _ in range(50):
        n_vocab = rng.choice(SIZES)
        params = leading_top_k(rng, n_vocab)
        whole, top = (Sampler(params, VOCABS[n_vocab]) for _ in range(2))
        for _ in range(rng.choice([0, 3, 70])):
            token = rng.randrange(min(n_vocab, 5))
            whole.accept(token)
            top.accept(token)
        for _ in range(5):
            logits = random_logits(rng, n_vocab)
            if not np.isfinite(logits.max()):
                continue
            n = min(rng.choice([0, 1, 7, 500]) + top.n_top, n_vocab)
            few = largest(logits, n)
            few.logits.flags.writeable = few.ids.flags.writeable = False
            chosen = outcome(whole, logits)
            assert outcome(top, few) == chosen
            if isinstance(chosen, int):
                for a, b in zip(top.candidates(), whole.candidates(), strict=True):
                    np.testing.assert_array_equal(a, b)
                whole.accept(chosen)
                top.accept(chosen)
                n_greedy += top._greedy
                n_drawn += not top._greedy
    assert n_greedy > 5
    assert n_drawn > 50


def test_whole_rows_and_top_logits_can_alternate() -> None:
    rng = random.Random(3)
    params = SamplingParams(
        seed=3, samplers=("top_k", "penalties", "typ_p", "temperature"), top_k=9
    )
    whole, mixed = (Sampler(params, VOCABS[1000]) for _ in range(2))
    for i in range(40):
        logits = random_logits(rng, 1000)
        if np.isfinite(logits.max()):
            chosen = outcome(whole, logits)
            assert outcome(mixed, largest(logits, 9 + i) if i % 3 else logits) == chosen


@pytest.mark.parametrize(
    ("values", "n_top"),
    [
        ({}, 40),
        ({"top_k": 7, "temperature": 0.1, "xtc_probability": 0.5}, 7),
        ({"top_k": 0}, 0),
        ({"temperature": 0}, 1),
        ({"temperature": 0, "top_k": 0, "top_p": 0.5, "min_p": 0.1, "top_n_sigma": 1}, 1),
        ({"temperature": 0, "top_k": 0, "typical_p": 0.5}, 0),
        ({"temperature": 0, "dynatemp_range": 1}, 40),
        ({"temperature": 0, "repeat_penalty": 1.1}, 0),
        ({"repeat_penalty": 1.1}, 0),
        ({"repeat_penalty": 1.1, "repeat_last_n": 0}, 40),
        ({"dry_multiplier": 0.8}, 0),
        ({"top_n_sigma": 1}, 0),
        ({"logit_bias": [(3, 1.0)]}, 0),
        ({"logit_bias": [(3, -1.0), (4, -INF)]}, 42),
        ({"logit_bias": [(3, -1.0), (3, 2.0)]}, 0),
        ({"logit_bias": [(3, -INF)], "temperature": 0}, 2),
        ({"logit_bias": [(3, -INF), (4, 1.0)], "temperature": 0}, 0),
        ({"logit_bias": [(3, -INF)], "top_k": 0}, 0),
        ({"logit_bias": [(3, -INF)], "repeat_penalty": 1.1}, 0),
        ({"samplers": ("min_p", "top_k")}, 0),
        ({"samplers": ("temperature", "top_k")}, 0),
        ({"samplers": ("top_k", "penalties", "dry"), "repeat_penalty": 2, "dry_multiplier": 1}, 40),
        ({"samplers": ()}, 0),
        ({"samplers": ("xtc", "top_k"), "xtc_probability": 0.5}, 0),
        ({"samplers": ("xtc", "top_k")}, 40),
        ({"top_k": 2**31 - 1}, 2**31 - 1),
    ],
)
def test_n_top_of_a_sampler(values: dict[str, Any], n_top: int) -> None:
    assert DEFAULT_SAMPLERS[3] == "top_k"
    assert Sampler(SamplingParams(**values), letters(9)).n_top == n_top


def test_too_few_top_logits_are_an_assertion_error() -> None:
    sampler = Sampler(SamplingParams(top_k=5), letters(9))
    sampler.sample(largest(array(range(9)), 5))
    with pytest.raises(AssertionError, match=r"\(5, 4\)"):
        sampler.sample(largest(array(range(9)), 4))
    with pytest.raises(AssertionError, match=r"\(0, 9\)"):
        Sampler(SamplingParams(top_k=0), letters(9)).sample(largest(array(range(9)), 9))


@pytest.mark.parametrize("value", [np.nan, INF, -INF])
@pytest.mark.parametrize("temperature", [0, 1])
def test_invalid_top_logits_are_refused(value: float, temperature: float) -> None:
    sampler = Sampler(SamplingParams(temperature=temperature), letters(50))
    with pytest.raises(BackendError, match="logits among 40: cannot sample"):
        sampler.sample(largest(np.full(50, value, np.float32), 40))
