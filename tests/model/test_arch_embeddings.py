"""Embeddings of golden models: every encoder, and decoders whose files name a pooling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from arch_goldens import EMBEDDINGS, FOLDER, cases_of
from matrix import first

from lamella.kernels.cpu.device import CpuDevice
from lamella.kernels.sim import SimDevice
from lamella.model.arch import open_architecture
from lamella.model.embed_context import EmbedContext
from lamella.model.gguf import open_gguf
from lamella.model.loader import load_model
from lamella.model.params import EmbeddingParams, PlacementParams
from lamella.model.placement import Placement
from lamella.model.pooling import Pooling
from lamella.sched import DeviceType

Open = Callable[..., EmbedContext]
LIMIT = 2e-3  # of values that are not normalized
COSINE = 0.9999


@pytest.fixture
def opened() -> Iterator[Open]:
    """Open models, and close them afterwards."""
    contexts: list[EmbedContext] = []

    def start(path: Path, pooling: str, *, compiled: bool, n_gpu_layers: int = 0) -> EmbedContext:
        cpu = CpuDevice() if compiled else SimDevice("CPU", DeviceType.CPU)
        devices = (SimDevice("SIM0"),) if n_gpu_layers else ()
        placement = Placement(
            cpu=cpu, devices=devices, params=PlacementParams(n_gpu_layers=n_gpu_layers)
        )
        model = load_model(path, placement)
        params = EmbeddingParams(pooling=Pooling[pooling.upper()])
        contexts.append(EmbedContext(model, None, params))
        return contexts[-1]

    yield start
    for context in contexts:
        context.close()
        context.model.free()


def test_golden_models_are_there() -> None:
    if not FOLDER.exists():
        pytest.skip(f"no golden data: {FOLDER} is absent")
    assert len(EMBEDDINGS) > 0


@pytest.mark.parametrize("compiled", [False, True], ids=["numpy", "compiled"])
@pytest.mark.parametrize("name", EMBEDDINGS)
def test_vectors(name: str, opened: Open, compiled: bool) -> None:
    all_cases = cases_of(EMBEDDINGS[name])
    for pooling in {case["pooling"] for case in all_cases}:
        cases = [case for case in all_cases if case["pooling"] == pooling]
        context = opened(EMBEDDINGS[name], pooling, compiled=compiled)
        texts = [np.array(case["prompt_tokens"], np.int32) for case in cases]
        for case, vector in zip(cases, context.embed(texts), strict=True):
            expected = np.array(case["embedding"], np.float32)
            assert np.abs(vector - expected).max() <= LIMIT
            assert cosines(vector, expected).min() >= COSINE


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_all_keys_are_read(name: str) -> None:
    with open_gguf(EMBEDDINGS[name]) as file:
        arch = open_architecture(file)
        assert arch.notes(n_ctx=1) == []


@pytest.mark.parametrize("name", first(3, EMBEDDINGS))
def test_a_text_has_the_same_bits_alone_among_a_thousand_and_split(name: str, opened: Open) -> None:
    case = cases_of(EMBEDDINGS[name])[-1]
    text = np.array(case["prompt_tokens"], np.int32)
    rng = np.random.default_rng(0)
    others = [text[: rng.integers(1, 40)] for _ in range(999)]
    context = opened(EMBEDDINGS[name], case["pooling"], compiled=True)
    alone = context.embed([text])[0]
    among = context.embed([*others[:500], text, *others[500:]])
    assert np.array_equal(among[500], alone)
    short = list(range(0, 999, 111))
    for i in short:
        assert np.array_equal(context.embed([others[i]])[0], among[i + (i >= 500)])
    whole = opened(EMBEDDINGS[name], case["pooling"], compiled=False)
    split = opened(EMBEDDINGS[name], case["pooling"], compiled=False, n_gpu_layers=2)
    assert np.array_equal(split.embed([text[:50]])[0], whole.embed([text[:50]])[0])


def cosines(x: npt.NDArray[np.float32], y: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the cosine of each row of x and y, [..., n]."""
    lengths = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
    found: npt.NDArray[np.float32] = (x * y).sum(axis=-1) / lengths
    return found
