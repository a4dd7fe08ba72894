"""Each sampler alone: on distributions computed by hand, and against its slow twin."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from sampling_toys import (
    Row,
    array,
    candidates,
    ids_of,
    probabilities,
    row_of,
    slow_dynamic_temperature,
    slow_min_p,
    slow_penalties,
    slow_top_k,
    slow_top_n_sigma,
    slow_top_p,
    slow_typical,
    slow_xtc,
)

from lamella.model.sampling.candidates import Candidates
from lamella.model.sampling.penalties import as_biases, logit_bias, penalties
from lamella.model.sampling.softmax import exps, log_softmax, running_sum, softmax
from lamella.model.sampling.temperature import dynamic_temperature, temperature
from lamella.model.sampling.truncation import min_p, top_k, top_n_sigma, top_p, typical, xtc

INF = math.inf
# probabilities .1 .4 .2 .3: logits are their logarithms
LOGS = [math.log(p) for p in (0.1, 0.4, 0.2, 0.3)]
each_n = pytest.mark.parametrize("n", [1, 2, 40, 300, 1500, 5000])


def random_candidates(n: int, *, seed: int = 7, ties: bool = False) -> Candidates:
    logits = np.random.default_rng(seed).standard_normal(n) * 3
    return candidates(*(np.round(logits) if ties else logits).tolist())


def shuffled(c: Candidates) -> Candidates:
    return c.pick(np.random.default_rng(3).permutation(c.n))


def assert_rows(c: Candidates, wanted: Row, tolerance: float = 1e-5) -> None:
    assert ids_of(c) == [i for i, _ in wanted]
    np.testing.assert_allclose(c.logits, [logit for _, logit in wanted], rtol=tolerance)
    assert c.ids.dtype == np.int64
    assert c.logits.dtype == np.float32


def test_exps_are_rounded_once_from_float64() -> None:
    logits = random_candidates(1000).logits
    top = float(logits.max())
    exact = [math.exp(float(np.float32(x - np.float32(top)))) for x in logits]
    assert exps(logits).tolist() == [float(np.float32(x)) for x in exact]


def test_exps_of_infinite_logits_are_not_nan() -> None:
    assert exps(array([1, INF, -INF, INF])).tolist() == [0, 1, 0, 1]
    assert exps(array([-INF, -INF])).tolist() == [1, 1]


def test_softmax_sums_in_order_as_a_c_loop_does() -> None:
    values = random_candidates(5000).logits
    total = np.float32(0)
    for weight in exps(values):
        total += weight
    assert running_sum(exps(values))[-1] == total
    np.testing.assert_array_equal(softmax(values), exps(values) / total)


def test_log_softmax_of_raw_logits() -> None:
    logits = random_candidates(3000).logits
    wanted = [math.log(p) for p in probabilities(row_of(Candidates(np.arange(3000), logits)))]
    found = log_softmax(logits)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert log_softmax(array([0, -INF])).tolist() == [0, -INF]
    np.testing.assert_allclose(log_softmax(array([1e30, 1e30])), math.log(0.5))


@each_n
@pytest.mark.parametrize("k", [1, 5, 40, 10**6])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("order", [lambda c: c, shuffled, lambda c: c.top(c.n)])
def test_top_k(n: int, k: int, ties: bool, order: Callable[[Candidates], Candidates]) -> None:
    c = order(random_candidates(n, ties=ties))
    kept = top_k(c, k)
    assert_rows(kept, slow_top_k(row_of(c), k), 0)
    assert kept.sorted


def test_equal_logits_are_ordered_by_id() -> None:
    c = Candidates(np.array([9, 4, 7, 2]), array([0.0, 1.0, -0.0, 1.0]))
    assert ids_of(top_k(c, 3)) == [2, 4, 7]
    assert ids_of(candidates(*[1.0] * 5000).top(4)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("p", "min_keep", "ids"),
    [
        (0.39, 0, [1]),
        (0.41, 0, [1, 3]),
        (0.85, 0, [1, 3, 2]),
        (0.0, 0, [1]),
        (0.0, 3, [1, 3, 2]),
        (0.99999, 9, [1, 3, 2, 0]),
    ],
)
def test_top_p_by_hand(p: float, min_keep: int, ids: list[int]) -> None:
    assert ids_of(top_p(candidates(*LOGS), p, min_keep)) == ids
    assert ids_of(top_p(candidates(*LOGS).top(4), p, min_keep)) == ids


@pytest.mark.parametrize(
    ("p", "min_keep", "ids"),
    [
        (0.45, 0, [1, 2, 3]),  # .2 = .5 x .4
        (0.7, 0, [1, 3]),
        (1.0, 0, [1]),
        (1.0, 2, [1, 3]),
        (1.0, 9, [1, 3, 2, 0]),
        (0.45, 3, [1, 2, 3]),
    ],
)
def test_min_p_by_hand(p: float, min_keep: int, ids: list[int]) -> None:
    # unsorted candidates keep their order if enough of them are left
    assert ids_of(min_p(candidates(*LOGS), p, min_keep)) == ids
    assert sorted(ids_of(min_p(candidates(*LOGS).top(4), p, min_keep))) == sorted(ids)


def test_typical_by_hand() -> None:
    # entropy 1.28; -log p is 2.30 0.92 1.61 1.20: nearest is 3, then 2, 1, 0
    assert ids_of(typical(candidates(*LOGS), 0.2)) == [3]
    assert ids_of(typical(candidates(*LOGS), 0.45)) == [3, 2]
    assert ids_of(typical(candidates(*LOGS), 0.2, min_keep=3)) == [3, 2, 1]
    assert not typical(candidates(*LOGS), 0.9).sorted


def test_typical_orders_masked_candidates_last() -> None:
    assert ids_of(typical(candidates(-INF, 1.0, 0.0, 0.0), 0.2)) == [1]
    assert ids_of(typical(candidates(-INF, 1.0, 0.0, 0.0), 0.9, min_keep=9))[-1] == 0


def test_a_sum_that_equals_p_is_enough_for_top_p_only() -> None:
    even = candidates(0, 0, 0, 0)
    assert ids_of(top_p(even, 0.5)) == [0, 1]
    assert ids_of(typical(even, 0.5)) == [0, 1, 2]


def test_top_n_sigma_by_hand() -> None:
    # mean 2, deviation sqrt(8 / 4): with n = 1, the limit is 4 - 1.41
    c = top_n_sigma(candidates(0, 4, 3, 1, -INF), 1.0)
    assert row_of(c) == [(0, -INF), (1, 4), (2, 3), (3, -INF), (4, -INF)]
    assert c.whole
    assert top_n_sigma(candidates(1, 2).top(2), 1.0).sorted


def test_xtc_drops_all_likely_candidates_but_the_last() -> None:
    assert ids_of(xtc(candidates(*LOGS), 0.15)) == [2, 0]
    assert ids_of(xtc(candidates(*LOGS), 0.25)) == [3, 2, 0]
    assert ids_of(xtc(candidates(*LOGS), 0.35)) == [1, 3, 2, 0]
    assert ids_of(xtc(candidates(*LOGS), 0.45)) == [1, 3, 2, 0]
    assert ids_of(xtc(candidates(*LOGS), 0.15, min_keep=3)) == [1, 3, 2, 0]


TWINS: list[tuple[Callable[..., Candidates], Callable[..., Row], dict[str, Any]]] = [
    (top_p, slow_top_p, {"p": 0.9}),
    (top_p, slow_top_p, {"p": 0.2, "min_keep": 300}),
    (top_p, slow_top_p, {"p": 0.99}),
    (min_p, slow_min_p, {"p": 0.05}),
    (min_p, slow_min_p, {"p": 0.9, "min_keep": 5}),
    (typical, slow_typical, {"p": 0.5}),
    (typical, slow_typical, {"p": 0.9, "min_keep": 20}),
    (top_n_sigma, slow_top_n_sigma, {"n": 1.0}),
    (xtc, slow_xtc, {"threshold": 0.01}),
    (xtc, slow_xtc, {"threshold": 0.01, "min_keep": 30}),
    (dynamic_temperature, slow_dynamic_temperature, {"t": 0.8, "delta": 0.3, "exponent": 1.5}),
    (dynamic_temperature, slow_dynamic_temperature, {"t": 0.2, "delta": 0.5, "exponent": 1.0}),
]


@pytest.mark.parametrize("n", [2, 40, 300, 1500, 3000])
@pytest.mark.parametrize(("fast", "slow", "kwargs"), TWINS)
@pytest.mark.parametrize("order", [lambda c: c, shuffled, lambda c: c.top(c.n)])
def test_samplers_equal_their_twins(
    n: int,
    fast: Callable[..., Candidates],
    slow: Callable[..., Row],
    kwargs: dict[str, Any],
    order: Callable[[Candidates], Candidates],
) -> None:
    c = order(random_candidates(n))
    before = row_of(c)
    assert_rows(fast(c, **kwargs), slow(before, **kwargs))
    assert row_of(c) == before  # arrays are not changed


def test_temperature_divides() -> None:
    c = temperature(candidates(1, -2, 3).top(3), 0.5)
    assert row_of(c) == [(2, 6), (0, 2), (1, -4)]
    assert c.sorted


def test_temperature_zero_keeps_the_first_of_the_largest() -> None:
    assert row_of(temperature(candidates(1, 3, 3, 2), 0)) == [
        (0, -INF),
        (1, 3),
        (2, -INF),
        (3, -INF),
    ]


def test_dynamic_temperature_is_highest_for_equal_logits() -> None:
    flat = dynamic_temperature(candidates(2, 2, 2), 1.0, 0.5, 1.0)
    np.testing.assert_allclose(flat.logits, 2 / 1.5, rtol=1e-6)
    steep = dynamic_temperature(candidates(60, 0, 0), 1.0, 0.5, 1.0)
    np.testing.assert_allclose(steep.logits, [120, 0, 0], rtol=1e-6)
    only = candidates(5)
    assert dynamic_temperature(only, 1.0, 0.5, 1.0) is only


def test_dynamic_temperature_never_makes_nan() -> None:
    with np.errstate(divide="ignore", over="ignore"):
        c = dynamic_temperature(candidates(60, -INF, -60), 1.0, 0.5, -9.0)
    assert not np.isnan(c.logits).any()
    assert row_of(c)[-1] == (1, -INF)


def test_logit_bias_finds_tokens_at_any_index() -> None:
    bias = partial(logit_bias, tokens=np.array([2, 0, 9]), biases=array([0.5, -INF, 1]))
    c = Candidates(np.array([5, 9, 2, 1]), array([5, 9, 2, 1]), sorted=True)
    assert row_of(bias(c)) == [(5, 5), (9, 10), (2, 2.5), (1, 1)]
    assert not bias(c).sorted
    whole = logit_bias(candidates(1, 2, 3), np.array([2, 0]), array([0.5, -INF]))
    assert row_of(whole) == [(0, -INF), (1, 2), (2, 3.5)]


@pytest.mark.parametrize("order", [lambda c: c, shuffled, lambda c: c.top(20)])
def test_penalties_equal_their_twin(order: Callable[[Candidates], Candidates]) -> None:
    c = order(random_candidates(40))
    window = [3, 5, 3, 39, 3, 5, 17, 21, 22]
    tokens = sorted(set(window))
    counts = array(window.count(token) for token in tokens)
    penalized = penalties(c, np.array(tokens), counts, 1.3, 0.25, 0.5)
    assert_rows(penalized, slow_penalties(row_of(c), window, 1.3, 0.25, 0.5))
    assert not penalized.sorted


def test_penalties_by_hand() -> None:
    c = penalties(candidates(4, -4, 0, 1), np.array([0, 1, 2]), array([1, 2, 3]), 2.0, 0.5, 0.25)
    assert row_of(c) == [(0, 1.25), (1, -9.25), (2, -1.75), (3, 1)]


def test_a_banned_token_stays_banned() -> None:
    biases = as_biases(array([-INF, INF]))
    boundless = logit_bias(candidates(-INF, 1), np.array([0, 1]), biases)
    assert boundless.logits[0] == -INF
    assert boundless.logits[1] < -1e38
