"""The facts of a model from its file, also of one that Lamella cannot run."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf_files import build
from tiny_models import TINY, write_model

from lamella.base.errors import ModelFileError
from lamella.model.description import ModelDescription, describe_model
from lamella.model.gguf import open_gguf


def described(path: Path) -> ModelDescription:
    with open_gguf(path, header_only=True) as file:
        return describe_model(file)


def test_a_model_with_all_facts(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    metadata = {"general.license": "mit", "general.sampling.top_k": 7}
    write_model(TINY["llama"], path, metadata=metadata)
    found, tiny = described(path), TINY["llama"]
    assert (found.architecture, found.is_supported, found.license) == ("llama", True, "mit")
    assert (found.n_layers, found.n_embd) == (tiny.n_layer, tiny.n_embd)
    assert found.sampling == {"top_k": 7}
    assert found.chat_template == ""
    assert found.n_vocab > 0 and found.n_ctx_train > 0
    assert found.n_params > 0 and found.n_bytes < path.stat().st_size


def test_an_unknown_architecture(tmp_path: Path) -> None:
    path = tmp_path / "new.gguf"
    path.write_bytes(build({"general.architecture": "newest", "newest.block_count": 3}))
    found = described(path)
    assert (found.architecture, found.is_supported, found.n_layers) == ("newest", False, 3)
    assert (found.n_params, found.quantization, found.n_vocab, found.vocabulary) == (0, "", 0, "")


def test_a_file_without_an_architecture(tmp_path: Path) -> None:
    path = tmp_path / "none.gguf"
    path.write_bytes(build({}))
    with pytest.raises(ModelFileError, match=r"general\.architecture"):
        described(path)


def test_models_that_compute_embeddings(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    for number, pooling, embeds in ((0, "none", False), (1, "mean", True), (4, "rank", True)):
        write_model(TINY["llama"], path, metadata={"llama.pooling_type": number})
        found = described(path)
        assert (found.pooling, found.embeds) == (pooling, embeds)
    path.write_bytes(build({"general.architecture": "bert"}))
    assert (described(path).pooling, described(path).embeds) == ("", True)
