"""Prompts whose pages left the pool come back from memory and files, with equal bits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from fake_context import FakeContext, Recorder, job, make_engine
from matrix import combinations
from open_params import open_params
from state_models import write_state_model
from tiny_models import TINY, write_model
from window_models import write_window_model

from lamella.base.errors import RequestError
from lamella.graph import GGMLType
from lamella.kernels.cpu import CpuDevice
from lamella.model.page_store import PageStore
from lamella.model.sampling import TokenLogprob
from lamella.runtime import page_cache
from lamella.runtime.fit import plan_model
from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance
from lamella.runtime.params import OpenParams, RequestParams
from lamella.runtime.saved_prefix import forget_prefix
from lamella.runtime.text import generate

PLACEMENTS = {
    "cpu": open_params("", devices=("none",)),
    "cpu-q8": open_params("", devices=("none",), type_k="q8_0", type_v="q8_0"),
    # no op offload: it would make the device of a token depend on the size of its chunk
    "sim+cpu": open_params("", devices=("sim",), n_gpu_layers=1, op_offload=False),
    "two": open_params("", devices=("sim", "sim"), n_gpu_layers=-1),
}
CPU = PLACEMENTS["cpu"]
SECONDS = 20.0
STATES = ("states", "mamba")
KINDS = ("full", "windows", *STATES)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("model")
    write_model(TINY["llama"], folder / "full.gguf", GGMLType.Q8_0)
    write_window_model(folder / "windows.gguf", n_swa=40)
    write_state_model("qwen35", folder / "states.gguf")
    write_state_model("mamba", folder / "mamba.gguf")
    return {path.stem: path for path in folder.iterdir()}


def opened(params: OpenParams, path: Path, **more: object) -> OpenParams:
    """A pool of 8 pages, and few slots: one long prompt pushes out the one before it."""
    given = {"n_ctx": 256, "n_ubatch": 32, "n_parallel": 2, "swa_prefix": 0, "cache_ram": 64}
    given |= {"ctx_checkpoints": 1}
    return params.change(path=path, **{**given, **more})


def prompt(seed: int, n: int = 150) -> list[int]:
    random_ids = random.Random(seed)
    return [1, *(random_ids.randrange(3, 250) for _ in range(n - 1))]


def run(
    instance: Instance, tokens: Sequence[int], **how: object
) -> tuple[int, list[tuple[TokenLogprob, ...]]]:
    """The number of cached tokens, and the exact probabilities at each position."""
    given = {"temperature": 0, "n_predict": 5, "ignore_eos": True, **how}
    params = RequestParams.make(given)
    made = generate(instance.engine, instance.vocab, tokens, params, n_probs=9)
    probs = [(at.chosen, *at.top) for piece in made for at in piece.probs]
    return made.result.n_cached, probs


def store_of(instance: Instance) -> PageStore:
    store = instance.engine.store
    assert store is not None
    return store


@pytest.mark.parametrize(("kind", "placement"), combinations(KINDS, PLACEMENTS))
def test_restored_prefixes_change_no_bit(paths: dict[str, Path], kind: str, placement: str) -> None:
    params = opened(PLACEMENTS[placement], paths[kind])
    # without pages, the slots have room for six states
    prompts = [prompt(seed) for seed in range(8 if kind == "mamba" else 4)]
    with open_instance(params) as instance:
        cold = [run(instance, tokens, cache_prompt=False) for tokens in prompts]
        assert len(store_of(instance)) == 0
        for tokens in prompts:
            run(instance, tokens)
        for tokens, (_, expected) in zip(prompts, cold, strict=True):
            assert run(instance, tokens) == (128, expected)
        # the first 2 pages, and other tokens
        mixed = [*prompts[0][:70], *prompts[1][:60]]
        expected = run(instance, mixed, cache_prompt=False)[1]
        n_cached, found = run(instance, mixed)
        assert found == expected
        assert n_cached == 64 if kind == "full" else n_cached in (0, 64)
        counts = store_of(instance).counts
        assert (
            counts.n_restored >= (128 if kind == "mamba" else 4 * 128 - 64)
            and counts.n_dropped == 0
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_process_reads_the_pages(tmp_path: Path, paths: dict[str, Path], kind: str) -> None:
    params = opened(CPU, paths[kind], prompt_cache_dir=str(tmp_path / "cache"))
    first, second = prompt(1), prompt(2)
    with open_instance(params) as instance:
        expected = [run(instance, tokens)[1] for tokens in (first, second)]
    with open_instance(params) as instance:
        files = store_of(instance).files
        assert files is not None
        for tokens, probs in zip((first, second), expected, strict=True):
            assert run(instance, tokens) == (128, probs)
        n_cached = run(instance, [*first[:100], 7, 7, 7])[0]
        assert n_cached >= 64 or kind in STATES  # these have a state of 128 tokens
        assert files.counts.n_read >= (2 if kind == "mamba" else 8) and files.counts.n_refused == 0
    if kind != "full":
        return
    # another model, type of keys, or placement finds nothing, and evaluates
    for other in (
        params.change(path=paths["windows"]),
        params.change(type_k="q8_0"),
        params.change(devices=("sim",), n_gpu_layers=1, op_offload=False),
    ):
        with open_instance(other) as instance:
            files = store_of(instance).files
            assert files is not None
            assert run(instance, first)[0] == 0


def test_states_that_are_large_for_the_memory_go_to_files(
    tmp_path: Path,
    paths: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They have 9.5 KiB, and pages on their way to files usually an eighth of the memory."""
    monkeypatch.setattr(page_cache, "MIB", 1 << 10)
    params = opened(CPU, paths["mamba"], prompt_cache_dir=str(tmp_path))
    for cache_ram, n_cached in ((30, 0), (30, 128), (16, 0), (8, 0)):
        if cache_ram < 30:
            params = params.change(prompt_cache_dir=str(tmp_path / str(cache_ram)))
        with open_instance(params.change(cache_ram=cache_ram)) as instance:
            assert run(instance, prompt(1))[0] == n_cached
    assert caplog.messages == [
        "cache_ram: a page or the states of a prompt have 9.6 MiB, room is for 2.0 MiB: "
        "they are written to no file",
        "cache_ram: a page or the states of a prompt have 9.6 MiB, room is for 7.0 MiB: "
        "they are lost when they leave the context",
    ]


