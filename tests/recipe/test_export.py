"""The file: Lamella loads it, with vocabulary, template, stop tokens and license."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from export import TYPES
from tiny_model import tiny_pieces, tiny_shape, write_tiny
from vocabulary import BOS, END, EOS, TEMPLATE

import lamella
from lamella.model.gguf import open_gguf
from lamella.model.vocab import load_vocab


@pytest.mark.parametrize("type", TYPES)
def test_the_file_loads_and_generates(tmp_path: Path, type: str) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", type)
    assert not list(tmp_path.glob("*.part"))
    with lamella.load(path, n_threads=1) as model:
        ids = model.tokenize("Once upon a time")
        assert ids == tiny_pieces().vocab().tokenize("Once upon a time")
        assert model.logits(ids).shape == (len(ids), tiny_shape().n_vocab)
        assert "".join(model.generate(ids, n_predict=4, temperature=0.0)) is not None


def test_quantized_logits_are_close(tmp_path: Path) -> None:
    ids = list(range(300, 340))
    logits = []
    for type in ("F32", "Q8_0"):
        with lamella.load(write_tiny(tmp_path / f"{type}.gguf", type), n_threads=1) as model:
            logits.append(model.logits(ids))
    assert np.abs(logits[0] - logits[1]).max() < 0.1 * np.abs(logits[0]).max()


def test_metadata_of_the_file(tmp_path: Path) -> None:
    with open_gguf(write_tiny(tmp_path / "tiny.gguf", "Q8_0")) as file:
        metadata = file.metadata
        assert metadata.str("general.license") == "mit"
        assert metadata.str("general.architecture") == "llama"
        assert metadata.str("general.name")
        assert metadata.str("tokenizer.chat_template") == TEMPLATE
        assert metadata.int("llama.context_length", None) == tiny_shape().n_ctx
        vocab = load_vocab(metadata)
    assert vocab.eog == {EOS, END}
    assert (vocab.bos, vocab.eos, vocab.eot) == (BOS, EOS, END)
    assert vocab.add_bos
    assert not vocab.add_space_prefix
