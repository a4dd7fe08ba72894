"""Models partly on a GPU, models on two GPUs, and two contexts at once on one GPU."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
from gpus import Gpus, emulated_gpus
from model_files import KNOWN, ModelFiles
from model_run import (
    MOST_DIVERGENCE,
    divergence,
    greedy,
    loaded,
    logits_of,
    opened,
    some_tokens,
    splits_of,
)

from lamella.graph import Op
from lamella.model.context import Context
from lamella.model.params import ContextParams
from lamella.sched.backend import Device

pytestmark = pytest.mark.timeout(900)

SHAPES = {True: "0.5b", False: "deep"}  # for real and for emulated GPUs


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "n_layers_on_gpu" in metafunc.fixturenames:
        n_layer = KNOWN[SHAPES[metafunc.config.getoption("--cuda")]].n_layer
        names = ("n_layers_on_gpu", "op_offload")
        some = {(0, True), (n_layer // 2, False), (n_layer, True)}
        every = product(range(n_layer + 2), [True, False])
        metafunc.parametrize(
            names,
            [pytest.param(*one, marks=() if one in some else pytest.mark.full) for one in every],
        )


def random_model(gpus: Gpus, files: ModelFiles, type: str = "Q4_0") -> Path:
    return files.random(SHAPES[gpus.is_real], type)


def products_on_cpu(context: Context, n_tokens: int) -> bool:
    """True if the CPU computes products in the graph for `n_tokens` tokens."""
    nodes = [(s.backend.name, n.op) for s in splits_of(context, n_tokens) for n in s.graph.nodes]
    assert Op.MUL_MAT in {op for _, op in nodes}
    return ("CPU", Op.MUL_MAT) in nodes


# --- any number of layers ---


def test_every_number_of_layers(
    gpus: Gpus, files: ModelFiles, n_layers_on_gpu: int, op_offload: bool
) -> None:
    path = random_model(gpus, files)
    with (
        opened(path) as on_cpu,
        opened(path, gpus.devices[:1], n_layers_on_gpu, op_offload) as context,
    ):
        tokens = some_tokens(context, 45)
        expected = logits_of(on_cpu, tokens)
        large, small = logits_of(context, tokens), logits_of(context, tokens, 43, 1)
        for logits in (large, small):
            assert divergence(logits, expected) <= MOST_DIVERGENCE
        # with op offload, the device computes large batches with copies of the CPU's weights
        some_on_cpu = n_layers_on_gpu <= context.model.hp.n_layer
        assert products_on_cpu(context, 1) is some_on_cpu
        assert products_on_cpu(context, 64) is (some_on_cpu and not op_offload)
        # copied during the work, they give the same bits each time
        other = logits_of(context, tokens[::-1])
        for _ in range(gpus.pick(5, 1)):
            assert logits_of(context, tokens).tobytes() == large.tobytes()
            assert logits_of(context, tokens[::-1]).tobytes() == other.tobytes()


@pytest.mark.parametrize("name", [pytest.param("mixtral", marks=pytest.mark.full), "qwen3moe"])
def test_experts_that_stay_on_the_cpu(gpus: Gpus, files: ModelFiles, name: str) -> None:
    path = files.tiny(name, "Q8_0")
    with opened(path) as on_cpu:
        tokens = some_tokens(on_cpu, 40)
        expected = logits_of(on_cpu, tokens)
    for n_gpu_layers in gpus.pick(range(4), (0, 2)):
        with opened(path, gpus.devices[:1], n_gpu_layers) as context:
            for chunks in ((), (35, 1)):
                assert divergence(logits_of(context, tokens, *chunks), expected) <= MOST_DIVERGENCE


def test_keys_and_values_that_stay_on_the_cpu(gpus: Gpus, files: ModelFiles) -> None:
    path = random_model(gpus, files, "Q8_0")
    with opened(path) as on_cpu:
        tokens = some_tokens(on_cpu, 40)
        expected = logits_of(on_cpu, tokens)
    for n_gpu_layers in (2, -1):
        with opened(path, gpus.devices[:1], n_gpu_layers, kv_offload=False) as context:
            logits = logits_of(context, tokens, 32, 1)
            assert divergence(logits, expected) <= MOST_DIVERGENCE


# --- two GPUs ---


@pytest.mark.parametrize(
    "share",
    [(3.0, 1.0), *(pytest.param(s, marks=pytest.mark.full) for s in (None, (1.0, 4.0)))],
    ids=str,
)
def test_two_gpus_share_the_layers(
    gpus: Gpus, files: ModelFiles, share: tuple[float, ...] | None
) -> None:
    two = gpus.two()
    path = random_model(gpus, files)
    with opened(path, two[:1]) as context:
        tokens = some_tokens(context, 40)
        alone = logits_of(context, tokens)
    with (
        loaded(path, two, tensor_split=share) as model,
        Context(model, ContextParams(n_ctx=256, n_ubatch=64)) as context,
    ):
        for chunks in ((), (36, 1), ()):
            assert logits_of(context, tokens, *chunks).tobytes() == alone.tobytes()
        for n_tokens in (1, 64):
            splits = splits_of(context, n_tokens)
            assert [s.backend.name for s in splits] == ["CPU", two[0].name, two[1].name]


def test_two_gpus_and_the_cpu(gpus: Gpus, files: ModelFiles) -> None:
    two = gpus.two()
    path = random_model(gpus, files)
    with opened(path) as on_cpu, opened(path, two, 4) as context:
        tokens = some_tokens(context, 40)
        expected = logits_of(on_cpu, tokens)
        for chunks in ((), (36, 1)):
            assert divergence(logits_of(context, tokens, *chunks), expected) <= MOST_DIVERGENCE


def test_the_order_of_streams_does_not_matter(gpus: Gpus, files: ModelFiles) -> None:
    """Copies, ahead of work or between devices, wait for all the work that they depend on."""
    if gpus.is_real:
        pytest.skip("a real device has its own order")
    path, n_layers = random_model(gpus, files), (1, 4)
    tokens = list(range(3, 43))

    def found(devices: Sequence[Device]) -> list[bytes]:
        results = []
        for n_gpu_layers in n_layers:
            with opened(path, devices, n_gpu_layers) as context:
                results += [logits_of(context, t, 38, 1).tobytes() for t in (tokens, tokens[::-1])]
        return results

    expected = found(gpus.devices)
    with emulated_gpus(seed=0) as others:
        assert found(others.devices) == expected


# --- two contexts ---


@pytest.mark.parametrize("n_gpu_layers", [pytest.param(-1, marks=pytest.mark.full), 2])
def test_two_contexts_at_once(gpus: Gpus, files: ModelFiles, n_gpu_layers: int) -> None:
    path = random_model(gpus, files)
    n, steps, seeds = gpus.pick((40, 100, (1, 2, 3)), (35, 3, (1, 2)))
    with loaded(path, gpus.devices[:1], n_gpu_layers=n_gpu_layers) as model:

        def run(seed: int, found: dict[int, Sequence[int]]) -> None:
            with Context(model, ContextParams(n_ctx=256, n_ubatch=64)) as context:
                found[seed] = greedy(context, some_tokens(context, n, seed), steps)

        alone: dict[int, Sequence[int]] = {}
        for seed in seeds:
            run(seed, alone)
        together: dict[int, Sequence[int]] = {}
        threads = [threading.Thread(target=run, args=(seed, together)) for seed in alone]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert together == alone
    assert len({tuple(tokens) for tokens in alone.values()}) == len(seeds)
