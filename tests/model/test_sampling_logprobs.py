"""Log-probabilities of the model, and of the sampler's candidates."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from sampling_toys import VOCABS

from lamella.model.outputs import F32Array, Row, TopLogits
from lamella.model.sampling import (
    Logprobs,
    Sampler,
    SamplingParams,
    model_logprobs,
    sampler_logprobs,
)
from lamella.model.sampling.logprobs import LOWEST

N_VOCAB = 40
VOCAB = VOCABS[N_VOCAB]


def logits_of(probs: list[float]) -> F32Array:
    """Return logits with these probabilities from token 10 on. Other tokens are impossible."""
    logits: npt.NDArray[np.float32] = np.full(N_VOCAB, -np.inf, np.float32)
    logits[10 : 10 + len(probs)] = np.log(probs) + 3
    return logits


def test_log_probabilities_of_the_model() -> None:
    found = model_logprobs(logits_of([0.25, 0.5, 0.125, 0.125]), 12, 3)
    assert found.chosen.id == 12
    assert found.chosen.logprob == pytest.approx(np.log(0.125), abs=1e-5)
    assert [p.id for p in found.top] == [11, 10, 12]  # 12 and 13 are equal
    assert [p.logprob for p in found.top] == pytest.approx(np.log([0.5, 0.25, 0.125]), abs=1e-5)


def test_impossible_tokens_have_a_finite_log_probability() -> None:
    found = model_logprobs(logits_of([0.5, 0.5]), 4, N_VOCAB + 5)
    assert len(found.top) == N_VOCAB
    assert (found.chosen.logprob, found.top[-1].logprob) == (LOWEST, LOWEST)


@pytest.mark.parametrize("n_given", [N_VOCAB, 2])
def test_log_probabilities_of_the_sampler_s_candidates(n_given: int) -> None:
    params = SamplingParams(seed=1, temperature=1.0, top_k=2, samplers=("top_k", "temperature"))
    sampler = Sampler(params, VOCAB)
    logits: Row = logits_of([0.25, 0.5, 0.25])
    if n_given == 2:  # top logits from a device
        logits = TopLogits(np.array([11, 10], np.int32), logits_of([0.25, 0.5])[[11, 10]])
    token = sampler.sample(logits)
    found = sampler_logprobs(sampler, token, 5)
    assert len(found.top) == 2
    assert sum(np.exp(p.logprob) for p in found.top) == pytest.approx(1)
    assert found.top[0].id == 11
    assert found.chosen in found.top


def test_a_chosen_token_outside_the_most_likely() -> None:
    sampler = Sampler(SamplingParams(seed=1, samplers=("top_k",)), VOCAB)
    logits = logits_of([0.3, 0.4, 0.3])
    token = next(t for _ in range(1000) if (t := sampler.sample(logits)) != 11)
    both: list[Logprobs] = [model_logprobs(logits, token, 1), sampler_logprobs(sampler, token, 1)]
    for found in both:
        assert [p.id for p in found.top] == [11]
        assert (found.chosen.id, np.exp(found.chosen.logprob)) == (token, pytest.approx(0.3))
