"""Guesses change no bit of random requests to a model on a GPU, or on one and the CPU."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from gpus import Gpus
from open_params import open_params
from random_texts import Guessing, compare, random_request, replace_controller
from tiny_models import TINY, write_model

from lamella.graph import GGMLType
from lamella.kernels import devices
from lamella.runtime.open import open_instance


@pytest.mark.parametrize(("layers", "kind"), [(-1, "oracle"), (2, "mixed")])
def test_guesses_change_no_bit(
    gpus: Gpus, tmp_path: Path, layers: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "find_cuda", lambda: gpus.registry)
    write_model(TINY["llama"], tmp_path / "tiny.gguf", GGMLType.Q4_0)
    rng = random.Random(layers)
    params = open_params(
        tmp_path / "tiny.gguf",
        devices=(gpus.first.name,),
        n_gpu_layers=layers,
        op_offload=False,
        n_ctx=256,
        n_ubatch=16,
        n_parallel=4,
    )
    n = gpus.pick(40, 6)
    with open_instance(params) as instance:
        n_vocab = instance.vocab.n_tokens
        requests = [random_request(rng, i, n_vocab, lora=False) for i in range(n)]
        replace_controller(rng, monkeypatch)
        compare(instance, requests, Guessing(kind, rng, n_vocab), monkeypatch)
