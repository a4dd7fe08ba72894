"""The Sampler: chains, draws, windows, bans, invalid logits; golden tokens of llama.cpp's code.

The golden tokens come from a C++ transcription of llama.cpp's src/llama-sampler.cpp (g++ 12,
without contracted multiply-adds), run on the logits of `golden_logits` after the prompt PROMPT.
Each token was accepted before the next draw.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sampling_toys import F32Array, array, letters

from lamella.base.errors import BackendError, RequestError
from lamella.base.settings import NO_JIT
from lamella.model.sampling import Sampler, SamplingParams, samplers_from_chars
from lamella.model.sampling.chain import NumpyChain
from lamella.model.sampling.dist import MersenneTwister
from lamella.model.sampling.native import NativeChain

# every test runs with the compiled chain and with its NumPy twin
pytestmark = pytest.mark.usefixtures("no_jit")

INF = math.inf
N_VOCAB = 100
VOCAB = letters(N_VOCAB, t8=":")
PROMPT = [3, 5, 8, 3, 5]


@pytest.fixture(params=[0, 1], ids=["native", "numpy"])
def no_jit(request: pytest.FixtureRequest) -> Iterator[None]:
    with NO_JIT.set(request.param):
        yield


def golden_logits(step: int) -> F32Array:
    return array(((i * 37 + step * 13) % 101) * 0.125 - 6 for i in range(N_VOCAB))


def sampler(n_vocab: int = N_VOCAB, **values: Any) -> Sampler:
    vocab = VOCAB if n_vocab == N_VOCAB else letters(n_vocab)
    return Sampler(SamplingParams(**values), vocab)


def generate(s: Sampler, n: int = 12) -> list[int]:
    for token in PROMPT:
        s.accept(token)
    tokens = []
    for step in range(n):
        tokens.append(s.sample(golden_logits(step)))
        s.accept(tokens[-1])
    return tokens


ALL_ON: dict[str, Any] = {
    **{"logit_bias": [(7, 2.0), (9, False)], "dynatemp_range": 0.3, "dynatemp_exponent": 1.5},
    **{"top_k": 30, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.95, "top_n_sigma": 2},
    **{"xtc_probability": 0.5, "xtc_threshold": 0.05, "repeat_last_n": 4, "repeat_penalty": 1.3},
    **{"presence_penalty": 0.2, "frequency_penalty": 0.1, "dry_multiplier": 0.8},
}
OTHER_WAY_ROUND: dict[str, Any] = {
    **{"dynatemp_range": 0.3, "top_k": 50, "typical_p": 0.9, "xtc_probability": 0.5},
    **{"xtc_threshold": 0.05, "min_keep": 3, "repeat_last_n": 8, "repeat_penalty": 1.2},
    **{"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_sequence_breakers": ()},
    **{"samplers": samplers_from_chars("txmpykde")},
}
GOLDEN: list[tuple[dict[str, Any], dict[int, list[int]]]] = [
    (
        {"samplers": ()},
        {
            0: [60, 76, 81, 89, 64, 50, 36, 8, 19, 40, 86, 53],
            1: [98, 92, 7, 99, 23, 50, 44, 63, 95, 84, 29, 56],
            42: [79, 16, 70, 67, 42, 17, 47, 33, 16, 62, 10, 78],
            2**32 - 2: [16, 95, 81, 37, 53, 28, 85, 90, 49, 13, 81, 78],
        },
    ),
    (
        {},
        {
            0: [79, 43, 29, 15, 53, 50, 6, 33, 49, 95, 89, 97],
            1: [84, 62, 2, 72, 4, 50, 36, 11, 65, 32, 51, 97],
            42: [98, 46, 40, 37, 64, 61, 36, 93, 19, 84, 92, 86],
            2**32 - 2: [30, 92, 70, 48, 94, 91, 33, 90, 68, 35, 29, 15],
        },
    ),
    (
        ALL_ON,
        {
            0: [79, 43, 40, 67, 53, 50, 6, 33, 87, 24, 29, 56],
            1: [46, 62, 2, 15, 42, 58, 44, 11, 35, 92, 59, 56],
            42: [16, 76, 10, 26, 64, 61, 66, 93, 57, 32, 70, 15],
            2**32 - 2: [30, 62, 70, 7, 94, 91, 74, 19, 98, 35, 70, 15],
        },
    ),
    (
        OTHER_WAY_ROUND,
        {
            0: [49, 84, 40, 26, 23, 20, 6, 33, 27, 95, 29, 45],
            1: [65, 43, 2, 45, 83, 99, 85, 82, 24, 21, 59, 75],
            42: [46, 16, 10, 86, 64, 61, 36, 93, 98, 32, 70, 34],
            2**32 - 2: [30, 21, 40, 48, 94, 91, 14, 79, 68, 35, 70, 34],
        },
    ),
]


@pytest.mark.parametrize("seed", [0, 1, 42, 2**32 - 2])
@pytest.mark.parametrize(("values", "tokens"), GOLDEN, ids=["draw", "default", "all", "reversed"])
def test_tokens_are_those_of_llama_cpp(
    values: dict[str, Any], tokens: dict[int, list[int]], seed: int
) -> None:
    assert generate(sampler(seed=seed, **values)) == tokens[seed]


def test_seeds_are_modulo_two_to_the_32() -> None:
    assert generate(sampler(seed=-2)) == generate(sampler(seed=2**32 - 2))
    assert sampler(seed=-2).seed == 2**32 - 2
    assert generate(sampler(seed=2**32 + 42)) == generate(sampler(seed=42))


@pytest.mark.parametrize("seed", [-1, 2**32 - 1])
def test_a_random_seed_is_reported_and_reproduces_the_text(seed: int) -> None:
    values: dict[str, Any] = {"xtc_probability": 0.5, "temperature": 2.0}
    first, other = sampler(seed=seed, **values), sampler(seed=seed, **values)
    assert first.seed != other.seed
    assert 0 <= first.seed < 2**32 - 1
    assert generate(first, 30) == generate(sampler(seed=first.seed, **values), 30)


def test_a_number_is_drawn_even_for_a_single_candidate() -> None:
    one, many = sampler(seed=5, samplers=()), sampler(seed=5, samplers=())
    sampler_of_one = sampler(n_vocab=1, seed=5, samplers=())
    many.sample(golden_logits(0))
    assert one.sample(array([0.0] + [-INF] * 99)) == 0
    assert sampler_of_one.sample(array([0.0])) == 0
    following = [many.sample(golden_logits(i)) for i in range(9)]
    assert [one.sample(golden_logits(i)) for i in range(9)] == following
    chain = sampler_of_one.chain
    if isinstance(chain, NativeChain):
        assert chain._twister[-1] == 2  # a float64 takes two draws
    else:
        assert isinstance(chain, NumpyChain)
        assert chain._random.uniform_double() != MersenneTwister(5).uniform_double()


def test_xtc_draws_no_number_for_a_single_candidate() -> None:
    s = sampler(2, seed=5, samplers=("min_p", "xtc"), xtc_probability=0.5)
    s.sample(array([0, 99]))
    assert s._steps[-1].coin.uniform_float() == MersenneTwister(5).uniform_float()  # type: ignore[attr-defined]
    s.sample(array([0, 0]))
    following = MersenneTwister(5)
    drawn = [following.uniform_float() for _ in range(3)]
    assert s._steps[-1].coin.uniform_float() == drawn[2]  # type: ignore[attr-defined]


def test_samplers_run_in_the_order_of_the_request() -> None:
    # probabilities .5 .3 .2: the largest is .36 at high temperature, .8 at low temperature
    logits = array(math.log(p) for p in (0.5, 0.3, 0.2))
    for seed in range(20):
        kwargs: dict[str, Any] = {"seed": seed, "temperature": 8.0, "top_p": 0.45}
        first = sampler(3, samplers=("top_p", "temperature"), **kwargs)
        assert first.sample(logits) == 0
        assert first.candidates()[0].tolist() == [0]
        later = sampler(3, samplers=("temperature", "top_p"), **kwargs)
        later.sample(logits)
        assert later.candidates()[0].tolist() == [0, 1]


NEUTRAL: dict[str, Any] = {
    **{"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "typical_p": 1, "top_n_sigma": 0},
    **{"repeat_penalty": 1, "dry_multiplier": 0, "xtc_probability": 0},
}


def test_neutral_samplers_are_not_run() -> None:
    assert sampler(**NEUTRAL)._steps == []
    assert sampler(**{**NEUTRAL, "xtc_probability": 1, "xtc_threshold": 0.6})._steps == []
    assert sampler(**{**NEUTRAL, "repeat_penalty": 2, "repeat_last_n": 0})._steps == []
    assert sampler(**{**NEUTRAL, "dry_multiplier": 1, "dry_penalty_last_n": 0})._steps == []
    # a number that rounds to 1 in float32 is 1
    assert sampler(**{**NEUTRAL, "top_p": 1 - 1e-9, "temperature": 1 + 1e-9})._steps == []
    plain = generate(sampler(seed=3, samplers=()))
    assert generate(sampler(seed=3, **NEUTRAL)) == plain


def test_sample_does_not_change_logits() -> None:
    logits = golden_logits(0)
    logits.flags.writeable = False
    s = sampler(**ALL_ON)
    for token in PROMPT:
        s.accept(token)
    for _ in range(5):
        s.sample(logits)


GREEDY_CHAINS: list[dict[str, Any]] = [
    {},
    {"top_k": 3, "top_n_sigma": 1.0},
    {"samplers": ("temperature",)},
    {"samplers": ("temperature", "top_k", "min_p", "top_p", "top_n_sigma"), "top_n_sigma": 1},
]


@pytest.mark.parametrize("values", GREEDY_CHAINS)
def test_greedy_sampling_equals_the_chain(values: dict[str, Any]) -> None:
    quick, whole = sampler(temperature=0, **values), sampler(temperature=0, **values)
    whole._greedy = False
    del whole.chain  # it was made for greedy sampling
    rng = np.random.default_rng(0)
    for _ in range(20):
        logits = array(np.round(rng.standard_normal(N_VOCAB) * 2))  # many are equal
        assert quick.sample(logits) == whole.sample(logits) == logits.argmax()
        for mine, theirs in zip(quick.candidates(), whole.candidates(), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert quick._greedy


def test_greedy_follows_bias_penalties_and_dry() -> None:
    logits = array([1.0, 3.0, 2.0, 0.0])
    assert sampler(4, temperature=-1).sample(logits) == 1
    assert sampler(4, temperature=0, logit_bias=[(1, False)]).sample(logits) == 2
    penalized = sampler(4, temperature=0, presence_penalty=1.5)
    penalized.accept(1)
    assert penalized.sample(logits) == 2
    repeating = sampler(4, temperature=0, dry_multiplier=2.0, dry_allowed_length=1)
    for token in [0, 1, 0]:
        repeating.accept(token)
    assert repeating.sample(logits) == 2


def test_temperature_zero_with_a_range_is_dynamic() -> None:
    s = sampler(2, temperature=0, dynatemp_range=1.0, seed=1)
    assert {s.sample(array([0.1, 0.0])) for _ in range(50)} == {0, 1}


def test_temperature_needs_its_sampler_in_the_chain() -> None:
    s = sampler(2, temperature=0, samplers=("top_k",), seed=1)
    assert {s.sample(array([0.1, 0.0])) for _ in range(50)} == {0, 1}


def test_candidates_are_those_of_the_last_draw() -> None:
    s = sampler(4, samplers=("top_k", "temperature"), top_k=3, temperature=0.5)
    s.sample(array(math.log(p) for p in (0.1, 0.4, 0.2, 0.3)))
    ids, probs = s.candidates()
    assert ids.tolist() == [1, 3, 2]
    np.testing.assert_allclose(probs, array([16, 9, 4]) / 29, rtol=1e-6)
    assert probs.dtype == np.float32
    s = sampler(3, samplers=(), logit_bias=[(2, False)])
    s.sample(array([0, math.log(3), 9]))
    ids, probs = s.candidates()
    assert ids.tolist() == [1, 0]  # the most likely first, without banned ones
    np.testing.assert_allclose(probs, [0.75, 0.25], rtol=1e-6)


def test_penalties_use_their_window_only() -> None:
    s = sampler(6, temperature=0, repeat_last_n=3, presence_penalty=5.0)
    logits = array([5, 4, 3, 2, 1, 0])
    for token, following in [(0, 1), (1, 2), (2, 3), (3, 0), (3, 0), (3, 0), (0, 1)]:
        s.accept(token)
        assert s.sample(logits) == following
    assert sorted(s._memories[0]._window) == [0, 3, 3]


def test_frequency_counts_tokens_in_the_window() -> None:
    s = sampler(3, temperature=0, repeat_last_n=4, frequency_penalty=1.0)
    logits = array([2.5, 0, 0])
    seen = []
    for token in [0, 0, 0, 1, 1]:
        s.accept(token)
        seen.append(s.sample(logits))
    assert seen == [0, 0, 1, 2, 0]


def test_biases_of_the_same_token_are_added() -> None:
    s = sampler(2, samplers=(), logit_bias=[(0, 1.0), (0, 0.5), (1, 1.5)])
    s.sample(array([0, 0]))
    np.testing.assert_allclose(s.candidates()[1], [0.5, 0.5])


@pytest.mark.parametrize("token", [-1, 100, 10**30])
def test_bias_of_a_token_that_does_not_exist_is_refused(token: int) -> None:
    with pytest.raises(RequestError, match=f"logit_bias: token {token}: must be 0 to 99"):
        sampler(logit_bias=[(token, 1.0)])


def test_banning_all_tokens_is_refused() -> None:
    with pytest.raises(RequestError, match="logit_bias bans all 3 tokens"):
        sampler(3, logit_bias=[(0, False), (1, -INF), (2, False)])
    s = sampler(3, logit_bias=[(0, False), (1, -INF)])
    with pytest.raises(RequestError, match="leave no possible token"):
        s.sample(array([0, 0, -INF]))


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(
    ("logits", "what"),
    [
        ([0, math.nan, math.nan, INF], "2 NaN and 1 infinite logits among 4"),
        ([math.nan] * 4, "4 NaN"),
        ([0, 1, INF, 2], "0 NaN and 1 infinite"),
        ([-INF] * 4, "no finite logits among 4"),
    ],
)
def test_broken_logits_are_an_error(logits: list[float], what: str, temperature: int) -> None:
    with pytest.raises(BackendError, match=what):
        sampler(4, temperature=temperature).sample(array(logits))


EXTREMES: list[dict[str, Any]] = [
    {"temperature": 1e-45},
    {"temperature": 1e-38, "min_p": 0},
    {"temperature": 3e38},
    {"temperature": 3e38, "dynatemp_range": 3e38, "dynatemp_exponent": -3e38},
    {"dynatemp_range": 1e-30, "temperature": 1e-30},
    {"repeat_penalty": 3e38},
    {"repeat_penalty": 1e-37, "presence_penalty": 1e38},
    {"frequency_penalty": -3e38, "presence_penalty": -3e38},
    {"dry_multiplier": -3e38, "dry_base": 3e38, "dry_allowed_length": 0},
    {"logit_bias": [(1, 3e38), (1, 3e38), (2, -3e38), (2, -3e38)], "temperature": 0.1},
    {"logit_bias": [(1, 3e38), (2, 3e38)], "top_n_sigma": 3e38, "typical_p": -3e38},
    {"logit_bias": [(5, 3e38), (5, 3e38)], "samplers": ()},
    {"typical_p": 0.5, "top_n_sigma": 1e-38},
    {"top_p": 0, "min_p": 1, "typical_p": 0, "xtc_probability": 1, "xtc_threshold": 0},
    {"top_k": 2**31 - 1, "min_keep": 2**31 - 1, "repeat_last_n": 2**31 - 1, "min_p": 1},
]


@pytest.mark.parametrize("values", EXTREMES)
def test_extreme_parameters_do_not_break_the_chain(values: dict[str, Any]) -> None:
    banned = [(9, False), *values.get("logit_bias", [])]
    s = sampler(12, **{**values, "logit_bias": banned, "seed": 4})
    for step in range(30):
        logits = golden_logits(step)[:12]
        logits[5] = -INF
        token = s.sample(logits)
        assert token not in (5, 9)
        probs = s.candidates()[1]
        assert np.isfinite(probs).all()
        np.testing.assert_allclose(probs.sum(), 1, rtol=1e-5)
        s.accept(token)


@pytest.mark.parametrize(
    "values",
    [
        {"frequency_penalty": 3e38, "presence_penalty": 3e38},
        {"dry_multiplier": 3e38, "dry_base": 3e38, "dry_allowed_length": 0},
    ],
)
def test_penalties_that_leave_no_token_are_a_request_error(values: dict[str, Any]) -> None:
    s = sampler(3, **values)
    for token in [0, 1, 2, 0, 1, 2, 1, 0, 2, 0]:
        s.accept(token)
    with pytest.raises(RequestError, match="leave no possible token"):
        s.sample(array([0, 0, 0]))
