"""Guesses change no bit of random requests to a model on a GPU, or on one and the CPU."""

from __future__ import annotations

import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from draft_world import texts
from gpus import Gpus, emulated_gpus
from nextn_models import write_nextn
from open_params import open_params
from random_texts import Guessing, Request, compare, random_request, replace_controller
from tiny_models import TINY, write_model

from lamella.graph import GGMLType
from lamella.kernels import devices
from lamella.model.batch import Batch
from lamella.model.context import Context, Prepared, Started
from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance


@pytest.fixture
def path(gpus: Gpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(devices, "find_cuda", lambda: gpus.registry)
    write_model(TINY["llama"], path := tmp_path / "tiny.gguf", GGMLType.Q4_0)
    return path


def opened(path: Path, gpus: Gpus, **options: Any) -> Instance:
    given = {"devices": (gpus.first.name,), "n_ctx": 256, **options}
    return open_instance(open_params(path, **given))


@pytest.mark.parametrize(("layers", "kind"), [(-1, "oracle"), (2, "mixed")])
def test_guesses_change_no_bit(
    gpus: Gpus, path: Path, layers: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(layers)
    options = {"n_gpu_layers": layers, "op_offload": False, "n_ubatch": 16, "n_parallel": 4}
    with opened(path, gpus, **options) as instance:
        n_vocab = instance.vocab.n_tokens
        n = gpus.pick(40, 6)
        requests = [random_request(rng, i, n_vocab, lora=False) for i in range(n)]
        replace_controller(rng, monkeypatch)
        compare(instance, requests, Guessing(kind, rng, n_vocab), monkeypatch)


@pytest.mark.parametrize(("op_offload", "most"), [(True, 16), (False, 64)])
def test_guesses_move_no_work_to_another_device(
    gpus: Gpus, path: Path, op_offload: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With op offload, the GPU takes over the CPU's layers in steps of 32 tokens and more."""
    sizes: list[int] = []
    start_rows = Context.start_rows

    def seen(self: Context, batch: Batch) -> Started:
        sizes.append(len(batch))
        return start_rows(self, batch)

    rng = random.Random(1)
    options = {"n_gpu_layers": 1, "op_offload": op_offload, "n_ubatch": 64, "n_parallel": 8}
    with opened(path, gpus, **options) as instance:
        assert instance.context.n_checked_max == most
        replace_controller(rng, monkeypatch)
        monkeypatch.setattr(Context, "start_rows", seen)
        given = {"n_predict": 30, "ignore_eos": True, "seed": 3, "spec_n_max": 7}
        requests = [Request(prompt=(1, 5 + i), given=given, n_probs=3) for i in range(8)]
        guessing = Guessing("random", rng, instance.vocab.n_tokens)
        compare(instance, requests, guessing, monkeypatch)
    assert 8 < max(sizes) <= most
    assert op_offload or max(sizes) > 16


def test_a_block_sees_all_hidden_states(
    gpus: Gpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of steps without room for guesses, too: the next one starts early."""
    write_nextn(TINY["llama"], path := tmp_path / "m.gguf", GGMLType.Q8_0)
    n_early = 0
    start_prepared = Context.start_prepared

    def counted(self: Context, prepared: Prepared) -> Started:
        nonlocal n_early
        n_early += 1
        return start_prepared(self, prepared)

    monkeypatch.setattr(Context, "start_prepared", counted)
    options: dict[str, Any] = {
        "n_gpu_layers": -1,
        "n_ubatch": 2,
        "n_parallel": 2,
        "draft_mtp": True,
    }
    large = nullcontext(gpus) if gpus.is_real else emulated_gpus(1, 2**29)
    with large as found, monkeypatch.context() as patch:
        patch.setattr(devices, "find_cuda", lambda: found.registry)
        with opened(path, found, **options) as instance:
            context = instance.context
            before = context.n_graphs_built + context.n_reused
            texts(instance, [[1, 5], [1, 6]], n_predict=12, spec_type="draft-mtp")
            n_graphs = context.n_graphs_built + context.n_reused - before
            assert n_graphs >= instance.engine.counters.n_steps  # early ones count, too
            block = instance.engine.draft_model
            assert block is not None and not block.is_broken
    assert n_early > 3
