"""The compiled chain against its NumPy twin: random chains, numbers, logits and texts.

Tokens, candidates and errors must be the same. Probabilities may differ in the last bit: one in 100
million exponentials is too close to a rounding boundary of float32.
"""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest
from matrix import first
from sampling_toys import (
    SIZES,
    VOCABS,
    F32Array,
    ToyVocab,
    array,
    letters,
    outcome,
    random_logits,
    random_params,
)

from lamella.base.settings import NO_JIT
from lamella.kernels.cpu import sampling as kernels
from lamella.kernels.cpu.compiler.jit import KERNELS
from lamella.kernels.cpu.sampling import state
from lamella.model.sampling import (
    Sampler,
    SamplingParams,
    load_kernels,
)
from lamella.model.sampling.chain import NumpyChain
from lamella.model.sampling.native import NativeChain
from lamella.model.sampling.row_table import native_call

INF = float("inf")


def pair(params: SamplingParams, vocab: ToyVocab) -> tuple[Sampler, Sampler]:
    """Return a sampler with a compiled chain, and one with its twin. Both run the chain even if
    greedy."""
    native, twin = Sampler(params, vocab), Sampler(params, vocab)
    native._greedy = twin._greedy = False
    for sampler in (native, twin):
        sampler.__dict__.pop("chain")
    with NO_JIT.set(0):
        assert isinstance(native.chain, NativeChain)
    with NO_JIT.set(1):
        assert isinstance(twin.chain, NumpyChain)
    return native, twin


def assert_same(native: Sampler, twin: Sampler, logits: F32Array) -> int | str:
    before = logits.copy()
    logits.flags.writeable = False
    chosen = outcome(native, logits)
    assert chosen == outcome(twin, logits)
    np.testing.assert_array_equal(logits, before)
    if isinstance(chosen, int):
        (ids, probs), (twin_ids, twin_probs) = native.candidates(), twin.candidates()
        np.testing.assert_allclose(probs, twin_probs, rtol=3e-7, atol=1e-44)
        np.testing.assert_array_equal(ids, twin_ids)
    return chosen


