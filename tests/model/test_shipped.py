"""The model that comes with Lamella: its checksum, its metadata."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
from card import sha256

from lamella.base.errors import ModelFileError
from lamella.model.gguf import open_gguf
from lamella.model.shipped import FOLDER, NAME, shipped_model

ROOT = Path(__file__).resolve().parents[2]


def test_the_file_has_the_stored_checksum() -> None:
    path = shipped_model()
    assert path == ROOT / "models" / NAME
    assert path.stat().st_size <= 6_000_000
    assert path.with_name(f"{NAME}.sha256").read_text("ascii") == f"{sha256(path)}  {NAME}\n"
    assert sha256(path) in (ROOT / "models" / "README.md").read_text("utf-8")


def test_the_file_has_metadata_about_itself() -> None:
    with open_gguf(shipped_model()) as file:
        meta = file.metadata
        assert meta.str("general.architecture") == "llama"
        assert meta.str("general.name") == "Lamella Stories"
        assert meta.str("general.license") == "mit"
        assert "comes with Lamella" in meta.str("general.description")
        assert 1000 <= len(meta.strings("tokenizer.ggml.tokens")) <= 2000
        assert "<|im_start|>" in meta.str("tokenizer.chat_template")
        assert {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"} <= set(meta)
        n_weights = sum(math.prod(tensor.ne) for tensor in file.tensors.values())
        assert 3e6 <= n_weights <= 8e6


def test_a_changed_file_is_an_error(tmp_path: Path) -> None:
    for name in (NAME, f"{NAME}.sha256"):
        shutil.copy(FOLDER / name, tmp_path)
    assert shipped_model(tmp_path) == tmp_path / NAME
    with (tmp_path / NAME).open("r+b") as file:
        file.seek(1_000_000)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(ModelFileError) as error:
        shipped_model(tmp_path)
    for part in (str(tmp_path / NAME), sha256(tmp_path / NAME), "must be", "-m FILE"):
        assert part in str(error.value)


@pytest.mark.parametrize("missing", [NAME, f"{NAME}.sha256"])
def test_a_missing_file_is_an_error(tmp_path: Path, missing: str) -> None:
    for name in {NAME, f"{NAME}.sha256"} - {missing}:
        shutil.copy(FOLDER / name, tmp_path)
    with pytest.raises(ModelFileError, match="cannot be read: No such file") as error:
        shipped_model(tmp_path)
    assert str(tmp_path / missing) in str(error.value)
