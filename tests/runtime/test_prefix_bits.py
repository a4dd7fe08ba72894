"""A prompt with a cached prefix gives the same bits as without, on real models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from latent_models import write_latent
from matrix import combinations
from open_params import open_params
from state_models import SPARSE, write_state_model
from tiny_models import TINY, write_model

from lamella.graph import GGMLType
from lamella.model.sampling import TokenLogprob
from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance
from lamella.runtime.params import RequestParams
from lamella.runtime.text import generate

PROMPT = [1, *(3 + i * 7 % 250 for i in range(80))]
PLACEMENTS = {
    "cpu": open_params("", devices=("none",)),
    "cpu-q8": open_params("", devices=("none",), type_k="q8_0", type_v="q8_0"),
    "sim": open_params("", devices=("sim",), n_gpu_layers=-1),
    # no op offload: it would make the device of a token depend on the size of its chunk
    "sim+cpu": open_params("", devices=("sim",), n_gpu_layers=1, op_offload=False),
    "two": open_params("", devices=("sim", "sim"), n_gpu_layers=-1),
}


def run(
    instance: Instance, prompt: Sequence[int], *, cache_prompt: bool = True
) -> tuple[int, list[tuple[TokenLogprob, ...]]]:
    """The number of cached tokens, and the exact probabilities at each position."""
    generation = generate(
        instance.engine,
        instance.vocab,
        prompt,
        RequestParams.make(
            {"temperature": 0, "n_predict": 5, "ignore_eos": True, "cache_prompt": cache_prompt}
        ),
        n_probs=20,
    )
    probs = [(at.chosen, *at.top) for piece in generation for at in piece.probs]
    assert len(probs) == 5
    return generation.result.n_cached, probs


@pytest.mark.parametrize(
    ("name", "placement"), combinations(["llama", "qwen3moe", "latent", "sparse"], PLACEMENTS)
)
def test_cached_prefixes_change_no_bit(tmp_path: Path, name: str, placement: str) -> None:
    path = tmp_path / "tiny.gguf"
    if name == "latent":
        write_latent(path, type=GGMLType.Q8_0)
    elif name == "sparse":
        write_state_model("glm-dsa", path, SPARSE)
    else:
        write_model(TINY[name], path, GGMLType.Q8_0)
    prompts = [PROMPT[:n] + more for n in (81, 64, 65, 63, 7, 32) for more in ([], [9, 8, 7])]
    with open_instance(PLACEMENTS[placement].change(path=path, n_ctx=224, n_ubatch=32)) as instance:
        cold = [run(instance, prompt, cache_prompt=False) for prompt in prompts]
        assert {n_cached for n_cached, _ in cold} == {0}
        run(instance, PROMPT)
        for prompt, (_, expected) in zip(prompts * 2, cold * 2, strict=True):
            n_cached, probs = run(instance, prompt)
            assert n_cached > 0
            assert probs == expected