@pytest.mark.parametrize("seed", first(5, range(60)))
def test_random_chains(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        n_vocab = rng.choice(SIZES)
        native, twin = pair(random_params(rng, n_vocab), VOCABS[n_vocab])
        for _ in range(rng.choice([0, 3, 70])):
            token = rng.randrange(min(n_vocab, 5))
            native.accept(token)
            twin.accept(token)
        for _ in range(3):
            chosen = assert_same(native, twin, random_logits(rng, n_vocab))
            if isinstance(chosen, int):
                native.accept(chosen)
                twin.accept(chosen)


LARGE: list[dict[str, Any]] = [
    {},
    {"top_k": 1000},
    {"top_k": 0},
    {"top_k": 0, "min_p": 0, "top_p": 0.999},
    {"top_k": 0, "typical_p": 0.9},
    {"repeat_penalty": 1.3, "top_n_sigma": 1.5},
    {"samplers": ("min_p", "penalties", "top_k"), "presence_penalty": 0.5},
    {"dynatemp_range": 0.5, "top_k": 0},
]


@pytest.mark.parametrize("values", LARGE)
def test_a_large_vocabulary(values: dict[str, Any]) -> None:
    n, rng = 40_003, random.Random(5)
    native, twin = pair(SamplingParams(seed=5, **values), ToyVocab([b"x"] * n))
    for _ in range(20):
        chosen = assert_same(native, twin, random_logits(rng, n))
        if isinstance(chosen, int):
            native.accept(chosen)
            twin.accept(chosen)


@pytest.mark.parametrize("n", [512, 40_000])
@pytest.mark.parametrize("at", [0, 15, 16, 511])
@pytest.mark.parametrize("value", [np.nan, INF])
def test_one_invalid_logit_is_found_at_any_index(n: int, at: int, value: float) -> None:
    for place in (at, n - 1 - at):
        logits = np.zeros(n, np.float32)
        logits[place] = value
        native, twin = pair(SamplingParams(), ToyVocab([b"x"] * n))
        assert "logits among" in str(assert_same(native, twin, logits))


def test_equal_logits_need_no_full_sort() -> None:
    # only 41 sort keys are written, although all logits but one are equal
    native, twin = pair(SamplingParams(seed=1, samplers=("top_k",), top_k=40), VOCABS[3001])
    for value in (0.0, -INF):
        logits = np.full(3001, value, np.float32)
        logits[2000] = 1
        assert_same(native, twin, logits)
        chain = native.chain
        assert isinstance(chain, NativeChain)
        assert chain._memory is not None
        keys = chain._memory.keys
        keys[:] = -1
        native.sample(logits)
        assert np.count_nonzero(keys != -1) == 41


@pytest.mark.parametrize("k", [1, 2, 7, 30, 80])
def test_equal_logits_at_any_index_are_ordered_by_id(k: int) -> None:
    # typ_p changes the order, and penalties make more logits equal
    order = ("typ_p", "penalties", "top_k")
    values: dict[str, Any] = {"typical_p": 0.5, "min_keep": 10**6, "presence_penalty": -1}
    native, twin = pair(SamplingParams(seed=1, samplers=order, top_k=k, **values), VOCABS[255])
    rng = random.Random(k)
    for _ in range(10):
        for token in rng.sample(range(255), 60):
            native.accept(token)
            twin.accept(token)
        assert_same(native, twin, array(rng.randrange(4) for _ in range(255)))


def test_many_equal_logits_in_any_order_take_little_time() -> None:
    # typ_p puts ids in no order; temperatures of 1e38 make all logits 0, one alone none of them
    def seconds(n_temperatures: int) -> float:
        order = ("typ_p", *["temperature"] * n_temperatures, "top_p")
        params = SamplingParams(seed=1, samplers=order, temperature=1e38, typical_p=0.99999)
        native, twin = pair(params, ToyVocab([b"x"] * n))
        assert_same(native, twin, logits)
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            native.sample(logits)
            times.append(time.perf_counter() - begin)
        return min(times)

    n = 40_000
    logits = 3 * np.random.default_rng(1).standard_normal(n, np.float32)
    assert seconds(2) < 20 * seconds(1)


def test_the_first_index_that_reaches_the_share_is_chosen() -> None:
    native, twin = pair(SamplingParams(samplers=()), VOCABS[3])
    for u in (0.0, 0.249, 0.25, 0.251, 0.5, 0.75, 0.751, 1 - 1e-16):
        logits = array([0, 0, -INF])
        assert native.chain.draw(logits, u) == twin.chain.draw(logits, u) == int(u > 0.5)


def test_min_keep_candidates_stay_in_order() -> None:
    params = SamplingParams(samplers=("min_p",), min_p=0.5, min_keep=2)
    for sampler in pair(params, VOCABS[3]):
        sampler.chain.draw(array([1.0, 1.5, 0.0]), 0.5)
        assert sampler.chain.last()[0].tolist() == [0, 1]


def test_kernels_write_within_their_memory() -> None:
    for n in (1, 17, 100):
        params = SamplingParams(typical_p=0.9, top_n_sigma=5, min_p=0.01, repeat_penalty=1.1)
        native, _ = pair(params, VOCABS.get(n) or letters(n))
        chain = native.chain
        assert isinstance(chain, NativeChain)
        for word, size in ((state.OWN, 4), (state.WEIGHTS, 4), (state.IDS, 4), (state.KEYS, 8)):
            guarded = np.full(size * n + 128, 0xA5, np.uint8)
            chain._ints[word] = guarded.ctypes.data + 64
            native.sample(array(range(n)))
            assert (guarded[:64] == 0xA5).all() and (guarded[64 + size * n :] == 0xA5).all()


def test_alternating_samplers_share_no_state() -> None:
    rng = random.Random(1)
    rows = [random_logits(rng, 1000) for _ in range(6)]

    def sampler(penalty: float) -> Sampler:
        s = Sampler(SamplingParams(seed=3, repeat_penalty=penalty), VOCABS[1000])
        s.accept(7)
        return s

    penalties = (1.0, 1.2, 5.0)
    alone = [[s.sample(row) for row in rows] for s in map(sampler, penalties)]
    several = [sampler(penalty) for penalty in penalties]
    in_turn = [[s.sample(row) for s in several] for row in rows]
    assert [list(tokens) for tokens in zip(*in_turn, strict=True)] == alone


@pytest.mark.parametrize(
    ("values", "short"),
    [
        ({}, False),
        ({"top_k": 40}, True),
        ({"top_k": 40, "typical_p": 0.5, "dynatemp_range": 1}, True),
        ({"top_k": 40, "repeat_penalty": 2, "dry_multiplier": 1, "logit_bias": [(0, 1)]}, True),
        ({"top_k": 40, "top_n_sigma": 1}, False),
        ({"top_k": 10_000}, False),
        ({"top_k": 40, "samplers": ("temperature", "top_k")}, False),
        ({"top_k": 40, "samplers": ("xtc", "top_k"), "xtc_probability": 0.5}, False),
        ({"samplers": ()}, False),
    ],
)
def test_long_calls_release_the_interpreter_lock(values: dict[str, Any], short: bool) -> None:
    params = SamplingParams(seed=5, **({"top_k": 0} | values))
    for n, kept in ((40_003, short), (1000, True)):
        sampler, twin = pair(params, ToyVocab([b":"] * n))
        chain = sampler.chain
        assert isinstance(chain, NativeChain)
        assert chain.is_short == kept
        assert_same(sampler, twin, random_logits(random.Random(1), n))


def test_another_thread_runs_during_a_long_call() -> None:
    flags = [native_call(keeps)._flags_ for keeps in (True, False)]  # type: ignore[attr-defined]
    keeps_interpreter = 4  # FUNCFLAG_PYTHONAPI
    assert [bool(f & keeps_interpreter) for f in flags] == [True, False]


def test_every_kernel_is_used_by_some_chain() -> None:
    used = {"sample_rows", "sample_sort"}
    chains: list[dict[str, Any]] = [
        {"logit_bias": [(0, 1.0)], "repeat_penalty": 2.0},
        {"dynatemp_range": 1.0},
        {"mirostat": 1},
        {"mirostat": 2},
        {"samplers": ("infill", "adaptive_p"), "adaptive_target": 0.5},
    ]
    for values in chains:
        on: dict[str, Any] = {"typical_p": 0.5, "top_n_sigma": 1, "xtc_probability": 0.5}
        native, _ = pair(SamplingParams(**(on | values)), VOCABS[16])
        chain = native.chain
        assert isinstance(chain, NativeChain)
        addresses = {chain._ints[i] for i in range(state.STEPS, len(chain._ints))}
        used |= {name for name, kernel in KERNELS.items() if kernel._address in addresses}
    assert {name for name in KERNELS if name.startswith("sample_")} == used
    assert {kernel.name for kernel in kernels.SAMPLING_KERNELS} == used


def test_kernels_are_loaded_before_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in kernels.SAMPLING_KERNELS:
        monkeypatch.setattr(kernel, "_address", None)
    with NO_JIT.set(1):
        load_kernels()
    assert not any(kernel._address for kernel in kernels.SAMPLING_KERNELS)
    with NO_JIT.set(0):
        load_kernels()
    assert all(kernel._address for kernel in kernels.SAMPLING_KERNELS)
