"""Samplers with a mask: the compiled chain against its NumPy twin, and against bans by bias."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from matrix import combinations, first
from sampling_toys import SIZES, VOCABS, F32Array, ToyVocab, random_logits, random_params

from lamella.base.errors import BackendError, RequestError
from lamella.base.settings import NO_JIT
from lamella.model.sampling import Sampler, SamplingParams

Mask = npt.NDArray[np.uint32]


def mask_of(ids: list[int], n: int) -> Mask:
    """A mask of these tokens. The bits above the vocabulary are set: they mean nothing."""
    bits = np.zeros(-(-(n + 1) // 32) * 32, np.uint8)
    bits[ids] = 1
    bits[n:] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def random_ids(rng: random.Random, n: int) -> list[int]:
    """Some tokens of a vocabulary: few, many, or all."""
    share = rng.choice([0.01, 0.1, 0.3, 0.9, 1.0])
    return [i for i in range(n) if rng.random() < share] or [rng.randrange(n)]


def outcome(sampler: Sampler, logits: F32Array, mask: Mask | None) -> int | str:
    try:
        return sampler.sample(logits, mask)
    except (BackendError, RequestError) as e:
        return str(e).removesuffix(" of those that the grammar allows")


def native_and_twin(params: SamplingParams, vocab: ToyVocab) -> tuple[Sampler, Sampler]:
    native, twin = Sampler(params, vocab), Sampler(params, vocab)
    twin.__dict__.pop("chain")
    with NO_JIT.set(1):
        _ = twin.chain
    return native, twin


@pytest.mark.parametrize("seed", first(12, range(40)))
def test_random_chains_with_masks(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        n = rng.choice(SIZES)
        native, twin = native_and_twin(random_params(rng, n), VOCABS[n])
        for _ in range(3):
            logits, ids = random_logits(rng, n), random_ids(rng, n)
            mask = mask_of(ids, n)
            chosen = outcome(native, logits, mask)
            assert chosen == outcome(twin, logits, mask)
            if isinstance(chosen, int):
                assert chosen in ids
                np.testing.assert_array_equal(native.candidates()[0], twin.candidates()[0])
                native.accept(chosen)
                twin.accept(chosen)


@pytest.mark.parametrize(
    ("share", "values"),
    combinations(
        [0.001, 0.124, 0.126, 0.9], [{}, {"top_k": 0}, {"temperature": 0}, {"top_n_sigma": 1.0}]
    ),
)
def test_a_mask_is_a_ban_of_all_other_tokens(share: float, values: dict[str, float]) -> None:
    n, rng = 40_003, random.Random(3)
    params = SamplingParams(seed=1, **values)  # type: ignore[arg-type]
    vocab = ToyVocab([b"x"] * n)
    ids = sorted(rng.sample(range(n), int(share * n)))
    others = np.setdiff1d(np.arange(n), ids)
    bans = tuple((int(token), -np.inf) for token in others)
    masked, banned = Sampler(params, vocab), Sampler(replace(params, logit_bias=bans), vocab)
    for _ in range(5):
        logits = np.array([rng.gauss(0, 3) for _ in range(n)], np.float32)
        assert masked.sample(logits, mask_of(ids, n)) == banned.sample(logits)


def test_a_mask_of_one_token_forces_it() -> None:
    n = 1000
    for params in (SamplingParams(), SamplingParams(temperature=0)):
        sampler = Sampler(params, ToyVocab([b"x"] * n))
        for token in (0, 31, 32, n - 1):
            assert sampler.sample(np.zeros(n, np.float32), mask_of([token], n)) == token


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0)])
@pytest.mark.parametrize("no_jit", [0, 1])
def test_an_empty_mask_is_an_error(params: SamplingParams, no_jit: int) -> None:
    with NO_JIT.set(no_jit):
        sampler = Sampler(params, ToyVocab([b"x"] * 100))
        with pytest.raises(RequestError, match="no possible token of those that the grammar"):
            sampler.sample(np.zeros(100, np.float32), mask_of([], 100))


def test_a_bias_may_leave_no_allowed_token() -> None:
    params = SamplingParams(logit_bias=((7, -np.inf),))
    sampler = Sampler(params, ToyVocab([b"x"] * 100))
    with pytest.raises(RequestError, match="of those that the grammar allows"):
        sampler.sample(np.zeros(100, np.float32), mask_of([7], 100))


@pytest.mark.parametrize("n_allowed", [100, 3000])  # few are gathered
def test_values_of_other_tokens_do_not_matter(n_allowed: int) -> None:
    n = 4096
    allowed = sorted(random.Random(1).sample(range(n), n_allowed))
    others = np.setdiff1d(np.arange(n), allowed)
    logits = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    wanted = Sampler(SamplingParams(seed=1), ToyVocab([b"x"] * n)).sample(
        logits, mask_of(allowed, n)
    )
    for value in (np.nan, np.inf, -np.inf, 100.0):
        logits[others] = value
        sampler = Sampler(SamplingParams(seed=1), ToyVocab([b"x"] * n))
        assert sampler.sample(logits, mask_of(allowed, n)) == wanted
    logits[allowed[5]] = np.nan
    with pytest.raises(BackendError):
        sampler.sample(logits, mask_of(allowed, n))
