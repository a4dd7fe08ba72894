"""Keys and tensors that only encoders have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from arch_pins import FILE, vector, write_pin

from lamella.base.errors import ModelFileError, UnsupportedModelError
from lamella.model.arch import Architecture, open_architecture
from lamella.model.gguf import open_gguf
from lamella.model.pooling import Pooling

PINS = json.loads(FILE.read_text())


def written(name: str, path: Path, **keys: Any) -> Path:
    """Write the model of a pin, with other keys of its architecture."""
    pin = PINS[name]
    own = {f"{pin['arch']}.{key.replace('__', '.')}": value for key, value in keys.items()}
    write_pin({**pin, "keys": pin["keys"] | own}, path)
    return path


def opened(path: Path) -> Architecture:
    with open_gguf(path) as file:
        return open_architecture(file)


def test_activations_of_modern_bert(tmp_path: Path) -> None:
    names = ("gelu", "geglu", "gelu_new", "swiglu", "silu", "reglu")
    vectors = {
        name: vector(written("modern-bert-silu", tmp_path / name, hidden_activation=name))
        for name in names
    }
    assert vectors["silu"] == vectors["swiglu"] == PINS["modern-bert-silu"]["results"]
    assert vectors["gelu"] == vectors["geglu"] != vectors["silu"] != vectors["reglu"]
    assert vectors["gelu_new"] == pytest.approx(vectors["gelu"], abs=1e-2)
    path = written("modern-bert-silu", tmp_path / "other", hidden_activation="xielu")
    with pytest.raises(UnsupportedModelError, match=r"hidden_activation 'xielu'.*only: gelu"):
        opened(path)


def test_nomic_experts_are_in_the_second_layer_of_each_period(tmp_path: Path) -> None:
    arch: Any = opened(written("nomic-bert-moe-3", tmp_path / "m.gguf", moe_every_n_layers=3))
    assert [il for il in range(8) if arch.experts.are_in(il)] == [1, 4, 7]
    path = written("nomic-bert-moe-3", tmp_path / "m.gguf", moe_every_n_layers=0)
    with pytest.raises(ModelFileError, match=r"missing.*blk.1.ffn_up.weight"):
        vector(path)


def test_encoders_do_not_generate(tmp_path: Path) -> None:
    for name in ("eurobert", "llama-embed", "jina-bert-v3", "embeddinggemma-dense"):
        arch = opened(written(name, tmp_path / name))
        assert not arch.hp.causal
        assert not arch.generates


def test_the_row_that_a_classifier_reads(tmp_path: Path) -> None:
    rows = {
        "bge-reranker": Pooling.CLS,
        "modern-bert-silu": Pooling.CLS,  # the file has a key for it
        "modern-bert-reranker-mean": Pooling.MEAN,
        "qwen3-reranker": Pooling.LAST,
    }
    for name, pooling in rows.items():
        assert opened(written(name, tmp_path / name)).classifier_pooling is pooling
