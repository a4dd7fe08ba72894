"""LoRA adapters of requests: equal bits in every batch, prefixes, preemption, changes of scales."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from make_adapter import arch_of, named, random_matrices, write_adapter
from open_params import open_params
from tiny_models import TINY, write_model

from lamella.base.errors import RequestError, UnsupportedModelError
from lamella.base.settings import STRICT
from lamella.graph import GGMLType
from lamella.model.kv_prefix import PrefixIdentity
from lamella.model.sampling import TokenLogprob
from lamella.runtime.fit import plan_model
from lamella.runtime.instance import Instance
from lamella.runtime.open import measure, open_embedding, open_instance
from lamella.runtime.saved_prefix import restore_prefix, save_prefix
from lamella.runtime.text import Generation, generate

Probs = list[tuple[TokenLogprob, ...]]

PROMPT = [1, *(3 + i * 7 % 250 for i in range(80))]
NONE: list[Mapping[str, float]] = []
FIRST = [{"id": 0, "scale": 1.0}]
SECOND = [{"id": 1, "scale": -0.5}]
BOTH = [{"id": 1, "scale": 2.0}, {"id": 0, "scale": 0.5}]
SETS = (NONE, FIRST, SECOND, BOTH)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and two adapters for it."""
    folder = tmp_path_factory.mktemp("adapters")
    path = folder / "m.gguf"
    write_model(TINY["llama"], path, GGMLType.Q8_0)
    for i, rank in enumerate((4, 3)):
        tensors = named(random_matrices(path, rank, strength=0.5, seed=i))
        write_adapter(folder / f"{i}.gguf", arch_of(path), tensors, alpha=8.0)
    return folder


def options(folder: Path, **given: Any) -> Any:
    lora = [str(folder / "0.gguf"), (str(folder / "1.gguf"), 0.25)]
    params = {"devices": ("none",), "n_ctx": 512, "n_ubatch": 32, "lora": lora}
    return open_params(folder / "m.gguf", **{**params, **given})


@pytest.fixture(scope="module")
def instance(folder: Path) -> Iterator[Instance]:
    with open_instance(options(folder)) as instance:
        yield instance


def start(instance: Instance, prompt: Sequence[int] = PROMPT, **given: Any) -> Generation:
    params = {"temperature": 0, "n_predict": 6, "ignore_eos": True, **given}
    return generate(
        instance.engine, instance.vocab, prompt, instance.request_params(params), n_probs=20
    )


def probs(generation: Generation) -> Probs:
    """The exact probabilities at each position."""
    return [(at.chosen, *at.top) for piece in generation for at in piece.probs]


def alone(instance: Instance, prompt: Sequence[int] = PROMPT, **given: Any) -> Probs:
    return probs(start(instance, prompt, cache_prompt=False, **given))


def test_requests_in_a_batch_have_the_bits_that_they_have_alone(instance: Instance) -> None:
    expected = [alone(instance, lora=lora) for lora in SETS]
    assert len({str(each) for each in expected}) == len(SETS)
    for cache_prompt in (False, True, True):
        started = [start(instance, lora=lora, cache_prompt=cache_prompt) for lora in SETS]
        assert [probs(each) for each in started] == expected


def test_requests_without_adapters_have_the_bits_of_a_model_without_any(
    folder: Path, instance: Instance
) -> None:
    with open_instance(options(folder, lora=())) as plain:
        assert alone(plain) == alone(instance, lora=NONE)
        assert plain.request_params().generation.lora is None
        with pytest.raises(RequestError, match="lora: there is no adapter 0: the server has no"):
            plain.request_params({"lora": FIRST})


def test_prefixes_are_shared_between_equal_adapters_only(instance: Instance) -> None:
    prompt = [1, *(9 + i * 5 % 240 for i in range(80))]
    zero = [{"id": 0, "scale": 0.0}, {"id": 1, "scale": -0.0}]
    for lora, is_known in (
        *((NONE, False), (FIRST, False), (SECOND, False), (BOTH, False)),
        *((zero, True), (FIRST, True), (BOTH[::-1], True), (SECOND, True), (NONE, True)),
        ([{"id": 0, "scale": 1.5}], False),
    ):
        generation = start(instance, prompt, lora=lora)
        assert probs(generation) == alone(instance, prompt, lora=lora)
        assert (generation.result.n_cached >= 32) is is_known, lora


def test_preempted_requests_keep_their_adapters(folder: Path) -> None:
    prompts = [[1, *(3 + (i * 11 + j) % 250 for i in range(60))] for j in range(4)]
    with open_instance(options(folder, n_ctx=160, n_parallel=4)) as small:
        expected = [
            alone(small, prompt, lora=lora, n_predict=40)
            for prompt, lora in zip(prompts, SETS, strict=True)
        ]
        started = [
            start(small, prompt, lora=lora, n_predict=40)
            for prompt, lora in zip(prompts, SETS, strict=True)
        ]
        assert [probs(each) for each in started] == expected


