"""Embeddings on a GPU: near the CPU's, and with the same bits alone and among others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from golden_data import SHARED
from gpus import Gpus
from model_run import loaded

from lamella.model.embed_context import EmbedContext
from lamella.model.params import ContextParams, EmbeddingParams
from lamella.model.pooling import Pooling
from lamella.model.shipped import shipped_model
from lamella.sched.backend import Device

pytestmark = pytest.mark.timeout(900)

BERT = SHARED / "golden" / "arch" / "tiny-bert.gguf"
MODELS = [
    pytest.param(shipped_model(), Pooling.LAST, id="decoder"),
    pytest.param(
        BERT,
        Pooling.MEAN,
        id="bert",
        marks=pytest.mark.skipif(not BERT.exists(), reason="no golden data"),
    ),
]
RNG = np.random.default_rng(0)
TEXTS = [RNG.integers(3, 500, n, np.int32) for n in (5, 18, 1, 7)]


def embed(
    path: Path, pooling: Pooling, devices: Sequence[Device], together: bool
) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    with (
        loaded(path, devices) as model,
        EmbedContext(model, ContextParams(n_ctx=128), EmbeddingParams(pooling=pooling)) as context,
    ):
        if together:
            return context.embed(TEXTS)
        return [context.embed([text])[0] for text in TEXTS]


@pytest.mark.parametrize(("path", "pooling"), MODELS)
def test_vectors(path: Path, pooling: Pooling, gpus: Gpus) -> None:
    together = embed(path, pooling, [gpus.first], together=True)
    alone = embed(path, pooling, [gpus.first], together=False)
    expected = embed(path, pooling, [], together=True)
    for one, own, near in zip(together, alone, expected, strict=True):
        assert np.array_equal(one, own)
        assert np.abs(one - near).max() < 0.01 * np.abs(near).max()
