"""Guesses change no bit of random requests to real models, wherever these are computed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest
from latent_models import write_latent
from make_adapter import arch_of, named, random_matrices, write_adapter
from matrix import first
from nextn_models import write_nextn
from open_params import open_params
from random_texts import Guessing, compare, random_request, replace_controller
from tiny_models import TINY, write_model
from window_models import write_window_model

from lamella.graph import GGMLType
from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance

N_VOCAB: Final = 2100  # enough for a device to choose 1024 candidates


@dataclass(frozen=True)
class World:
    """A model, where it is computed, and what is guessed."""

    model: str
    source: str  # a kind of `Guessing`, or a type of --spec-type
    n_parallel: int
    devices: tuple[str, ...] = ("none",)
    draft: str = ""  # the draft model
    options: dict[str, Any] = field(default_factory=dict)


# on "sim", a mask and the choice of the candidates are computed on a device
SIM = ("sim",)
PART = {"n_gpu_layers": 2, "op_offload": False}  # the last layer and the logits on the device
BLOCK = {"draft_mtp": True}
WORLDS = {
    "cpu": World("llama", "oracle", 4),
    "cpu, one at a time": World("llama", "mixed", 1),
    "a small pool": World("llama", "mixed", 6, options={"n_ctx": 96}),
    "q8_0 cells": World("qwen3moe", "random", 5, options={"type_k": "q8_0", "type_v": "q8_0"}),
    "windows": World("gemma3", "mixed", 8, options={"n_ctx": 192}),
    "latent rows": World("latent", "mixed", 4, options={"n_ctx": 160}),
    "latent rows on two": World("latent", "oracle", 3, SIM, options=PART),
    "adapters": World("lora", "mixed", 3),
    "a device": World("llama", "oracle", 8, SIM),
    "a device and the cpu": World("llama", "mixed", 4, SIM, options=PART),
    "windows on two": World("gemma3", "oracle", 3, SIM, options={**PART, "n_ctx": 160}),
    "experts on two": World("qwen3moe", "ngram-simple", 2, SIM, options=PART),
    "two devices": World("llama", "random", 7, ("sim:1GiB:2",), options={"n_ubatch": 16}),
    "n-grams": World("llama", "ngram-simple", 4),
    "a table": World("llama", "ngram-mod", 4),
    "a draft model": World("llama", "draft-simple", 5, draft="llama", options={"n_ctx": 160}),
    "a draft model on a device": World("gemma3", "auto", 3, SIM, "gemma3", PART),
    "another draft model": World("lora", "draft-simple", 4, draft="qwen3moe"),
    "a block of the file": World("nextn", "draft-mtp", 5, options=BLOCK | {"n_ctx": 160}),
    "a block on two": World("nextn", "draft-mtp", 3, SIM, options=BLOCK | PART),
    "as by default": World("llama", "auto", 4),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in ("llama", "qwen3moe"):
        path = folder / f"{name}.gguf"
        write_model(replace(TINY[name], n_vocab=N_VOCAB), path, GGMLType.Q8_0)
    write_window_model(folder / "gemma3.gguf", n_swa=40)
    write_nextn(replace(TINY["mixtral"], n_vocab=N_VOCAB), folder / "nextn.gguf", GGMLType.Q8_0)
    write_latent(folder / "latent.gguf", type=GGMLType.Q8_0)
    (folder / "lora.gguf").symlink_to(folder / "llama.gguf")
    tensors = named(random_matrices(path := folder / "lora.gguf", 4, strength=0.5, seed=1))
    write_adapter(folder / "adapter.gguf", arch_of(path), tensors, alpha=8.0)
    return folder


def opened(folder: Path, world: World) -> Instance:
    options: dict[str, Any] = {"n_ctx": 512, "n_ubatch": 32, **world.options}
    if world.model == "lora":
        options["lora"] = [str(folder / "adapter.gguf")]
    if world.draft:
        options["draft_model"] = str(folder / f"{world.draft}.gguf")
    path = folder / f"{world.model}.gguf"
    n_parallel = world.n_parallel
    return open_instance(open_params(path, devices=world.devices, n_parallel=n_parallel, **options))


def check(folder: Path, world: World, seed: int, n: int, patch: pytest.MonkeyPatch) -> None:
    """Run `n` random requests, one after the other without guesses, then at once with them."""
    rng = random.Random(seed)
    with opened(folder, world) as instance:
        n_vocab, lora = instance.vocab.n_tokens, world.model == "lora"
        requests = [random_request(rng, i, n_vocab, lora=lora) for i in range(n)]
        if world.source != "auto" or world.draft:
            replace_controller(rng, patch)
        compare(instance, requests, Guessing(world.source, rng, n_vocab), patch)
        pool = instance.context.pool
        instance.engine.call(lambda _: None)
    assert pool.n_free == pool.n_pages


# --full: all; the others combine the same models, sources and devices in other ways
QUICK = (
    *("cpu", "a small pool", "q8_0 cells", "windows", "latent rows on two", "adapters"),
    *("a device and the cpu", "two devices", "n-grams", "a table", "a draft model on a device"),
    *("another draft model", "a block on two"),
)


@pytest.mark.parametrize("name", first(len(QUICK), dict.fromkeys((*QUICK, *WORLDS))))
def test_guesses_change_no_bit(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(folder, WORLDS[name], sorted(WORLDS).index(name), 6, monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2, 12))
@pytest.mark.parametrize("name", WORLDS)
def test_guesses_change_no_bit_of_more_requests(
    folder: Path, name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(folder, WORLDS[name], seed, 24, monkeypatch)