def test_scales_of_requests_that_set_none(folder: Path, instance: Instance) -> None:
    initial = [{"id": 0, "scale": 1.0}, {"id": 1, "scale": 0.25}]
    assert instance.adapters.current == ((0, 1.0), (1, 0.25))
    assert alone(instance) == alone(instance, lora=initial)
    with open_instance(options(folder, lora_init_without_apply=True)) as other:
        assert other.adapters.current == ((0, 0.0), (1, 0.0))
        assert alone(other) == alone(instance, lora=NONE)


def test_a_change_of_scales_reaches_later_requests_only(folder: Path) -> None:
    with open_instance(options(folder)) as own:
        before, after = alone(own, n_predict=30), alone(own, lora=SECOND, n_predict=30)
        begun = threading.Event()
        generation, found = start(own, n_predict=30, cache_prompt=False), Probs()

        def read() -> None:
            for piece in generation:
                found.extend((at.chosen, *at.top) for at in piece.probs)
                begun.set()

        thread = threading.Thread(target=read)
        thread.start()
        assert begun.wait(30)
        own.adapters.set("the body", ((1, -0.5),))
        assert own.adapters.current == ((0, 0.0), (1, -0.5))
        late = alone(own, n_predict=30)
        thread.join()
        assert (found, late) == (before, after)


@pytest.mark.parametrize("lora", [[{"id": 2, "scale": 1}], [{"id": -1, "scale": 1}]])
def test_unknown_adapters_are_refused(instance: Instance, lora: Any) -> None:
    with pytest.raises(RequestError, match=r"lora: there is no adapter -?\d: must be 0 to 1"):
        instance.request_params({"lora": lora})


def test_an_absurd_scale_harms_no_other_request(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with STRICT.set(0), open_instance(options(folder)) as instance:
        expected = alone(instance, lora=FIRST)
        huge = start(instance, lora=[{"id": 0, "scale": 3e38}], n_predict=3)
        other = start(instance, lora=FIRST, cache_prompt=False)
        assert probs(other) == expected
        with pytest.raises(RequestError, match=r"lora: these scales are too large: the model comp"):
            list(huge)
        assert alone(instance, lora=FIRST) == expected
    assert "scales are too large" in caplog.text
    assert [record for record in caplog.records if record.exc_info] == []  # the client's fault


# --- the plan ---


def test_the_plan_counts_adapters_to_the_byte(folder: Path) -> None:
    sizes = []
    for lora in ((), [str(folder / "0.gguf")]):
        params = options(folder, lora=lora)
        plan = plan_model(params)
        planned = {m.buffer_type: m for device in plan.devices for m in device.memory}
        with open_instance(params) as opened:
            for (buft, use), n_bytes in opened.context.buffer_bytes().items():
                assert n_bytes == planned[buft].by_usage()[use], (buft, use)
        measured = measure(plan)
        assert len(measured.model.adapters.all) == len(lora)
        sizes.append(sum(m.weights for m in planned.values()))
    n_matrices, n_layers = 4 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 96)), 2
    assert sizes[1] - sizes[0] >= 4 * n_layers * n_matrices


def test_adapters_on_devices(folder: Path, instance: Instance) -> None:
    """A simulated device has the kernels of the CPU, so the bits are equal."""
    params = options(folder, devices=("sim",), n_gpu_layers=2, op_offload=False, repack=False)
    with open_instance(options(folder, repack=False)) as plain, open_instance(params) as mixed:
        assert {w.a.buffer.buft.name for w in mixed.context.model.adapters.weights.values()} == {
            "CPU",
            "SIM0",
        }
        assert alone(mixed, lora=BOTH) == alone(plain, lora=BOTH)


def test_embeddings_have_no_adapters(folder: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"LoRA adapters of models that compute embed"):
        open_embedding(options(folder))


def test_saved_prefixes_know_their_adapters(
    folder: Path, instance: Instance, tmp_path: Path
) -> None:
    file = tmp_path / "saved"
    prompt = [200, *range(100, 150)]
    first = PrefixIdentity(lora=(1.0, 0.0))
    probs(start(instance, prompt, lora=FIRST))
    with pytest.raises(RequestError, match="none of the 51 tokens is in memory"):
        save_prefix(instance, file, prompt)
    save_prefix(instance, file, prompt, first)
    for other in (
        PrefixIdentity(),
        PrefixIdentity(lora=(0.0, 1.0)),
        PrefixIdentity(lora=(2.0, 0.0)),
    ):
        with pytest.raises(RequestError, match="saved with another adapters"):
            restore_prefix(instance, file, other)
    with open_instance(options(folder)) as later:
        expected = alone(later, prompt, lora=FIRST)
        restore_prefix(later, file, first)
        generation = start(later, prompt, lora=FIRST)
        assert probs(generation) == expected
        assert generation.result.n_cached == len(prompt) - 1