def test_damaged_files_are_evaluated_again(tmp_path: Path, paths: dict[str, Path]) -> None:
    params = opened(CPU, paths["full"], prompt_cache_dir=str(tmp_path))
    tokens = prompt(1)
    with open_instance(params) as instance:
        expected = run(instance, tokens)[1]
    for file in tmp_path.iterdir():
        raw = bytearray(file.read_bytes())
        raw[-50] ^= 1
        file.write_bytes(raw)
    with open_instance(params) as instance:
        files = store_of(instance).files
        assert files is not None
        assert run(instance, tokens) == (0, expected)
        assert files.counts.n_refused == 1  # those after the first page are not looked at
    with open_instance(params) as instance:
        files = store_of(instance).files
        assert files is not None
        assert run(instance, prompt(2))[0] == 0


@pytest.mark.parametrize("kind", ["full", "mamba", pytest.param("states", marks=pytest.mark.full)])
def test_random_lives_beside_each_other(tmp_path: Path, paths: dict[str, Path], kind: str) -> None:
    """Conversations of several clients with a pool, memory and a folder that are too small."""
    rng = random.Random(5)
    talks = [prompt(seed, 40) for seed in range(6)]
    asked = list[list[int]]()
    for _ in range(24):
        tokens = rng.choice(talks)
        if len(tokens) > 180:
            del tokens[rng.randrange(40, 180) :]
        asked.append(list(tokens))
        tokens += prompt(rng.randrange(1000), rng.randrange(5, 60))[1:]
    # a page has 16 KiB, the memory 16 pages and the folder 32
    path = paths[kind]
    with open_instance(opened(CPU, path, cache_ram=0)) as instance:
        assert instance.engine.store is None
        expected = [run(instance, tokens, cache_prompt=False)[1] for tokens in asked]
    files = {"prompt_cache_dir": str(tmp_path), "cache_ram": 1, "prompt_cache_size": 1}
    params = opened(CPU, path, ctx_checkpoints=2, **files)
    n_cached = 0
    first, second = asked[:12], asked[12:]
    for part in (first, second):
        with open_instance(params) as instance:
            store = store_of(instance)
            assert store.files is not None

            with ThreadPoolExecutor(3) as pool:
                found = list(pool.map(lambda tokens, i=instance: run(i, tokens), part))
            assert store.n_bytes <= 1 << 20
            n_cached += store.counts.n_restored
        begin = 0 if part is first else 12
        assert [found[i][1] for i in range(12)] == expected[begin : begin + 12]
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 1 << 20
    assert n_cached > (300 if kind == "full" else 100)


