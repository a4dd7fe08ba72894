"""Models with states: a reused prefix, another batch or a preemption changes no bit."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from matrix import combinations, first
from open_params import open_params
from state_models import KEYS, write_state_model

from lamella.base.errors import CancelledError
from lamella.model.sampling import TokenLogprob
from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance
from lamella.runtime.params import OpenParams, RequestParams
from lamella.runtime.saved_prefix import restore_prefix, save_prefix
from lamella.runtime.text import generate

PROMPT = [1, *(3 + i * 7 % 250 for i in range(80))]
PLACEMENTS = {
    "cpu": open_params("", devices=("none",)),
    "sim+cpu": open_params("", devices=("sim",), n_gpu_layers=2, op_offload=False),
}
Probs = list[tuple[TokenLogprob, ...]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    paths = {arch: tmp_path_factory.mktemp("model") / f"{arch}.gguf" for arch in KEYS}
    for arch, path in paths.items():
        write_state_model(arch, path)
    return paths


def opened(path: Path, placement: str = "cpu", **given: object) -> OpenParams:
    sizes = {"n_ctx": 512, "n_ubatch": 32, "n_parallel": 2} | given
    return PLACEMENTS[placement].change(path=path, **sizes)


def run(
    instance: Instance,
    prompt: Sequence[int],
    n_predict: int = 5,
    *,
    cache_prompt: bool = True,
    **more: object,
) -> tuple[int, list[int], Probs]:
    """The number of cached tokens, the predicted ones, and the exact probabilities."""
    options = {
        **{"temperature": 0, "n_predict": n_predict, "ignore_eos": True},
        "cache_prompt": cache_prompt,
        **more,
    }
    params = RequestParams.make(options)
    generation = generate(instance.engine, instance.vocab, prompt, params, n_probs=20)
    probs = [(at.chosen, *at.top) for piece in generation for at in piece.probs]
    return generation.result.n_cached, [at[0].id for at in probs], probs


@pytest.mark.parametrize(("arch", "placement"), combinations(KEYS, PLACEMENTS))
def test_cached_prefixes_change_no_bit(models: dict[str, Path], arch: str, placement: str) -> None:
    prompts = [PROMPT[:n] + more for n in (81, 64, 33, 7) for more in ([], [9, 8, 7])]
    with open_instance(opened(models[arch], placement)) as instance:
        cold = [run(instance, prompt, cache_prompt=False) for prompt in prompts]
        assert {n_cached for n_cached, _, _ in cold} == {0}
        n_cached = []
        for prompt, (_, _, expected) in zip(prompts * 2, cold * 2, strict=True):
            n, _, probs = run(instance, prompt)
            assert probs == expected
            n_cached.append(n)
        assert n_cached[:2] == [0, 80]
        assert n_cached[8:] == [len(prompt) - 1 for prompt in prompts]  # the same prompts again


@pytest.mark.parametrize("arch", first(2, KEYS))
def test_a_conversation_evaluates_only_what_is_new(models: dict[str, Path], arch: str) -> None:
    with open_instance(opened(models[arch])) as instance:
        tokens, n_before = list(PROMPT[:20]), 0
        for turn in range(5):
            n_cached, answer, probs = run(instance, tokens)
            # the last token of an answer was not evaluated
            assert n_cached == (n_before - 1 if turn else 0)
            assert probs == run(instance, tokens, cache_prompt=False)[2]
            n_before = len(tokens) + len(answer)
            tokens += [*answer, 5 + turn, 77, 13]


def test_an_edited_message_reuses_those_before_it(models: dict[str, Path]) -> None:
    with open_instance(opened(models["qwen35"])) as instance:
        end = next(iter(instance.vocab.eog))
        first = [*PROMPT[:40], end, *PROMPT[40:]]
        other = [*first[:41], 9, 8, 7, *PROMPT[40:]]
        assert run(instance, first)[0] == 0
        n_cached, _, probs = run(instance, other)
        assert n_cached == 32  # the page's end before the end of the message
        assert probs == run(instance, other, cache_prompt=False)[2]


@pytest.mark.parametrize("arch", KEYS)
def test_a_shifted_context_has_the_bits_of_its_new_prompt(
    models: dict[str, Path], arch: str
) -> None:
    options: dict[str, Any] = {"context_shift": True, "n_keep": 20}
    with open_instance(opened(models[arch], n_ctx=64)) as instance:
        expected = run(instance, PROMPT[:40], 60, cache_prompt=False, **options)
        assert run(instance, PROMPT[:40], 60, **options)[1:] == expected[1:]


@pytest.mark.parametrize("arch", KEYS)
def test_a_saved_prefix_continues_with_the_same_bits(
    models: dict[str, Path], arch: str, tmp_path: Path
) -> None:
    prompt = PROMPT[:70]
    with open_instance(opened(models[arch])) as instance:
        _, answer, _ = run(instance, prompt)
        tokens = [*prompt, *answer]
        expected = run(instance, [*tokens, 9, 8], cache_prompt=False)
        saved = save_prefix(instance, tmp_path / "prefix", tokens)
        assert saved.tokens == tokens[:-1]
    with open_instance(opened(models[arch])) as instance:
        assert restore_prefix(instance, tmp_path / "prefix").tokens == tokens[:-1]
        assert run(instance, [*tokens, 9, 8]) == (len(tokens) - 1, *expected[1:])


@pytest.mark.parametrize(
    ("arch", "n_kept"), combinations(["qwen35", "lfm2", "mamba", "kimi-linear"], [0, 1, 8])
)
def test_texts_under_load_are_those_alone(models: dict[str, Path], arch: str, n_kept: int) -> None:
    """Small pools: requests are preempted, and share prefixes; some are cancelled."""
    chance = random.Random(n_kept)
    prompts = [
        PROMPT[: chance.randrange(1, 80)] + [chance.randrange(3, 250) for _ in range(n)]
        for n in (0, 1, 5, 30, 2, 0, 9, 40, 3, 1, 0, 17)
    ]
    with open_instance(opened(models[arch], n_parallel=1, n_ctx=192)) as instance:
        alone = [run(instance, prompt, 20, cache_prompt=False)[1:] for prompt in prompts]
    params = opened(models[arch], n_parallel=4, n_ctx=192, ctx_checkpoints=n_kept)
    wrong = list[str]()
    with open_instance(params) as instance:

        def client(seed: int) -> None:
            chance = random.Random(seed)
            for _ in range(6):
                i = chance.randrange(len(prompts))
                if chance.random() < 0.2:
                    cancelled(instance, prompts[i])
                elif run(instance, prompts[i], 20)[1:] != alone[i]:
                    wrong.append(f"prompt {i}")

        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        slots = instance.context.pool.slots
        assert slots is not None
        assert slots.n_free == slots.n_pages


def cancelled(instance: Instance, prompt: Sequence[int]) -> None:
    """Begin a generation, and cancel it after a token."""
    params = RequestParams.make({"n_predict": 20, "ignore_eos": True})
    generation = generate(instance.engine, instance.vocab, prompt, params)
    next(iter(generation), None)
    generation.cancel()
    try:
        for _ in generation:
            pass
    except CancelledError:
        pass
