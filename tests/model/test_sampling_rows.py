"""Rows sampled in one native call: the tokens and errors that each sampler gives alone."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sampling_toys import F32Array, ToyVocab

from lamella.base.errors import BackendError, RequestError
from lamella.base.settings import NO_JIT
from lamella.kernels.cpu.pool import ThreadPool
from lamella.model.batch import Mask
from lamella.model.outputs import Row, Rows, TopLogits
from lamella.model.sampling import RowSampler, Sampler, SamplingParams
from lamella.model.sampling.dist import MersenneTwister
from lamella.model.sampling.native import NativeChain

N = 20_000  # two rows are enough for threads
VOCAB = ToyVocab([b"x"] * N)
REQUESTS: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"top_k": 0, "min_p": 0.01},
    {"repeat_penalty": 1.3, "presence_penalty": 0.5},
    {"dry_multiplier": 0.8, "dry_allowed_length": 1},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05, "temperature": 2.0},
    {"temperature": 0, "logit_bias": [(7, False)]},
]


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[ThreadPool]:
    pool = ThreadPool(request.param)
    yield pool
    pool.close()


def samplers(n: int) -> list[Sampler]:
    return [
        Sampler(SamplingParams(seed=i % 3, **REQUESTS[i % len(REQUESTS)]), VOCAB) for i in range(n)
    ]


def some_logits(rng: random.Random) -> F32Array:
    logits = 3 * np.random.default_rng(rng.randrange(2**32)).standard_normal(N)
    return logits.astype(np.float32)


def mask_of(ids: list[int]) -> Mask:
    bits = np.zeros(N, np.uint8)
    bits[ids] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def largest(logits: Row, n: int) -> TopLogits:
    assert isinstance(logits, np.ndarray)
    ids = np.argsort(-logits, kind="stable")[:n].astype(np.int32)
    return TopLogits(ids, logits[ids])


def test_a_token_does_not_depend_on_other_rows(threads: ThreadPool) -> None:
    rng, n = random.Random(1), 9
    alone, together = samplers(n), samplers(n)
    rows, sampler = np.empty((n, N), np.float32), RowSampler(n, threads)
    for step in range(20):
        rows[:] = [some_logits(rng) for _ in range(n)]
        chosen = list(range(n))
        if step % 3 == 2:  # a few leave the batch for a step, others change their place
            chosen = rng.sample(chosen, rng.randrange(1, n))
        masks: list[Mask | None] | None = None
        if step % 4 == 1:
            masks = [mask_of([5, 900, 901]) if i % 2 else None for i in chosen]
        each: Rows = rows[: len(chosen)]
        if step % 5 == 4:
            each = list(each)
        found = sampler.sample([together[i] for i in chosen], each, masks)
        for j, i in enumerate(chosen):
            assert found[j] == alone[i].sample(rows[j], None if masks is None else masks[j])
            token = found[j]
            assert isinstance(token, int)
            alone[i].accept(token)
            together[i].accept(token)
            mine, theirs = together[i].candidates(), alone[i].candidates()
            np.testing.assert_array_equal(mine[0], theirs[0])
            np.testing.assert_array_equal(mine[1], theirs[1])


def test_only_rows_hold_memory_for_draws() -> None:
    rows = np.zeros((2, N), np.float32)
    sampler = RowSampler(2, None)
    sampler.sample(samplers(2), rows)
    tracemalloc.start()
    try:
        many = samplers(60)
        for i in range(0, len(many), 2):
            sampler.sample(many[i : i + 2], rows)
        n_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert n_bytes < 60 * N  # 32 bytes for each token, if each sampler had its own


def test_a_row_without_a_token_ends_no_other() -> None:
    rows = np.zeros((4, N), np.float32)
    rows[:, 3] = 50.0
    rows[1, 70] = np.nan
    mask = [None, None, mask_of([]), mask_of([9])]
    found = RowSampler(4, None).sample(samplers(4), rows, mask)
    assert (found[0], found[3]) == (3, 9)
    assert isinstance(found[1], BackendError)
    assert isinstance(found[2], RequestError)
    again = RowSampler(4, None).sample(samplers(4), rows)
    assert again[2] == 3  # a mask is for one call


def test_largest_logits_and_whole_rows_may_be_mixed(threads: ThreadPool) -> None:
    rng = random.Random(3)
    rows = [some_logits(rng) for _ in range(3)]
    mixed: list[Row] = [largest(rows[0], 64), largest(rows[1], 1), rows[2]]
    alone, together = samplers(3), samplers(3)
    found = RowSampler(3, threads).sample(together, mixed)
    assert found == [s.sample(row) for s, row in zip(alone, rows, strict=True)]


def test_without_compiled_kernels_rows_are_sampled_one_by_one() -> None:
    rng = random.Random(5)
    rows = np.array([some_logits(rng) for _ in range(3)])
    rows[1] = np.nan
    with NO_JIT.set(1):
        alone, together = samplers(3), samplers(3)
    found = RowSampler(3, None).sample(together, rows)
    assert found[0] == alone[0].sample(rows[0])
    assert isinstance(found[1], BackendError)
    assert found[2] == alone[2].sample(rows[2])


@pytest.mark.parametrize("seed", [0, 5489, 2**32 - 2])
def test_random_numbers_are_those_of_the_twister(seed: int) -> None:
    chain, twister = NativeChain([], 1000, seed), MersenneTwister(seed)
    logits = np.zeros(1000, np.float32)
    for _ in range(1000):  # more than three states of 624 numbers
        assert chain.draw(logits) == chain.draw(logits, twister.uniform_double())


def test_a_state_is_taken_before_the_first_number() -> None:
    twister = MersenneTwister(1)
    assert twister.state().shape == (625,)
    twister.uniform_double()
    with pytest.raises(AssertionError, match="in advance"):
        twister.state()
