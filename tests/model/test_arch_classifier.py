"""Classifiers after pooling: a model's scores are those that NumPy computes of the pooled row."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import erf
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from arch_pins import FILE, TOKENS, weights_of, write_pin

from lamella.base.errors import ModelFileError, RequestError
from lamella.kernels.sim import SimDevice
from lamella.model.embed_context import EmbedContext
from lamella.model.loader import load_model
from lamella.model.params import EmbeddingParams
from lamella.model.placement import Placement
from lamella.model.pooling import Pooling
from lamella.sched import DeviceType

F32Array = npt.NDArray[np.float32]
PINS = json.loads(FILE.read_text())
TEXT = np.array(TOKENS, np.int32)


def embedded(path: Path, pooling: Pooling) -> F32Array:
    """Return the vector of TEXT."""
    model = load_model(path, Placement(cpu=SimDevice("CPU", DeviceType.CPU)))
    with model, EmbedContext(model, None, EmbeddingParams(pooling=pooling)) as context:
        found = context.embed([TEXT])[0]
        assert found.shape == (context.n_out,)
    return found


class Classifier:
    """The products of a pin's classifier."""

    def __init__(self, pin: dict[str, Any]) -> None:
        self.weights = {
            name: weights_of(name, ne) for name, ne in pin["tensors"].items() if "cls" in name
        }

    def __call__(self, name: str, x: F32Array) -> F32Array:
        product: F32Array = self.weights[f"{name}.weight"] @ x
        return product + self.weights.get(f"{name}.bias", 0)

    def norm(self, x: F32Array) -> F32Array:
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        normed: F32Array = x * self.weights["cls.norm.weight"]
        return normed


def gelu(x: F32Array) -> F32Array:
    return np.array([v / 2 * (1 + erf(v / 2**0.5)) for v in x], np.float32)


def softmax(x: F32Array) -> F32Array:
    weights = np.exp(x - x.max())
    shares: F32Array = weights / weights.sum()
    return shares


Head = Callable[[Classifier, F32Array], F32Array]
HEADS: dict[str, tuple[Pooling, Head]] = {
    "bge-reranker": (Pooling.CLS, lambda of, x: of("cls.output", np.tanh(of("cls", x)))),
    "jina-reranker-v1": (Pooling.CLS, lambda of, x: np.tanh(of("cls", x))),
    "modern-bert-reranker-mean": (
        Pooling.MEAN,
        lambda of, x: of("cls.output", of.norm(gelu(of("cls", x)))),
    ),
    # a causal model: the last token has seen all others
    "qwen3-reranker": (Pooling.LAST, lambda of, x: softmax(of("cls.output", x))),
}


@pytest.mark.parametrize("name", HEADS)
def test_scores(name: str, tmp_path: Path) -> None:
    write_pin(PINS[name], tmp_path / "m.gguf")
    pooling, head = HEADS[name]
    expected = head(Classifier(PINS[name]), embedded(tmp_path / "m.gguf", pooling))
    actual = embedded(tmp_path / "m.gguf", Pooling.RANK)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_matrices_after_pooling(tmp_path: Path) -> None:
    pin = PINS["embeddinggemma-dense"]
    write_pin(pin, tmp_path / "dense.gguf")
    dense = [name for name in pin["tensors"] if name.startswith("dense_")]
    without = {name: ne for name, ne in pin["tensors"].items() if name not in dense}
    write_pin({**pin, "tensors": without}, tmp_path / "plain.gguf")
    expected = embedded(tmp_path / "plain.gguf", Pooling.MEAN)
    for name in sorted(dense):
        expected = weights_of(name, pin["tensors"][name]) @ expected
    actual = embedded(tmp_path / "dense.gguf", Pooling.MEAN)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["eurobert", "embeddinggemma-dense"])
def test_a_model_without_a_classifier_has_no_scores(name: str, tmp_path: Path) -> None:
    write_pin(PINS[name], tmp_path / "m.gguf")
    with pytest.raises(RequestError, match="has no classifier"):
        embedded(tmp_path / "m.gguf", Pooling.RANK)


def test_labels_and_scores_must_agree(tmp_path: Path) -> None:
    pin = PINS["qwen3-reranker"]
    keys = {**pin["keys"], "qwen3.classifier.output_labels": ["yes", "no", "maybe"]}
    write_pin({**pin, "keys": keys}, tmp_path / "m.gguf")
    with pytest.raises(ModelFileError, match=r"cls.output.weight has \[64, 2\], must have"):
        embedded(tmp_path / "m.gguf", Pooling.RANK)