def test_nobody_gets_the_pages_of_another_salt() -> None:
    store = PageStore(None)
    engine = make_engine(FakeContext(32), store=store)  # 8 pages of 4
    engine.start()

    def n_cached(first: int, salt: str) -> int:
        sink = Recorder()
        tokens = [first, *range(4, 30)]
        engine.submit(replace(job(sink, *tokens, n_predict=1), salt=salt))
        return sink.result().n_cached

    assert [n_cached(3, "mine"), n_cached(4, "mine"), n_cached(3, "mine")] == [0, 0, 24]
    assert [n_cached(4, "yours"), n_cached(3, "yours"), n_cached(3, "")] == [0, 0, 0]
    assert [n_cached(3, "mine"), n_cached(4, "mine"), n_cached(3, "yours")] == [24, 24, 24]
    engine.close()


def test_erased_prefixes_do_not_come_back(tmp_path: Path, paths: dict[str, Path]) -> None:
    params = opened(CPU, paths["full"], prompt_cache_dir=str(tmp_path))
    with open_instance(params) as instance:
        run(instance, prompt(1))
        run(instance, prompt(2, 250))  # all pages of the pool
        forget_prefix(instance, prompt(1))
        assert run(instance, prompt(1))[0] == 1  # the first token is the other prompt's too


def test_a_shift_and_a_preemption_keep_their_bits(paths: dict[str, Path]) -> None:
    how = {"n_predict": 200, "context_shift": True, "n_keep": 64}
    texts = list[object]()
    for cache_ram in (0, 64):
        with open_instance(opened(CPU, paths["full"], cache_ram=cache_ram)) as instance:
            with ThreadPoolExecutor(3) as pool:
                runs = [pool.submit(run, instance, prompt(seed, 120), **how) for seed in range(3)]
            texts.append([each.result()[1] for each in runs])
            if instance.engine.store is not None:
                assert instance.engine.store.counts.n_restored > 0
    assert texts[0] == texts[1]


def test_without_memory_there_is_no_folder(tmp_path: Path, paths: dict[str, Path]) -> None:
    params = opened(CPU, paths["full"], cache_ram=0, prompt_cache_dir=str(tmp_path))
    with pytest.raises(RequestError, match=r"prompt_cache_dir: pages .* need memory"):
        open_instance(params)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(RequestError, match=r"prompt_cache_dir: .*file is not a folder"):
        params.change(prompt_cache_dir=str(file))
    with pytest.raises(RequestError, match=r"prompt_cache_dir: .*below cannot be made"):
        open_instance(params.change(cache_ram=1, prompt_cache_dir=str(file / "below")))


def test_the_plan_chooses_the_memory(paths: dict[str, Path]) -> None:
    params = CPU.change(path=paths["full"], n_ctx=256)
    plan = plan_model(params)
    host = plan.devices[-1]
    chosen = plan.params.cache.cache_ram
    assert chosen == min(8192, (host.free - host.needed) // 4 >> 20)
    assert plan_model(params.change(cache_ram=7)).params.cache.cache_ram == 7
    large = plan_model(params.change(cache_ram=2**31 - 1))
    assert "the prompt cache may grow to 2097152.00 GiB (-cram)" in large.notes[-1]
    assert plan_model(params.change(embeddings=True)).params.cache.cache_ram == 0


def test_the_memory_is_what_a_draft_model_leaves(
    paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    params = CPU.change(path=paths["full"], n_ctx=32768, draft_model=str(paths["full"]))
    plan = plan_model(params)
    assert plan.draft is not None and plan.draft.devices[-1].needed > 4 << 20
    needed = plan.devices[-1].needed + plan.draft.devices[-1].needed
    monkeypatch.setattr(CpuDevice, "memory", lambda _: (needed + (64 << 20), 64 << 30))
    assert plan_model(params).params.cache.cache_ram == 16
    assert plan_model(params.change(cache_ram=64)).notes == plan.notes
    noted = plan_model(params.change(cache_ram=65)).notes[-1]
    assert noted.endswith("(-cram): the model leaves 64.00 MiB of memory free")
