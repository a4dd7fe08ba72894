"""Files of LoRA adapters: what is read, and what is wrong with broken ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_adapter import write_adapter

from lamella.base.errors import ModelFileError, UnsupportedModelError
from lamella.model.adapter_file import read_adapter

Q, K = "blk.0.attn_q.weight", "blk.0.attn_k.weight"


def pair(name: str, rank: int = 2) -> dict[str, Any]:
    """The tensors of a pair for a matrix [8, 6]."""
    return {
        f"{name}.lora_a": np.ones((rank, 8), np.float32),
        f"{name}.lora_b": np.ones((6, rank), np.float32),
    }


def test_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    keys = {"adapter.lora.task_name": "translate", "adapter.lora.prompt_prefix": "To French: "}
    write_adapter(path, "llama", {**pair(Q, 2), **pair(K, 1)}, alpha=16.0, metadata=keys)
    found = read_adapter(path, 0.5)
    assert (found.path, found.scale, found.name, found.arch) == (path, 0.5, "a", "llama")
    assert (found.task_name, found.prompt_prefix) == ("translate", "To French: ")
    assert found.ranks == [1, 2]
    assert [found.factor(found.pairs[name]) for name in (Q, K)] == [8.0, 16.0]


def test_without_alpha_the_factor_is_1(tmp_path: Path) -> None:
    write_adapter(tmp_path / "a.gguf", "llama", pair(Q))
    found = read_adapter(tmp_path / "a.gguf")
    assert found.factor(found.pairs[Q]) == 1.0


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.type": "model"}, "general.type is 'model': must be 'adapter'"),
        ({"general.type": ""}, "general.type is missing: must be 'adapter'"),
        ({"adapter.type": "dora"}, "adapter.type is 'dora': must be 'lora'"),
        ({"adapter.alora.invocation_tokens": [1, 2]}, "activated LoRA .* is not supported yet"),
    ],
)
def test_wrong_keys(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    write_adapter(tmp_path / "a.gguf", "llama", pair(Q), metadata=metadata)
    with pytest.raises(ModelFileError, match=rf"a\.gguf: .*{message}"):
        read_adapter(tmp_path / "a.gguf")


def test_alpha_must_be_finite(tmp_path: Path) -> None:
    write_adapter(tmp_path / "a.gguf", "llama", pair(Q), alpha=float("inf"))
    with pytest.raises(ModelFileError, match=r"adapter.lora.alpha is inf: must be finite"):
        read_adapter(tmp_path / "a.gguf")


@pytest.mark.parametrize("kind", ["lora_a", "lora_b"])
def test_half_a_pair(tmp_path: Path, kind: str) -> None:
    tensors = pair(Q)
    del tensors[f"{Q}.{kind}"]
    write_adapter(tmp_path / "a.gguf", "llama", tensors)
    with pytest.raises(ModelFileError, match=rf"tensor {Q}\.{kind} is missing"):
        read_adapter(tmp_path / "a.gguf")


def test_other_tensors(tmp_path: Path) -> None:
    norm = {"blk.0.attn_norm.weight": np.ones(8, np.float32)}
    write_adapter(tmp_path / "a.gguf", "llama", {**pair(Q), **norm})
    with pytest.raises(UnsupportedModelError, match=r"tensor blk\.0\.attn_norm\.weight: an ada"):
        read_adapter(tmp_path / "a.gguf")


def test_no_tensors(tmp_path: Path) -> None:
    write_adapter(tmp_path / "a.gguf", "llama", {})
    with pytest.raises(ModelFileError, match="the adapter has no tensors"):
        read_adapter(tmp_path / "a.gguf")


def test_a_file_that_is_missing_or_foreign(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such file"):
        read_adapter(tmp_path / "a.gguf")
    (tmp_path / "a.gguf").write_bytes(b"algg\x01\0\0\0")
    with pytest.raises(ModelFileError, match="ggml's old format 'ggla'"):
        read_adapter(tmp_path / "a.gguf")
