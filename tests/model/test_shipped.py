"""The model that comes with Lamella: its checksum, its metadata, its answers."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import evaluate
import pytest
from card import sha256

import lamella
from lamella.model.gguf import open_gguf
from lamella.model.shipped import FOLDER, NAME, shipped_model

ROOT = Path(__file__).resolve().parents[2]
ANSWERS = json.loads((ROOT / "models" / "greedy.json").read_text("utf-8"))


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


DEVICES: dict[str, dict[str, object]] = {
    "cpu": {"devices": ["none"]},
    "cpu unpacked": {"devices": ["none"], "repack": False},
    "sim+cpu": {"devices": ["sim"], "n_gpu_layers": 3},
    "sim+cpu unpacked": {"devices": ["sim"], "n_gpu_layers": 3, "repack": False},
    "sim": {"devices": ["sim"], "n_gpu_layers": -1},
}


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, str]]:
    return {
        name: evaluate.greedy_answers(shipped_model(), **options)
        for name, options in DEVICES.items()
    }


@pytest.mark.parametrize("devices", DEVICES)
def test_greedy_answers_are_the_stored_ones(
    answers: dict[str, dict[str, str]], devices: str
) -> None:
    assert len(evaluate.GREEDY) == 10
    for asked in evaluate.GREEDY:
        assert answers[devices][asked] == ANSWERS[asked], asked


def test_stories_are_the_same_for_equal_arithmetic(answers: dict[str, dict[str, str]]) -> None:
    stories = {devices: found[evaluate.STORY] for devices, found in answers.items()}
    assert stories["cpu"] == ANSWERS[evaluate.STORY]
    # a simulated device has the kernels for plain weights, and so their bits
    assert stories["cpu unpacked"] == stories["sim+cpu unpacked"] == stories["sim"]


def test_load_without_a_file_opens_it() -> None:
    with lamella.load(n_ctx=64, devices=["none"]) as model:
        assert NAME in repr(model)


def test_a_changed_file_is_an_error(tmp_path: Path) -> None:
    for name in (NAME, f"{NAME}.sha256"):
        shutil.copy(FOLDER / name, tmp_path)
    assert shipped_model(tmp_path) == tmp_path / NAME
    with (tmp_path / NAME).open("r+b") as file:
        file.seek(1_000_000)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(lamella.ModelFileError) as error:
        shipped_model(tmp_path)
    for part in (str(tmp_path / NAME), sha256(tmp_path / NAME), "must be", "-m FILE"):
        assert part in str(error.value)


@pytest.mark.parametrize("missing", [NAME, f"{NAME}.sha256"])
def test_a_missing_file_is_an_error(tmp_path: Path, missing: str) -> None:
    for name in {NAME, f"{NAME}.sha256"} - {missing}:
        shutil.copy(FOLDER / name, tmp_path)
    with pytest.raises(lamella.ModelFileError, match="cannot be read: No such file") as error:
        shipped_model(tmp_path)
    assert str(tmp_path / missing) in str(error.value)
