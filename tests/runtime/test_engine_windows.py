"""An engine over a model shaped like Gemma 3: five of six layers see the last 512 tokens only."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fake_context import Recorder, job
from open_params import open_params
from test_prefix_bits import PLACEMENTS, run
from tiny_models import N_VOCAB
from window_models import write_window_model

from lamella.model.kv_pages import PAGE_SIZE
from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance

N_SYSTEM, N_CHATS = 2000, 20
RANDOM = random.Random(5)
SYSTEM = [RANDOM.randrange(3, N_VOCAB) for _ in range(N_SYSTEM)]
CHATS = [[RANDOM.randrange(3, N_VOCAB) for _ in range(20 + 3 * i)] for i in range(N_CHATS)]
CPU = open_params("", devices=("none",), n_threads=1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_window_model(path)
    return path


def submit(instance: Instance, prompt: list[int], *, cache_prompt: bool = True) -> Recorder:
    sink = Recorder()
    how = {"n_predict": 8, "ignore_eos": True, "cache_prompt": cache_prompt}
    instance.engine.submit(job(sink, *prompt, n_probs=0, **how))
    return sink


def test_chats_evaluate_their_system_prompt_once(path: Path) -> None:
    """Their tokens are the same as without sharing."""
    with open_instance(CPU.change(path=path, n_ctx=16384, n_parallel=4)) as instance:
        assert [group.name for group in instance.context.groups] == ["window 512", "full"]
        assert instance.context.pool.gives_back
        sinks = [submit(instance, SYSTEM + chat) for chat in CHATS]
        whole_pages = N_SYSTEM // PAGE_SIZE * PAGE_SIZE
        assert all(sink.result().n_cached >= whole_pages for sink in sinks[1:])
        n_own = sum(len(chat) for chat in CHATS)
        assert instance.engine.counters.n_prompt <= N_SYSTEM + n_own + N_CHATS * PAGE_SIZE
        for i in (0, 7, 19):
            alone = submit(instance, SYSTEM + CHATS[i], cache_prompt=False)
            assert alone.result().n_cached == 0
            assert alone.tokens == sinks[i].tokens


def test_a_full_pool_preempts_and_evicts_without_a_change_of_tokens(path: Path) -> None:
    """The pools hold few jobs and almost no prefix."""
    prompts = [SYSTEM[:n] + chat for n, chat in zip((900, 40, 700, 900, 600), CHATS, strict=False)]
    params = CPU.change(path=path, n_parallel=4, n_ubatch=64)
    with open_instance(params.change(n_ctx=2048, swa_full=True)) as instance:
        expected = []
        for prompt in prompts:
            sink = submit(instance, prompt, cache_prompt=False)
            sink.result()
            expected.append(sink.tokens)
    with open_instance(params.change(n_ctx=2600, swa_prefix=0)) as instance:
        assert instance.context.pool.gives_back
        sinks = [submit(instance, prompt) for prompt in prompts * 2]
        for sink in sinks:
            sink.result()
        assert [sink.tokens for sink in sinks] == expected * 2


@pytest.mark.parametrize(
    ("placement", "n_layer"),
    [("cpu", 6), ("sim+cpu", 6), ("two", 6), ("cpu", 2)],  # two layers: windows only
)
def test_cached_prefixes_change_no_bit(tmp_path: Path, placement: str, n_layer: int) -> None:
    path = tmp_path / "tiny.gguf"
    write_window_model(path, n_layer=n_layer, n_swa=40)
    prompts = [SYSTEM[:n] + more for n in (181, 164, 165, 63, 32) for more in ([], [9, 8, 7])]
    params = PLACEMENTS[placement].change(path=path, n_ctx=512, n_ubatch=32)
    with open_instance(params.change(n_parallel=2, swa_prefix=64)) as instance:
        assert instance.context.pool.gives_back
        cold = [run(instance, prompt, cache_prompt=False) for prompt in prompts]
        run(instance, SYSTEM[:181])
        n_reused = 0
        for prompt, (_, expected) in zip(prompts * 2, cold * 2, strict=True):
            n_cached, probs = run(instance, prompt)
            n_reused += n_cached > 0
            assert probs == expected
        assert n_reused >= len(prompts)
